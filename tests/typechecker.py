"""The run-time type checker behind the shape types: beartype, with int accepted where float is asked for."""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the types of a function's calls; the checks are built at the first, since most functions have none."""
    checked: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if checked is None:
            checked = _beartype(function)
        return checked(*args, **kwargs)

    return call
