"""DeBERTa: BERT whose attention weighs what stands there and how far away it stands by vectors of their own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.config import Convolution, Disentangled, LMHead, Model, TaskHead, change, look
from glassformer.families import bert
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span
from glassformer.weights.reader import THEIR_ACTIVATION, Reader
from glassformer.weights.rules import FusedByHead, Ignored, Rule, modules, same


def terms(c: Reader) -> tuple[str, ...]:
    """Content to position, position to content, or both: "c2p|p2c" in older files, a list in newer ones."""
    said = c.pos_att_type or []
    return tuple(term.strip() for term in (said.lower().split("|") if isinstance(said, str) else said))


def reach(c: Reader) -> int:
    """The distance from which on all distances are one."""
    return c.max_relative_positions if c.max_relative_positions > 0 else c.max_position_embeddings


def body(c: Reader, biases: str, relative: Disentangled, convolution: Convolution | None = None) -> Model:
    """The facts that config.json states; what the versions do not share is handed in."""
    width, dim = c.hidden_size, c.per_head("hidden_size", "num_attention_heads")
    c.must("embedding_size", width, "embeddings of another width were never published")
    c.must("pooler_hidden_size", width, "a pooler of another width does not fit the model")
    c.must("tie_word_embeddings", True, "a head with a table of its own was never published")
    if not c.relative_attention:
        c.must("pos_att_type", None, "without relative positions there is nothing for it to say")
    model = change(bert.read(c), "encoder.convolution", convolution)
    model = model if c.position_biased_input else change(model, "embed.position", None)
    attention = replace(
        look(model, "encoder.attention"),
        biases=biases,
        scale=(dim * (1 + len(relative.terms))) ** -0.5,  # as many products are added up
        score_bias=relative if c.relative_attention else None,
    )
    return change(model, "encoder.attention", attention)


def read(c: Reader) -> Model:
    """The facts of the first version: keys have no bias."""
    c.must("talking_head", False, "heads that mix their scores were never published")
    return body(c, "qvo", Disentangled(span=reach(c), terms=terms(c), dropout=c.hidden_dropout_prob))


def write(model: Model) -> dict[str, Any]:
    """Keys that take more than one fact."""
    relative, head = look(model, "encoder.attention.score_bias"), model.head
    said: dict[str, Any] = {
        "relative_attention": relative is not None,
        "position_biased_input": model.embed.position is not None,
    }
    if relative is not None:
        said |= {"pos_att_type": list(relative.terms), "max_relative_positions": relative.span}
    if isinstance(head, TaskHead) and head.hidden is not None:
        said |= {"pooler_hidden_act": THEIR_ACTIVATION[head.hidden], "pooler_dropout": head.input_dropout}
        said |= {} if head.dropout == model.embed.dropout else {"cls_dropout": head.dropout}
    return said


def classify(c: Reader) -> TaskHead:
    """Scores of a whole text, from its first token."""
    return TaskHead(
        task="classify",
        labels=c.labels,
        pool="first",
        hidden=c.activation("pooler_hidden_act"),
        input_dropout=c.pooler_dropout,
        dropout=c.hidden_dropout_prob if c.cls_dropout is None else c.cls_dropout,
    )


def heads(name: str) -> Mapping[str, HeadFormat]:
    """The heads of both versions. In the makers' own folders the first one goes by other names."""
    return {
        "lm": HeadFormat(
            f"{name}ForMaskedLM",
            lambda c: LMHead(transform=c.activation("hidden_act"), bias=True),
            (
                *(
                    same(f"head.{ours}.{x}", f"cls.predictions.transform.{it}.{x}", f"lm_predictions.lm_head.{it}.{x}")
                    for ours, it in (("transform", "dense"), ("norm", "LayerNorm"))
                    for x in ("weight", "bias")
                ),
                same(
                    "head.bias", "cls.predictions.bias", "cls.predictions.decoder.bias", "lm_predictions.lm_head.bias"
                ),
            ),
            inner=(same("head.position.weight", "embeddings.position_embeddings.weight"),),  # for a mask decoder
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
        "span": HeadFormat(f"{name}ForQuestionAnswering", span, modules({"head.out": "qa_outputs"})),
    }


BODY = (
    *(rule for rule in bert.BODY if ".self." not in rule.theirs[0]),
    same("encoder.relative.weight", "encoder.rel_embeddings.weight"),
)
IGNORED_WEIGHTS = (
    *bert.IGNORED_WEIGHTS,
    Ignored("embeddings.position_embeddings.weight", "absolute positions; LMHead.mask_decoder makes use of them"),
)
IGNORED = {
    **bert.IGNORED,
    "legacy": "says by which names the weights of the masked-word head go; both are read",
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
    weights=(
        *BODY,
        Rule(
            tuple(f"encoder.blocks.{{i}}.attention.{x}.weight" for x in "qkv"),
            (f"{SELF}.in_proj.weight",),
            FusedByHead(lambda facts: look(facts, "encoder.attention.heads")),
        ),
        same("encoder.blocks.{i}.attention.q.bias", f"{SELF}.q_bias"),
        same("encoder.blocks.{i}.attention.v.bias", f"{SELF}.v_bias"),
        same("encoder.blocks.{i}.attention.position_k.weight", f"{SELF}.pos_proj.weight"),
        *modules({"encoder.blocks.{i}.attention.position_q": f"{SELF}.pos_q_proj"}),
    ),
    ignored_weights=IGNORED_WEIGHTS,
    heads=heads("Deberta"),
    keys={**KEYS, "vocab_size": Key("vocab", 50265)},
    ignored=IGNORED,
    sizes={
        "deberta-base": PUBLISHED,
        "deberta-large": {**PUBLISHED, **bert.LARGE},
        "deberta-xlarge": {**PUBLISHED, **bert.size(48, 1024)},
    },
)
