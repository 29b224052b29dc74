"""Gemma: a Llama with scaled embeddings, GELU, an independent head width, and RMSNorm weights stored as gain − 1."""

from dataclasses import replace
from math import sqrt
from typing import Any

from glassformer.config import Embed, ModelConfig, change, get_fact
from glassformer.families import llama
from glassformer.families.llama import BODY_RULES, IGNORED_WEIGHTS, KEYS, read_body, size
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import ConfigError, ConfigReader


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json; early files call the tanh approximation ``gelu``."""
    if c.use_bidirectional_attention:
        raise ConfigError("config.json says use_bidirectional_attention=true; only causal attention is supported.")
    facts = read_body(c, biases=c.attention_biases, kv_heads=16, head_dim=256)
    if get_fact(facts, "decoder.ffn.activation") == "gelu":
        facts = change(facts, "decoder.ffn.activation", "gelu_tanh")
    embed = Embed(scale=sqrt(facts.width), scale_in_dtype=True)
    return replace(facts, norm=replace(facts.norm, offset=True), embed=embed)


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return a Llama's keys, with the activation under its name in the published files."""
    config = llama.write(facts)
    if get_fact(facts, "decoder.ffn.activation") == "gelu_tanh":
        config["hidden_act"] = "gelu_pytorch_tanh"
    return config


COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "head_dim": 256}

GEMMA = Lineage(
    name="gemma",
    paper=Paper(
        "Gemma: Open Models Based on Gemini Research and Technology", "Gemma Team", 2024, "arxiv.org/abs/2403.08295"
    ),
    model_type="gemma",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=BODY_RULES,
    ignored_weights=IGNORED_WEIGHTS,
    # transformers has no GemmaForQuestionAnswering.
    heads={kind: form for kind, form in llama.heads("Gemma").items() if kind != "span"},
    keys={
        **KEYS,
        "vocab_size": Key("vocab", 256000),
        "hidden_size": Key("width", 3072),
        "intermediate_size": Key("decoder.ffn.hidden", 24576),
        "num_hidden_layers": Key("decoder.layers", 28),
        "num_attention_heads": Key("decoder.attention.heads", 16),
        "hidden_act": Key("decoder.ffn.activation", "gelu_pytorch_tanh"),
        "max_position_embeddings": Key("decoder.attention.rotary.length", 8192),
        "bos_token_id": Key("tokens.bos", 2),
        "eos_token_id": Key("tokens.eos", 1),
        "pad_token_id": Key("tokens.pad", 0),
        "tie_word_embeddings": Key("head.tied", True),
        "attention_bias": Key(None, False),
        "use_bidirectional_attention": Key(None, None),
    },
    ignored_keys={"hidden_activation": "an early name; current transformers reads hidden_act"},
    sizes={
        "gemma-2b": size(2048, 16384, 18, 8, 1, **COMMON),
        "gemma-7b": size(3072, 24576, 28, 16, 16, **COMMON),
    },
)
