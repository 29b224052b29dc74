"""``Loaded``: a model with its tokenizer and its facts, and a method for each task.

Each method calls the function of the same name with the same settings; ``abilities`` lists those that a model supports.
Generation, tasks and accounting are built on top of this module, so methods import them when called.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from glassformer.config import ModelConfig, count, to_dict
from glassformer.config.checks import Setting, SettingError
from glassformer.config.model import a_family
from glassformer.config.options import AttentionPath, with_listed_options
from glassformer.generation.settings import TextOptions
from glassformer.models.transformer import Transformer
from glassformer.task_methods import TaskMethods
from glassformer.text.pieces import NoTokenizerError
from glassformer.text.tokenizer import Tokenizer, TokenizerError
from glassformer.weights.lineage import head_kind

if TYPE_CHECKING:
    import os

    from glassformer.generation.prompts import PromptInput
    from glassformer.generation.text import Message, Text
    from glassformer.inspect.account.account import Account, Causal, Dtype
    from glassformer.inspect.account.counts import AccountMode
    from glassformer.inspect.account.memory import Optimizer
    from glassformer.inspect.parts import Part
    from glassformer.tasks.batches import Progress
    from glassformer.viewer.notebook import View

# For each method, the kinds of head and the families of models that support it; (): any.
LANGUAGE_MODEL = ("lm",), ("decoder", "encoder-decoder")
NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "generate": LANGUAGE_MODEL,
    "stream": LANGUAGE_MODEL,
    "chat": LANGUAGE_MODEL,
    "translate": (("lm",), ("encoder-decoder",)),
    "fill": (("lm", "pretraining"), ("encoder",)),
    "score": LANGUAGE_MODEL,
    "classify": (("classify", "pair"), ()),
    "tag": (("tag",), ()),
    "answer": (("span",), ()),
    "embed": ((), ()),
    "account": ((), ()),
    "save": ((), ()),
}
HEAD_NAMES = {
    "lm": "language-model", "classify": "classification", "tag": "token-classification", "span": "question-answering",
}  # fmt: skip


@dataclass
class LoadReport:
    """What was ignored, initialised or cast while loading."""

    unused: dict[str, str] = field(default_factory=dict)  # weights that were not loaded, each with the reason
    fresh: list[str] = field(default_factory=list)  # our names of missing weights, which were initialised
    cast: dict[str, str] = field(default_factory=dict)  # weights stored in another dtype than most: that dtype
    unknown_keys: dict[str, Any] = field(default_factory=dict)  # of config.json, with their values


@dataclass(repr=False)
class Loaded(TaskMethods):
    """A model, its facts and its tokenizer, with a method for each task."""

    model: Transformer
    config: ModelConfig
    lineage: str | None
    report: LoadReport
    path: Path  # the folder or file that it was loaded from
    metadata: Mapping[str, Any] = field(default_factory=dict)  # key/values of a GGUF file
    tokenizer_path: Path | None = None  # of its tokenizer, if not in the model's folder
    tokenizer_kind: str | None = None  # the kind of its older tokenizer files, if they do not state it

    @property
    def folder(self) -> Path:
        """The model's folder, or that of its file."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder or file, read on first use."""
        if self.tokenizer_path is not None:
            return Tokenizer.load(self.tokenizer_path, self.tokenizer_kind)
        if "tokenizer.ggml.model" in self.metadata:
            return Tokenizer.from_gguf(self.metadata)
        vocabularies = sorted(self.folder.glob("tok*.bin"))  # llama2.c's names
        if self.path.suffix == ".bin" and len(vocabularies) == 1:
            return Tokenizer.from_llama2c(vocabularies[0])
        try:
            return Tokenizer.load(self.folder, self.tokenizer_kind)
        except NoTokenizerError as error:
            setting = Setting("tokenizer", external_name="tokenizer.load")
            raise error.suffixed(" If the model's tokenizer is elsewhere, name its folder: {}.", setting) from None

    @property
    def abilities(self) -> tuple[str, ...]:
        """The methods that this model supports; ``chat`` needs a tokenizer with a chat template too."""
        names = abilities(self.config)
        return names if "chat" not in names or self._has_chat_template else tuple(n for n in names if n != "chat")

    @property
    def _has_chat_template(self) -> bool:
        try:
            return self.tokenizer.chat_template is not None
        except (OSError, ValueError):  # it has no tokenizer, or one that cannot be read
            return False

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
        self, prompts: str, *, batch_size: int = 8, progress: "Progress | None" = None, **options: Unpack[TextOptions]
    ) -> "Text": ...

    @overload
    def generate(
        self,
        prompts: "Sequence[PromptInput]",
        *,
        batch_size: int = 8,
        progress: "Progress | None" = None,
        **options: Unpack[TextOptions],
    ) -> "list[list[Text]]": ...

    @with_listed_options
    def generate(
        self,
        prompts: "str | Sequence[PromptInput]",
        *,
        batch_size: int = 8,
        progress: "Progress | None" = None,
        **options: Unpack[TextOptions],
    ) -> "Text | list[list[Text]]":
        """Continue prompts; an encoder-decoder generates from them as sources.

        Args:
            prompts: one text, which gives one ``Text``; or a list of texts or token ids, which gives for each a list of
                its samples or best beams.
            batch_size: prompts per batch, those of similar length together.
            progress: called with the number of prompts done and their total.
            options: see below.
        """
        from glassformer.generation.text import generate_text

        return generate_text(self, prompts, batch_size=batch_size, progress=progress, **options)

    @with_listed_options
    def stream(self, prompt: "PromptInput", **options: Unpack[TextOptions]) -> "Generator[str, None, Text]":
        """Continue one prompt, yielding the text piece by piece; greedy search or a single sample."""
        from glassformer.generation.text import stream_text

        return stream_text(self, prompt, **options)

    @with_listed_options
    def chat(self, messages: "str | Sequence[Message]", **options: Unpack[TextOptions]) -> "Text":
        """Reply to a conversation, by the tokenizer's chat template.

        Args:
            messages: of the form {"role": "user", "content": "…"}, or one text as the only message of a user.
            options: see below.
        """
        from glassformer.generation.text import reply

        return reply(self, messages, **options)

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
        self,
        texts: str,
        *,
        source: str | None = None,
        target: str | None = None,
        batch_size: int = 8,
        progress: "Progress | None" = None,
        **options: Unpack[TextOptions],
    ) -> "Text": ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        source: str | None = None,
        target: str | None = None,
        batch_size: int = 8,
        progress: "Progress | None" = None,
        **options: Unpack[TextOptions],
    ) -> "list[list[Text]]": ...

    @with_listed_options
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        source: str | None = None,
        target: str | None = None,
        batch_size: int = 8,
        progress: "Progress | None" = None,
        **options: Unpack[TextOptions],
    ) -> "Text | list[list[Text]]":
        """Translate one text, or a list of texts; the results are those of ``generate``.

        Args:
            texts: what to translate.
            source: code or name of the language of the texts; None for a model of a single pair of languages, or of
                English and Chinese, which infers both languages of each text from its script.
            target: code or name of the language to translate into.
            batch_size: texts per batch.
            progress: called with the number of texts done and their total.
            options: see below.
        """
        from glassformer.generation.text import translate_text

        return translate_text(
            self, texts, source=source, target=target, batch_size=batch_size, progress=progress, **options
        )

    def account(
        self,
        *,
        batch: int = 1,
        context: int | None = None,
        source: int | None = None,
        dtype: "Dtype | None" = None,
        mode: "AccountMode" = "forward",
        attention: AttentionPath = "sdpa",
        causal: "Causal" = "dense",
        optimizer: "Optimizer" = "adamw",
    ) -> "Account":
        """Return parameters, FLOPs and memory of a pass, a training step or a decoded token.

        See ``glassformer.account``.
        """
        from glassformer.inspect.account.account import account

        return account(
            self,
            batch=batch,
            context=context,
            source=source,
            dtype=dtype,
            mode=mode,
            attention=attention,
            causal=causal,
            optimizer=optimizer,
        )

    def save(
        self,
        folder: "str | os.PathLike[str]",
        *,
        to: str = "glassformer",
        lineage: str | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> Path:
        """Write a folder of our own format, or (``to="hf"``) for Hugging Face; see ``glassformer.save``."""
        from glassformer.hub import save

        return save(self, folder, to=to, lineage=lineage, tokenizer=tokenizer)

    def view(
        self,
        text: str | None = None,
        *,
        text_b: str | None = None,
        target: str | None = None,
        compare: "Loaded | str | None" = None,
        heads: Sequence[str] = (),
        height: int = 720,
    ) -> "View":
        """Visualise what the model computes for a text, in a notebook or as a file; see ``glassformer.view``."""
        from glassformer.viewer.notebook import view

        return view(self, text, text_b=text_b, target=target, compare=compare, heads=heads, height=height)

    def __repr__(self) -> str:
        return f"<Loaded {_summary(self)}>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a summary, the abilities, the parts with their parameters, and the facts."""
        from glassformer.inspect.parts import part_tree

        return (
            f"<div><b>{escape(_summary(self))}</b><br>can {escape(', '.join(self.abilities))}"
            f"<ul>{_part_html(part_tree(self.config))}</ul>"
            f"<details><summary>config</summary>{_facts_html(to_dict(self.config))}</details></div>"
        )


def abilities(facts: ModelConfig) -> tuple[str, ...]:
    """Return the methods of ``Loaded`` that a model with these facts supports, if its tokenizer has what they need."""
    kind = head_kind(facts.head)
    return tuple(
        name
        for name, (heads, families) in NEEDS.items()
        if (not heads or kind in heads) and (not families or facts.family in families)
    )


def check_ability(
    loaded: Loaded, name: str, heads: Sequence[str] | None = None, families: Sequence[str] | None = None
) -> None:
    """Raise unless the model has a head and a family that ``name`` needs; the error lists what it supports."""
    heads = NEEDS[name][0] if heads is None else heads
    families = NEEDS.get(name, ((), ()))[1] if families is None else families
    facts = loaded.config
    kind = head_kind(facts.head)
    if kind not in heads:
        own = "no head" if kind == "none" else f"{'an' if kind in ('lm', 'embedding') else 'a'} {kind!r} head"
        raise SettingError(
            f"{name} needs a {HEAD_NAMES[heads[0]]} head ({' or '.join(map(repr, heads))}); this model has {own} and "
            f"supports: {_supported(loaded)}. "
            "Load it with {} if the folder has the weights of such a head.",
            Setting("head", heads[0]),
        )
    if families and facts.family not in families:
        needed = " or ".join(map(a_family, families))
        raise ValueError(
            f"{name} needs {needed}; this model is {a_family(facts.family)} and supports: {_supported(loaded)}."
        )
    if name == "chat" and loaded.tokenizer.chat_template is None:
        raise TokenizerError(
            "this model's tokenizer has no chat template, which chat needs; set tokenizer.chat_template if you know "
            f"it. The model supports: {_supported(loaded)}."
        )


def _supported(loaded: Loaded) -> str:
    """Return the tasks that a model supports, for errors."""
    return ", ".join(name for name in loaded.abilities if name not in ("account", "save"))


def _summary(loaded: Loaded) -> str:
    """Return one line: lineage, family, parameters, dtype, device."""
    weight = next(loaded.model.parameters())
    dtype = str(weight.dtype).removeprefix("torch.")
    return (
        f"{loaded.lineage or 'model'}, {loaded.config.family}, {count(loaded.config):,} parameters, "
        f"{dtype} on {weight.device}"
    )


def _part_html(part: "Part") -> str:
    """Return HTML of a part: its parameters, its facts and its children."""
    copies = f" × {part.copies}" if part.copies > 1 else ""
    line = f"<b>{escape(part.name)}</b> {part.parameters:,}{copies} <i>{escape(part.description)}</i>"
    if not part.parts:
        return f"<li>{line}</li>"
    is_open = " open" if part.name in ("model", "encoder", "decoder") else ""
    inside = "".join(map(_part_html, part.parts))
    return f"<li><details{is_open}><summary>{line}</summary><ul>{inside}</ul></details></li>"


def _facts_html(facts: object) -> str:
    """Return nested facts as nested lists."""
    if not isinstance(facts, Mapping):
        return escape(str(facts))
    return f"<ul>{''.join(f'<li>{escape(str(name))}: {_facts_html(value)}</li>' for name, value in facts.items())}</ul>"
