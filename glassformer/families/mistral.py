"""Mistral: a Llama whose layers may have sliding-window attention."""

from typing import Any

from glassformer.config import ModelConfig, get_fact
from glassformer.families.llama import BODY_RULES, IGNORED_WEIGHTS, KEYS, heads, read_body, write_body
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json; sliding_window=null is full attention."""
    return read_body(c, biases="", kv_heads=8, windows=(c.sliding_window,))


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the key of the window, which all layers share, and a Llama's keys."""
    return {**write_body(facts), "sliding_window": get_fact(facts, "decoder.attention.windows", (None,))[0]}


V0_1: dict[str, Any] = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
V0_2: dict[str, Any] = {**V0_1, "sliding_window": None, "rope_theta": 1000000.0}

MISTRAL = Lineage(
    name="mistral",
    paper=Paper("Mistral 7B", "Jiang et al.", 2023, "arxiv.org/abs/2310.06825"),
    model_type="mistral",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=BODY_RULES,
    ignored_weights=IGNORED_WEIGHTS,
    heads=heads("Mistral"),
    keys={
        **KEYS,
        "intermediate_size": Key("decoder.ffn.hidden", 14336),
        "max_position_embeddings": Key("decoder.attention.rotary.length", 131072),
        "sliding_window": Key(None, 4096),  # sets no single fact: see ``read`` and ``write``
    },
    sizes={
        "mistral-7b-v0.1": V0_1,
        "mistral-7b-v0.2": V0_2,
        "mistral-7b-v0.3": {**V0_2, "vocab_size": 32768},
    },
)
