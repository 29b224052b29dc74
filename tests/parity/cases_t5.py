"""Tiny T5 models, 1.0 and 1.1."""

from tests.parity.harness import FLOAT32_INSIDE, INNER, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "d_kv": 6,
    "d_ff": INNER,
    "num_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
}
LATER = {**SMALL, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
ODD = {
    **SMALL,
    "feed_forward_proj": "gated-silu",
    "d_kv": 10,
    "num_heads": 5,
    "num_layers": 2,
    "num_decoder_layers": 4,
    "layer_norm_epsilon": 1e-2,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 11,
    "decoder_start_token_id": 0,
}


CASES = [
    Case("t5", "T5ForConditionalGeneration", SMALL, left="as is", bound=FLOAT32_INSIDE),
    Case("t5-1.1", "T5ForConditionalGeneration", LATER, left="as is", bound=FLOAT32_INSIDE),
    Case("t5-odd", "T5ForConditionalGeneration", ODD, left="as is", bound=FLOAT32_INSIDE),
    Case(
        "t5-gelu",
        "T5ForConditionalGeneration",
        {**SMALL, "feed_forward_proj": "gelu"},
        left="as is",
        bound=FLOAT32_INSIDE,
    ),
    Case("t5", "T5Model", LATER, answer="last_hidden_state", left="as is", bound=FLOAT32_INSIDE),
    Case(
        "t5", "T5ForSequenceClassification", {**LATER, "num_labels": 3}, left="row", eos=1, pad=0, bound=FLOAT32_INSIDE
    ),
    Case("t5", "T5EncoderModel", LATER, answer="last_hidden_state", left="as is", bound=FLOAT32_INSIDE),
    Case("t5", "T5ForTokenClassification", {**SMALL, "num_labels": 5}, left="as is", bound=FLOAT32_INSIDE),
    Case("t5", "T5ForQuestionAnswering", SMALL, answer="span", left="as is", bound=FLOAT32_INSIDE),
]
