"""What a model costs to hold, run, train and serve, part by part, from its facts alone: no tensor is made."""

from glassformer.inspect.account.account import Account as Account
from glassformer.inspect.account.account import account as account
