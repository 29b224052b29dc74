"""What a model costs to hold, run, train and serve, part by part: it is run on tensors without memory, and counted."""

from typing import TYPE_CHECKING, Any

from glassformer.inspect.account.account import Account as Account
from glassformer.inspect.account.account import account as account
from glassformer.inspect.account.counts import Product as Product
from glassformer.inspect.account.counts import Work as Work

if TYPE_CHECKING:
    from glassformer.inspect.account.rules import Rule as Rule
    from glassformer.inspect.account.rules import register_rule as register_rule


def __getattr__(name: str) -> Any:
    """Rules need torch, which is imported when somebody asks for them."""
    if name in ("Rule", "register_rule"):
        from glassformer.inspect.account import rules

        return getattr(rules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
