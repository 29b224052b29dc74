"""Tiny GPT models."""

from tests.parity.harness import HEADS, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LONGEST}
CASES = [
    Case("gpt", "OpenAIGPTLMHeadModel", SMALL),
    Case("gpt-wide", "OpenAIGPTLMHeadModel", {**SMALL, "n_head": 1, "n_layer": 2, "layer_norm_epsilon": 1e-2}),
    Case("gpt-untied", "OpenAIGPTLMHeadModel", {**SMALL, "tie_word_embeddings": False, "afn": "silu"}),
    Case("gpt", "OpenAIGPTModel", {**SMALL, "afn": "relu"}, answer="last_hidden_state"),
    Case("gpt", "OpenAIGPTForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 1}),
]
