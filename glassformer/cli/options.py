"""The options that commands share, and how a function becomes a command.

A parameter of a command is an option of typer's, or a group of options: a dataclass with one option per field
(``…Options``), or keywords of the library (``Keywords``; ``…Keywords``). Names, types and defaults are those of the
dataclass or the library; the docstring that describes an argument is its help text.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

import typer
import typer.core
from rich.markup import escape

from glassformer.cli.errors import InputError, plain_errors
from glassformer.config.checks import check_choice
from glassformer.config.options import ModelOptions, Quantization, described
from glassformer.generation.settings import GenerationSettings, TextOptions
from glassformer.inspect.facts import ReadOptions

if TYPE_CHECKING:
    from glassformer.hub import Loaded

MODEL, TEXT, LENGTH, COMPUTING = "Model", "Text", "Length", "Computation"
DTYPES = ("float32", "bfloat16", "float16", "float64")

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A shipped model (glassformer models), a folder, a GGUF or llama2.c file, or a name in the Hugging Face "
        "cache.",
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help="Texts; if none are given, they are read from --file or standard input."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Truncate = Annotated[
    Literal["left", "right"] | None,
    typer.Option(metavar="left|right", help="Truncate long texts on this side; by default they raise an error."),
]
OnBadRowOption = Annotated[
    Literal["stop", "skip"] | None,
    typer.Option(
        metavar="stop|skip",
        help="What to do with an invalid row: stop and report its file and line, or skip it.",
    ),
]
THREADS = "CPU threads for torch; defaults to torch's default."


def setting(default: Any, **arguments: Any) -> Any:
    """Return a field of a group of options, with arguments of ``typer.Option``.

    ``flags`` are the names of the option, instead of the one made from the field.
    """
    return field(default=default, metadata=arguments)


@dataclass(frozen=True)
class Syntax:
    """How the command line writes a value that is more than a number, a word or a switch."""

    metavar: str
    parse: Callable[[str], Any] = str
    collect: Callable[[list[Any]], Any] | None = None  # for an option that may be repeated


@dataclass(frozen=True)
class Keywords:
    """A group of options that is generated from keywords of the library; only those that the user sets are passed on.

    Args:
        source: a function or a ``TypedDict`` whose docstring describes each keyword.
        names: the keywords that become options.
        panel: the heading of the options in ``--help``; or several, each with the first keyword that it covers.
        defaults: a dataclass with the default values, where ``source`` has none.
        syntax: how values are written that are no plain numbers, words or switches.
        changed: arguments of ``typer.Option`` where the command line differs from the library.
    """

    source: Any
    names: Sequence[str]
    panel: str | Mapping[str, str]
    defaults: type | None = None
    syntax: Mapping[str, Syntax] = field(default_factory=dict)
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield one typer option for each keyword, in the order of ``names``."""
        panel = self.panel if isinstance(self.panel, str) else ""
        for name in self.names:
            # a panel applies until the next keyword that starts one
            if not isinstance(self.panel, str):
                panel = self.panel.get(name, panel)
            kind, arguments = self._kind(name)
            arguments = {
                "help": self._help(name),
                "rich_help_panel": panel,
                "show_default": _default_text(self._default(name)),
                **arguments,
                **self.changed.get(name, {}),
            }
            flags = arguments.pop("flags", [option_name(name)] if kind is bool else [])
            hint: Any = Annotated[kind if kind is bool else kind | None, typer.Option(*flags, **arguments)]
            default = False if kind is bool else None
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords that the user set, as the library takes them."""
        given = {name: arguments[name] for name in self.names}
        values = {name: value for name, value in given.items() if not (value is None or value is False or value == [])}
        for name, value in values.items():
            if name in self.syntax:
                syntax = self.syntax[name]
                one_each = [syntax.parse(text) for text in (value if syntax.collect else [value])]
                values[name] = syntax.collect(one_each) if syntax.collect else one_each[0]
        return values

    def _default(self, name: str) -> Any:
        if self.defaults is not None:
            return getattr(self.defaults, name, None)
        known = {} if isinstance(self.source, type) else inspect.signature(self.source).parameters
        return known[name].default if name in known else None

    def _kind(self, name: str) -> tuple[Any, dict[str, Any]]:
        """Return the type for typer, and further arguments of its option."""
        if name in self.syntax:
            syntax = self.syntax[name]
            return (list[str] if syntax.collect else str), {"metavar": syntax.metavar}
        is_class = isinstance(self.source, type)
        hint = (
            self.source.__annotations__[name]
            if is_class
            else inspect.signature(self.source).parameters[name].annotation
        )
        if words := _words(hint):
            return Literal[words], {"metavar": "|".join(words)}
        members = _members(hint)
        return next(kind for kind in (bool, int, float, str) if kind in members), {}

    def _help(self, name: str) -> str:
        """Return the text of the docstring, with the names of other keywords spelled as options."""
        text = help_text(self.source, name)
        text = re.sub(r"``([^`]+)``", lambda code: option_name(code[1]) if code[1] in self.names else code[1], text)
        return text + (" Repeatable." if name in self.syntax and self.syntax[name].collect else "")


def help_text(source: object, name: str) -> str:
    """Return the description of an argument in the docstring of ``source``, or of a base class, as a sentence."""
    classes = source.__mro__ if isinstance(source, type) else (source,)
    text = next((texts[name] for each in classes if name in (texts := described(each))), "")
    return text[:1].upper() + text[1:]


def option_name(name: str) -> str:
    """Return the name of an option, by the name of its parameter."""
    return "--" + name.replace("_", "-")


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(hint: Any) -> tuple[str, ...]:
    """Return the words that a type allows, if it allows nothing else."""
    kinds = [kind for kind in _members(hint) if kind is not type(None)]
    return get_args(kinds[0]) if len(kinds) == 1 and get_origin(kinds[0]) is Literal else ()


def _default_text(default: Any) -> str | bool:
    """Return a default value for ``--help``; False where there is none to show."""
    if default in (None, (), inspect.Parameter.empty) or isinstance(default, bool):
        return False
    return str(default)


CONFIG_OPTIONS = ("head", "lineage", "allow_pickle")  # how a config is read
LOAD_OPTIONS = (*CONFIG_OPTIONS, "ignore_keys", "fresh", "tokenizer_kind")  # how weights and tokenizer are read
_PATTERN = Syntax("PATTERN", collect=list)
_MODEL_METAVARS = {"head": {"metavar": "KIND"}, "lineage": {"metavar": "NAME"}, "tokenizer_kind": {"metavar": "KIND"}}
FactsKeywords = Annotated[ReadOptions, Keywords(ModelOptions, CONFIG_OPTIONS, MODEL, changed=_MODEL_METAVARS)]
_LOAD_KEYWORDS = Keywords(
    ModelOptions, LOAD_OPTIONS, MODEL, syntax={"ignore_keys": _PATTERN, "fresh": _PATTERN}, changed=_MODEL_METAVARS
)
LoadKeywords = Annotated[ModelOptions, _LOAD_KEYWORDS]
InitKeywords = Annotated[ModelOptions, replace(_LOAD_KEYWORDS, panel=f"{MODEL} (with --init-from)")]


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """How a model and its tokenizer are loaded.

    Args:
        options: those of ``hub.load``.
        tokenizer: read the tokenizer from this folder or tokenizer.json instead.
        dtype: load weights as float32, bfloat16, float16 or float64; the default is the stored type, and
            float32 for a shipped model.
        device: load onto cpu, cuda, cuda:1, mps or xpu.
        quantize: quantise the weights of linear layers to int8 or fp8, for a quarter of float32's memory; with int8,
            decoding on a CPU is about twice as fast, with small changes in the results. fp8 is for GPUs.
    """

    panel: ClassVar[str] = MODEL
    options: LoadKeywords
    tokenizer: Path | None = setting(None, metavar="FOLDER")
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = setting(None, metavar="TYPE")
    device: str | None = setting(None, metavar="DEVICE")
    quantize: Quantization | None = setting(None, metavar="TYPE")

    def load(self, model: str, **more: Any) -> "Loaded":
        """Load a model; ``more`` are further options of ``hub.load``."""
        from glassformer import hub
        from glassformer.hub import check_device

        if self.device is not None:
            check_device(self.device, option="--device")
        own = {"tokenizer": self.tokenizer, "quantize": self.quantize}
        options = {**self.options, **{name: value for name, value in own.items() if value is not None}}
        return hub.load(model, dtype=self.dtype, device=self.device, **cast(ModelOptions, {**options, **more}))


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Where texts are read from if none are arguments.

    Args:
        file: read texts from a file, by default one per line.
        skip_empty: skip empty lines; by default they raise an error.
    """

    panel: ClassVar[str] = TEXT
    file: Path | None = setting(None, flags=["--file", "-f"], metavar="FILE")
    skip_empty: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of all commands that apply a task to texts.

    Args:
        batch_size: texts per batch; by default a batch has up to 2,048 tokens. It does not change the results.
    """

    reading: InputOptions
    loading: LoadingOptions
    as_json: AsJson = False
    batch_size: int | None = setting(None, min=1)


def unescaped(text: str) -> str:
    r"""Replace the escapes ``\n`` and ``\t``, which a shell leaves alone."""
    return text.replace(r"\n", "\n").replace(r"\t", "\t")


def _token(text: str) -> int | str:
    """Return a token id, or the text of a token where it is not digits."""
    return int(text) if text.isascii() and text.isdecimal() else text


def _bias(text: str) -> tuple[int | str, float]:
    token, equals, value = text.rpartition("=")
    try:
        return _token(token), float(value if equals and token else "")
    except ValueError:
        raise ValueError(f"--logit-bias is TOKEN=VALUE, such as 42=-5 or ' the'=2.5; got {text!r}.") from None


EARLY: dict[str, bool | str] = {"yes": True, "no": False, "never": "never"}


def _early(text: str) -> bool | str:
    check_choice("--early-stopping", text, EARLY)
    return EARLY[text]


_TOKENS = Syntax("TOKEN", _token, list)
SEARCH = tuple(one.name for one in fields(GenerationSettings) if one.name != "record")
GenerationKeywords = Annotated[
    TextOptions,
    Keywords(
        TextOptions,
        (*SEARCH, "path", "chunk", "decoding"),
        {
            "max_new_tokens": LENGTH, "beam_size": "Beam search", "temperature": "Sampling",
            "repetition_penalty": "Constraints on tokens", "eos": LENGTH, "contrastive_alpha": "Contrastive search",
            "top_alternatives": "Options", "path": COMPUTING,
        },
        defaults=GenerationSettings,
        syntax={
            "stop": Syntax("STRING", unescaped, list), "eos": _TOKENS, "suppress": _TOKENS,
            "bad_words": Syntax("WORD", str, list), "logit_bias": Syntax("TOKEN=VALUE", _bias, dict),
            "forced_first": Syntax("TOKEN", _token), "forced_last": Syntax("TOKEN", _token),
            "early_stopping": Syntax("yes|no|never", _early),
        },
        changed={
            "early_stopping": {
                "help": "When beam search ends. yes: once --beam-size texts have ended; no: once no better text is "
                "likely, estimated at the current length; never: only when no better text is possible at any length.",
                "show_default": "no",
            },
            "max_new_tokens": {"show_default": "64; 512 in chat"},
            "seed": {"help": "Seed of the random numbers.", "min": 0},
            "stop": {"help": r"A string that ends the text; \n is a line break. Repeatable."},
            "eos": {"help": "A token, or its id, that ends the text. Repeatable."},
            "suppress": {"help": "A token, or its id, that is never generated. Repeatable."},
            "bad_words": {"flags": ["--bad-word"], "help": "A word that is never generated. Repeatable."},
            "logit_bias": {"help": "Add VALUE to the logit of a token. Repeatable."},
            "path": {"flags": ["--attention"], "show_default": "sdpa"},
            "chunk": {"min": 1},
            "decoding": {"show_default": "auto"},
        },
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How texts are computed. None of these changes the distribution of the text, or at temperature 0 the text.

    Args:
        batch_size: prompts per batch.
        draft: speculative decoding: draft tokens with a smaller model, or by lookup in the text so far.
    """

    panel: ClassVar[str] = COMPUTING
    batch_size: int = setting(8, min=1)
    draft: str | None = setting(None, metavar="MODEL|lookup")

    def options(self, loading: LoadingOptions) -> dict[str, Any]:
        """Return the options for ``generate_text``."""
        if self.draft is None:
            return {}
        from glassformer.generation.speculative import ModelDraft, PromptLookup

        if self.draft == "lookup":
            return {"draft": PromptLookup()}
        return {"draft": ModelDraft(loading.load(self.draft).model)}


