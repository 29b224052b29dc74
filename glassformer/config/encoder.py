"""The sizes of a small encoder under the names that textbooks use."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields

from glassformer.config.checks import check_divides, check_eps, check_positive, check_probability


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
