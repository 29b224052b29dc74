"""Tiny MPNet models. The reference takes positions from the pad token 1, so masked slots hold it."""

from tests.parity.cases_bert import SMALL
from tests.parity.harness import Case

OTHER = {
    **SMALL,
    "num_attention_heads": 4,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
    "pad_token_id": 3,  # the reference takes positions from 1 all the same
    "max_position_embeddings": 15,  # 13 tokens and the rows of padding
}
CASES = [
    Case("mpnet", "MPNetForMaskedLM", SMALL, left="as is"),
    Case("mpnet-other", "MPNetForMaskedLM", OTHER, left="as is"),
    Case("mpnet", "MPNetModel", SMALL, answer="pooler_output", left="row"),
    Case("mpnet", "MPNetForSequenceClassification", {**SMALL, "num_labels": 3}, left="row"),
    Case("mpnet", "MPNetForTokenClassification", {**SMALL, "num_labels": 5}, left="as is"),
    Case("mpnet", "MPNetForQuestionAnswering", SMALL, answer="span", left="as is"),
]
