"""Tiny RoBERTa and XLM-RoBERTa models. Both take positions from the pad token, so masked slots hold it."""

from tests.parity.cases_bert import SMALL
from tests.parity.harness import Case

PUBLISHED = {**SMALL, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
OTHER = {
    **SMALL,
    "num_attention_heads": 4,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
    "pad_token_id": 3,
    "max_position_embeddings": 17,  # 13 tokens and the rows of padding
}
CASES = [
    case
    for name, their in (("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"))
    for case in (
        Case(name, f"{their}ForMaskedLM", PUBLISHED, left="as is"),
        Case(f"{name}-other", f"{their}ForMaskedLM", OTHER, segments=2, left="as is", pad=3),
        Case(name, f"{their}Model", PUBLISHED, answer="pooler_output", left="row"),
        Case(name, f"{their}ForSequenceClassification", {**PUBLISHED, "num_labels": 3}, left="row"),
        Case(name, f"{their}ForTokenClassification", {**PUBLISHED, "num_labels": 5}, left="as is"),
        Case(name, f"{their}ForQuestionAnswering", PUBLISHED, answer="span", left="as is"),
    )
]
