"""MPNet: BERT without segment embeddings, with a bias on the scores per distance bucket, shared by all layers.

The first two rows of its position table are reserved for padding, whatever the pad token's id.
"""

from typing import Any

from glassformer.config import (
    Attention,
    BucketBias,
    Embed,
    FeedForward,
    Init,
    InputPosition,
    LMHead,
    ModelConfig,
    Norm,
    Stack,
    TaskHead,
    Tokens,
    get_fact,
)
from glassformer.families import bert
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules, same

FIRST_ROW = 2  # row of the table of positions at which a text begins


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("relative_attention_num_buckets", 32, "the reference uses 32 buckets whatever the file has")
    dropout = c.hidden_dropout_prob
    return ModelConfig(
        vocab=c.vocab_size,
        width=c.hidden_size,
        norm=Norm(eps=c.layer_norm_eps),
        embed=Embed(
            position=InputPosition(kind="learned", length=c.max_position_embeddings - FIRST_ROW, offset=FIRST_ROW),
            norm=True,
            dropout=dropout,
        ),
        encoder=Stack(
            layers=c.num_hidden_layers,
            attention=Attention(
                heads=c.num_attention_heads,
                head_dim=c.per_head("hidden_size", "num_attention_heads"),
                score_bias=BucketBias(buckets=32, max_distance=128),
                dropout=c.attention_probs_dropout_prob,
            ),
            ffn=FeedForward(hidden=c.intermediate_size, activation=c.activation("hidden_act")),
            placement="post",
            final_norm=False,
            dropout=dropout,
        ),
        tokens=Tokens(pad=c.pad_token_id),
        init=Init(std=c.initializer_range),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the rows of the position table, those of padding included."""
    return {"max_position_embeddings": get_fact(facts, "embed.position.length", 0) + FIRST_ROW}


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies from the first token, after a linear layer, with dropout before both."""
    dropout = c.hidden_dropout_prob
    return TaskHead(
        task="classify", labels=c.labels, pool="first", hidden="tanh", dropout=dropout, input_dropout=dropout
    )


MPNET = Lineage(
    name="mpnet",
    paper=Paper(
        "MPNet: Masked and Permuted Pre-training for Language Understanding",
        "Song et al.",
        2020,
        "arxiv.org/abs/2004.09297",
    ),
    model_type="mpnet",
    prefix="mpnet.",
    read=read,
    write=write,
    weight_rules=modules(
        {
            "embed.token": "embeddings.word_embeddings",
            "embed.position": "embeddings.position_embeddings",
            "embed.norm": "embeddings.LayerNorm",
            "encoder.relative": "encoder.relative_attention_bias",
            "encoder.blocks.{i}.attention.q": "encoder.layer.{i}.attention.attn.q",
            "encoder.blocks.{i}.attention.k": "encoder.layer.{i}.attention.attn.k",
            "encoder.blocks.{i}.attention.v": "encoder.layer.{i}.attention.attn.v",
            "encoder.blocks.{i}.attention.o": "encoder.layer.{i}.attention.attn.o",
            "encoder.blocks.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
            "encoder.blocks.{i}.ffn.up": "encoder.layer.{i}.intermediate.dense",
            "encoder.blocks.{i}.ffn.down": "encoder.layer.{i}.output.dense",
            "encoder.blocks.{i}.ffn_norm": "encoder.layer.{i}.output.LayerNorm",
        }
    ),
    ignored_weights=bert.IGNORED_WEIGHTS,
    heads={
        "lm": HeadFormat(
            "MPNetForMaskedLM",
            lambda c: LMHead(transform="gelu", bias=True, tied=c.tie_word_embeddings),  # whatever hidden_act says
            (
                *modules({"head.transform": "lm_head.dense", "head.norm": "lm_head.layer_norm"}),
                same("head.out.weight", "lm_head.decoder.weight"),
                same("head.bias", "lm_head.bias", "lm_head.decoder.bias"),
            ),
            tied=("lm_head.decoder.weight",),
        ),
        "pool": HeadFormat("MPNetModel", lambda _: bert.POOL, body_rules=bert.POOLER, prefix=""),
        "none": HeadFormat("MPNetModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "MPNetForSequenceClassification",
            classify,
            modules({"head.hidden": "classifier.dense", "head.out": "classifier.out_proj"}),
        ),
        "tag": HeadFormat(
            "MPNetForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=c.hidden_dropout_prob),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat("MPNetForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        **{key: entry for key, entry in bert.KEYS.items() if key not in ("classifier_dropout", "type_vocab_size")},
        "vocab_size": Key("vocab", 30527),
        "max_position_embeddings": Key(None, 512),
        "relative_attention_num_buckets": Key("encoder.attention.score_bias.buckets", 32),
        "pad_token_id": Key("tokens.pad", 1),
    },
    ignored_keys=bert.IGNORED_KEYS,
    sizes={
        "mpnet-base": {"max_position_embeddings": 514, "layer_norm_eps": 1e-5},
        "all-mpnet-base-v2": {"max_position_embeddings": 514, "layer_norm_eps": 1e-5},
    },
)
