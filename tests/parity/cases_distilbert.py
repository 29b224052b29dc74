"""Tiny DistilBERT models."""

from tests.parity.harness import HEADS, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "dim": WIDTH,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "hidden_dim": INNER,
    "max_position_embeddings": LONGEST,
}
OTHER = {**SMALL, "n_heads": 1, "activation": "relu", "sinusoidal_pos_embds": True, "tie_word_embeddings": False}
CASES = [
    Case("distilbert", "DistilBertForMaskedLM", SMALL),
    Case("distilbert-other", "DistilBertForMaskedLM", OTHER),
    Case("distilbert", "DistilBertModel", SMALL, answer="last_hidden_state"),
    Case("distilbert", "DistilBertForSequenceClassification", {**SMALL, "num_labels": 3}, left="row"),
    Case("distilbert", "DistilBertForTokenClassification", {**SMALL, "num_labels": 5}),
    Case("distilbert", "DistilBertForQuestionAnswering", {**SMALL, "qa_dropout": 0.3}, answer="span"),
]
