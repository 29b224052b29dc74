"""The cost of running, training and serving a model, part by part, counted by running it on fake tensors."""

from typing import TYPE_CHECKING, Any

from glassformer.inspect.account.account import Account as Account
from glassformer.inspect.account.account import account as account
from glassformer.inspect.account.counts import Product as Product
from glassformer.inspect.account.counts import Work as Work

if TYPE_CHECKING:
    from glassformer.inspect.account.rules import OperatorRule as OperatorRule
    from glassformer.inspect.account.rules import register_rule as register_rule


def __getattr__(name: str) -> Any:
    """Import the rules, which need torch, on first use."""
    if name in ("OperatorRule", "register_rule"):
        from glassformer.inspect.account import rules

        return getattr(rules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
