"""Tiny BLOOM models. The reference computes slopes and softmax in float32, and finds positions by the mask itself.

Its mask in float64 is an infinity to that softmax, so that padding before a row gives NaN everywhere. There each row is
selected alone; ``test_alibi.py`` compares padding on the left in float32.
"""

from functools import partial

from tests.parity.harness import FLOAT32_INSIDE, HEADS, LAYERS, VOCAB, WIDTH, Case

SMALL = {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
OTHER = {**SMALL, "n_head": 4, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": False}
bloom = partial(Case, bound=FLOAT32_INSIDE, left="row")
CASES = [
    bloom("bloom", "BloomForCausalLM", SMALL),
    bloom("bloom-other", "BloomForCausalLM", OTHER),
    bloom("bloom-twelve", "BloomForCausalLM", {**SMALL, "n_head": 12}),
    bloom("bloom", "BloomModel", SMALL, answer="last_hidden_state"),
    bloom("bloom", "BloomForSequenceClassification", {**SMALL, "num_labels": 3, "pad_token_id": 1}),
    bloom("bloom", "BloomForTokenClassification", {**SMALL, "num_labels": 5}),
    bloom("bloom", "BloomForQuestionAnswering", SMALL, answer="span"),
]
