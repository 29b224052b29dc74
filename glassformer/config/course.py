"""Configs under the names that courses and textbooks use: the language model of CS336 and a small encoder.

For the language model of Stanford's course CS336: its facts, and the course's names of its weights.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields

from glassformer.config.checks import check_divides, check_eps, check_positive_integer, check_probability
from glassformer.config.model import ModelConfig
from glassformer.config.parts import Attention, FeedForward, LMHead, Norm, Stack
from glassformer.config.positions import Rotary

# Part names here → part names of the course; {i} is the number of a block.
COURSE_NAMES = {
    "embed.token": "token_embeddings",
    "decoder.norm": "ln_final",
    "decoder.blocks.{i}.attention.q": "layers.{i}.attn.q_proj",
    "decoder.blocks.{i}.attention.k": "layers.{i}.attn.k_proj",
    "decoder.blocks.{i}.attention.v": "layers.{i}.attn.v_proj",
    "decoder.blocks.{i}.attention.o": "layers.{i}.attn.output_proj",
    "decoder.blocks.{i}.attention_norm": "layers.{i}.ln1",
    "decoder.blocks.{i}.ffn.gate": "layers.{i}.ffn.w1",
    "decoder.blocks.{i}.ffn.up": "layers.{i}.ffn.w3",
    "decoder.blocks.{i}.ffn.down": "layers.{i}.ffn.w2",
    "decoder.blocks.{i}.ffn_norm": "layers.{i}.ln2",
}
COURSE_HEAD = {"head.out": "lm_head"}


def course_model(
    *, vocab_size: int, context_length: int, d_model: int, num_layers: int, num_heads: int, d_ff: int, rope_theta: float
) -> ModelConfig:
    """Return the facts for the arguments of ``TransformerLM``."""
    dim = d_model // num_heads
    rotary = Rotary(dim=dim, length=context_length, theta=rope_theta, pairing="interleaved")
    return ModelConfig(
        vocab=vocab_size,
        width=d_model,
        norm=Norm(kind="rms", eps=1e-5),
        decoder=Stack(
            layers=num_layers,
            causal=True,
            attention=Attention(heads=num_heads, head_dim=dim, biases="", rotary=rotary),
            ffn=FeedForward(hidden=d_ff, activation="silu", gated=True, bias=False),
        ),
        head=LMHead(tied=False),
    )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of a small encoder-only model, under the names that textbooks and checkpoints use."""

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
        check_positive_integer(
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
        """Read the same fields from a mapping or object; its other fields are ignored."""
        if isinstance(config, cls):
            return config
        names = [field.name for field in fields(cls)]
        if isinstance(config, Mapping):
            facts = {name: config[name] for name in names if name in config}
        else:
            facts = {name: getattr(config, name) for name in names if hasattr(config, name)}
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in facts]
        if missing:
            raise TypeError(f"{type(config).__name__} lacks {', '.join(missing)}, which an encoder config needs.")
        return cls(**facts)
