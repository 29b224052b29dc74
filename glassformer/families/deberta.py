"""DeBERTa: BERT with disentangled attention, which has separate vectors for content and relative position."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.config import Convolution, Disentangled, LMHead, ModelConfig, TaskHead, change, get_fact
from glassformer.families import bert
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span_head
from glassformer.weights.reader import THEIR_ACTIVATION, ConfigReader
from glassformer.weights.rules import ConcatenatedByHead, Ignored, Rule, modules, same


def terms(c: ConfigReader) -> tuple[str, ...]:
    """Return the terms c2p and p2c: "c2p|p2c" in older files, a list in newer ones."""
    value = c.pos_att_type or []
    return tuple(term.strip() for term in (value.lower().split("|") if isinstance(value, str) else value))


def max_distance(c: ConfigReader) -> int:
    """Return the distance beyond which all distances share one row of the table."""
    return c.max_relative_positions if c.max_relative_positions > 0 else c.max_position_embeddings


def read_body(
    c: ConfigReader, biases: str, relative: Disentangled, convolution: Convolution | None = None
) -> ModelConfig:
    """Return the facts of a config.json; the arguments are what differs between the versions."""
    width, dim = c.hidden_size, c.per_head("hidden_size", "num_attention_heads")
    c.require("embedding_size", width, "no published model has embeddings of another width")
    c.require("pooler_hidden_size", width, "a pooler of another width does not fit the model")
    c.require("tie_word_embeddings", True, "no published model has an untied head")
    if not c.relative_attention:
        c.require("pos_att_type", None, "without relative positions it has no meaning")
    facts = change(bert.read(c), "encoder.convolution", convolution)
    facts = facts if c.position_biased_input else change(facts, "embed.position", None)
    attention = replace(
        get_fact(facts, "encoder.attention"),
        biases=biases,
        scale=(dim * (1 + len(relative.terms))) ** -0.5,  # a score is a sum of 1 + len(terms) products of width dim
        score_bias=relative if c.relative_attention else None,
    )
    return change(facts, "encoder.attention", attention)


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of the first version, in which key projections have no bias."""
    c.require("talking_head", False, "no published model has heads that mix their scores")
    return read_body(c, "qvo", Disentangled(span=max_distance(c), terms=terms(c), dropout=c.hidden_dropout_prob))


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys that are not a copy of one fact."""
    relative, head = get_fact(facts, "encoder.attention.score_bias"), facts.head
    config: dict[str, Any] = {
        "relative_attention": relative is not None,
        "position_biased_input": facts.embed.position is not None,
    }
    if relative is not None:
        config |= {"pos_att_type": list(relative.terms), "max_relative_positions": relative.span}
    if isinstance(head, TaskHead) and head.hidden is not None:
        config |= {"pooler_hidden_act": THEIR_ACTIVATION[head.hidden], "pooler_dropout": head.input_dropout}
        config |= {} if head.dropout == facts.embed.dropout else {"cls_dropout": head.dropout}
    return config


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies a text by its first token."""
    return TaskHead(
        task="classify",
        labels=c.labels,
        pool="first",
        hidden=c.activation("pooler_hidden_act"),
        input_dropout=c.pooler_dropout,
        dropout=c.hidden_dropout_prob if c.cls_dropout is None else c.cls_dropout,
    )


def heads(name: str) -> Mapping[str, HeadFormat]:
    """Return the heads of both versions. The authors' own checkpoints name the masked-LM head ``lm_predictions``."""
    return {
        "lm": HeadFormat(
            f"{name}ForMaskedLM",
            lambda c: LMHead(transform=c.activation("hidden_act"), bias=True),
            (
                *(
                    same(
                        f"head.{ours}.{x}",
                        f"cls.predictions.transform.{theirs}.{x}",
                        f"lm_predictions.lm_head.{theirs}.{x}",
                    )
                    for ours, theirs in (("transform", "dense"), ("norm", "LayerNorm"))
                    for x in ("weight", "bias")
                ),
                same(
                    "head.bias", "cls.predictions.bias", "cls.predictions.decoder.bias", "lm_predictions.lm_head.bias"
                ),
            ),
            body_rules=(same("head.position.weight", "embeddings.position_embeddings.weight"),),  # for a mask decoder
            tied=("cls.predictions.decoder.weight",),
        ),
        "none": HeadFormat(f"{name}Model", lambda _: None, prefix=""),
        "classify": HeadFormat(
            f"{name}ForSequenceClassification",
            classify,
            modules({"head.hidden": "pooler.dense", "head.out": "classifier"}),
        ),
        "tag": HeadFormat(
            f"{name}ForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=c.hidden_dropout_prob),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat(f"{name}ForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    }


BODY_RULES = (
    *(rule for rule in bert.BODY_RULES if ".self." not in rule.theirs[0]),
    same("encoder.relative.weight", "encoder.rel_embeddings.weight"),
)
IGNORED_WEIGHTS = (
    *bert.IGNORED_WEIGHTS,
    Ignored("embeddings.position_embeddings.weight", "absolute positions; LMHead.mask_decoder makes use of them"),
)
IGNORED_KEYS = {
    **bert.IGNORED_KEYS,
    "legacy": "the naming scheme of the masked-word head; both are read",
    "padding_idx": "another name of pad_token_id",
}
KEYS = {
    **{name: key for name, key in bert.KEYS.items() if name != "classifier_dropout"},
    "type_vocab_size": Key("embed.segments", 0),
    "layer_norm_eps": Key("norm.eps", 1e-7),
    "relative_attention": Key(None, False),
    "max_relative_positions": Key(None, -1),
    "position_biased_input": Key(None, True),
    "pos_att_type": Key(None, None),
    "pooler_dropout": Key(None, 0.0),
    "pooler_hidden_act": Key(None, "gelu"),
    "cls_dropout": Key(None, None),
}
PUBLISHED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
SELF = "encoder.layer.{i}.attention.self"
DEBERTA = Lineage(
    name="deberta",
    paper=Paper(
        "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", "He et al.", 2020, "arxiv.org/abs/2006.03654"
    ),
    model_type="deberta",
    prefix="deberta.",
    read=read,
    write=write,
    weight_rules=(
        *BODY_RULES,
        Rule(
            tuple(f"encoder.blocks.{{i}}.attention.{x}.weight" for x in "qkv"),
            (f"{SELF}.in_proj.weight",),
            ConcatenatedByHead(lambda facts: get_fact(facts, "encoder.attention.heads")),
        ),
        same("encoder.blocks.{i}.attention.q.bias", f"{SELF}.q_bias"),
        same("encoder.blocks.{i}.attention.v.bias", f"{SELF}.v_bias"),
        same("encoder.blocks.{i}.attention.position_k.weight", f"{SELF}.pos_proj.weight"),
        *modules({"encoder.blocks.{i}.attention.position_q": f"{SELF}.pos_q_proj"}),
    ),
    ignored_weights=IGNORED_WEIGHTS,
    heads=heads("Deberta"),
    keys={**KEYS, "vocab_size": Key("vocab", 50265)},
    ignored_keys=IGNORED_KEYS,
    sizes={
        "deberta-base": PUBLISHED,
        "deberta-large": {**PUBLISHED, **bert.LARGE},
        "deberta-xlarge": {**PUBLISHED, **bert.size(48, 1024)},
    },
)
