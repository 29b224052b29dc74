"""DeBERTa v2 and v3: distances in buckets, positions projected like the content, a convolution over n-grams."""

from dataclasses import replace
from typing import Any

from glassformer.config import Convolution, Disentangled, ModelConfig, get_fact
from glassformer.families import bert, deberta
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Ignored, modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require(
        "attention_head_size",
        c.per_head("hidden_size", "num_attention_heads"),
        "the heads together are as wide as the model",
    )
    buckets = max(c.position_buckets, 0)
    relative = Disentangled(
        span=buckets or deberta.max_distance(c),
        terms=deberta.terms(c),
        buckets=buckets,
        shared_projections=c.share_att_key,
        key_bias=True,
        norm_table="layer_norm" in [word.strip() for word in c.norm_rel_ebd.lower().split("|")],
        dropout=c.hidden_dropout_prob,
    )
    convolution = None
    if c.conv_kernel_size > 0:
        convolution = Convolution(
            kernel=c.conv_kernel_size,
            groups=c.conv_groups,
            activation=c.activation("conv_act"),
            dropout=c.hidden_dropout_prob,
        )
    relative = replace(relative, max_distance=deberta.max_distance(c)) if buckets else relative
    return deberta.read_body(c, "qkvo", relative, convolution)


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys that are not a copy of one fact."""
    config, relative = deberta.write(facts), get_fact(facts, "encoder.attention.score_bias")
    if relative is not None and relative.buckets:
        config["max_relative_positions"] = relative.max_distance
    if relative is not None and relative.norm_table:
        config["norm_rel_ebd"] = "layer_norm"
    return config


SELF = "encoder.layer.{i}.attention.self"
PUBLISHED = {
    **deberta.PUBLISHED,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 256,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
XLARGE = {**PUBLISHED, "conv_kernel_size": 3, "conv_act": "gelu", "attention_head_size": 64}
DEBERTA_V2 = Lineage(
    name="deberta_v2",
    paper=Paper(
        "DeBERTaV3: Improving DeBERTa using ELECTRA-Style Pre-Training with Gradient-Disentangled Embedding Sharing",
        "He et al.",
        2021,
        "arxiv.org/abs/2111.09543",
    ),
    model_type="deberta-v2",
    prefix="deberta.",
    read=read,
    write=write,
    weight_rules=(
        *deberta.BODY_RULES,
        *modules(
            {
                "encoder.blocks.{i}.attention.q": f"{SELF}.query_proj",
                "encoder.blocks.{i}.attention.k": f"{SELF}.key_proj",
                "encoder.blocks.{i}.attention.v": f"{SELF}.value_proj",
                "encoder.blocks.{i}.attention.position_q": f"{SELF}.pos_query_proj",
                "encoder.blocks.{i}.attention.position_k": f"{SELF}.pos_key_proj",
                "encoder.relative_norm": "encoder.LayerNorm",
                "encoder.convolution": "encoder.conv.conv",
                "encoder.convolution.norm": "encoder.conv.LayerNorm",
            }
        ),
    ),
    ignored_weights=(
        *deberta.IGNORED_WEIGHTS,
        Ignored("mask_predictions.*", "a replaced-token head used in pretraining; no class reads it"),
    ),
    heads=deberta.heads("DebertaV2"),
    keys={
        **deberta.KEYS,
        "vocab_size": Key("vocab", 128100),
        "hidden_size": Key("width", 1536),
        "num_hidden_layers": Key("encoder.layers", 24),
        "num_attention_heads": Key("encoder.attention.heads", 24),
        "intermediate_size": Key("encoder.ffn.hidden", 6144),
        "position_buckets": Key("encoder.attention.score_bias.buckets", -1),
        "share_att_key": Key("encoder.attention.score_bias.shared_projections", False),
        "norm_rel_ebd": Key(None, "none"),
        "conv_kernel_size": Key("encoder.convolution.kernel", 0),
        "conv_groups": Key("encoder.convolution.groups", 1),
        "conv_act": Key("encoder.convolution.activation", "tanh"),
    },
    ignored_keys=deberta.IGNORED_KEYS,
    sizes={
        "deberta-v2-xlarge": XLARGE,
        "deberta-v2-xxlarge": {**XLARGE, "num_hidden_layers": 48},
        "deberta-v3-xsmall": {**PUBLISHED, **bert.size(12, 384)},
        "deberta-v3-small": {**PUBLISHED, **bert.size(6, 768)},
        "deberta-v3-base": {**PUBLISHED, **bert.size(12, 768)},
        "deberta-v3-large": {**PUBLISHED, **bert.LARGE},
        "mdeberta-v3-base": {**PUBLISHED, **bert.size(12, 768), "vocab_size": 251000},
    },
)
