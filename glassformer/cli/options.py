"""The options that verbs share, in groups, and how a function with groups becomes a verb.

A verb is a function whose parameters are typer's, or whole groups: dataclasses with an option, or a group, per field.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from glassformer.cli.errors import InputError, option, plain_errors
from glassformer.config.checks import check_choice

if TYPE_CHECKING:
    from glassformer.hub import Loaded

LOADING, READING, LENGTH = "Model", "Text", "Length"
BEAMS, DRAWING, RULES = "Beam search", "Sampling", "Rules and other searches"
COMPUTING = "Computing"
TYPES = ("float32", "bfloat16", "float16", "float64")

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A folder, a GGUF or llama2.c file, or a name in the local Hugging Face cache."
    ),
]
Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="Texts; else --file or standard input, one per line.")
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines: one JSON object per line.")]
AsStream = Annotated[bool, typer.Option("--stream", help="Show each piece of text as it is written.")]
Truncate = Annotated[
    str | None, typer.Option(metavar="left|right", help="Cut texts that are too long on this side; else an error.")
]


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """What a folder or file is taken to be."""

    head: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Another head than the model's own: lm, classify, none …", rich_help_panel=LOADING
        ),
    ] = None
    lineage: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The kind of model, where its config.json does not say it.", rich_help_panel=LOADING
        ),
    ] = None
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Open .bin, .pt and .pth files, for tensors alone.", rich_help_panel=LOADING
        ),
    ] = False

    def choices(self) -> dict[str, Any]:
        """What was said, by the names of ``hub.load``."""
        names = [field.name for field in fields(Choosing)]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Choosing):
    """What of a model's folder is read, and how."""

    ignore_keys: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Weights in the file to pass over; * matches anything. Repeatable.",
            rich_help_panel=LOADING,
        ),
    ] = None
    fresh: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Parts that start anew where the file lacks them, such as 'head.*'. Repeatable.",
            rich_help_panel=LOADING,
        ),
    ] = None
    tokenizer_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="What older tokenizer files are: t5, llama, albert …", rich_help_panel=LOADING
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """Those that were given, by the names of ``hub.load``."""
        more = {name: getattr(self, name) for name in ("ignore_keys", "fresh", "tokenizer_kind")}
        return self.choices() | {name: value for name, value in more.items() if value}


