"""Tiny DeBERTa models of all versions. Their references take float32 steps: norms in the first, the scale in both."""

from tests.parity.harness import FLOAT32_INSIDE, HEADS, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

BARE = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": LONGEST,
}
# A reach of five: rows of nine and thirteen tokens go beyond it. A norm right after the embeddings hides their scale
# unless its eps is large.
SMALL = {
    **BARE, "relative_attention": True, "pos_att_type": "c2p|p2c", "position_biased_input": False,
    "max_relative_positions": 5, "layer_norm_eps": 1e-3,
}  # fmt: skip
# Buckets of which the near ones end at distance 3, the far ones at 11.
SECOND = {
    **SMALL, "pos_att_type": "p2c|c2p", "max_relative_positions": 12, "position_buckets": 7, "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}  # fmt: skip
OWN = {"share_att_key": False, "norm_rel_ebd": "none"}
CONVOLVED = {"conv_kernel_size": 3, "conv_act": "gelu", "conv_groups": 1}
LABELS = {"num_labels": 3}


def case(name: str, architecture: str, config: dict, **more) -> Case:
    return Case(name, architecture, config, bound=FLOAT32_INSIDE, **{"left": "as is", **more})


CASES = [
    case("deberta", "DebertaForMaskedLM", SMALL),
    case("deberta-c2p", "DebertaForMaskedLM", {**SMALL, "pos_att_type": ["c2p"], "num_attention_heads": 1}),
    case("deberta-p2c", "DebertaForMaskedLM", {**SMALL, "pos_att_type": ["p2c"], "hidden_act": "relu"}),
    case(
        "deberta-biased",
        "DebertaForMaskedLM",
        {**SMALL, "max_relative_positions": -1, "position_biased_input": True, "type_vocab_size": 2},
        segments=2,
        left="positions",
    ),
    case("deberta-absolute", "DebertaForMaskedLM", BARE, left="positions"),
    case("deberta-idle", "DebertaForMaskedLM", {**SMALL, "pos_att_type": []}),
    case("deberta", "DebertaModel", SMALL, answer="last_hidden_state"),
    case(
        "deberta",
        "DebertaForSequenceClassification",
        {**SMALL, **LABELS, "pooler_hidden_act": "tanh", "pooler_dropout": 0.3, "cls_dropout": 0.2},
        left="row",
    ),
    case("deberta", "DebertaForTokenClassification", {**SMALL, **LABELS}),
    case("deberta", "DebertaForQuestionAnswering", SMALL, answer="span"),
    case("deberta_v2", "DebertaV2ForMaskedLM", SECOND),
    case("deberta_v2-own", "DebertaV2ForMaskedLM", {**SECOND, **OWN, "num_attention_heads": 4}),
    case("deberta_v2-c2p", "DebertaV2ForMaskedLM", {**SECOND, **OWN, "pos_att_type": ["c2p"]}),
    case("deberta_v2-p2c", "DebertaV2ForMaskedLM", {**SECOND, "pos_att_type": ["p2c"]}),
    case("deberta_v2-linear", "DebertaV2ForMaskedLM", {**SECOND, "position_buckets": -1, "max_relative_positions": 5}),
    case(
        "deberta_v2-biased",
        "DebertaV2ForMaskedLM",
        {
            **SECOND, "max_relative_positions": -1, "max_position_embeddings": 16, "position_buckets": 9,
            "position_biased_input": True, "type_vocab_size": 2,
        },
        segments=2,
        left="positions",
    ),
    case("deberta_v2-absolute", "DebertaV2ForMaskedLM", BARE, left="positions"),
    case("deberta_v2-convolved", "DebertaV2ForMaskedLM", {**SECOND, **CONVOLVED}),
    case(
        "deberta_v2-grouped",
        "DebertaV2ForMaskedLM",
        {**SECOND, "conv_kernel_size": 5, "conv_act": "tanh", "conv_groups": 4},
    ),
    case("deberta_v2", "DebertaV2Model", {**SECOND, **CONVOLVED}, answer="last_hidden_state"),
    case("deberta_v2", "DebertaV2ForSequenceClassification", {**SECOND, **LABELS}, left="row"),
    case("deberta_v2", "DebertaV2ForTokenClassification", {**SECOND, **LABELS}),
    case("deberta_v2", "DebertaV2ForQuestionAnswering", SECOND, answer="span"),
]  # fmt: skip
