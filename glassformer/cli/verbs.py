"""What all verbs share: groups of options that are written once, and how a verb ends.

A verb is a function whose parameters are typer's, or whole groups: dataclasses with an option, or a group, per field.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from glassformer.cli.errors import InputError, option, plain_errors

Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of torch; as many as it chooses unless given.")]


def verb(function: Callable[..., None], *, threads: bool = False) -> Callable[..., None]:
    """The function as typer is to see it, with an option for every field of its groups, and plain errors."""
    hints = get_type_hints(function, include_extras=True)
    asked = inspect.signature(function).parameters
    parameters = [one for name in asked for one in _spread(name, hints[name], asked[name].default)]
    if threads:
        parameters += _spread("threads", Threads, None)

    def run(**given: Any) -> None:
        with plain_errors():
            if threads:
                set_threads(given.pop("threads"))
            check_utf8(given)
            function(**{name: _gathered(name, hints[name], given) for name in asked})

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def computing_verb(function: Callable[..., None]) -> Callable[..., None]:
    """A verb that computes with torch: it has ``--threads`` as well."""
    return verb(function, threads=True)


def set_threads(threads: int | None) -> None:
    """Let torch use so many CPU threads; None leaves the choice to torch."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def check_utf8(given: Mapping[str, Any]) -> None:
    """Raise if a text on the command line is not UTF-8: Python hands its bytes on as lone surrogates."""
    for name, value in given.items():
        texts = value if isinstance(value, list) else [value]
        for number, text in enumerate(texts, start=1):
            if name == "model" or not isinstance(text, str):  # a folder may have any name
                continue
            try:
                text.encode()
            except UnicodeEncodeError:
                what = f"text {number}" if name == "texts" else option(name)
                raise InputError(f"{what} is not UTF-8; convert it, for instance with iconv.") from None


def _spread(name: str, hint: Any, default: Any) -> list[inspect.Parameter]:
    """A parameter, or those of the fields of a group, which may be groups themselves."""
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)]
    inside = get_type_hints(hint, include_extras=True)
    return [one for field in fields(hint) for one in _spread(field.name, inside[field.name], field.default)]


def _gathered(name: str, hint: Any, given: Mapping[str, Any]) -> Any:
    """The value of a parameter, or the group of those that were spread."""
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return given[name]
    inside = get_type_hints(hint, include_extras=True)
    return hint(**{field.name: _gathered(field.name, inside[field.name], given) for field in fields(hint)})
