"""Tiny ELECTRA models: generators and discriminators, with and without a projection of the embeddings."""

from tests.parity.cases_bert import SMALL as BERT
from tests.parity.harness import WIDTH, Case

SMALL = {**BERT, "embedding_size": 10}  # narrower than the model
WIDE = {**BERT, "embedding_size": 2 * WIDTH, "num_attention_heads": 4, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}
EQUAL = {**BERT, "embedding_size": WIDTH, "hidden_act": "relu", "type_vocab_size": 3}
CASES = [
    Case("electra", "ElectraForMaskedLM", SMALL, segments=2),
    Case("electra-wide", "ElectraForMaskedLM", WIDE, segments=2),
    Case("electra-equal", "ElectraForMaskedLM", EQUAL, segments=3),
    Case("electra-untied", "ElectraForMaskedLM", {**SMALL, "tie_word_embeddings": False}, segments=2),
    Case("electra", "ElectraForPreTraining", SMALL, segments=2),
    Case("electra-equal", "ElectraForPreTraining", EQUAL, segments=3),
    Case("electra", "ElectraModel", SMALL, segments=2, answer="last_hidden_state"),
    Case("electra", "ElectraForSequenceClassification", {**SMALL, "num_labels": 3}, segments=2, left="row"),
    Case("electra", "ElectraForTokenClassification", {**SMALL, "num_labels": 5}, segments=2),
    Case("electra", "ElectraForQuestionAnswering", SMALL, segments=2, answer="span"),
]
