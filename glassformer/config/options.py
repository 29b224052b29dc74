"""Keyword options that several functions share, defined once as a ``TypedDict``.

A function declares ``**options: Unpack[SomeOptions]``, which type checkers read. ``with_listed_options`` makes
``help()`` and tab completion, which do not, list every option too. ``described`` reads what a docstring writes about
each option, so that the command line shows the same text. Standard library only.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from glassformer.config.parts import Head

F = TypeVar("F", bound=Callable[..., object])
StrPath = str | os.PathLike[str]
Progress = Callable[[int, int], None]  # called with how many are done, and how many there are
Quantization = Literal["int8", "fp8"]  # what the weights of linear layers may be quantised to
AttentionPath = Literal["eager", "sdpa"]  # how attention is computed: by the formula, or by fused kernels
Decoding = Literal["auto", "dynamic", "static", "graph", "compiled"]  # how steps are run; see ``generation.steps``


class ModelOptions(TypedDict, total=False):
    """What ``hub.load`` takes besides a model's name, dtype and device.

    Options:
        config: a config.json in another folder, or its contents; with ``weights``.
        weights: the file or folder of weights that ``config`` describes.
        lineage: model type to assume (gpt2, bert …) if config.json has none or an unknown one.
        head: use this head instead of the model's own: lm, classify, none …
        ignore_keys: names of weights in the file to ignore; * matches anything.
        quantize: quantise the weights of linear layers to int8 or fp8, for a quarter of float32's memory; for inference
            only.
        fresh: parameters to initialise if the file lacks them or has them in another size, such as 'head.*'.
        strict: refuse keys of config.json that the lineage does not define; weights are always checked.
        allow_pickle: open .bin, .pt and .pth files; only tensors are read from them.
        check_finite: refuse weights with NaN or infinities.
        tokenizer: read the tokenizer from this folder or tokenizer.json instead.
        tokenizer_kind: the kind of tokenizer, if its files do not say: t5, llama, albert …
        download: download a Hugging Face name that is not in the local cache.
    """

    config: StrPath | Mapping[str, Any]
    weights: StrPath
    lineage: str
    head: str | Head | None
    ignore_keys: Iterable[str]
    quantize: Quantization
    fresh: Iterable[str]
    strict: bool
    allow_pickle: bool
    check_finite: bool
    tokenizer: StrPath
    tokenizer_kind: str
    download: bool


class _Default:
    """Shown as … in a signature; the docstring gives the default."""

    def __repr__(self) -> str:
        return "…"


def with_listed_options(function: F) -> F:
    """Add the options of ``**options: Unpack[SomeOptions]`` to the signature and the docstring of a function."""
    signature = inspect.signature(function)
    *own, rest = signature.parameters.values()
    (options,) = get_args(rest.annotation)
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_Default(), annotation=kind)
        for name, kind in option_types(options).items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    if function.__doc__ and options.__doc__:  # both are None under python -OO
        function.__doc__ = f"{inspect.getdoc(function)}\n\n{inspect.getdoc(options)}"
    return function


def option_types(options: type) -> dict[str, object]:
    """Return the options of a ``TypedDict``, its parents' first, with their types.

    For types imported only for type checkers, their name.
    """
    try:
        return get_type_hints(options)
    except NameError:  # a type that only type checkers import
        return {name: getattr(kind, "__forward_arg__", kind) for name, kind in options.__annotations__.items()}


def described(source: object) -> dict[str, str]:
    """Return what a docstring writes about each argument: ``    name: text`` under ``Args:`` or ``Options:``.

    Lines that are indented further continue the text. Empty under ``python -OO``, which drops docstrings.
    """
    texts: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(source) or "").splitlines():
        entry = re.fullmatch(r"    (\w+): (.+)", line)
        if entry:
            name = entry[1]
            texts[name] = entry[2]
        elif line.startswith("        ") and name:
            texts[name] += " " + line.strip()
        else:
            name = ""
    return texts
