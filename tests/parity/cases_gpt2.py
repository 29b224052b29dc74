"""Tiny GPT-2 models."""

from tests.parity.harness import HEADS, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LONGEST}
CASES = [
    Case("gpt2", "GPT2LMHeadModel", SMALL),
    Case("gpt2-wide", "GPT2LMHeadModel", {**SMALL, "n_head": 1, "n_inner": 17, "layer_norm_epsilon": 1e-3}),
    Case("gpt2-untied", "GPT2LMHeadModel", {**SMALL, "tie_word_embeddings": False, "activation_function": "gelu"}),
    Case("gpt2", "GPT2Model", SMALL, answer="last_hidden_state"),
    Case("gpt2", "GPT2ForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 1}, left="positions"),
    Case("gpt2", "GPT2ForTokenClassification", {**SMALL, "num_labels": 5}),
    Case("gpt2-dropout", "GPT2ForTokenClassification", {**SMALL, "num_labels": 5, "classifier_dropout": 0.3}),
    Case("gpt2", "GPT2ForQuestionAnswering", SMALL, answer="span"),
]
