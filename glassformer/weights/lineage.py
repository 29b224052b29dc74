"""What a lineage file says: how its ``config.json`` reads as facts, how its weights are called, which sizes exist.

Data types only; no tensor library.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from glassformer.config import EmbeddingHead, Head, LMHead, Model, PretrainingHead, TaskHead, Tokens, leaves, look
from glassformer.config.checks import check_divides, check_positive
from glassformer.weights.rules import Ignored, Rule

T = TypeVar("T")
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
WITHOUT_WEIGHTS = ("none", "embedding")  # kinds of heads that fit every lineage
OWN_CONFIG = "glassformer.json"  # beside the weights in a folder of our own format
_REASONS = {
    "read to choose the lineage and the head": "architectures model_type",
    "read as the labels of a task head": "id2label label2id num_labels _num_labels",
    "says who wrote the file, and from what": "transformers_version _name_or_path name_or_path finetuning_task "
    "_commit_hash",
    "the weights file knows its own types": "torch_dtype dtype use_bfloat16",
    "the caller decides by handing in a cache": "use_cache output_past",
    "shape of the other library's answers": "return_dict output_attentions output_hidden_states output_scores "
    "return_dict_in_generate",
    "how the other library computes; the result is the same": "chunk_size_feed_forward gradient_checkpointing "
    "torchscript attn_implementation _attn_implementation _attn_implementation_autoset tf_legacy_loss xla_device",
    "concerns training; the weights are there already": "problem_type layerdrop",
    "heads that were cut out leave smaller weights, which would not fit": "pruned_heads",
    "true only for two models glued together, which carry another model_type": "tie_encoder_decoder "
    "cross_attention_hidden_size",
    "known from the lineage": "is_encoder_decoder is_decoder add_cross_attention",
    "of encoder-decoders, which read it": "decoder_start_token_id",
    "for libraries that build on the other one": "sentence_transformers sbert_ce_default_activation_function "
    "transformers.js_config",
    "the tokenizer knows its tokens": "sep_token_id cls_token_id mask_token_id unk_token_id tokenizer_class prefix",
    "settings for generating text, not part of the model": "task_specific_params max_length min_length num_beams "
    "num_beam_groups early_stopping length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size do_sample "
    "temperature top_k top_p typical_p repetition_penalty diversity_penalty num_return_sequences bad_words_ids "
    "suppress_tokens begin_suppress_tokens exponential_decay_length_penalty remove_invalid_values eos_token_ids "
    "forced_bos_token_id forced_eos_token_id",
}
EVERYWHERE = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}  # keys of any config.json


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
            return self._checked(key, self._config[key])
        if key in self._defaults:
            return self._defaults[key]
        raise ConfigError(f"config.json does not say {key!r}, which this kind of model cannot do without.")

    def _checked(self, key: str, value: Any) -> Any:
        """A value of the kind that the usual value has; the usual value itself says what that is."""
        usual = self._defaults.get(key)
        kinds = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}.get(type(usual))
        if kinds is None or value is None or (key.endswith("_token_id") and isinstance(value, (int, list, tuple))):
            return value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ConfigError(f"config.json says {key}={value!r}; that should be of the kind of {usual!r}.")
        return value

    def says(self, key: str) -> bool:
        """Whether the file itself has the key."""
        self.used.add(key)
        return key in self._config

    def get(self, key: str, otherwise: Any) -> Any:
        """The value of a key whose usual value follows from others; null means the same as silence."""
        self.used.add(key)
        value = self._config.get(key)
        return otherwise if value is None else value

    def per_head(self, width: str, heads: str) -> int:
        """The width of a head, where all together are as wide as the model; the two keys are given by name."""
        check_positive(**{heads: getattr(self, heads), width: getattr(self, width)})
        check_divides(heads, getattr(self, heads), width, getattr(self, width))
        return int(getattr(self, width) // getattr(self, heads))

    def must(self, key: str, value: Any, reason: str) -> None:
        """Raise unless the key, if there at all, has the one value that we can serve."""
        self.used.add(key)
        found = self._config.get(key, self._defaults.get(key, value))
        if found != value:
            raise ConfigError(f"config.json says {key}={found!r}; only {value!r} can be used here: {reason}.")

    def activation(self, key: str, name: str | None = None) -> str:
        """An activation by our name; ``name`` is theirs where the key alone does not say it."""
        name = self.__getattr__(key) if name is None else name  # not getattr: a key may be called activation
        if name not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ConfigError(f"config.json says {key}={name!r}; known activations are {known}.")
        return ACTIVATIONS[name]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of a task head; without names, as many as usual, if the file says nothing."""
        named = self._config.get("id2label")
        if named:
            return tuple(str(named[key]) for key in sorted(named, key=int))
        usual = self._defaults.get("num_labels", 2)
        number = self._config.get("num_labels", self._config.get("_num_labels", usual))
        return tuple(f"LABEL_{index}" for index in range(number))

    @property
    def tokens(self) -> Tokens:
        """The ids that begin, end and pad a text; several may end it."""
        eos = self.eos_token_id
        return Tokens(bos=self.bos_token_id, eos=tuple(eos) if isinstance(eos, list) else eos, pad=self.pad_token_id)


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
        except (TypeError, ValueError) as error:  # a value that makes no sense: the fault is the file's
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
    length = next(n for n in range(1, len(items) + 1) if all(items[i] == items[i % n] for i in places))
    return tuple(items[:length])


def _ending(architecture: str) -> str:
    """What the name of a class says of its head, without the name of the model before it."""
    found = re.search(r"(For[A-Z]\w*|LMHead|LMHeadModel)$", architecture)
    ending = found.group() if found is not None else architecture
    language = ("LMHead", "LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
    return "a language model" if ending in language else ending


def choose_kind(lineage: Lineage, config: Mapping[str, Any]) -> str:
    """The kind of head that a config.json names by its class; the lineage's usual one where it names none."""
    names = [str(name).removeprefix("TF").removeprefix("Flax") for name in config.get("architectures") or []]
    for kind, form in lineage.heads.items():
        if form.architecture in names:
            return kind
    endings = {_ending(form.architecture): kind for kind, form in lineage.heads.items()}
    for name in names:  # the class of a parent lineage, or of years ago
        if _ending(name) in endings:
            return endings[_ending(name)]
    if names:
        known = ", ".join(form.architecture for form in lineage.heads.values())
        raise ConfigError(
            f"config.json says architectures={names!r}; of this lineage, {known} are known. "
            f"Choose one of their heads with head=: {', '.join(lineage.heads)}."
        )
    return next(iter(lineage.heads))


def read_config(path: Path) -> dict[str, Any]:
    """A config.json as it stands, with the errors that a damaged or dangerous one deserves."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file. A model's folder holds its config.json beside its weights.")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: this is not JSON ({error}). Download or save it again.") from error
    if not isinstance(said, dict):
        raise ConfigError(f"{path}: a config is a table of keys and values; this is a {type(said).__name__}.")
    if "auto_map" in said:
        raise ConfigError(
            f"{path}: this model asks to run Python code from its own folder (auto_map={said['auto_map']!r}), and "
            f"glassformer never does that. If the model is of a known kind all the same, remove the key auto_map."
        )
    return said
