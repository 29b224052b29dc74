"""Tiny GPT-Neo models. The reference computes scores in float32, and with its eager path alone."""

from tests.parity.harness import FLOAT32_INSIDE, HEADS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_layers": 4,
    "num_heads": HEADS,
    "max_position_embeddings": LONGEST,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 4,
}
OTHER = {
    **SMALL,
    "num_heads": 1,
    "num_layers": 3,
    "attention_types": [[["local"], 2], [["global"], 1]],
    "window_size": 3,
    "intermediate_size": 17,
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-2,
    "tie_word_embeddings": False,
}
CASES = [
    Case("gpt-neo", "GPTNeoForCausalLM", SMALL, FLOAT32_INSIDE),
    Case("gpt-neo-other", "GPTNeoForCausalLM", OTHER, FLOAT32_INSIDE),
    Case("gpt-neo-global", "GPTNeoForCausalLM", {**SMALL, "attention_types": [[["global"], 4]]}, FLOAT32_INSIDE),
    Case("gpt-neo", "GPTNeoModel", SMALL, FLOAT32_INSIDE, answer="last_hidden_state"),
    Case("gpt-neo", "GPTNeoForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 1}, FLOAT32_INSIDE),
    Case("gpt-neo", "GPTNeoForTokenClassification", {**SMALL, "num_labels": 5}, FLOAT32_INSIDE),
    Case("gpt-neo", "GPTNeoForQuestionAnswering", SMALL, FLOAT32_INSIDE, answer="span"),
]
