"""Read the ``config.json`` of another library and our own ``glassformer.json``; no tensor library.

A missing key has the default of its lineage, the keys that were read are recorded, and a value of the wrong type or
size raises an error that names its key. Rotary positions take several keys: ``read_rotary`` and ``write_rotary``.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import log
from pathlib import Path
from typing import Any

from glassformer.config import ModelConfig, Rotary, RotaryScaling, Tokens, from_dict
from glassformer.config.checks import MAX_LAYERS, SettingError, check_divides, check_positive_integer

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
}  # theirs: ours; the first name of each is the one that is written
THEIR_ACTIVATION = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
MAX_SIZE = 2**31 - 1  # of any size in a config.json: the product of two fits into 64 bits
MAX_LABELS = 10**6  # of a task head
OWN_CONFIG = "glassformer.json"  # beside the weights in a folder of our own format
_REASONS = {
    "read to choose the lineage and the head": "architectures model_type",
    "read as the labels of a task head": "id2label label2id num_labels",
    "an old name of num_labels that transformers does not read either": "_num_labels",
    "the origin of the file": "transformers_version _name_or_path name_or_path finetuning_task _commit_hash",
    "the weights file states the dtypes": "torch_dtype dtype use_bfloat16",
    "the caller decides by passing a cache": "use_cache output_past",
    "outputs of the other library": "return_dict output_attentions output_hidden_states output_scores "
    "return_dict_in_generate",
    "how the other library computes; the result is the same": "chunk_size_feed_forward gradient_checkpointing "
    "torchscript attn_implementation _attn_implementation _attn_implementation_autoset tf_legacy_loss xla_device",
    "for training only": "problem_type layerdrop",
    "pruned heads have smaller weights, which would not fit": "pruned_heads",
    "only for two models joined into one, which have another model_type": "tie_encoder_decoder "
    "cross_attention_hidden_size",
    "known from the lineage": "is_encoder_decoder is_decoder add_cross_attention",
    "only for encoder-decoders, which read it": "decoder_start_token_id",
    "for libraries that build on the other one": "sentence_transformers sbert_ce_default_activation_function "
    "transformers.js_config",
    "the tokenizer has its tokens": "sep_token_id cls_token_id mask_token_id unk_token_id tokenizer_class prefix",
    "settings for generating text, not part of the model": "task_specific_params max_length min_length num_beams "
    "num_beam_groups early_stopping length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size do_sample "
    "temperature top_k top_p typical_p repetition_penalty diversity_penalty num_return_sequences bad_words_ids "
    "suppress_tokens begin_suppress_tokens exponential_decay_length_penalty remove_invalid_values eos_token_ids "
    "forced_bos_token_id forced_eos_token_id",
}
EVERYWHERE = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}  # in any config.json


class ConfigError(SettingError):
    """A ``config.json`` that does not describe a model that we can build."""


class ConfigReader:
    """The values of a ``config.json`` as attributes, with the defaults of a lineage; ``used`` records the keys read."""

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
        raise ConfigError(f"config.json has no {key!r}, which this kind of model needs.")

    def _checked(self, key: str, value: Any) -> Any:
        """Return the value, if it has the type of the default."""
        default = self._defaults.get(key)
        if isinstance(value, int) and not isinstance(default, float):
            limit = MAX_LAYERS if "layer" in key else MAX_SIZE
            if abs(value) > limit:
                raise ConfigError(f"config.json says {key}={value!r:.40}; no model has more than {limit}.")
        # The type of the default; null and lists of token ids are always allowed.
        kinds = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}.get(type(default))
        if kinds is None or value is None or (key.endswith("_token_id") and isinstance(value, (int, list, tuple))):
            return value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            kind = type(default).__name__
            raise ConfigError(f"config.json says {key}={value!r}; expected {kind}, such as the default {default!r}.")
        return value

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        self.used.add(key)
        return key in self._config

    def get(self, key: str, default: Any) -> Any:
        """Return the value of a key, or ``default`` if it is missing or null."""
        self.used.add(key)
        value = self._config.get(key)
        return default if value is None else self._checked(key, value)

    def per_head(self, width: str, heads: str) -> int:
        """Return the model width divided by the number of heads; ``width`` and ``heads`` are the keys of both."""
        check_positive_integer(**{heads: getattr(self, heads), width: getattr(self, width)})
        check_divides(heads, getattr(self, heads), width, getattr(self, width))
        return int(getattr(self, width) // getattr(self, heads))

    def require(self, key: str, value: Any, reason: str) -> None:
        """Raise unless the key is missing or has ``value``, the only one that is supported."""
        self.used.add(key)
        actual = self._config.get(key, self._defaults.get(key, value))
        if actual != value:
            raise ConfigError(f"config.json says {key}={actual!r}; only {value!r} is supported: {reason}.")

    def activation(self, key: str, name: str | None = None) -> str:
        """Return our name of an activation; ``name`` is the other library's, if it is not the value of the key."""
        name = self.__getattr__(key) if name is None else name  # not getattr: a key may be called activation
        if name not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ConfigError(f"config.json says {key}={name!r}; known activations are {known}.")
        return ACTIVATIONS[name]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of a task head: those of id2label, unless num_labels differs from their number."""
        names, number = self._label_names(), self._config.get("num_labels")
        if number is None:
            number = len(names) or self._defaults.get("num_labels", 2)
        if type(number) is not int or not 1 <= number <= MAX_LABELS:
            raise ConfigError(
                f"config.json says num_labels={number!r:.40}; it must be a positive integer of at most {MAX_LABELS}."
            )
        if len(names) == number:
            return names
        return tuple(f"LABEL_{index}" for index in range(number))  # as in transformers, whatever id2label has

    def _label_names(self) -> tuple[str, ...]:
        """Return the values of id2label in the order of its keys, which are numbers as strings."""
        labels = self._config.get("id2label") or {}
        try:
            return tuple(str(name) for _, name in sorted(labels.items(), key=lambda item: int(item[0])))
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"config.json says id2label={labels!r:.200}; it must map the numbers of the classes to their names."
            ) from error

    @property
    def attention_biases(self) -> str:
        """The projections of attention that have biases, all or none: the key attention_bias."""
        return "qkvo" if self.attention_bias else ""

    @property
    def tokens(self) -> Tokens:
        """The ids of BOS, EOS (one or several) and padding."""
        eos = self.eos_token_id
        return Tokens(bos=self.bos_token_id, eos=tuple(eos) if isinstance(eos, list) else eos, pad=self.pad_token_id)


@contextmanager
def prefix_errors(path: Path, *kinds: type[SettingError]) -> Iterator[None]:
    """Put the path of the model before the message of errors of these types."""
    try:
        yield
    except kinds as error:
        if str(path) in str(error):
            raise
        raise error.prefixed(f"{path}: ") from error


def read_own(config: Mapping[str, Any]) -> ModelConfig:
    """Return the facts in the content of a glassformer.json."""
    if config.get("format") != 1 or "model" not in config:
        raise ConfigError(f"{OWN_CONFIG} must have format 1 and a model; it is of another version, or damaged.")
    try:
        return from_dict(ModelConfig, config["model"])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{OWN_CONFIG}: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a config.json; raise if it is damaged or asks to run code."""
    if not path.is_file():
        if (path.parent / "adapters.json").is_file():
            raise ConfigError(f"{path.parent} holds adapters only; their run merges them into its model/.")
        if any((path.parent / "model" / name).is_file() for name in (path.name, OWN_CONFIG)):
            raise ConfigError(f"{path.parent} has no {path.name}; the model is in its folder {path.parent / 'model'}.")
        raise ConfigError(f"{path}: there is no such file. A model's folder has its config.json beside its weights.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: this is not JSON ({error}). Download or save it again.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a config is a JSON object; this is a {type(config).__name__}.")
    if "auto_map" in config:
        raise ConfigError(
            f"{path}: this model asks to run Python code from its own folder (auto_map={config['auto_map']!r}), and "
            f"glassformer never does that. If the model is of a known kind all the same, remove the key auto_map."
        )
    return config


