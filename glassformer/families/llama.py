"""Llama: a decoder with RMSNorm, a gated SiLU network, rotary positions and grouped-query attention; no biases.

Llama 2 and 3, and the many models with the same architecture.
"""

from typing import Any

from glassformer.config import Attention, FeedForward, Init, LMHead, ModelConfig, Norm, Stack, get_fact
from glassformer.weights.lineage import (
    HeadFormat,
    Key,
    Lineage,
    Paper,
    classify_head,
    span_head,
    tag_head,
    write_tag_dropout,
)
from glassformer.weights.reader import ConfigReader, read_rotary, write_rotary
from glassformer.weights.rules import Ignored, modules, same


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    return read_body(c, biases=c.attention_biases, mlp_bias=c.mlp_bias)


def read_body(
    c: ConfigReader,
    *,
    biases: str,
    mlp_bias: bool = False,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    qk_norm: bool = False,
    windows: tuple[int | None, ...] = (None,),
) -> ModelConfig:
    """Return the facts of this lineage or a descendant; ``kv_heads`` and ``head_dim`` are defaults for missing keys."""
    c.require("rope_interleaved", False, "rotary pairs are halves of a head in models of this type")
    width, heads = c.hidden_size, c.num_attention_heads
    head_dim = c.get("head_dim", head_dim) or c.per_head("hidden_size", "num_attention_heads")
    kv_heads = (c.num_key_value_heads if c.has("num_key_value_heads") else kv_heads) or heads
    norm = Norm(kind="rms", eps=c.rms_norm_eps)
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=norm,
        decoder=Stack(
            layers=c.num_hidden_layers,
            causal=True,
            attention=Attention(
                heads=heads,
                head_dim=head_dim,
                kv_heads=kv_heads,
                biases=biases,
                qk_norm=norm if qk_norm else None,
                rotary=read_rotary(c, head_dim),
                windows=windows,
                dropout=c.attention_dropout,
            ),
            ffn=FeedForward(
                hidden=c.intermediate_size, activation=c.activation("hidden_act"), gated=True, bias=mlp_bias
            ),
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of biases, and those of ``write_body``."""
    return {**write_body(facts), "attention_bias": bool(get_fact(facts, "decoder.attention.biases"))}


def write_body(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of heads and rotary positions, for this lineage and its descendants."""
    if facts.decoder is None or facts.decoder.attention.rotary is None:
        return {}  # not a model of this lineage, as the caller will find
    attention, rotary = facts.decoder.attention, facts.decoder.attention.rotary
    return {
        **write_tag_dropout(facts),
        "num_key_value_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_dim,
        **write_rotary(rotary),
    }


BODY_RULES = modules(
    {
        "embed.token": "embed_tokens",
        "decoder.norm": "norm",
        "decoder.blocks.{i}.attention.q": "layers.{i}.self_attn.q_proj",
        "decoder.blocks.{i}.attention.k": "layers.{i}.self_attn.k_proj",
        "decoder.blocks.{i}.attention.v": "layers.{i}.self_attn.v_proj",
        "decoder.blocks.{i}.attention.o": "layers.{i}.self_attn.o_proj",
        "decoder.blocks.{i}.attention_norm": "layers.{i}.input_layernorm",
        "decoder.blocks.{i}.ffn.gate": "layers.{i}.mlp.gate_proj",
        "decoder.blocks.{i}.ffn.up": "layers.{i}.mlp.up_proj",
        "decoder.blocks.{i}.ffn.down": "layers.{i}.mlp.down_proj",
        "decoder.blocks.{i}.ffn_norm": "layers.{i}.post_attention_layernorm",
    }
)
IGNORED_WEIGHTS = (Ignored("*rotary_emb.inv_freq", "the rotary frequencies, stored as a buffer"),)
KEYS = {
    "vocab_size": Key("vocab", 32000),
    "hidden_size": Key("width", 4096),
    "intermediate_size": Key("decoder.ffn.hidden", 11008),
    "num_hidden_layers": Key("decoder.layers", 32),
    "num_attention_heads": Key("decoder.attention.heads", 32),
    "hidden_act": Key("decoder.ffn.activation", "silu"),
    "max_position_embeddings": Key("decoder.attention.rotary.length", 2048),
    "initializer_range": Key("init.std", 0.02),
    "rms_norm_eps": Key("norm.eps", 1e-6),
    "attention_dropout": Key("decoder.attention.dropout", 0.0),
    "bos_token_id": Key("tokens.bos", 1),
    "eos_token_id": Key("tokens.eos", 2),
    "pad_token_id": Key("tokens.pad", None),
    "tie_word_embeddings": Key("head.tied", False),
}


def heads(name: str, span_prefix: str | None = None) -> dict[str, HeadFormat]:
    """Return the heads of this lineage and of its descendants, whose classes begin with ``name``."""
    score = modules({"head.out": "score"})
    return {
        "lm": HeadFormat(
            f"{name}ForCausalLM",
            lambda c: LMHead(tied=c.tie_word_embeddings),
            (same("head.out.weight", "lm_head.weight"),),
            tied=("lm_head.weight",),
        ),
        "none": HeadFormat(f"{name}Model", lambda _: None, prefix=""),
        "classify": HeadFormat(f"{name}ForSequenceClassification", classify_head, score),
        "tag": HeadFormat(f"{name}ForTokenClassification", tag_head, score),
        "span": HeadFormat(
            f"{name}ForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"}), prefix=span_prefix
        ),
    }


