"""Tiny OPT models. The reference counts positions from the mask; its eager path gives NaN under left padding."""

from functools import partial

from tests.parity.harness import HEADS, INNER, LAYERS, LONGEST, VOCAB, WIDTH, Case

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "word_embed_proj_dim": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "ffn_dim": INNER,
    "max_position_embeddings": LONGEST,
}
OTHER = {
    **SMALL,
    "num_attention_heads": 2,
    "ffn_dim": 17,
    "activation_function": "gelu",
    "enable_bias": False,
    "tie_word_embeddings": False,
}
opt = partial(Case, attention="sdpa", left="as is")
CASES = [
    opt("opt", "OPTForCausalLM", SMALL),
    opt("opt-other", "OPTForCausalLM", OTHER),
    opt("opt-post", "OPTForCausalLM", {**SMALL, "do_layer_norm_before": False}),
    opt("opt-no-final-norm", "OPTForCausalLM", {**SMALL, "_remove_final_layer_norm": True}),
    opt("opt", "OPTModel", SMALL, answer="last_hidden_state"),
    opt("opt", "OPTForSequenceClassification", {**SMALL, "num_labels": 3}),
    opt("opt", "OPTForQuestionAnswering", SMALL, answer="span"),
]
