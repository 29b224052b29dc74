"""The description of a lineage: how to read its ``config.json`` as facts, the names of its weights, its sizes.

A *lineage* is a named kind of checkpoint (a ``model_type`` of Hugging Face), *facts* are our config values, and the
*body* of a model is all of it but the head (``BertModel`` in ``BertForMaskedLM``). Data types only; no tensor library.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from glassformer.config import EmbeddingHead, Head, LMHead, ModelConfig, PretrainingHead, TaskHead, get_fact, leaves
from glassformer.config.checks import Setting, check_choice
from glassformer.config.model import a_family
from glassformer.weights.reader import THEIR_ACTIVATION, ConfigError, ConfigReader
from glassformer.weights.rules import Ignored, Rule

T = TypeVar("T")
ABSENT = object()
WITHOUT_WEIGHTS = ("none", "embedding")  # kinds of head that every lineage supports


@dataclass(frozen=True)
class Key:
    """A key of ``config.json``: the path of the fact that it sets, if it sets a single one, and its default value."""

    path: str | None
    default: Any


@dataclass(frozen=True)
class HeadFormat:
    """One kind of head of a lineage: the name of Hugging Face's class, how to read the head's facts, its weights."""

    architecture: str
    head: Callable[[ConfigReader], Head | None]
    weight_rules: tuple[Rule, ...] = ()
    body_rules: tuple[Rule, ...] = ()  # of those weights of the head whose names begin with the body's prefix
    tied: tuple[str, ...] = ()  # names under which a tied head stores a second copy of the embedding table
    prefix: str | None = None  # of the body's names in this class, if not ``Lineage.prefix``
    only_encoder: bool = False  # the class has only the encoder of an encoder-decoder
    ties_if_equal: bool = False  # config.json cannot state that a head is untied; the weights decide


@dataclass(frozen=True)
class Paper:
    """The paper of a lineage."""

    title: str
    authors: str
    year: int
    url: str


def _no_keys(facts: ModelConfig) -> dict[str, Any]:  # noqa: ARG001
    return {}


@dataclass(frozen=True, repr=False)
class Lineage:
    """A named kind of checkpoint, such as BERT or Llama.

    ``read`` turns a config.json into facts, without the head. The other way round, ``keys`` says which key each fact is
    written to, and ``write`` returns the keys that depend on several facts. ``heads`` are the heads by kind: lm, pool,
    pretraining, pair, classify, tag, span, replaced, none, encoder (no head and no decoder); presets have the first,
    unless their ``sizes`` name another in ``architectures``.
    """

    name: str
    paper: Paper
    read: Callable[[ConfigReader], ModelConfig]
    weight_rules: tuple[Rule, ...]  # of the body: our name, theirs, and how to convert (``rules.py``)
    heads: Mapping[str, HeadFormat]
    keys: Mapping[str, Key]
    write: Callable[[ModelConfig], dict[str, Any]] = _no_keys
    model_type: str | None = None  # in config.json; None: not a model of Hugging Face
    prefix: str = ""  # of the body's names in a class with a head
    ignored_keys: Mapping[str, str] = field(default_factory=dict)  # of config.json, with the reason
    ignored_weights: tuple[Ignored, ...] = ()  # in checkpoints, but not in the model, with the reason
    # Preset name -> keys of its config.json; those left out have the lineage's defaults.
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Lineage {self.name}>"

    def reader(self, config: Mapping[str, Any]) -> ConfigReader:
        """Return a reader of a config.json that has this lineage's defaults."""
        return ConfigReader(config, {name: key.default for name, key in self.keys.items()})

    def head_format(self, kind: str) -> HeadFormat:
        """Return the format of a kind of head; every lineage has those without weights."""
        if kind in WITHOUT_WEIGHTS and kind not in self.heads:
            return HeadFormat("", lambda _: None)
        return self.heads[kind]

    def facts(self, config: Mapping[str, Any], kind: str) -> ModelConfig:
        """Return the facts of a config.json, with a head of this kind."""
        reader, head_format = self.reader(config), self.head_format(kind)
        try:
            facts = self.read(reader)
            return replace(
                facts, head=head_format.head(reader), decoder=None if head_format.only_encoder else facts.decoder
            )
        except ConfigError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            # an invalid value, or one of an unexpected type
            raise ConfigError(f"config.json is invalid: {error}") from error

    def kind_of(self, facts: ModelConfig) -> str:
        """Return the kind of head of these facts, among those of the lineage."""
        kind = head_kind(facts.head)
        if kind == "none" and facts.family == "encoder" and "encoder" in self.heads:
            kind = "encoder"
        if kind not in self.heads:
            raise ConfigError(f"{self.name} has no head of the kind {kind!r}; it has {', '.join(self.heads)}.")
        return kind

    def config(self, facts: ModelConfig) -> dict[str, Any]:
        """Return the config.json of these facts; raise unless it would be read as the same facts."""
        # One key per fact, then labels, then the keys that take several facts.
        kind = self.kind_of(facts)
        config: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.heads[kind].architecture]}
        for name, key in self.keys.items():
            value = ABSENT if key.path is None else get_fact(facts, key.path, ABSENT)
            if value is None and key.path is not None and key.path.startswith("init."):
                continue  # of the initialisation; absent if unknown
            if value is not ABSENT:
                config[name] = THEIR_ACTIVATION.get(value, value) if isinstance(value, str) else value
        labels = get_fact(facts.head, "labels")
        if labels:
            config["id2label"] = {str(index): label for index, label in enumerate(labels)}
            config["label2id"] = {label: index for index, label in enumerate(labels)}
        try:
            config |= self.write(facts)
        except (AssertionError, AttributeError, TypeError) as error:
            reason = f"the config of {a_family(facts.family)}"
            raise ConfigError(f"a config.json for {self.name} cannot express {reason}.") from error
        # Read it back and compare.
        try:
            again = replace(self.facts(config, kind), init=facts.init)
        except ValueError as error:
            raise ConfigError(f"a config.json for {self.name} cannot express these config values: {error}") from error
        if again != facts:
            kept = dict(leaves(again))
            lost = [path for path, value in leaves(facts) if path not in kept or kept[path] != value]
            names = ", ".join(lost) or "their structure"
            raise ConfigError(f"a config.json for {self.name} cannot express these config values: {names}.")
        return config


