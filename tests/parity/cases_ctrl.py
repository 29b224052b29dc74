"""Tiny CTRL models. The reference keeps its table of sinusoids in float32."""

from tests.parity.harness import FLOAT32_INSIDE, HEADS, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": LONGEST,
    "dff": INNER,
}
CASES = [
    Case("ctrl", "CTRLLMHeadModel", SMALL, FLOAT32_INSIDE),
    Case("ctrl-narrow", "CTRLLMHeadModel", {**SMALL, "n_embd": 10, "n_head": 5, "dff": 13}, FLOAT32_INSIDE),
    Case("ctrl-untied", "CTRLLMHeadModel", {**SMALL, "tie_word_embeddings": False}, FLOAT32_INSIDE),
    Case("ctrl", "CTRLModel", SMALL, FLOAT32_INSIDE, answer="last_hidden_state"),
    Case("ctrl", "CTRLForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 1}, FLOAT32_INSIDE),
]