def size(width: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    """Return the config of a size, in the order in which papers list it."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {**dict(zip(names, (width, inner, layers, heads, kv_heads), strict=True)), "rms_norm_eps": 1e-5, **more}


LLAMA2: dict[str, Any] = {"max_position_embeddings": 4096}
LLAMA3: dict[str, Any] = {
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
SMOL: dict[str, Any] = {
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": True,
}


def _long_context(factor: float) -> dict[str, Any]:
    frequencies = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {
        **LLAMA3,
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "llama3", "factor": factor, **frequencies},
    }


LLAMA = Lineage(
    name="llama",
    paper=Paper("The Llama 3 Herd of Models", "Grattafiori et al.", 2024, "arxiv.org/abs/2407.21783"),
    model_type="llama",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=BODY_RULES,
    ignored_weights=IGNORED_WEIGHTS,
    heads=heads("Llama", span_prefix="transformer."),
    keys={**KEYS, "attention_bias": Key(None, False), "mlp_bias": Key("decoder.ffn.bias", False)},
    ignored_keys={
        "pretraining_tp": "how products were split over machines; the result is the same but for rounding",
        "is_llama_config": "a copy of model_type",
        "max_sequence_length": "an old name that nothing reads; max_position_embeddings counts",
    },
    sizes={
        "llama-2-7b": size(4096, 11008, 32, 32, 32, **LLAMA2),
        "llama-2-13b": size(5120, 13824, 40, 40, 40, **LLAMA2),
        "llama-2-70b": size(8192, 28672, 80, 64, 8, **LLAMA2),
        "llama-3-8b": size(4096, 14336, 32, 32, 8, **LLAMA3),
        "llama-3-70b": size(8192, 28672, 80, 64, 8, **LLAMA3),
        "llama-3.1-8b": size(4096, 14336, 32, 32, 8, **_long_context(8.0)),
        "llama-3.1-70b": size(8192, 28672, 80, 64, 8, **_long_context(8.0)),
        "llama-3.1-405b": size(16384, 53248, 126, 128, 8, **_long_context(8.0)),
        "llama-3.2-1b": size(2048, 8192, 16, 32, 8, **_long_context(32.0), tie_word_embeddings=True),
        "llama-3.2-3b": size(3072, 8192, 28, 24, 8, **_long_context(32.0), tie_word_embeddings=True),
        "smollm2-135m": size(576, 1536, 30, 9, 3, **SMOL),
        "smollm2-360m": size(960, 2560, 32, 15, 5, **SMOL),
        "smollm2-1.7b": size(2048, 8192, 24, 32, 32, **{**SMOL, "rope_theta": 130000.0}),
        "tinyllama-1.1b": size(2048, 5632, 22, 32, 4),
    },
)