# --- rotary positions ------------------------------------------------------------------------------------------------

_ROTARY_KEYS = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
    "truncate",
}  # fmt: skip
_ROTARY_KINDS = {"linear": "linear", "llama3": "smooth", "yarn": "yarn"}  # theirs: ours


def read_rotary(c: ConfigReader, head_dim: int, *, partial: float | None = None, theta: float = 10_000.0) -> Rotary:
    """Return rotary positions from rope_parameters, or in older files from rope_theta and rope_scaling.

    Args:
        c: the config.json.
        head_dim: the width of a head.
        partial: the default of partial_rotary_factor; None: this lineage always rotates whole heads.
        theta: the default of rope_theta.
    """
    older, newer = c.get("rope_scaling", None), c.get("rope_parameters", None)
    # Only keys and values that are supported.
    rope: Mapping[str, Any] = older or newer or {}
    if not isinstance(rope, Mapping):
        raise ConfigError(f"config.json says {rope!r:.200} of its rotary positions; it must be an object with keys.")
    if unknown := sorted(set(rope) - _ROTARY_KEYS):
        raise ConfigError(f"config.json has {', '.join(unknown)} among its rotary positions, which is not supported.")
    only = {"truncate": True} if partial is not None else {"truncate": True, "partial_rotary_factor": 1.0}
    if partial is None:
        c.require("partial_rotary_factor", 1.0, "models of this type rotate whole heads")
    for key, value in only.items():
        if rope.get(key, value) != value:
            raise ConfigError(
                f"config.json says {key}={rope[key]!r} of its rotary positions; only {value} is supported."
            )
    single = c.get("rope_theta", theta)  # also written beside rope_parameters, for older programs
    return Rotary(
        dim=head_dim if partial is None else int(head_dim * rope.get("partial_rotary_factor", partial)),
        length=c.max_position_embeddings,
        theta=single if rope.get("rope_theta") is None else rope["rope_theta"],
        scaling=_scaling(c, rope),
    )


