"""Tiny models of BART and its descendants."""

from tests.parity.harness import FLOAT32_INSIDE, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "max_position_embeddings": LONGEST,
}
ODD = {
    **SMALL,
    "encoder_layers": 2,
    "decoder_layers": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 29,
}
FULL = {"attention_type": "original_full"}  # block-sparse: see test_pegasus_sparse

CASES = [
    Case("bart", "BartForConditionalGeneration", SMALL, left="row"),
    Case(
        "bart-odd",
        "BartForConditionalGeneration",
        {**ODD, "scale_embedding": True, "activation_function": "relu", "decoder_start_token_id": 0},
        left="row",
    ),
    Case("bart", "BartModel", SMALL, left="row", answer="last_hidden_state"),
    Case("bart", "BartForSequenceClassification", SMALL, left="row", eos=2),
    Case("bart-five", "BartForSequenceClassification", {**SMALL, "num_labels": 5}, left="row", eos=2),
    Case("bart", "BartForQuestionAnswering", SMALL, left="row", answer="span"),
    Case("m2m100", "M2M100ForConditionalGeneration", SMALL, left="as is", bound=FLOAT32_INSIDE),
    Case(
        "m2m100-odd",
        "M2M100ForConditionalGeneration",
        {**ODD, "scale_embedding": False, "activation_function": "gelu", "pad_token_id": 3},
        left="as is",
        pad=3,
        bound=FLOAT32_INSIDE,
    ),
    Case("m2m100", "M2M100Model", SMALL, left="as is", bound=FLOAT32_INSIDE, answer="last_hidden_state"),
    Case("bigbird-pegasus", "BigBirdPegasusForConditionalGeneration", {**SMALL, **FULL}, left="row"),
    Case(
        "bigbird-pegasus-odd",
        "BigBirdPegasusForConditionalGeneration",
        {**ODD, **FULL, "use_bias": True, "scale_embedding": False, "activation_function": "relu"},
        left="row",
    ),
    Case("bigbird-pegasus", "BigBirdPegasusModel", {**SMALL, **FULL}, left="row", answer="last_hidden_state"),
    Case("bigbird-pegasus", "BigBirdPegasusForSequenceClassification", {**SMALL, **FULL}, left="row", eos=1, pad=0),
    Case("bigbird-pegasus", "BigBirdPegasusForQuestionAnswering", {**SMALL, **FULL}, left="row", answer="span"),
]
