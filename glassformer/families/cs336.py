"""The language model of Stanford's course CS336: a Llama that pairs rotary coordinates with their neighbours.

It is built by hand in the course, so there is no config.json: keys are the arguments of ``TransformerLM``, and weights
carry the names of its state dict. ``Transformer`` and ``TransformerLM`` compute the same from them.
"""

from glassformer.config import Attention, FeedForward, LMHead, Model, Norm, Rotary, Stack
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper
from glassformer.weights.reader import Reader
from glassformer.weights.rules import modules


def read(c: Reader) -> Model:
    """The facts that the arguments state."""
    width, dim = c.d_model, c.per_head("d_model", "num_heads")
    rotary = Rotary(dim=dim, length=c.context_length, theta=c.rope_theta, pairing="interleaved")
    return Model(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(kind="rms", eps=1e-5),
        decoder=Stack(
            layers=c.num_layers,
            causal=True,
            attention=Attention(heads=c.num_heads, head_dim=dim, biases="", rotary=rotary),
            ffn=FeedForward(hidden=c.d_ff or 4 * width, activation="silu", gated=True, bias=False),
        ),
    )


CS336 = Lineage(
    name="cs336",
    paper=Paper("Language Modeling from Scratch", "Hashimoto and Liang", 2025, "cs336.stanford.edu"),
    read=read,
    weights=modules(
        {
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
    ),
    heads={"lm": HeadFormat("TransformerLM", lambda _: LMHead(tied=False), modules({"head.out": "lm_head"}))},
    keys={
        "vocab_size": Key("vocab", 50257),
        "context_length": Key("decoder.attention.rotary.length", 1024),
        "d_model": Key("width", 768),
        "num_layers": Key("decoder.layers", 12),
        "num_heads": Key("decoder.attention.heads", 12),
        "d_ff": Key("decoder.ffn.hidden", None),
        "rope_theta": Key("decoder.attention.rotary.theta", 10_000.0),
    },
    # GPT-2's sizes; three matrices of four times the width make them larger than GPT-2's two.
    sizes={
        "cs336-small": {},
        "cs336-medium": {"d_model": 1024, "num_layers": 24, "num_heads": 16},
        "cs336-large": {"d_model": 1280, "num_layers": 36, "num_heads": 20},
        "cs336-xl": {"d_model": 1600, "num_layers": 48, "num_heads": 25},
    },
)
