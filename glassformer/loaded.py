"""``Loaded``: a model with its tokenizer and its facts, and everything that can be done with it as methods.

Each method is a call of the function of the same name, with the same settings; ``abilities`` says which of them a model
supports. Generation, tasks and accounting are built on top of this module, so methods import them when called.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from glassformer.config import Model, count, to_dict
from glassformer.config.checks import Setting, SettingError
from glassformer.config.options import lists_options
from glassformer.generation.settings import Side, TextOptions
from glassformer.models.transformer import Transformer
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.lineage import head_kind

if TYPE_CHECKING:
    import os

    from torch import Tensor

    from glassformer.generation.prompts import PromptInput
    from glassformer.generation.text import Message, Text
    from glassformer.inspect.account.account import Account, Causal, Dtype
    from glassformer.inspect.account.load import Kernel, Mode
    from glassformer.inspect.account.memory import Optimizer
    from glassformer.inspect.parts import Part
    from glassformer.tasks.answer import Answered
    from glassformer.tasks.batches import Progress
    from glassformer.tasks.classify import Classified
    from glassformer.tasks.fill import Filled
    from glassformer.tasks.score import Score
    from glassformer.tasks.tag import Tagged
    from glassformer.tasks.texts import Pair

# What a model needs: one of these kinds of head, and one of these families; (): any.
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


@dataclass
class Report:
    """What was ignored, initialised or cast while loading."""

    spare: dict[str, str] = field(default_factory=dict)  # weights that were not loaded, each with the reason
    fresh: list[str] = field(default_factory=list)  # our names of missing weights, which were initialised
    cast: dict[str, str] = field(default_factory=dict)  # weights stored in another dtype than most: that dtype
    foreign: dict[str, Any] = field(default_factory=dict)  # keys of config.json that the lineage does not know


@dataclass(repr=False)
class Loaded:
    """A model, its facts, its tokenizer and what it can do; see the methods."""

    model: Transformer
    config: Model
    lineage: str | None
    report: Report
    place: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_place: Path | None = None  # path of its tokenizer, if elsewhere
    tokenizer_kind: str | None = None  # the kind of its older tokenizer files, if they do not state it

    @property
    def folder(self) -> Path:
        """The model's folder, or that of its file."""
        return self.place if self.place.is_dir() else self.place.parent

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder or file, read on first use."""
        if self.tokenizer_place is not None:
            return Tokenizer.load(self.tokenizer_place, self.tokenizer_kind)
        if "tokenizer.ggml.model" in self.metadata:
            return Tokenizer.from_gguf(self.metadata)
        beside = sorted(self.folder.glob("tok*.bin"))  # how llama2.c names them
        if self.place.suffix == ".bin" and len(beside) == 1:
            return Tokenizer.from_llama2c(beside[0])
        return Tokenizer.load(self.folder, self.tokenizer_kind)

    @property
    def abilities(self) -> tuple[str, ...]:
        """The methods that this model supports."""
        return abilities(self.config)

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

    @lists_options
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

    @lists_options
    def stream(self, prompt: "PromptInput", **options: Unpack[TextOptions]) -> "Generator[str, None, Text]":
        """Continue one prompt, yielding the text piece by piece; greedy search or a single sample."""
        from glassformer.generation.text import stream_text

        return stream_text(self, prompt, **options)

    @lists_options
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

    @lists_options
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
            source: code or name of the language of the texts; None for a model of a single pair of languages.
            target: code or name of the language to translate into.
            batch_size: texts per batch.
            progress: called with the number of texts done and their total.
            options: see below.
        """
        from glassformer.generation.translation import translate_text

        return translate_text(
            self, texts, source=source, target=target, batch_size=batch_size, progress=progress, **options
        )

    def fill(
        self,
        texts: Sequence[str],
        *,
        top: int = 5,
        blank: str | None = None,
        truncate: Side | None = None,
        batch_size: int = 16,
        progress: "Progress | None" = None,
    ) -> "list[Filled]":
        """Predict masked tokens; see ``glassformer.fill``."""
        from glassformer.tasks.fill import fill

        return fill(
            self, texts, top=top, blank=blank, truncate=truncate, batch_size=batch_size, progress=progress
        )  # fmt: skip

    def score(
        self,
        texts: "Sequence[str | Pair]",
        *,
        window: int | None = None,
        stride: int | None = None,
        batch_size: int = 16,
        progress: "Progress | None" = None,
    ) -> "list[Score]":
        """Log-probabilities, perplexity and bits per byte of texts; see ``glassformer.score``."""
        from glassformer.tasks.score import score

        return score(self, texts, window=window, stride=stride, batch_size=batch_size, progress=progress)

    def embed(
        self,
        texts: Sequence[str],
        *,
        pool: Literal["mean", "first", "last"] | None = None,
        normalise: bool | None = None,
        truncate: Side | None = None,
        batch_size: int = 16,
        progress: "Progress | None" = None,
    ) -> "Tensor":
        """One vector per text, shape (texts, width); see ``glassformer.embed``."""
        from glassformer.tasks.embed import embed

        return embed(
            self, texts, pool=pool, normalise=normalise, truncate=truncate, batch_size=batch_size, progress=progress
        )

    def classify(
        self,
        texts: "Sequence[str | Pair]",
        *,
        several: bool = False,
        truncate: Side | None = None,
        batch_size: int = 16,
        progress: "Progress | None" = None,
    ) -> "list[Classified]":
        """Labels of texts, or of pairs of texts, with probabilities; see ``glassformer.classify``."""
        from glassformer.tasks.classify import classify

        return classify(self, texts, several=several, truncate=truncate, batch_size=batch_size, progress=progress)

    def tag(
        self,
        texts: Sequence[str | Sequence[str]],
        *,
        overlap: int | None = None,
        batch_size: int = 16,
        progress: "Progress | None" = None,
    ) -> "list[Tagged]":
        """A label for every word, and the entities that the labels mark; see ``glassformer.tag``."""
        from glassformer.tasks.tag import tag

        return tag(self, texts, overlap=overlap, batch_size=batch_size, progress=progress)

    def answer(
        self,
        questions: "Sequence[Pair]",
        *,
        top: int = 1,
        max_answer_tokens: int = 30,
        no_answer: bool = False,
        stride: int | None = None,
        batch_size: int = 16,
        progress: "Progress | None" = None,
    ) -> "list[Answered]":
        """Answer questions by spans of their contexts; see ``glassformer.answer``."""
        from glassformer.tasks.answer import answer

        return answer(
            self,
            questions,
            top=top,
            max_answer_tokens=max_answer_tokens,
            no_answer=no_answer,
            stride=stride,
            batch_size=batch_size,
            progress=progress,
        )

    def account(
        self,
        *,
        batch: int = 1,
        context: int | None = None,
        source: int | None = None,
        dtype: "Dtype | None" = None,
        mode: "Mode" = "forward",
        attention: "Kernel" = "fused",
        causal: "Causal" = "dense",
        optimizer: "Optimizer" = "adamw",
    ) -> "Account":
        """Parameters, FLOPs and memory of a pass, a training step or a decoded token; see ``glassformer.account``."""
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

    def __repr__(self) -> str:
        return f"<Loaded {_summary(self)}>"

    def _repr_html_(self) -> str:
        """How a notebook shows the model: what it is and can do, its parts with their parameters, all of its facts."""
        from glassformer.inspect.parts import part_tree

        return (
            f"<div><b>{escape(_summary(self))}</b><br>can {escape(', '.join(self.abilities))}"
            f"<ul>{_part_html(part_tree(self.config))}</ul>"
            f"<details><summary>facts</summary>{_facts_html(to_dict(self.config))}</details></div>"
        )


