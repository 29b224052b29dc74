"""Tiny XLM models. Their reference takes its softmax in float32."""

from tests.parity.harness import FLOAT32_INSIDE, HEADS, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "emb_dim": WIDTH,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "max_position_embeddings": LONGEST,
    "n_langs": 3,
    "layer_norm_eps": 1e-3,
}
NEXT = {"causal": True}
LABELS = {"num_labels": 3}


def case(name: str, architecture: str, config: dict, **more) -> Case:
    # In causal mode padding is looked at, so a left-padded row cannot be compared.
    left = "row" if config.get("causal") else "positions"
    return Case(name, architecture, config, bound=FLOAT32_INSIDE, **{"languages": 3, "left": left, **more})


CASES = [
    case("xlm", "XLMWithLMHeadModel", SMALL),
    case("xlm-other", "XLMWithLMHeadModel", {**SMALL, "n_heads": 1, "gelu_activation": False}),
    case("xlm-untied", "XLMWithLMHeadModel", {**SMALL, "tie_word_embeddings": False, "sinusoidal_embeddings": True}),
    case("xlm-without-languages", "XLMWithLMHeadModel", SMALL, languages=0),
    case("xlm-one", "XLMWithLMHeadModel", {**SMALL, "n_langs": 1}, languages=0),
    case("xlm-without-table", "XLMWithLMHeadModel", {**SMALL, "n_langs": 1, "use_lang_emb": False}, languages=0),
    case("xlm-causal", "XLMWithLMHeadModel", {**SMALL, **NEXT}),
    case("xlm-causal-other", "XLMWithLMHeadModel", {**SMALL, **NEXT, "n_heads": 4, "n_langs": 1}, languages=0),
    case("xlm", "XLMModel", SMALL, answer="last_hidden_state"),
    case("xlm-causal", "XLMModel", {**SMALL, **NEXT}, answer="last_hidden_state"),
    case("xlm", "XLMForSequenceClassification", {**SMALL, **LABELS}, left="row"),
    # The reference takes the last slot, padding or not, and the mean over all of them.
    case("xlm-last", "XLMForSequenceClassification", {**SMALL, **LABELS, "summary_type": "last"}, right="row"),
    case("xlm-mean", "XLMForSequenceClassification", {**SMALL, "summary_type": "mean"}, left="row", right="row"),
    case("xlm", "XLMForTokenClassification", {**SMALL, **LABELS}),
    case("xlm", "XLMForQuestionAnsweringSimple", SMALL, answer="span"),
]