def _scaling(c: ConfigReader, rope: Mapping[str, Any]) -> RotaryScaling | None:
    """Return how the angles are scaled for longer contexts; None if they are not."""
    original = c.get("original_max_position_embeddings", rope.get("original_max_position_embeddings"))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "dynamic":
        raise ConfigError(
            "config.json scales its rotary positions dynamically (rope_type='dynamic'), which is not supported: the "
            "angles of cached tokens would change with the length of the text."
        )
    if kind not in _ROTARY_KINDS:
        raise ConfigError(f"config.json says rope_type={kind!r}; known are default, {', '.join(_ROTARY_KINDS)}.")
    # The settings of each kind.
    needed = ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",)
    if lacking := [key for key in needed if rope.get(key) is None]:
        raise ConfigError(f"config.json scales its rotary positions ({kind}) and lacks {', '.join(lacking)}.")
    factor, length = float(rope["factor"]), original or c.max_position_embeddings
    if kind == "linear":
        return RotaryScaling(kind="linear", factor=factor)
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RotaryScaling(kind="smooth", factor=factor, original_length=length, low=low, high=high)
    low, high = float(rope.get("beta_slow") or 1), float(rope.get("beta_fast") or 32)
    attention = _attention_factor(factor, rope)
    return RotaryScaling(kind="yarn", factor=factor, original_length=length, low=low, high=high, attention=attention)


def _attention_factor(factor: float, rope: Mapping[str, Any]) -> float:
    """Return the factor of queries and keys: attention_factor, or YaRN's formula (Peng et al., 2023, section 3.4)."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    growth = 0.1 * log(factor) if factor > 1 else 0.0
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return float((growth * rope["mscale"] + 1) / (growth * rope["mscale_all_dim"] + 1))
    return growth + 1


def write_rotary(facts: Rotary) -> dict[str, Any]:
    """Return both rope_parameters and the older keys: older readers use defaults if those are missing."""
    rope: dict[str, Any] = {"rope_type": "default"}
    scaling = facts.scaling
    if scaling is not None:
        kind = next(theirs for theirs, ours in _ROTARY_KINDS.items() if ours == scaling.kind)
        rope |= {"rope_type": kind, "factor": scaling.factor}
        if kind != "linear":
            rope["original_max_position_embeddings"] = scaling.original_length
        if kind == "llama3":
            rope |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        if kind == "yarn":
            rope |= {"beta_slow": scaling.low, "beta_fast": scaling.high, "attention_factor": scaling.attention}
    return {
        "rope_parameters": {**rope, "rope_theta": facts.theta},
        "rope_theta": facts.theta,
        "rope_scaling": None if scaling is None else rope,
    }