def abilities(facts: Model) -> tuple[str, ...]:
    """The methods of ``Loaded`` that a model with these facts supports."""
    kind = head_kind(facts.head)
    return tuple(
        name
        for name, (heads, families) in NEEDS.items()
        if (not heads or kind in heads) and (not families or facts.family in families)
    )


def check_ability(
    facts: Model, name: str, heads: Sequence[str] | None = None, families: Sequence[str] | None = None
) -> None:
    """Raise unless the model has a head and family that ``name`` needs (``NEEDS``); the error says what it can do."""
    heads = NEEDS[name][0] if heads is None else heads
    families = NEEDS.get(name, ((), ()))[1] if families is None else families
    can = ", ".join(abilities(facts))
    kind = head_kind(facts.head)
    if kind not in heads:
        raise SettingError(
            f"{name} needs a model with {_heads(heads)}; this one has {_heads([kind])}, and can {can}. "
            "Load it with {} if the folder has the weights of such a head.",
            Setting("head", heads[0]),
        )
    if families and facts.family not in families:
        raise ValueError(
            f"{name} needs a model of the family {' or '.join(families)}; this one is of the family {facts.family}, "
            f"and can {can}."
        )


def _heads(kinds: Sequence[str]) -> str:
    """Kinds of head in words."""
    names = {"none": "no head", "lm": "a language-model head"}
    return " or ".join(names.get(kind, f"a head of the kind {kind}") for kind in kinds)


def _summary(loaded: Loaded) -> str:
    """One line: lineage, family, parameters, dtype, device."""
    weight = next(loaded.model.parameters())
    dtype = str(weight.dtype).removeprefix("torch.")
    return (
        f"{loaded.lineage or 'model'}, {loaded.config.family}, {count(loaded.config):,} parameters, "
        f"{dtype} on {weight.device}"
    )


def _part_html(part: "Part") -> str:
    """A part with its parameters, the facts about it, and its own parts."""
    copies = f" × {part.times}" if part.times > 1 else ""
    line = f"<b>{escape(part.name)}</b> {part.parameters:,}{copies} <i>{escape(part.says)}</i>"
    if not part.parts:
        return f"<li>{line}</li>"
    is_open = " open" if part.name in ("model", "encoder", "decoder") else ""
    inside = "".join(map(_part_html, part.parts))
    return f"<li><details{is_open}><summary>{line}</summary><ul>{inside}</ul></details></li>"


def _facts_html(facts: object) -> str:
    """Nested facts as nested lists."""
    if not isinstance(facts, Mapping):
        return escape(str(facts))
    return f"<ul>{''.join(f'<li>{escape(str(name))}: {_facts_html(value)}</li>' for name, value in facts.items())}</ul>"
