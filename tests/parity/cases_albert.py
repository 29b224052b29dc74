"""Tiny ALBERT models."""

from tests.parity.cases_bert import SMALL as BERT
from tests.parity.harness import WIDTH, Case

SMALL = {**BERT, "embedding_size": 10}
GROUPS = {**SMALL, "num_hidden_layers": 5, "num_hidden_groups": 2, "num_attention_heads": 4}  # uneven: three and two
OTHER = {**SMALL, "embedding_size": WIDTH, "num_attention_heads": 1, "hidden_act": "relu", "layer_norm_eps": 1e-3}
CASES = [
    Case("albert", "AlbertForMaskedLM", SMALL, segments=2),
    Case("albert-groups", "AlbertForMaskedLM", GROUPS, segments=2),
    Case("albert-other", "AlbertForMaskedLM", {**OTHER, "type_vocab_size": 3}, segments=3),  # projected all the same
    Case("albert", "AlbertModel", SMALL, segments=2, answer="pooler_output", left="row"),
    Case(
        "albert",
        "AlbertForPreTraining",
        {**SMALL, "classifier_dropout_prob": 0.3},
        segments=2,
        answer="pretraining",
        left="row",
    ),
    Case("albert", "AlbertForSequenceClassification", {**SMALL, "num_labels": 3}, segments=2, left="row"),
    Case("albert", "AlbertForTokenClassification", {**SMALL, "num_labels": 5}, segments=2),
    Case("albert", "AlbertForQuestionAnswering", SMALL, segments=2, answer="span"),
]
