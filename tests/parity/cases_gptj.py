"""Tiny GPT-J models. The reference computes scores in float32, and with its eager path alone."""

from tests.parity.harness import FLOAT32_INSIDE, HEADS, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": LONGEST,
    "rotary_dim": 4,
}
OTHER = {
    **SMALL,
    "n_head": 2,
    "rotary_dim": 12,
    "n_inner": 17,
    "activation_function": "relu",
    "layer_norm_epsilon": 1e-2,
    "tie_word_embeddings": True,
}
CASES = [
    Case("gpt-j", "GPTJForCausalLM", SMALL, FLOAT32_INSIDE),
    Case("gpt-j-other", "GPTJForCausalLM", OTHER, FLOAT32_INSIDE),
    Case("gpt-j", "GPTJModel", SMALL, FLOAT32_INSIDE, answer="last_hidden_state"),
    Case("gpt-j", "GPTJForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 1}, FLOAT32_INSIDE),
    Case("gpt-j", "GPTJForQuestionAnswering", SMALL, FLOAT32_INSIDE, answer="span"),
]
