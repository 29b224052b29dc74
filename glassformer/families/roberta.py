"""RoBERTa and XLM-RoBERTa: BERT trained for longer, without next-sentence prediction, on one or a hundred languages.

Their first rows of positions belong to padding: a text begins at the row after the pad token's id. The reference finds
padding by that id, we by the mask; they agree wherever masked slots, and no others, hold the pad token.
"""

from dataclasses import replace
from typing import Any

from glassformer.config import InputPosition, LMHead, ModelConfig, TaskHead, change, get_fact
from glassformer.families import bert
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules, same


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    offset = c.pad_token_id + 1
    position = InputPosition(kind="learned", length=c.max_position_embeddings - offset, offset=offset)
    return change(bert.read(c), "embed.position", position)


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the rows of the position table, those of padding included."""
    rows = get_fact(facts, "embed.position.length", 0) + get_fact(facts, "embed.position.offset", 0)
    return {"max_position_embeddings": rows, **bert.write(facts)}


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies from the first token, after a linear layer."""
    return replace(bert.classify(c), input_dropout=bert.dropout(c))


PUBLISHED = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
ROBERTA = Lineage(
    name="roberta",
    paper=Paper(
        "RoBERTa: A Robustly Optimized BERT Pretraining Approach", "Liu et al.", 2019, "arxiv.org/abs/1907.11692"
    ),
    model_type="roberta",
    prefix="roberta.",
    read=read,
    write=write,
    weight_rules=bert.BODY_RULES,
    ignored_weights=bert.IGNORED_WEIGHTS,
    heads={
        "lm": HeadFormat(
            "RobertaForMaskedLM",
            lambda c: LMHead(transform="gelu", bias=True, tied=c.tie_word_embeddings),  # whatever hidden_act says
            (
                *modules({"head.transform": "lm_head.dense", "head.norm": "lm_head.layer_norm"}),
                same("head.out.weight", "lm_head.decoder.weight"),
                same("head.bias", "lm_head.bias", "lm_head.decoder.bias"),
            ),
            tied=("lm_head.decoder.weight",),
        ),
        "pool": HeadFormat("RobertaModel", lambda _: bert.POOL, body_rules=bert.POOLER, prefix=""),
        "none": HeadFormat("RobertaModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "RobertaForSequenceClassification",
            classify,
            modules({"head.hidden": "classifier.dense", "head.out": "classifier.out_proj"}),
        ),
        **bert.token_heads("Roberta"),
    },
    keys={
        **bert.KEYS,
        "vocab_size": Key("vocab", 50265),
        "max_position_embeddings": Key(None, 512),
        "pad_token_id": Key("tokens.pad", 1),
    },
    ignored_keys=bert.IGNORED_KEYS,
    sizes={
        "roberta-base": PUBLISHED,
        "roberta-large": {**PUBLISHED, **bert.LARGE},
        "distilroberta-base": {**PUBLISHED, "num_hidden_layers": 6},
    },
)
XLM_ROBERTA = replace(
    ROBERTA,
    name="xlm-roberta",
    paper=Paper(
        "Unsupervised Cross-lingual Representation Learning at Scale",
        "Conneau et al.",
        2019,
        "arxiv.org/abs/1911.02116",
    ),
    model_type="xlm-roberta",
    heads={kind: replace(form, architecture=f"XLM{form.architecture}") for kind, form in ROBERTA.heads.items()},
    keys={**ROBERTA.keys, "vocab_size": Key("vocab", 30522)},
    sizes={
        "xlm-roberta-base": {**PUBLISHED, "vocab_size": 250002},
        "xlm-roberta-large": {**PUBLISHED, **bert.LARGE, "vocab_size": 250002},
    },
)