@dataclass(frozen=True, kw_only=True)
class Loading(ModelOptions):
    """How the model, and the tokenizer that reads its texts, come into memory."""

    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Another folder's tokenizer.", rich_help_panel=LOADING)
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="float32, bfloat16, float16 or float64; as stored unless given.",
            rich_help_panel=LOADING,
        ),
    ] = None
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1 or mps.", rich_help_panel=LOADING)
    ] = None

    def load(self, model: str, **checks: bool) -> "Loaded":
        """The model; ``checks`` are further options of ``hub.load``."""
        import torch

        from glassformer import hub
        from glassformer.weights.devices import check_device

        if self.dtype is not None:
            check_choice("--dtype", self.dtype, TYPES)
        if self.device is not None:
            check_device(self.device, said="--device")
        dtype = None if self.dtype is None else getattr(torch, self.dtype)
        options = self.options()
        if self.tokenizer is not None:
            options["tokenizer"] = self.tokenizer
        return hub.load(model, dtype=dtype, device=self.device, **options, **checks)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Where texts come from, besides the arguments."""

    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="From a file: one text per line, or all of it where one text is asked for.",
            rich_help_panel=READING,
        ),
    ] = None
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="Pass over empty lines, else an error.", rich_help_panel=READING)
    ] = False


@dataclass(frozen=True, kw_only=True)
class Common:
    """What all verbs share that read texts and say something of them."""

    reading: Reading
    loading: Loading
    as_json: AsJson = False
    batch_size: Annotated[int, typer.Option(min=1, help="Texts at a time; the answers are the same.")] = 16


@dataclass(frozen=True, kw_only=True)
class Searching:
    """The settings of ``generate.settings.Settings`` under the same names; None is as the model's folder recommends."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="The text ends here at the latest: as the model's folder advises, else 64 (in a chat 512).",
            rich_help_panel=LENGTH,
        ),
    ] = None
    min_new_tokens: Annotated[int | None, typer.Option(help="And not before.", rich_help_panel=LENGTH)] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STRING",
            help=r"A string that ends the text; \n is a line break. Repeatable.",
            rich_help_panel=LENGTH,
        ),
    ] = None
    eos: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKEN", help="A token, or its number, that ends the text. Repeatable.", rich_help_panel=LENGTH
        ),
    ] = None
    beam_size: Annotated[
        int | None,
        typer.Option(help="Partial texts side by side; 1, no beams, unless given or advised.", rich_help_panel=BEAMS),
    ] = None
    top_beams: Annotated[
        int | None,
        typer.Option(help="Show so many of the best; needs beams, as all that follow.", rich_help_panel=BEAMS),
    ] = None
    length_penalty: Annotated[
        float | None, typer.Option(help="Above 0 favours long texts, below 0 short ones.", rich_help_panel=BEAMS)
    ] = None
    length_rule: Annotated[
        str | None,
        typer.Option(
            metavar="power|gnmt", help="How length counts: score / length^p, or as in GNMT.", rich_help_panel=BEAMS
        ),
    ] = None
    early_stopping: Annotated[
        str | None,
        typer.Option(
            metavar="yes|no|never",
            help="yes: at the first ended texts; never: when none can be better.",
            rich_help_panel=BEAMS,
        ),
    ] = None
    beam_groups: Annotated[
        int | None, typer.Option(help="Groups of beams that avoid each other's words.", rich_help_panel=BEAMS)
    ] = None
    diversity: Annotated[float | None, typer.Option(help="How much they do.", rich_help_panel=BEAMS)] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0, the default: the likeliest token each time; above it tokens are drawn.", rich_help_panel=DRAWING
        ),
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest.", rich_help_panel=DRAWING)] = None
    top_p: Annotated[
        float | None, typer.Option(help="Among the likeliest that have p together.", rich_help_panel=DRAWING)
    ] = None
    min_p: Annotated[
        float | None, typer.Option(help="Among those with p of the best one's chance.", rich_help_panel=DRAWING)
    ] = None
    typical_p: Annotated[
        float | None, typer.Option(help="Among the most typical that have p together.", rich_help_panel=DRAWING)
    ] = None
    samples: Annotated[int | None, typer.Option(help="Texts per prompt.", rich_help_panel=DRAWING)] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Fixes what is drawn.", rich_help_panel=DRAWING)] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens seen before become less likely.", rich_help_panel=RULES)
    ] = None
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="No run of so many tokens occurs twice.", rich_help_panel=RULES)
    ] = None
    bad_words: Annotated[
        list[str] | None,
        typer.Option("--bad-word", metavar="WORD", help="A word never written. Repeatable.", rich_help_panel=RULES),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN=VALUE", help="Added to a token's logit. Repeatable.", rich_help_panel=RULES),
    ] = None
    suppress: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN", help="A token never written. Repeatable.", rich_help_panel=RULES),
    ] = None
    forced_first: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The first token.", rich_help_panel=RULES)
    ] = None
    forced_last: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The token at the last allowed place.", rich_help_panel=RULES)
    ] = None
    contrastive_alpha: Annotated[
        float | None,
        typer.Option(help="Contrastive search: weight of unlikeness; with --top-k.", rich_help_panel=RULES),
    ] = None
    top_alternatives: Annotated[
        int | None, typer.Option(help="Show so many likely tokens for each place.", rich_help_panel=RULES)
    ] = None

    def given(self) -> dict[str, Any]:
        """What the user said, as options for ``generate_text``."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, [], ())}
        if "stop" in found:
            found["stop"] = [unescaped(text) for text in found["stop"]]
        if "early_stopping" in found:
            check_choice("--early-stopping", found["early_stopping"], EARLY)
            found["early_stopping"] = EARLY[found["early_stopping"]]
        for name in ("eos", "suppress"):
            if name in found:
                found[name] = [number_or_name(token) for token in found[name]]
        for name in ("forced_first", "forced_last"):
            if name in found:
                found[name] = number_or_name(found[name])
        if "logit_bias" in found:
            found["logit_bias"] = dict(_bias(one) for one in found["logit_bias"])
        return found


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How texts are computed; what is written does not depend on it."""

    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at a time.", rich_help_panel=COMPUTING)] = 8
    path: Annotated[
        str,
        typer.Option(
            metavar="sdpa|eager",
            help="Attention through fused kernels (sdpa), or by the formula (eager).",
            rich_help_panel=COMPUTING,
        ),
    ] = "sdpa"
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Read prompts in pieces of so many tokens.", rich_help_panel=COMPUTING)
    ] = None
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|lookup", help="Guess ahead with a smaller model, or from the text itself.",
            rich_help_panel=COMPUTING,
        ),
    ] = None  # fmt: skip

    def given(self, loading: Loading) -> dict[str, Any]:
        """The options for ``generate_text``."""
        from glassformer.nn.attention import PATHS

        check_choice("--path", self.path, PATHS)
        found: dict[str, Any] = {"path": self.path}
        if self.chunk is not None:
            found["chunk"] = self.chunk
        if self.draft is not None:
            from glassformer.generation.speculative import ModelDraft, PromptLookup

            found["draft"] = PromptLookup() if self.draft == "lookup" else ModelDraft(loading.load(self.draft).model)
        return found


EARLY: dict[str, bool | str] = {"yes": True, "no": False, "never": "never"}


def side(truncate: str | None) -> Any:
    """What ``--truncate`` says, if it is a side."""
    check_choice("--truncate", "left" if truncate is None else truncate, ("left", "right"))
    return truncate


def unescaped(text: str) -> str:
    r"""Line breaks and tabs where a shell leaves ``\n`` and ``\t``."""
    return text.replace(r"\n", "\n").replace(r"\t", "\t")


def number_or_name(token: str) -> int | str:
    """A token's number, or its name where it is not digits."""
    return int(token) if token.isascii() and token.isdecimal() else token


def _bias(said: str) -> tuple[int | str, float]:
    token, equals, value = said.rpartition("=")
    try:
        return number_or_name(token), float(value if equals and token else "")
    except ValueError:
        raise ValueError(f"--logit-bias is TOKEN=VALUE, such as 42=-5 or ' the'=2.5; got {said!r}.") from None


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
