"""Tiny GPT-NeoX models. The reference takes its angles in float32; its eager path gives NaN under left padding."""

from functools import partial

from tests.parity.harness import FLOAT32_INSIDE, HEADS, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": LONGEST,
    "rotary_pct": 0.5,  # two pairs of coordinates, so that base and pairing show
}
PLAIN = {**SMALL, "use_parallel_residual": False}
OTHER = {
    **SMALL,
    "num_attention_heads": 2,
    "intermediate_size": 17,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-2,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0, "partial_rotary_factor": 0.5},
}
neox = partial(Case, bound=FLOAT32_INSIDE, attention="sdpa")
CASES = [
    neox("gpt-neox", "GPTNeoXForCausalLM", SMALL),
    neox("gpt-neox-plain", "GPTNeoXForCausalLM", PLAIN),
    neox("gpt-neox-other", "GPTNeoXForCausalLM", OTHER),
    neox("gpt-neox", "GPTNeoXModel", SMALL, answer="last_hidden_state"),
    neox("gpt-neox", "GPTNeoXForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 1}),
    neox("gpt-neox", "GPTNeoXForTokenClassification", {**SMALL, "num_labels": 5}),
    neox("gpt-neox", "GPTNeoXForQuestionAnswering", SMALL, answer="span"),
]