# ---- commands


class Command(typer.core.TyperCommand):
    """A command whose ``--help`` shows no types of arguments and flags, and defaults without brackets."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, as ``--help`` shows them."""
        return [_simplify_help(param) for param in super().get_params(ctx)]


class CommandGroup(typer.core.TyperGroup):
    """A group of commands, with the same ``--help`` as ``Command``."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, as ``--help`` shows them."""
        return [_simplify_help(param) for param in super().get_params(ctx)]


def _simplify_help(param: Any) -> Any:
    if param.param_type_name == "argument":
        param.display_type_rich = lambda ctx: None  # noqa: ARG005  # typer names it
    elif param.is_flag:
        param.metavar = ""
    if isinstance(getattr(param, "show_default", None), str):  # typer would add round brackets
        param.help, param.show_default = f"{param.help} {escape(f'[default: {param.show_default}]')}", False
    return param


def as_command(function: Callable[..., None], *, threads: str | None = None) -> Callable[..., None]:
    """Return the function as typer takes it: groups of options as single options, errors as one paragraph.

    ``threads`` is the help text of ``--threads``, if the command has that option.
    """
    # Every option as a parameter of typer's, the groups expanded.
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    parameters = [option for name in own for option in _expand(name, hints[name], own[name].default)]
    if threads is not None:
        parameters += _expand("threads", Annotated[int | None, typer.Option(min=1, help=threads)], None)
    # Names of options for error messages, and the words that options with a Literal type take.
    flags = {option.name: flag for option in parameters if (flag := _flag(option))}
    words = {option.name: found for option in parameters if (found := _words(get_args(option.annotation)[0]))}

    def run(**arguments: Any) -> None:
        with plain_errors(flags):
            if threads is not None:
                set_threads(arguments.pop("threads"))
            check_utf8(arguments, flags)
            for name, choices in words.items():
                if arguments.get(name) is not None:
                    check_choice(name, arguments[name], choices)
            function(**{name: _collect(name, hints[name], arguments) for name in own})

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    # typer gets plain strings; check_choice gives better errors
    shown = [_as_string_option(option) if option.name in words else option for option in parameters]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in shown}
    return run