def choose_own_head(facts: ModelConfig, head: str | Head | None) -> ModelConfig:
    """Return facts with another head: "none" or its own by name, or any by its facts."""
    if isinstance(head, str):
        check_choice("head", head, ("none", head_kind(facts.head)))
        head = None if head == "none" else facts.head
    return replace(facts, head=head)


def head_kind(head: Head | None) -> str:
    """Return the kind of a head in one word."""
    if head is None:
        return "none"
    if isinstance(head, TaskHead):
        return head.task
    return {LMHead: "lm", PretrainingHead: "pretraining", EmbeddingHead: "embedding"}[type(head)]


def classify_head(c: ConfigReader) -> TaskHead:
    """Return a head that classifies a text by the last token of a decoder."""
    return TaskHead(task="classify", labels=c.labels, pool="last", bias=False)


def span_head(_: ConfigReader) -> TaskHead:
    """Return a head for question answering: for every token, the logits of the start and of the end of the answer."""
    return TaskHead(task="span", labels=("start", "end"))


DEFAULT_TAG_DROPOUT = 0.1  # if a config class has no key for it


def tag_head(c: ConfigReader) -> TaskHead:
    """Return a head that labels every token of a decoder; its dropout is under either of two keys."""
    dropout = c.get("classifier_dropout", c.get("hidden_dropout", DEFAULT_TAG_DROPOUT))
    return TaskHead(task="tag", labels=c.labels, dropout=dropout)


def write_tag_dropout(facts: ModelConfig) -> dict[str, Any]:
    """Return the key of the dropout of ``tag_head``, unless the dropout is the default."""
    head = facts.head
    if not isinstance(head, TaskHead) or head.task != "tag" or head.dropout == DEFAULT_TAG_DROPOUT:
        return {}
    return {"classifier_dropout": head.dropout}


def shortest_cycle(items: Sequence[T]) -> tuple[T, ...]:
    """Return the shortest prefix that, repeated, gives all items: a b a b a → a b."""
    indices = range(len(items))
    length = next((n for n in range(1, len(items)) if all(items[i] == items[i % n] for i in indices)), len(items))
    return tuple(items[:length])


def _ending(architecture: str) -> str:
    """Return the name of a class without that of the model: ForQuestionAnswering, or "a language model"."""
    match = re.search(r"(For[A-Z]\w*|LMHead|LMHeadModel)$", architecture)
    ending = match.group() if match is not None else architecture
    language = ("LMHead", "LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
    return "a language model" if ending in language else ending


def class_names(config: Mapping[str, Any]) -> list[str]:
    """Return the classes in ``architectures``, without the prefixes of other tensor libraries."""
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise ConfigError(f"config.json says architectures={names!r:.80}; it must be a list of names.")
    return [str(name).removeprefix("TF").removeprefix("Flax") for name in names]


def choose_kind(lineage: Lineage, config: Mapping[str, Any]) -> str:
    """Return the kind of head of the class that a config.json names; the lineage's first if it names none."""
    # The exact class, then the ending of its name.
    names = class_names(config)
    for kind, form in lineage.heads.items():
        if form.architecture in names:
            return kind
    endings = {_ending(form.architecture): kind for kind, form in lineage.heads.items()}
    for name in names:  # the class of a parent lineage, or an old name
        if _ending(name) in endings:
            return endings[_ending(name)]
    if names:
        known = ", ".join(dict.fromkeys(form.architecture for form in lineage.heads.values()))
        raise ConfigError(
            "config.json says architectures={}; of this model type, {} are known. Choose the head of one with {}: {}.",
            repr(names),
            known,
            Setting("head"),
            ", ".join(lineage.heads),
        )
    return next(iter(lineage.heads))
