"""ELECTRA: a small generator fills in masked tokens, and a discriminator detects which tokens were replaced.

Both are encoders like BERT, with embeddings that may be narrower or wider than the model.
"""

from typing import Any

from glassformer.config import LMHead, ModelConfig, TaskHead, change
from glassformer.families import bert
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Ignored, modules, same


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    return change(bert.read(c), "embed.width", None if c.embedding_size == c.hidden_size else c.embedding_size)


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of the embeddings and heads; without a projection, embedding_size is the model's width."""
    return {"embedding_size": facts.embed.width or facts.width, **bert.write(facts)}


def lm(c: ConfigReader) -> LMHead:
    """Build the generator's head; its activation is fixed, whatever hidden_act is."""
    return LMHead(transform="gelu", bias=True, tied=c.tie_word_embeddings)


def replaced(c: ConfigReader) -> TaskHead:
    """Build the discriminator's head: one logit per token, above zero where the word was replaced."""
    return TaskHead(task="replaced", labels=("replaced",), hidden=c.activation("hidden_act"))


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies a text by its first token."""
    dropout = bert.dropout(c)
    return TaskHead(
        task="classify", labels=c.labels, pool="first", hidden="gelu", dropout=dropout, input_dropout=dropout
    )


FOR_MULTIPLE_CHOICE = "belongs to the head for multiple choice"
GENERATOR = {"architectures": ["ElectraForMaskedLM"]}
DISCRIMINATOR = {"architectures": ["ElectraForPreTraining"]}
ELECTRA = Lineage(
    name="electra",
    paper=Paper(
        "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
        "Clark et al.",
        2020,
        "arxiv.org/abs/2003.10555",
    ),
    model_type="electra",
    prefix="electra.",
    read=read,
    write=write,
    weight_rules=(*bert.BODY_RULES, *modules({"embed.project": "embeddings_project"})),
    ignored_weights=(
        *bert.IGNORED_WEIGHTS,
        Ignored("embeddings_project.*", "in some files, but not used: the embeddings have the width of the model"),
    ),
    heads={
        "lm": HeadFormat(
            "ElectraForMaskedLM",
            lm,
            (
                *modules({"head.transform": "generator_predictions.dense"}),
                *modules({"head.norm": "generator_predictions.LayerNorm", "head.out": "generator_lm_head"}),
                same("head.bias", "generator_lm_head.bias"),
            ),
            tied=("generator_lm_head.weight",),
        ),
        "replaced": HeadFormat(
            "ElectraForPreTraining",
            replaced,
            modules(
                {
                    "head.hidden": "discriminator_predictions.dense",
                    "head.out": "discriminator_predictions.dense_prediction",
                }
            ),
        ),
        "none": HeadFormat("ElectraModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "ElectraForSequenceClassification",
            classify,
            modules({"head.hidden": "classifier.dense", "head.out": "classifier.out_proj"}),
        ),
        **bert.token_heads("Electra"),
    },
    keys={
        **bert.KEYS,
        "embedding_size": Key(None, 128),
        "hidden_size": Key("width", 256),
        "num_attention_heads": Key("encoder.attention.heads", 4),
        "intermediate_size": Key("encoder.ffn.hidden", 1024),
    },
    ignored_keys={
        **bert.IGNORED_KEYS,
        "summary_type": FOR_MULTIPLE_CHOICE,
        "summary_use_proj": FOR_MULTIPLE_CHOICE,
        "summary_activation": FOR_MULTIPLE_CHOICE,
        "summary_last_dropout": FOR_MULTIPLE_CHOICE,
    },
    sizes={
        "electra-small-generator": GENERATOR,
        "electra-base-generator": {**GENERATOR, "embedding_size": 768},
        "electra-large-generator": {**GENERATOR, "embedding_size": 1024, "num_hidden_layers": 24},
        "electra-small-discriminator": DISCRIMINATOR,
        "electra-base-discriminator": {**DISCRIMINATOR, **bert.size(12, 768), "embedding_size": 768},
        "electra-large-discriminator": {**DISCRIMINATOR, **bert.LARGE, "embedding_size": 1024},
    },
)
