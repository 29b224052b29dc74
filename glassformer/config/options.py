"""Keyword options that several functions share, stated once as a ``TypedDict``.

A function states ``**options: Unpack[SomeOptions]``, which type checkers read. ``lists_options`` makes ``help()`` and
tab completion, which do not, list every option too. Standard library only.
"""

import inspect
from collections.abc import Callable
from typing import TypeVar, get_args, get_type_hints

F = TypeVar("F", bound=Callable[..., object])


class _Default:
    """The default of an option in a signature: the function decides, as its docstring says."""

    def __repr__(self) -> str:
        return "…"


def lists_options(function: F) -> F:
    """Put the options of ``**options: Unpack[SomeOptions]`` into the signature and the docstring of a function."""
    signature = inspect.signature(function)
    *own, rest = signature.parameters.values()
    (options,) = get_args(rest.annotation)
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_Default(), annotation=kind)
        for name, kind in option_types(options).items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    if function.__doc__ and options.__doc__:  # neither is there under python -OO
        function.__doc__ = f"{inspect.getdoc(function)}\n\n{inspect.getdoc(options)}"
    return function


def option_types(options: type) -> dict[str, object]:
    """The options of a ``TypedDict``, those of its parents first, each with its type; a name where it is not loaded."""
    try:
        return get_type_hints(options)
    except NameError:  # a type that only type checkers import
        return {name: getattr(kind, "__forward_arg__", kind) for name, kind in options.__annotations__.items()}
