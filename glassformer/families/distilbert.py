"""DistilBERT: half the layers of BERT, distilled from it, without segments and without a pooler."""

from dataclasses import replace
from typing import Any

from glassformer.config import (
    Attention,
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
)
from glassformer.families.bert import IGNORED_KEYS, IGNORED_WEIGHTS
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, head_kind, span_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules, same


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json; the eps of the norms is fixed and not in the file."""
    width, heads = c.dim, c.n_heads
    position = InputPosition(kind="learned", length=c.max_position_embeddings)
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=1e-12),
        embed=Embed(position=position, norm=True, dropout=c.dropout),
        encoder=Stack(
            layers=c.n_layers,
            attention=Attention(heads=heads, head_dim=c.per_head("dim", "n_heads"), dropout=c.attention_dropout),
            ffn=FeedForward(hidden=c.hidden_dim, activation=c.activation("activation")),
            placement="post",
            final_norm=False,
            dropout=c.dropout,
            dropout_on=("ffn",),
        ),
        tokens=Tokens(pad=c.pad_token_id),
        init=Init(std=c.initializer_range),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the head's dropout, under the key of its task."""
    head = facts.head
    name = {"classify": "seq_classif_dropout", "span": "qa_dropout"}.get(head_kind(head))
    return {name: head.dropout} if name is not None and isinstance(head, TaskHead) else {}


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies from the first token, after a linear layer."""
    return TaskHead(task="classify", labels=c.labels, pool="first", hidden="relu", dropout=c.seq_classif_dropout)


DISTILBERT = Lineage(
    name="distilbert",
    paper=Paper(
        "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter",
        "Sanh et al.",
        2019,
        "arxiv.org/abs/1910.01108",
    ),
    model_type="distilbert",
    prefix="distilbert.",
    read=read,
    write=write,
    weight_rules=modules(
        {
            "embed.token": "embeddings.word_embeddings",
            "embed.position": "embeddings.position_embeddings",
            "embed.norm": "embeddings.LayerNorm",
            "encoder.blocks.{i}.attention.q": "transformer.layer.{i}.attention.q_lin",
            "encoder.blocks.{i}.attention.k": "transformer.layer.{i}.attention.k_lin",
            "encoder.blocks.{i}.attention.v": "transformer.layer.{i}.attention.v_lin",
            "encoder.blocks.{i}.attention.o": "transformer.layer.{i}.attention.out_lin",
            "encoder.blocks.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
            "encoder.blocks.{i}.ffn.up": "transformer.layer.{i}.ffn.lin1",
            "encoder.blocks.{i}.ffn.down": "transformer.layer.{i}.ffn.lin2",
            "encoder.blocks.{i}.ffn_norm": "transformer.layer.{i}.output_layer_norm",
        }
    ),
    ignored_weights=IGNORED_WEIGHTS,
    heads={
        "lm": HeadFormat(
            "DistilBertForMaskedLM",
            lambda c: LMHead(transform=c.activation("activation"), bias=True, tied=c.tie_word_embeddings),
            (
                *modules({"head.transform": "vocab_transform", "head.norm": "vocab_layer_norm"}),
                *modules({"head.out": "vocab_projector"}),
                same("head.bias", "vocab_projector.bias"),
            ),
            tied=("vocab_projector.weight",),
        ),
        "none": HeadFormat("DistilBertModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "DistilBertForSequenceClassification",
            classify,
            modules({"head.hidden": "pre_classifier", "head.out": "classifier"}),
        ),
        "tag": HeadFormat(
            "DistilBertForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=c.dropout),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat(
            "DistilBertForQuestionAnswering",
            lambda c: replace(span_head(c), dropout=c.qa_dropout),
            modules({"head.out": "qa_outputs"}),
        ),
    },
    keys={
        "vocab_size": Key("vocab", 30522),
        "max_position_embeddings": Key("embed.position.length", 512),
        "n_layers": Key("encoder.layers", 6),
        "n_heads": Key("encoder.attention.heads", 12),
        "dim": Key("width", 768),
        "hidden_dim": Key("encoder.ffn.hidden", 3072),
        "dropout": Key("encoder.dropout", 0.1),
        "attention_dropout": Key("encoder.attention.dropout", 0.1),
        "activation": Key("encoder.ffn.activation", "gelu"),
        "qa_dropout": Key(None, 0.1),
        "seq_classif_dropout": Key(None, 0.2),
        "initializer_range": Key("init.std", 0.02),
        "pad_token_id": Key("tokens.pad", 0),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys={
        **IGNORED_KEYS,
        "sinusoidal_pos_embds": "whether learned positions start as sinusoids; the file has the trained table",
        "tie_weights_": "an older tie_word_embeddings, always true",
    },
    sizes={
        "distilbert-base-uncased": {},
        "distilbert-base-cased": {"vocab_size": 28996},
        "distilbert-base-german-cased": {"vocab_size": 31102},
        "distilbert-base-multilingual-cased": {"vocab_size": 119547},
    },
)
