"""The Transformer of 2017: post-norm encoder and decoder, sinusoidal positions, one table for both and for the head.

Not a model of Hugging Face: the keys are the arguments of ``torch.nn.Transformer``, and the weights have its names.
"""

from glassformer.config import Attention, Embed, FeedForward, Init, InputPosition, LMHead, Model, Norm, Stack
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper
from glassformer.weights.reader import Reader
from glassformer.weights.rules import Fused, Rule, modules, same


def stack(c: Reader, side: str) -> Stack:
    """The encoder or the decoder. Dropout acts on what each sublayer adds, as published, and nowhere inside it."""
    return Stack(
        layers=getattr(c, f"num_{side}_layers"),
        attention=Attention(heads=c.nhead, head_dim=c.per_head("d_model", "nhead")),
        ffn=FeedForward(hidden=c.dim_feedforward, activation="relu"),
        causal=side == "decoder",
        cross=side == "decoder",
        placement="pre" if c.norm_first else "post",
        final_norm=c.final_norm,
        dropout=c.dropout,
    )


def read(c: Reader) -> Model:
    """The facts that the keys state."""
    return Model(
        vocab=c.vocab_size,
        width=c.d_model,
        norm=Norm(eps=c.layer_norm_eps),
        embed=Embed(
            scale=c.d_model**0.5,
            position=InputPosition(kind="sinusoidal", length=c.max_length),
            dropout=c.dropout,
        ),
        encoder=stack(c, "encoder"),
        decoder=stack(c, "decoder"),
        init=Init(table_std=c.d_model**-0.5),  # so that the scaled vectors are as long as the positions
    )


def attention(ours: str, theirs: str) -> tuple[Rule, ...]:
    """One attention; its projections of queries, keys and values are one matrix there."""
    return (
        Rule(tuple(f"{ours}.{x}.weight" for x in "qkv"), (f"{theirs}.in_proj_weight",), Fused()),
        Rule(tuple(f"{ours}.{x}.bias" for x in "qkv"), (f"{theirs}.in_proj_bias",), Fused()),
        *modules({f"{ours}.o": f"{theirs}.out_proj"}),
    )


def layers(side: str, norms: dict[str, str]) -> tuple[Rule, ...]:
    """One stack; ``norms`` tells which of their numbered norms is which of ours."""
    ours, theirs = f"{side}.blocks.{{i}}", f"{side}.layers.{{i}}"
    return (
        *attention(f"{ours}.attention", f"{theirs}.self_attn"),
        *attention(f"{ours}.cross", f"{theirs}.multihead_attn"),
        *modules({f"{ours}.{norm}": f"{theirs}.{number}" for norm, number in norms.items()}),
        *modules({f"{ours}.ffn.up": f"{theirs}.linear1", f"{ours}.ffn.down": f"{theirs}.linear2"}),
        *modules({f"{side}.norm": f"{side}.norm"}),
    )


TRANSFORMER2017 = Lineage(
    name="transformer2017",
    paper=Paper("Attention Is All You Need", "Vaswani et al.", 2017, "arxiv.org/abs/1706.03762"),
    read=read,
    weights=(
        same("embed.token.weight", "embedding.weight"),
        *layers("encoder", {"attention_norm": "norm1", "ffn_norm": "norm2"}),
        *layers("decoder", {"attention_norm": "norm1", "cross_norm": "norm2", "ffn_norm": "norm3"}),
    ),
    heads={
        "lm": HeadFormat("Transformer", lambda _: LMHead(), tied=("generator.weight",)),
        "none": HeadFormat("Transformer", lambda _: None),
    },
    keys={
        "vocab_size": Key("vocab", 37000),
        "max_length": Key("embed.position.length", 512),
        "d_model": Key("width", 512),
        "nhead": Key("encoder.attention.heads", 8),
        "num_encoder_layers": Key("encoder.layers", 6),
        "num_decoder_layers": Key("decoder.layers", 6),
        "dim_feedforward": Key("encoder.ffn.hidden", 2048),
        "dropout": Key("encoder.dropout", 0.1),
        "layer_norm_eps": Key("norm.eps", 1e-5),
        "norm_first": Key(None, False),
        "final_norm": Key("encoder.final_norm", False),
    },
    sizes={
        "transformer-base": {},
        "transformer-big": {"d_model": 1024, "nhead": 16, "dim_feedforward": 4096, "dropout": 0.3},
    },
)
