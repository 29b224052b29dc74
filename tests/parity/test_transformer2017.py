"""The Transformer of 2017 against ``torch.nn.Transformer``: its state dict and a table of embeddings, carried over."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.config import ModelConfig
from glassformer.families import lineages
from glassformer.models.transformer import Transformer
from glassformer.weights.convert import to_theirs
from tests.helpers import randomise
from tests.parity.harness import EXACT, LENGTHS, TARGET_LENGTHS, VOCAB, from_weights, pad_rows, rows

LINEAGE = lineages()["transformer2017"]
SMALL = {
    "vocab_size": VOCAB,
    "d_model": 24,
    "nhead": 3,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "dim_feedforward": 40,
    "layer_norm_eps": 1e-3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "odd": {"nhead": 4, "dim_feedforward": 17, "layer_norm_eps": 1e-5},
    "final-norm": {"final_norm": True},
    "norm-first": {"final_norm": True, "norm_first": True},
}


class Reference(nn.Module):
    """What a course builds around ``torch.nn.Transformer``: embeddings, positions and logits."""

    def __init__(self, keys: dict[str, Any]) -> None:
        super().__init__()
        width = keys["d_model"]
        options = {key: keys[key] for key in ("dim_feedforward", "layer_norm_eps")}
        options |= {"batch_first": True, "norm_first": keys.get("norm_first", False), "dropout": 0.0}
        norms = [nn.LayerNorm(width, eps=keys["layer_norm_eps"]) if keys.get("final_norm") else None for _ in "ab"]
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, keys["nhead"], **options),
            keys["num_encoder_layers"],
            norms[0],
            enable_nested_tensor=False,
        )
        decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(width, keys["nhead"], **options), keys["num_decoder_layers"], norms[1]
        )
        self.inner = nn.Transformer(
            width, keys["nhead"], custom_encoder=encoder, custom_decoder=decoder, batch_first=True
        )
        self.embedding = nn.Embedding(keys["vocab_size"], width)

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """√width · vector + sines and cosines, by the formula of the paper, one number at a time."""
        width = self.embedding.embedding_dim
        x = self.embedding(ids) * math.sqrt(width)
        for row in range(ids.shape[0]):
            place = -1
            for slot in range(ids.shape[1]):
                place += int(mask[row, slot])
                for i in range(width):
                    angle = place / 10_000 ** (2 * (i // 2) / width)
                    x[row, slot, i] += math.cos(angle) if i % 2 else math.sin(angle)
        return x

    def forward(self, ids: Tensor, mask: Tensor, target: Tensor, target_mask: Tensor) -> Tensor:
        length = target.shape[1]
        out = self.inner(
            self.embed(ids, mask),
            self.embed(target, target_mask),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=~mask,
            tgt_key_padding_mask=~target_mask,
            memory_key_padding_mask=~mask,
        )
        return out @ self.embedding.weight.T

    def weights(self) -> dict[str, Tensor]:
        return {"embedding.weight": self.embedding.weight, **self.inner.state_dict()}


def load(facts: ModelConfig, weights: dict[str, Tensor], kind: str = "lm") -> Transformer:
    return from_weights(LINEAGE, facts, kind, weights)


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_numbers_as_torch(variant: str) -> None:
    keys = {**SMALL, **VARIANTS[variant]}
    reference = randomise(Reference(keys).double()).eval()
    ours = load(LINEAGE.facts(keys, "lm"), reference.weights())
    target, target_mask = pad_rows(rows(TARGET_LENGTHS, 2), "right")
    for side in ("right", "left"):
        ids, mask = pad_rows(rows(LENGTHS, 1), side)
        with torch.no_grad():
            gap = ours(ids, mask, target=target, target_mask=target_mask) - reference(ids, mask, target, target_mask)
        assert gap[target_mask].abs().max() <= EXACT


def test_weights_travel_back_bitwise() -> None:
    reference = randomise(Reference(SMALL).double())
    facts = LINEAGE.facts(SMALL, "lm")
    back = to_theirs(LINEAGE, facts, "lm", load(facts, reference.weights()).state_dict())
    assert back.keys() == reference.weights().keys()
    for name, tensor in reference.weights().items():
        assert torch.equal(tensor, back[name]), name


def test_without_a_head_the_vectors_are_the_answer() -> None:
    reference = randomise(Reference(SMALL).double()).eval()
    facts = LINEAGE.facts(SMALL, "none")
    assert replace(LINEAGE.facts(SMALL, "lm"), head=None) == facts
    ours = load(facts, reference.weights(), "none")
    ids, target = rows((9,), 1)[0][None], rows((7,), 2)[0][None]
    with torch.no_grad():
        logits = ours(ids, target=target) @ reference.embedding.weight.T
        gap = logits - reference(ids, torch.ones_like(ids).bool(), target, torch.ones_like(target).bool())
    assert gap.abs().max() <= EXACT
