"""T5 1.0 and 1.1: an encoder-decoder without position embeddings, with a bias on the scores by distance."""

from dataclasses import replace
from typing import Any

from glassformer.config import (
    Attention,
    BucketBias,
    Embed,
    FeedForward,
    Init,
    LMHead,
    ModelConfig,
    Norm,
    Stack,
    TaskHead,
    Tokens,
)
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span_head
from glassformer.weights.reader import THEIR_ACTIVATION, ConfigReader
from glassformer.weights.rules import Ignored, Rule, modules, same


def feed_forward(c: ConfigReader) -> FeedForward:
    """Read ``feed_forward_proj``: relu, gated-gelu, gated-silu …; newer files repeat it in separate keys."""
    gate, _, name = c.feed_forward_proj.rpartition("-")
    name = "gelu_new" if c.feed_forward_proj == "gated-gelu" else name
    return FeedForward(
        hidden=c.d_ff,
        activation=c.activation("dense_act_fn", c.dense_act_fn if c.has("dense_act_fn") else name),
        gated=c.is_gated_act if c.has("is_gated_act") else gate == "gated",
        bias=False,
        dropout=c.dropout_rate,
    )


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    encoder = Stack(
        layers=c.num_layers,
        attention=Attention(
            heads=c.num_heads,
            head_dim=c.d_kv,
            biases="",
            scale=1.0,
            score_bias=BucketBias(
                buckets=c.relative_attention_num_buckets, max_distance=c.relative_attention_max_distance
            ),
            dropout=c.dropout_rate,
        ),
        ffn=feed_forward(c),
        dropout=c.dropout_rate,
        final_dropout=c.dropout_rate,
    )
    layers = c.num_decoder_layers if c.has("num_decoder_layers") else None
    return ModelConfig(
        vocab=c.vocab_size,
        width=c.d_model,
        norm=Norm(kind="rms", eps=c.layer_norm_epsilon),
        embed=Embed(dropout=c.dropout_rate),
        encoder=encoder,
        decoder=replace(encoder, layers=c.num_layers if layers is None else layers, causal=True, cross=True),
        tokens=Tokens(
            eos=c.eos_token_id,
            pad=c.pad_token_id,
            start=c.decoder_start_token_id if c.has("decoder_start_token_id") else None,
        ),
        init=start(c),
    )


def start(c: ConfigReader) -> Init:
    """Return the initialisation: an untied head as a linear layer, everything else by the published scheme."""
    return Init(std=c.initializer_factor, table_std=c.initializer_factor, by_inputs=True)


def lm(c: ConfigReader) -> LMHead:
    """Build the head: tied and with a scaled input in version 1.0, neither in 1.1; newer files have a key for each."""
    tied = c.tie_word_embeddings is not False
    scaled = c.scale_decoder_outputs if c.has("scale_decoder_outputs") else tied
    return LMHead(tied=tied, scale=c.d_model**-0.5 if scaled else 1.0)


