"""Tiny BigBird models; see ``test_block_sparse`` for longer texts."""

from tests.parity.cases_bert import SMALL as BERT_SMALL
from tests.parity.harness import Case

POOLER = ("bert.pooler.weight", "bert.pooler.bias")  # held by every class, used by few
FULL = {**BERT_SMALL, "attention_type": "original_full", "layer_norm_eps": 1e-3}
# Blocks of one token: eight tokens are enough for attention between blocks.
SPARSE = {**FULL, "attention_type": "block_sparse", "block_size": 1, "num_random_blocks": 1}
OTHER = {"num_attention_heads": 4, "hidden_act": "gelu", "use_bias": False, "rescale_embeddings": True}
LABELS = {"num_labels": 3}
CASES = [
    Case("bigbird", "BigBirdForMaskedLM", FULL, segments=2, unused=POOLER),
    Case("bigbird-other", "BigBirdForMaskedLM", {**FULL, **OTHER}, segments=2, unused=POOLER),
    Case("bigbird-sparse", "BigBirdForMaskedLM", SPARSE, segments=2, unused=POOLER),
    Case("bigbird-sparse-other", "BigBirdForMaskedLM", {**SPARSE, **OTHER}, segments=2, unused=POOLER),
    Case("bigbird", "BigBirdModel", FULL, segments=2, answer="pooler_output", left="row"),
    Case("bigbird", "BigBirdForPreTraining", FULL, segments=2, answer="pretraining", left="row"),
    Case("bigbird", "BigBirdForSequenceClassification", {**FULL, **LABELS}, segments=2, left="row", unused=POOLER),
    Case("bigbird", "BigBirdForTokenClassification", {**FULL, **LABELS}, segments=2, unused=POOLER),
]
