"""What a lineage file says: how its ``config.json`` reads as facts, how its weights are called, which sizes exist.

Data types only; no tensor library.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from glassformer.config import EmbeddingHead, Head, LMHead, Model, PretrainingHead, TaskHead, leaves, look
from glassformer.config.checks import check_choice
from glassformer.weights.reader import THEIR_ACTIVATION, ConfigError, Reader
from glassformer.weights.rules import Ignored, Rule

T = TypeVar("T")
ABSENT = object()
WITHOUT_WEIGHTS = ("none", "embedding")  # kinds of heads that fit every lineage


@dataclass(frozen=True)
class Key:
    """A key of ``config.json``: the fact it states, if it states just one, and its value where the file is silent."""

    path: str | None
    default: Any


@dataclass(frozen=True)
class HeadFormat:
    """One kind of head of a lineage: the class that has it there, its facts, its weights."""

    architecture: str
    head: Callable[[Reader], Head | None]
    weights: tuple[Rule, ...] = ()
    inner: tuple[Rule, ...] = ()  # weights of the head that stand under the body's prefix
    tied: tuple[str, ...] = ()  # names under which a tied head stores the embedding table again
    prefix: str | None = None  # of the body's names under this head, if not the lineage's own
    only_encoder: bool = False  # the class leaves the decoder of an encoder-decoder out
    ties_if_equal: bool = False  # config.json may call a head tied that is not; the weights decide


@dataclass(frozen=True)
class Paper:
    """Where a lineage was published."""

    title: str
    authors: str
    year: int
    url: str


def _nothing_more(model: Model) -> dict[str, Any]:  # noqa: ARG001
    return {}


@dataclass(frozen=True)
class Lineage:
    """Everything about one lineage.

    ``heads`` is keyed by kind: lm, pool, pretraining, pair, classify, tag, span, replaced, none, encoder (none, and no
    decoder either); the first is the one that presets get. ``read`` makes the facts, without the head, from a
    config.json; ``keys`` are written back from the facts they state, ``write`` adds what takes more than one fact.
    """

    name: str
    paper: Paper
    read: Callable[[Reader], Model]
    weights: tuple[Rule, ...]
    heads: Mapping[str, HeadFormat]
    keys: Mapping[str, Key]
    write: Callable[[Model], dict[str, Any]] = _nothing_more
    model_type: str | None = None  # in config.json; None: not a model of Hugging Face
    prefix: str = ""  # of the body's names when there is a head
    ignored: Mapping[str, str] = field(default_factory=dict)  # keys of config.json, with the reason
    ignored_weights: tuple[Ignored, ...] = ()
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # preset: what its config.json says

    def reader(self, config: Mapping[str, Any]) -> Reader:
        """A config.json with this lineage's defaults."""
        return Reader(config, {name: key.default for name, key in self.keys.items()})

    def form(self, kind: str) -> HeadFormat:
        """A kind of head; those without weights of their own (no head, an embedding) fit every lineage."""
        if kind in WITHOUT_WEIGHTS and kind not in self.heads:
            return HeadFormat("", lambda _: None)
        return self.heads[kind]

    def facts(self, config: Mapping[str, Any], kind: str) -> Model:
        """The page of facts of a config.json, with a head of this kind."""
        reader, form = self.reader(config), self.form(kind)
        try:
            model = self.read(reader)
            return replace(model, head=form.head(reader), decoder=None if form.only_encoder else model.decoder)
        except ConfigError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            # a value that makes no sense, or of another kind than is expected there: the fault is the file's
            raise ConfigError(f"config.json does not make sense: {error}") from error

    def kind_of(self, model: Model) -> str:
        """Which of the lineage's heads a page of facts has."""
        wanted = head_kind(model.head)
        if wanted == "none" and model.family == "encoder" and "encoder" in self.heads:
            wanted = "encoder"
        if wanted not in self.heads:
            raise ConfigError(f"{self.name} has no head of the kind {wanted!r}; it has {', '.join(self.heads)}.")
        return wanted

    def config(self, model: Model) -> dict[str, Any]:
        """The config.json of a page of facts; raises if it would not read back as the same facts."""
        kind = self.kind_of(model)
        said: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.heads[kind].architecture]}
        for name, key in self.keys.items():
            value = ABSENT if key.path is None else look(model, key.path, ABSENT)
            if value is None and key.path is not None and key.path.startswith("init."):
                continue  # where training would start; a number or nothing
            if value is not ABSENT:
                said[name] = THEIR_ACTIVATION.get(value, value) if isinstance(value, str) else value
        labels = look(model.head, "labels")
        if labels:
            said["id2label"] = {str(index): label for index, label in enumerate(labels)}
            said["label2id"] = {label: index for index, label in enumerate(labels)}
        try:
            said |= self.write(model)
        except (AssertionError, AttributeError, TypeError) as error:
            what = f"these facts, which are of the family {model.family}"
            raise ConfigError(f"a config.json of the kind {self.name} cannot state {what}.") from error
        try:
            again = replace(self.facts(said, kind), init=model.init)
        except ValueError as error:
            raise ConfigError(f"a config.json of the kind {self.name} cannot state these facts: {error}") from error
        if again != model:
            lost = [path for (path, a), (_, b) in zip(leaves(model), leaves(again), strict=False) if a != b]
            what = ", ".join(lost) or "their structure"
            raise ConfigError(f"a config.json of the kind {self.name} cannot state these facts: {what}.")
        return said