def computing_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that computes with torch, and so has ``--threads``."""
    return as_command(function, threads=THREADS)


def set_threads(threads: int | None) -> None:
    """Set the number of CPU threads of torch; None leaves the choice to torch."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def check_utf8(arguments: Mapping[str, Any], flags: Mapping[str, str]) -> None:
    """Raise if an argument is not UTF-8: Python passes its bytes on as lone surrogates."""
    for name, value in arguments.items():
        for number, text in enumerate(value if isinstance(value, list) else [value], start=1):
            if name in ("model", "prompt") or not isinstance(text, str):  # paths and byte prompts need not be UTF-8
                continue
            try:
                text.encode()
            except UnicodeEncodeError:
                what = f"text {number}" if name == "texts" else flags.get(name, name)
                raise InputError(f"{what} is not UTF-8; convert it, for instance with iconv.") from None


def _expand(name: str, hint: Any, default: Any) -> list[inspect.Parameter]:
    """Return a parameter, or the options of a group, which may hold groups itself."""
    if keywords := _keywords(hint):
        return list(keywords.parameters())
    if isinstance(hint, type) and is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        return [option for each in fields(hint) for option in _expand_field(hint, each, inner[each.name])]
    return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)]


def _expand_field(group: type, each: Field[Any], hint: Any) -> list[inspect.Parameter]:
    """Return the option of a field, with the help text of the group's docstring; or the options of a group in it."""
    is_group = isinstance(hint, type) and is_dataclass(hint)
    if not is_group and not hasattr(hint, "__metadata__"):
        arguments: dict[str, Any] = {"help": help_text(group, each.name)}
        arguments["rich_help_panel"] = getattr(group, "panel", None)
        arguments |= each.metadata
        flags = arguments.pop("flags", [option_name(each.name)] if hint is bool else [])
        if words := _words(hint):
            arguments.setdefault("metavar", "|".join(words))
        hint = Annotated[hint, typer.Option(*flags, **arguments)]
    return _expand(each.name, hint, each.default)


def _collect(name: str, hint: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the value of a parameter, or of a group."""
    if keywords := _keywords(hint):
        return keywords.values(arguments)
    if isinstance(hint, type) and is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        return hint(**{each.name: _collect(each.name, inner[each.name], arguments) for each in fields(hint)})
    return arguments[name]


def _keywords(hint: Any) -> Keywords | None:
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Keywords)), None)


def _flag(option: inspect.Parameter) -> str | None:
    """Return the name of an option on the command line; None for an argument."""
    (info,) = option.annotation.__metadata__
    if not isinstance(info, typer.models.OptionInfo):
        return None
    declared = (info.default, *(info.param_decls or ()))  # in Annotated, typer takes the first name for the default
    long = [flag for flag in declared if isinstance(flag, str) and flag.startswith("--")]
    return long[0].partition("/")[0] if long else option_name(option.name)


def _as_string_option(option: inspect.Parameter) -> inspect.Parameter:
    optional = type(None) in _members(get_args(option.annotation)[0])
    return option.replace(annotation=Annotated[str | None if optional else str, option.annotation.__metadata__[0]])
