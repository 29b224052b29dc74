"""What a lineage file says: how its ``config.json`` reads as facts, how its weights are called, which sizes exist.

Data types only; no tensor library.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from glassformer.config import EmbeddingHead, Head, LMHead, Model, PretrainingHead, TaskHead, leaves, look
from glassformer.weights.rules import Ignored, Rule

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}  # theirs: ours; of several, the first is the one written
THEIR_ACTIVATION = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
ABSENT = object()
EVERYWHERE = {
    "architectures": "read to choose the head",
    "model_type": "read to choose the lineage",
    "id2label": "read as the labels of a task head",
    "label2id": "the reverse of id2label",
    "num_labels": "the number of labels, where they have no names",
    "_num_labels": "the number of labels, where they have no names",
    "transformers_version": "says who wrote the file",
    "_name_or_path": "says where the file came from",
    "name_or_path": "says where the file came from",
    "torch_dtype": "the weights file knows its own types",
    "dtype": "the weights file knows its own types",
    "use_cache": "the caller decides by handing in a cache",
    "return_dict": "shape of the other library's answers",
    "output_attentions": "shape of the other library's answers",
    "output_hidden_states": "shape of the other library's answers",
    "problem_type": "the choice of a loss while training",
    "task_specific_params": "settings for generating text, not part of the model",
    "finetuning_task": "says what the weights were trained for",
    "chunk_size_feed_forward": "how the other library saves memory; the result is the same",
    "gradient_checkpointing": "how the other library saves memory; the result is the same",
    "torchscript": "how the other library exports",
    "tie_encoder_decoder": "true only for pairs of encoders glued together, which carry another model_type",
    "attn_implementation": "the caller chooses the path of attention",
    "_attn_implementation": "the caller chooses the path of attention",
    "_attn_implementation_autoset": "the caller chooses the path of attention",
    "initializer_range": "where training starts; the weights are there already",
    "initializer_factor": "where training starts; the weights are there already",
    "init_std": "where training starts; the weights are there already",
    "layerdrop": "skipping of layers while training, which is not done here",
    "max_length": "settings for generating text, not part of the model",
    "min_length": "settings for generating text, not part of the model",
    "num_beams": "settings for generating text, not part of the model",
    "early_stopping": "settings for generating text, not part of the model",
    "length_penalty": "settings for generating text, not part of the model",
    "no_repeat_ngram_size": "settings for generating text, not part of the model",
    "do_sample": "settings for generating text, not part of the model",
    "temperature": "settings for generating text, not part of the model",
    "top_k": "settings for generating text, not part of the model",
    "top_p": "settings for generating text, not part of the model",
    "repetition_penalty": "settings for generating text, not part of the model",
    "forced_bos_token_id": "settings for generating text, not part of the model",
    "forced_eos_token_id": "settings for generating text, not part of the model",
    "is_encoder_decoder": "known from the lineage",
    "sep_token_id": "the tokenizer knows its tokens",
    "cls_token_id": "the tokenizer knows its tokens",
    "mask_token_id": "the tokenizer knows its tokens",
    "unk_token_id": "the tokenizer knows its tokens",
}


class ConfigError(ValueError):
    """A ``config.json`` that cannot be read as a page of facts."""


class Reader:
    """A ``config.json``, read key by key: what it leaves out has the default of its lineage, and reading is noted."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._config = config
        self._defaults = defaults
        self.used: set[str] = set()

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        self.used.add(key)
        if key in self._config:
            return self._config[key]
        if key in self._defaults:
            return self._defaults[key]
        raise ConfigError(f"config.json does not say {key!r}, which this kind of model cannot do without.")

    def says(self, key: str) -> bool:
        """Whether the file itself has the key."""
        self.used.add(key)
        return key in self._config

    def must(self, key: str, value: Any, reason: str) -> None:
        """Raise unless the key, if there at all, has the one value that we can serve."""
        self.used.add(key)
        found = self._config.get(key, self._defaults.get(key, value))
        if found != value:
            raise ConfigError(f"config.json says {key}={found!r}; only {value!r} can be used here: {reason}.")

    def activation(self, key: str) -> str:
        """An activation by our name."""
        name = getattr(self, key)
        if name not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ConfigError(f"config.json says {key}={name!r}; known activations are {known}.")
        return ACTIVATIONS[name]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of a task head; two without names if the file says nothing."""
        named = self._config.get("id2label")
        if named:
            return tuple(str(named[key]) for key in sorted(named, key=int))
        number = self._config.get("num_labels", self._config.get("_num_labels", 2))
        return tuple(f"LABEL_{index}" for index in range(number))


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

    ``heads`` is keyed by kind: lm, pool, pretraining, pair, classify, tag, span, replaced, none; the first is the one
    that presets get. ``read`` makes the facts, without the head, from a config.json; ``keys`` are written back from the
    facts they state, ``write`` adds what takes more than one fact.
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
    tokenizer: str | None = None  # kind of the classic vocabulary files

    def reader(self, config: Mapping[str, Any]) -> Reader:
        """A config.json with this lineage's defaults."""
        return Reader(config, {name: key.default for name, key in self.keys.items()})

    def facts(self, config: Mapping[str, Any], kind: str) -> Model:
        """The page of facts of a config.json, with a head of this kind."""
        reader = self.reader(config)
        return replace(self.read(reader), head=self.heads[kind].head(reader))

    def kind_of(self, model: Model) -> str:
        """Which of the lineage's heads a page of facts has."""
        wanted = head_kind(model.head)
        if wanted not in self.heads:
            raise ConfigError(f"{self.name} has no head of the kind {wanted!r}; it has {', '.join(self.heads)}.")
        return wanted

    def config(self, model: Model) -> dict[str, Any]:
        """The config.json of a page of facts; raises if it would not read back as the same facts."""
        kind = self.kind_of(model)
        said: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.heads[kind].architecture]}
        for name, key in self.keys.items():
            value = ABSENT if key.path is None else look(model, key.path, ABSENT)
            if value is not ABSENT:
                said[name] = THEIR_ACTIVATION.get(value, value) if isinstance(value, str) else value
        labels = look(model.head, "labels")
        if labels:
            said["id2label"] = {str(index): label for index, label in enumerate(labels)}
            said["label2id"] = {label: index for index, label in enumerate(labels)}
        said |= self.write(model)
        again = replace(self.facts(said, kind), init=model.init)
        if again != model:
            lost = [path for (path, a), (_, b) in zip(leaves(model), leaves(again), strict=False) if a != b]
            what = ", ".join(lost) or "their structure"
            raise ConfigError(f"a config.json of the kind {self.name} cannot state these facts: {what}.")
        return said


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
