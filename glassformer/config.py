"""Facts about models, and the checks that refuse wrong ones with an error that teaches.

Standard library only: reading a config must not cost the import of a tensor library.
"""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real


def check_positive(**sizes: int) -> None:
    """Raise unless every named size is a whole number of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__}).")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")


def check_eps(eps: float) -> None:
    """Raise unless ``eps``, which keeps a norm from dividing by zero, is a finite number of at least 0."""
    if not (isinstance(eps, Real) and 0 <= eps < inf):
        raise ValueError(f"eps must be a finite number of at least 0, got {eps!r}.")


def check_probability(**probabilities: float) -> None:
    """Raise unless every named value is in [0, 1): the share of values that dropout sets to zero."""
    for name, value in probabilities.items():
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}.")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise unless ``value`` is one of ``choices``; the error lists them and names the nearest."""
    if value in choices:
        return
    near = get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(sorted(choices))}; got {value!r}.{hint}")


def check_divides(part: str, part_value: int, whole: str, whole_value: int) -> None:
    """Raise unless ``part_value`` divides ``whole_value``, naming both and the nearest values that work."""
    if whole_value % part_value == 0:
        return
    fits = [n for n in range(1, whole_value + 1) if whole_value % n == 0]
    nearest = sorted(sorted(fits, key=lambda n: abs(n - part_value))[:3])
    raise ValueError(
        f"{part}={part_value} does not divide {whole}={whole_value}; "
        f"values near it that do: {', '.join(map(str, nearest))}."
    )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The sizes of a small encoder-only model, under the names that textbooks and checkpoints use."""

    vocab_size: int
    hidden_size: int  # width of every token's vector
    num_hidden_layers: int
    num_attention_heads: int  # divides hidden_size
    intermediate_size: int  # width inside the feed-forward network
    max_position_embeddings: int  # longest sequence: one learned vector per position
    hidden_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12
    num_labels: int = 2  # classes of the classification head

    def __post_init__(self) -> None:
        check_positive(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_position_embeddings,
            num_labels=self.num_labels,
        )
        check_probability(hidden_dropout_prob=self.hidden_dropout_prob)
        check_eps(self.layer_norm_eps)
        check_divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)

    @classmethod
    def read(cls, config: object) -> "EncoderConfig":
        """The same facts from a mapping or object that has them under the same names; the rest is not looked at."""
        if isinstance(config, cls):
            return config
        names = [field.name for field in fields(cls)]
        if isinstance(config, Mapping):
            facts = {name: config[name] for name in names if name in config}
        else:
            facts = {name: getattr(config, name) for name in names if hasattr(config, name)}
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in facts]
        if missing:
            raise TypeError(f"{type(config).__name__} does not say {', '.join(missing)}; an encoder needs to know.")
        return cls(**facts)
