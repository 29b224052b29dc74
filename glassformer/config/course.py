"""The language model of Stanford's course CS336: its facts, and what the course calls its weights."""

from glassformer.config.heads import LMHead
from glassformer.config.model import Model
from glassformer.config.parts import Attention, FeedForward, Norm, Stack
from glassformer.config.positions import Rotary

# Our part names → those of the course; {i} is the number of a block.
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
) -> Model:
    """The facts that the arguments of ``TransformerLM`` state."""
    dim = d_model // num_heads
    rotary = Rotary(dim=dim, length=context_length, theta=rope_theta, pairing="interleaved")
    return Model(
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
