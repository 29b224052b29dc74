"""The Transformer of 2017: post-norm, sinusoidal positions, one embedding matrix shared by encoder, decoder and output.

Not a model of Hugging Face: the keys are the arguments of ``torch.nn.Transformer``, and the weights have its names.
"""

from glassformer.config import Attention, Embed, FeedForward, Init, InputPosition, LMHead, ModelConfig, Norm, Stack
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Concatenated, Rule, modules, same


def stack(c: ConfigReader, side: str) -> Stack:
    """Return the encoder or the decoder. Dropout acts on the output of each sublayer, as published, and not inside."""
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


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts for the keys."""
    return ModelConfig(
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
    """Return the weight names of one attention, whose query, key and value projections are one matrix there."""
    return (
        Rule(tuple(f"{ours}.{x}.weight" for x in "qkv"), (f"{theirs}.in_proj_weight",), Concatenated()),
        Rule(tuple(f"{ours}.{x}.bias" for x in "qkv"), (f"{theirs}.in_proj_bias",), Concatenated()),
        *modules({f"{ours}.o": f"{theirs}.out_proj"}),
    )


def layer_rules(side: str, norms: dict[str, str]) -> tuple[Rule, ...]:
    """Return the weight names of one stack; ``norms`` maps the checkpoint's numbered norms to those here."""
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
    weight_rules=(
        same("embed.token.weight", "embedding.weight"),
        *layer_rules("encoder", {"attention_norm": "norm1", "ffn_norm": "norm2"}),
        *layer_rules("decoder", {"attention_norm": "norm1", "cross_norm": "norm2", "ffn_norm": "norm3"}),
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
