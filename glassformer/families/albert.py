"""ALBERT: BERT with one layer's weights used again in every layer, and narrow embeddings that are projected.

Its pair head predicts whether two sentences are in order, a harder task than BERT's.
"""

from dataclasses import replace
from typing import Any

from glassformer.config import ModelConfig, PretrainingHead, TaskHead, change, get_fact
from glassformer.families import bert
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("inner_group_num", 1, "no model was published whose layers repeat inside a group")
    facts = change(bert.read(c), "embed.width", c.embedding_size)
    facts = change(facts, "encoder.dropout_on", ("attention",))
    return change(facts, "encoder.unique_layers", c.num_hidden_groups)


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the number of unshared layers, and the keys of heads; see BERT's."""
    groups = get_fact(facts, "encoder.unique_layers") or get_fact(facts, "encoder.layers")
    config = {**bert.write(facts), "num_hidden_groups": groups}
    value = config.pop("classifier_dropout", get_fact(facts, "head.pair.dropout"))
    return config if value is None else {**config, "classifier_dropout_prob": value}


def dropout(c: ConfigReader) -> float:
    """Return the dropout before a head's logits."""
    return c.hidden_dropout_prob if c.classifier_dropout_prob is None else c.classifier_dropout_prob


def order(c: ConfigReader) -> TaskHead:
    """Build the head for sentence pairs."""
    return replace(bert.PAIR, labels=("in order", "swapped"), dropout=dropout(c))


BLOCK, THEIRS = "encoder.blocks.{i}", "encoder.albert_layer_groups.{i}.albert_layers.0"
POOLER = modules({"head.hidden": "pooler"})
LM_TIED = ("predictions.decoder.weight",)
V1 = {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
XLARGE = {**bert.size(24, 2048), "num_attention_heads": 16}
ALBERT = Lineage(
    name="albert",
    paper=Paper(
        "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
        "Lan et al.",
        2019,
        "arxiv.org/abs/1909.11942",
    ),
    model_type="albert",
    prefix="albert.",
    read=read,
    write=write,
    weight_rules=modules(
        {
            "embed.token": "embeddings.word_embeddings",
            "embed.position": "embeddings.position_embeddings",
            "embed.segment": "embeddings.token_type_embeddings",
            "embed.norm": "embeddings.LayerNorm",
            "embed.project": "encoder.embedding_hidden_mapping_in",
            f"{BLOCK}.attention.q": f"{THEIRS}.attention.query",
            f"{BLOCK}.attention.k": f"{THEIRS}.attention.key",
            f"{BLOCK}.attention.v": f"{THEIRS}.attention.value",
            f"{BLOCK}.attention.o": f"{THEIRS}.attention.dense",
            f"{BLOCK}.attention_norm": f"{THEIRS}.attention.LayerNorm",
            f"{BLOCK}.ffn.up": f"{THEIRS}.ffn",
            f"{BLOCK}.ffn.down": f"{THEIRS}.ffn_output",
            f"{BLOCK}.ffn_norm": f"{THEIRS}.full_layer_layer_norm",
        }
    ),
    ignored_weights=bert.IGNORED_WEIGHTS,
    heads={
        "lm": HeadFormat("AlbertForMaskedLM", bert.lm, bert.lm_rules("head", "predictions", ""), tied=LM_TIED),
        "pool": HeadFormat("AlbertModel", lambda _: bert.POOL, body_rules=POOLER, prefix=""),
        "none": HeadFormat("AlbertModel", lambda _: None, prefix=""),
        "pretraining": HeadFormat(
            "AlbertForPreTraining",
            lambda c: PretrainingHead(lm=bert.lm(c), pair=order(c)),
            (
                *bert.lm_rules("head.lm", "predictions", ""),
                *modules({"head.pair.out": "sop_classifier.classifier"}),
            ),
            modules({"head.pair.hidden": "pooler"}),
            LM_TIED,
        ),
        "classify": HeadFormat(
            "AlbertForSequenceClassification",
            lambda c: TaskHead(task="classify", labels=c.labels, pool="first", hidden="tanh", dropout=dropout(c)),
            modules({"head.out": "classifier"}),
            POOLER,
        ),
        "tag": HeadFormat(
            "AlbertForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=dropout(c)),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat("AlbertForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        **{name: key for name, key in bert.KEYS.items() if name != "classifier_dropout"},
        "vocab_size": Key("vocab", 30000),
        "embedding_size": Key("embed.width", 128),
        "hidden_size": Key("width", 4096),
        "num_hidden_groups": Key(None, 1),
        "num_attention_heads": Key("encoder.attention.heads", 64),
        "intermediate_size": Key("encoder.ffn.hidden", 16384),
        "hidden_act": Key("encoder.ffn.activation", "gelu_new"),
        "hidden_dropout_prob": Key("encoder.dropout", 0.0),
        "attention_probs_dropout_prob": Key("encoder.attention.dropout", 0.0),
        "classifier_dropout_prob": Key(None, 0.1),
    },
    ignored_keys=bert.IGNORED_KEYS,
    sizes={
        "albert-base-v1": {**V1, **bert.size(12, 768)},
        "albert-large-v1": {**V1, **bert.LARGE},
        "albert-xlarge-v1": {**V1, **XLARGE},
        "albert-xxlarge-v1": {"hidden_act": "gelu"},
        "albert-base-v2": bert.size(12, 768),
        "albert-large-v2": bert.LARGE,
        "albert-xlarge-v2": XLARGE,
        "albert-xxlarge-v2": {},
    },
)
