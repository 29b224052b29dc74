"""Tiny BERT models."""

from tests.parity.harness import HEADS, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": LONGEST,
}
OTHER = {**SMALL, "num_attention_heads": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "type_vocab_size": 3}
CASES = [
    Case("bert", "BertForMaskedLM", SMALL, segments=2),
    Case("bert-other", "BertForMaskedLM", OTHER, segments=3),
    Case("bert", "BertModel", SMALL, segments=2, answer="pooler_output", left="row"),
    Case("bert", "BertForPreTraining", SMALL, segments=2, answer="pretraining", left="row"),
    Case("bert", "BertForNextSentencePrediction", SMALL, segments=2, left="row"),
    Case("bert", "BertForSequenceClassification", {**SMALL, "num_labels": 3}, segments=2, left="row"),
    Case("bert", "BertForTokenClassification", {**SMALL, "num_labels": 5}, segments=2),
    Case("bert", "BertForQuestionAnswering", SMALL, segments=2, answer="span"),
]
