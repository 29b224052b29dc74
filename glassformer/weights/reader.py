"""A ``config.json`` of another library, read key by key and with care; no tensor library.

What it leaves out has the default of its lineage, which keys were read is noted, and a value that makes no sense is
refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassformer.config import Model, Tokens, from_dict
from glassformer.config.checks import MOST_LAYERS, SettingError, check_divides, check_positive

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
LARGEST = 2**31 - 1  # of any size in a config.json: products of two fit into the 64 bits of a tensor's size
MOST_LABELS = 10**6  # of a task head; each has a name
OWN_CONFIG = "glassformer.json"  # beside the weights in a folder of our own format
_REASONS = {
    "read to choose the lineage and the head": "architectures model_type",
    "read as the labels of a task head": "id2label label2id num_labels",
    "an old name of num_labels that transformers does not read either": "_num_labels",
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


class ConfigError(SettingError):
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
        if isinstance(value, int) and not isinstance(usual, float):
            most = MOST_LAYERS if "layer" in key else LARGEST
            if abs(value) > most:
                raise ConfigError(f"config.json says {key}={value!r:.40}; no model has more than {most}.")
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
        return otherwise if value is None else self._checked(key, value)

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
        """Names of the classes of a task head: those of id2label, unless num_labels states another number of them."""
        named, number = self._label_names(), self._config.get("num_labels")
        if number is None:
            number = len(named) or self._defaults.get("num_labels", 2)
        if type(number) is not int or not 1 <= number <= MOST_LABELS:
            raise ConfigError(
                f"config.json says num_labels={number!r:.40}; it must be a positive integer of at most {MOST_LABELS}."
            )
        if len(named) == number:
            return named
        return tuple(f"LABEL_{index}" for index in range(number))  # as transformers names them, whatever id2label says

    def _label_names(self) -> tuple[str, ...]:
        """The values of id2label in the order of its keys, which are numbers written as text."""
        named = self._config.get("id2label") or {}
        try:
            return tuple(str(name) for _, name in sorted(named.items(), key=lambda item: int(item[0])))
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"config.json says id2label={named!r:.200}; it must map the numbers of the classes to their names."
            ) from error

    @property
    def tokens(self) -> Tokens:
        """The ids that begin, end and pad a text; several may end it."""
        eos = self.eos_token_id
        return Tokens(bos=self.bos_token_id, eos=tuple(eos) if isinstance(eos, list) else eos, pad=self.pad_token_id)


@contextmanager
def naming(place: Path, *kinds: type[SettingError]) -> Iterator[None]:
    """Let errors of these kinds begin with where the model lies."""
    try:
        yield
    except kinds as error:
        if str(place) in str(error):
            raise
        raise error.prefixed(f"{place}: ") from error


def read_own(said: Mapping[str, Any]) -> Model:
    """The page of facts in a glassformer.json."""
    if said.get("format") != 1 or "model" not in said:
        raise ConfigError(f"{OWN_CONFIG} must say format 1 and hold a model; this is of another version, or damaged.")
    try:
        return from_dict(Model, said["model"])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{OWN_CONFIG}: {error}") from error


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
