"""Tiny Llama, Mistral, Qwen 2.5, Qwen 3 and Gemma models.

The reference takes its norms and angles in float32; its eager path gives NaN under left padding in float64, so its
SDPA path is used.
"""

from collections.abc import Mapping
from typing import Any

from tests.parity.harness import FLOAT32_INSIDE, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": INNER,
    "max_position_embeddings": LONGEST,
}
OTHER = {
    **SMALL,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-2,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
    "eos_token_id": [2, 3],
}
SMOOTH = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 3.0,
    "low_freq_factor": 0.5,
    "high_freq_factor": 2.5,
    "original_max_position_embeddings": 20,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 2.5,
    "beta_fast": 2.0,
    "beta_slow": 0.62,
    "original_max_position_embeddings": 40,
}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}
WIDE = {
    **SMALL,
    "head_dim": 16,
    "max_position_embeddings": 100,
}  # enough pairs of coordinates for every stretch of a context to show


def case(name: str, architecture: str, config: Mapping[str, Any], **more: Any) -> Case:
    return Case(name, architecture, config, FLOAT32_INSIDE, attention="sdpa", **more)


def cases(name: str, classes: str, small: Mapping[str, Any]) -> list[Case]:
    """What all of these lineages have: two shapes and a case for each head."""
    classify = {**small, "num_labels": 3, "pad_token_id": 1}
    return [
        case(name, f"{classes}ForCausalLM", small),
        case(f"{name}-other", f"{classes}ForCausalLM", {**small, **OTHER}),
        case(f"{name}-one-key-head", f"{classes}ForCausalLM", {**small, "num_key_value_heads": 1}),
        case(name, f"{classes}Model", small, answer="last_hidden_state"),
        case(name, f"{classes}ForSequenceClassification", classify),
        case(name, f"{classes}ForTokenClassification", {**small, "num_labels": 5, "classifier_dropout": 0.3}),
        case(name, f"{classes}ForQuestionAnswering", small, answer="span"),
    ]


SLIDING = {**SMALL, "sliding_window": 4}
ALTERNATING = {
    **SMALL,
    "use_sliding_window": True,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
THREE = {**SMALL, "head_dim": 6}
CASES = [
    *cases("llama", "Llama", SMALL),
    case("llama-biases", "LlamaForCausalLM", {**SMALL, "attention_bias": True, "mlp_bias": True}),
    case("llama-linear", "LlamaForCausalLM", {**WIDE, "rope_parameters": LINEAR}),
    case("llama-smooth", "LlamaForCausalLM", {**WIDE, "rope_parameters": SMOOTH}),
    case("llama-yarn", "LlamaForCausalLM", {**WIDE, "rope_parameters": YARN}),
    case("llama-yarn-factor", "LlamaForCausalLM", {**WIDE, "rope_parameters": {**YARN, "attention_factor": 0.7}}),
    case(
        "llama-yarn-scales",
        "LlamaForCausalLM",
        {**WIDE, "rope_parameters": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5}},
    ),
    *cases("mistral", "Mistral", SLIDING),
    case("mistral-full", "MistralForCausalLM", {**SMALL, "sliding_window": None}),
    *cases("qwen2", "Qwen2", {**SMALL, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    case("qwen2-alternating", "Qwen2ForCausalLM", ALTERNATING),
    case("qwen2-full", "Qwen2ForCausalLM", {**SMALL, "sliding_window": 4}),
    *cases("qwen3", "Qwen3", THREE),
    case("qwen3-biases", "Qwen3ForCausalLM", {**THREE, "attention_bias": True}),
    case("qwen3-sliding", "Qwen3ForCausalLM", {**THREE, **ALTERNATING}),
    case("qwen3-yarn", "Qwen3ForCausalLM", {**WIDE, "rope_parameters": YARN}),
    *(made for made in cases("gemma", "Gemma", {**SMALL, "head_dim": 6}) if made.answer != "span"),
    case("gemma-biases", "GemmaForCausalLM", {**THREE, "attention_bias": True, "tie_word_embeddings": False}),
]