def classify(c: ConfigReader) -> TaskHead:
    """Build a head on the decoder's last hidden state; the decoder's input is the text shifted by its start token."""
    rate = c.classifier_dropout
    return TaskHead(task="classify", labels=c.labels, pool="last", hidden="tanh", dropout=rate, input_dropout=rate)


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys that are not a copy of one fact."""
    assert facts.encoder is not None
    ffn = facts.encoder.ffn
    name = THEIR_ACTIVATION[ffn.activation]
    short = "gelu" if ffn.activation == "gelu_tanh" else name  # the gated one is meant by the short name
    config: dict[str, Any] = {
        "feed_forward_proj": f"gated-{short}" if ffn.gated else name,
        "dense_act_fn": name,
        "is_gated_act": ffn.gated,
    }
    if facts.decoder is not None:
        config["num_decoder_layers"] = facts.decoder.layers
    if facts.tokens.start is not None:
        config["decoder_start_token_id"] = facts.tokens.start
    if isinstance(facts.head, LMHead):
        config |= {"tie_word_embeddings": facts.head.tied, "scale_decoder_outputs": facts.head.scale != 1.0}
    return config


def layer_rules(side: str, parts: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the weight names of one stack, in which each sublayer of a layer has a number and holds its norm."""
    table = {f"{side}.norm": f"{side}.final_layer_norm"}
    for number, part in enumerate(parts):
        ours, theirs = f"{side}.blocks.{{i}}", f"{side}.block.{{i}}.layer.{number}"
        table[f"{ours}.{part}_norm"] = f"{theirs}.layer_norm"
        name = {"attention": "SelfAttention", "cross": "EncDecAttention"}.get(part)
        table |= {f"{ours}.{part}.{projection}": f"{theirs}.{name}.{projection}" for projection in "qkvo" if name}
    inside = f"{theirs}.DenseReluDense"
    gated = (f"{ours}.ffn.gate.weight", f"{ours}.ffn.up.weight")
    return (
        *modules({**table, f"{ours}.ffn.down": f"{inside}.wo"}),
        Rule(gated, (f"{inside}.wi_0.weight", f"{inside}.wi_1.weight")),
        same(f"{ours}.ffn.up.weight", f"{inside}.wi.weight"),
        same(f"{side}.relative.weight", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
    )


def shape(width: int, hidden: int, heads: int, layers: int, head_dim: int = 64) -> dict[str, Any]:
    """Return the config of a size."""
    return {"d_model": width, "d_ff": hidden, "num_heads": heads, "num_layers": layers, "d_kv": head_dim}


START = {"decoder_start_token_id": 0}
LATER_START = {**START, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
LATER = {
    "small": shape(512, 1024, 6, 8),
    "base": shape(768, 2048, 12, 12),
    "large": shape(1024, 2816, 16, 24),
    "xl": shape(2048, 5120, 32, 24),
    "xxl": shape(4096, 10240, 64, 24),
}

T5 = Lineage(
    name="t5",
    paper=Paper(
        "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        "Raffel et al.",
        2019,
        "arxiv.org/abs/1910.10683",
    ),
    model_type="t5",
    read=read,
    write=write,
    weight_rules=(
        same("embed.token.weight", "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        *layer_rules("encoder", ("attention", "ffn")),
        *layer_rules("decoder", ("attention", "cross", "ffn")),
    ),
    ignored_weights=(
        Ignored(
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
            "distances between two texts mean nothing; it was stored and never used",
        ),
    ),
    heads={
        "lm": HeadFormat(
            "T5ForConditionalGeneration",
            lm,
            (same("head.out.weight", "lm_head.weight"),),
            tied=("lm_head.weight",),
            ties_if_equal=True,
        ),
        "none": HeadFormat("T5Model", lambda _: None),
        "encoder": HeadFormat("T5EncoderModel", lambda _: None, only_encoder=True),
        "classify": HeadFormat(
            "T5ForSequenceClassification",
            classify,
            modules({"head.hidden": "classification_head.dense", "head.out": "classification_head.out_proj"}),
            prefix="transformer.",
        ),
        "tag": HeadFormat(
            "T5ForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=c.classifier_dropout),
            modules({"head.out": "classifier"}),
            prefix="transformer.",
            only_encoder=True,
        ),
        "span": HeadFormat("T5ForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 32128),
        "d_model": Key("width", 512),
        "d_kv": Key("encoder.attention.head_dim", 64),
        "d_ff": Key("encoder.ffn.hidden", 2048),
        "num_layers": Key("encoder.layers", 6),
        "num_heads": Key("encoder.attention.heads", 8),
        "relative_attention_num_buckets": Key("encoder.attention.score_bias.buckets", 32),
        "relative_attention_max_distance": Key("encoder.attention.score_bias.max_distance", 128),
        "dropout_rate": Key("encoder.dropout", 0.1),
        "classifier_dropout": Key("head.dropout", 0.0),
        "layer_norm_epsilon": Key("norm.eps", 1e-6),
        "initializer_factor": Key("init.table_std", 1.0),
        "feed_forward_proj": Key(None, "relu"),
        "eos_token_id": Key("tokens.eos", 1),
        "pad_token_id": Key("tokens.pad", 0),
        "tie_word_embeddings": Key(None, True),
        "scale_decoder_outputs": Key(None, True),
    },
    ignored_keys={
        "n_positions": "the length of the texts trained on; nothing ends there",
        "bos_token_id": "the vocabulary has no such token",
        "output_past": "shape of the other library's answers",
        "is_decoder": "set by the other library on a decoder that it cuts out",
    },
    sizes={
        "t5-small": {**START},
        "t5-base": {**START, **shape(768, 3072, 12, 12)},
        "t5-large": {**START, **shape(1024, 4096, 16, 24)},
        "t5-3b": {**START, **shape(1024, 16384, 32, 24, 128)},
        "t5-11b": {**START, **shape(1024, 65536, 128, 24, 128)},
        **{f"t5-v1_1-{size}": {**LATER_START, **config} for size, config in LATER.items()},
        **{f"flan-t5-{size}": {**LATER_START, **config} for size, config in LATER.items()},
    },
)