def choose_own_head(facts: Model, head: str | Head | None) -> Model:
    """Facts of our own with the head that is asked for: by name its own or none, or any by its facts."""
    if isinstance(head, str):
        check_choice("head", head, ("none", head_kind(facts.head)))
        head = None if head == "none" else facts.head
    return replace(facts, head=head)


def head_kind(head: Head | None) -> str:
    """One word for a kind of head."""
    if head is None:
        return "none"
    if isinstance(head, TaskHead):
        return head.task
    return {LMHead: "lm", PretrainingHead: "pretraining", EmbeddingHead: "embedding"}[type(head)]


def task(name: str, **facts: Any) -> Callable[[Reader], TaskHead]:
    """A task head whose labels config.json names."""
    return lambda c: TaskHead(task=name, labels=c.labels, **facts)  # type: ignore[arg-type]


def span(_: Reader) -> TaskHead:
    """A head that marks where an answer starts and ends."""
    return TaskHead(task="span", labels=("start", "end"))


USUAL_TAG_DROPOUT = 0.1  # where a config class has no word for it


def tag(c: Reader) -> TaskHead:
    """A head that labels every token of a decoder; its dropout goes by two names."""
    dropout = c.get("classifier_dropout", c.get("hidden_dropout", USUAL_TAG_DROPOUT))
    return TaskHead(task="tag", labels=c.labels, dropout=dropout)


def write_tag(model: Model) -> dict[str, Any]:
    """What config.json must say of such a head: nothing, unless its dropout is unusual."""
    head = model.head
    if not isinstance(head, TaskHead) or head.task != "tag" or head.dropout == USUAL_TAG_DROPOUT:
        return {}
    return {"classifier_dropout": head.dropout}


def shortest_cycle(items: Sequence[T]) -> tuple[T, ...]:
    """The fewest of the first items that, laid over all in turn, give all of them: a b a b a → a b."""
    places = range(len(items))
    length = next((n for n in range(1, len(items)) if all(items[i] == items[i % n] for i in places)), len(items))
    return tuple(items[:length])


def _ending(architecture: str) -> str:
    """What the name of a class says of its head, without the name of the model before it."""
    found = re.search(r"(For[A-Z]\w*|LMHead|LMHeadModel)$", architecture)
    ending = found.group() if found is not None else architecture
    language = ("LMHead", "LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
    return "a language model" if ending in language else ending


def class_names(config: Mapping[str, Any]) -> list[str]:
    """The classes that a config.json names, without the marks of other tensor libraries."""
    said = config.get("architectures") or []
    if not isinstance(said, list):
        raise ConfigError(f"config.json says architectures={said!r:.80}; it must be a list of names.")
    return [str(name).removeprefix("TF").removeprefix("Flax") for name in said]


def choose_kind(lineage: Lineage, config: Mapping[str, Any]) -> str:
    """The kind of head that a config.json names by its class; the lineage's usual one where it names none."""
    names = class_names(config)
    for kind, form in lineage.heads.items():
        if form.architecture in names:
            return kind
    endings = {_ending(form.architecture): kind for kind, form in lineage.heads.items()}
    for name in names:  # the class of a parent lineage, or of years ago
        if _ending(name) in endings:
            return endings[_ending(name)]
    if names:
        known = ", ".join(dict.fromkeys(form.architecture for form in lineage.heads.values()))
        raise ConfigError(
            f"config.json says architectures={names!r}; of this lineage, {known} are known. "
            f"Choose one of their heads with head=: {', '.join(lineage.heads)}."
        )
    return next(iter(lineage.heads))
