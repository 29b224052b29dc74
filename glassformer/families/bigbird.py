"""BigBird: BERT for long texts; a block of tokens attends to its neighbours, to the first and last block, and to
random blocks.
"""

from typing import Any

from glassformer.config import BlockSparse, ModelConfig, PretrainingHead, TaskHead, change
from glassformer.families import bert
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper
from glassformer.weights.reader import ConfigError, ConfigReader
from glassformer.weights.rules import Ignored, modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    if c.attention_type not in ("original_full", "block_sparse"):
        raise ConfigError(f"attention_type={c.attention_type!r}; known are 'original_full' and 'block_sparse'.")
    pattern = BlockSparse(block=c.block_size, random=c.num_random_blocks)
    facts = change(bert.read(c), "embed.scale", c.hidden_size**0.5 if c.rescale_embeddings else 1.0)
    facts = change(facts, "encoder.attention.biases", "qkvo" if c.use_bias else "o")
    return change(facts, "encoder.attention.windows", (None if c.attention_type == "original_full" else pattern,))


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys that depend on more than one fact."""
    assert facts.encoder is not None
    attention = facts.encoder.attention
    config: dict[str, Any] = {"use_bias": "q" in attention.biases, "rescale_embeddings": facts.embed.scale != 1.0}
    pattern = attention.windows[0]
    if isinstance(pattern, BlockSparse):
        config |= {"attention_type": "block_sparse", "block_size": pattern.block, "num_random_blocks": pattern.random}
    else:
        config["attention_type"] = "original_full"
    return bert.write(facts) | config


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies from the first token."""
    dropout = bert.dropout(c)
    return TaskHead(
        task="classify",
        labels=c.labels,
        pool="first",
        hidden=c.activation("hidden_act"),
        input_dropout=dropout,
        dropout=dropout,
    )


BIGBIRD = Lineage(
    name="bigbird",
    paper=Paper("Big Bird: Transformers for Longer Sequences", "Zaheer et al.", 2020, "arxiv.org/abs/2007.14062"),
    model_type="big_bird",
    prefix="bert.",
    read=read,
    write=write,
    weight_rules=bert.BODY_RULES,
    ignored_weights=(
        *bert.IGNORED_WEIGHTS,
        Ignored("qa_classifier.*", "a question-answering head with a layer that is not supported"),
    ),
    heads={
        "lm": HeadFormat("BigBirdForMaskedLM", bert.lm, bert.lm_rules("head"), tied=bert.LM_TIED),
        "pool": HeadFormat(
            "BigBirdModel", lambda _: bert.POOL, body_rules=modules({"head.hidden": "pooler"}), prefix=""
        ),
        "pretraining": HeadFormat(
            "BigBirdForPreTraining",
            lambda c: PretrainingHead(lm=bert.lm(c), pair=bert.PAIR),
            (*bert.lm_rules("head.lm"), *modules({"head.pair.out": "cls.seq_relationship"})),
            modules({"head.pair.hidden": "pooler"}),
            bert.LM_TIED,
        ),
        "classify": HeadFormat(
            "BigBirdForSequenceClassification",
            classify,
            modules({"head.hidden": "classifier.dense", "head.out": "classifier.out_proj"}),
        ),
        "tag": bert.token_heads("BigBird")["tag"],
        "none": HeadFormat("BigBirdModel", lambda _: None, prefix=""),
    },
    keys={
        **bert.KEYS,
        "vocab_size": Key("vocab", 50358),
        "hidden_act": Key("encoder.ffn.activation", "gelu_new"),
        "max_position_embeddings": Key("embed.position.length", 4096),
        "attention_type": Key(None, "block_sparse"),
        "block_size": Key(None, 64),
        "num_random_blocks": Key(None, 3),
        "use_bias": Key(None, True),
        "rescale_embeddings": Key(None, False),
    },
    ignored_keys=bert.IGNORED_KEYS,
    sizes={"bigbird-roberta-base": {}, "bigbird-roberta-large": dict(bert.LARGE)},
)
