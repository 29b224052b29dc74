"""Qwen 3: a Qwen 2.5 without biases that normalises the queries and keys of each head."""

from typing import Any

from glassformer.config import ModelConfig, get_fact
from glassformer.families.llama import BODY_RULES, heads, read_body, size
from glassformer.families.qwen import QWEN2, windows, write_windows
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    biases = c.attention_biases
    return read_body(c, biases=biases, kv_heads=32, head_dim=128, qk_norm=True, windows=windows(c))


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of biases, and those of Qwen 2.5 that are not a copy of one fact."""
    return {**write_windows(facts), "attention_bias": bool(get_fact(facts, "decoder.attention.biases"))}


COMMON: dict[str, Any] = {
    "head_dim": 128,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
SMALL: dict[str, Any] = {**COMMON, "tie_word_embeddings": True}

QWEN3 = Lineage(
    name="qwen3",
    paper=Paper("Qwen3 Technical Report", "Yang et al.", 2025, "arxiv.org/abs/2505.09388"),
    model_type="qwen3",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=(
        *BODY_RULES,
        *modules(  # our modules and theirs: rules for the weight and the bias of each
            {
                "decoder.blocks.{i}.attention.q_norm": "layers.{i}.self_attn.q_norm",
                "decoder.blocks.{i}.attention.k_norm": "layers.{i}.self_attn.k_norm",
            }
        ),
    ),
    ignored_weights=QWEN2.ignored_weights,
    heads=heads("Qwen3", span_prefix="transformer."),
    keys={**QWEN2.keys, "attention_bias": Key(None, False)},
    # The models tuned to follow instructions; the base models differ in max_position_embeddings and eos_token_id.
    sizes={
        "qwen3-0.6b": size(1024, 3072, 28, 16, 8, **SMALL),
        "qwen3-1.7b": size(2048, 6144, 28, 16, 8, **SMALL),
        "qwen3-4b": size(2560, 9728, 36, 32, 8, **SMALL),
        "qwen3-8b": size(4096, 12288, 36, 32, 8, **COMMON),
        "qwen3-14b": size(5120, 17408, 40, 40, 8, **COMMON),
        "qwen3-32b": size(5120, 25600, 64, 64, 8, **COMMON),
    },
)
