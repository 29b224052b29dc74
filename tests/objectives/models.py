"""Tiny models of ours and of the reference with the same weights, and small numbers of statistics."""

import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from glassformer.config import change
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import Batch, Loss
from glassformer.objectives.masking import Masking, MaskVocabulary
from tests.helpers import randomise
from tests.parity.cases import CASES
from tests.parity.harness import FIRST_WORD, VOCAB, Case, Pair, rows
from tests.promises.test_five_promises import facts_of

MASK = 4
WORDS = MaskVocabulary(VOCAB, MASK, frozenset(range(FIRST_WORD)))
MASKING = Masking(vocabulary=WORDS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def case_of(architecture: str, name: str | None = None) -> Case:
    return next(c for c in CASES if c.architecture == architecture and name in (None, c.name))


@cache
def pair_of(architecture: str, name: str | None = None, **config: Any) -> Pair:
    """The reference and ours, in evaluation mode and float64; not to be trained."""
    case = case_of(architecture, name)
    case = Case(**{**vars(case), "config": {**case.config, **config}})
    with TemporaryDirectory() as folder:
        return Pair.make(case, Path(folder))


def fresh(architecture: str, name: str | None = None, seed: int = 0, **facts: Any) -> Transformer:
    """A model of our own to be trained, in float64, without dropout."""
    config = facts_of(case_of(architecture, name))
    for path, value in facts.items():
        config = change(config, path.replace("__", "."), value)
    model = randomise(Transformer(config), seed).eval().double()
    assert isinstance(model, Transformer)
    return model


def words(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Rows of ordinary ids."""
    return [row.tolist() for row in rows(lengths, seed)]


def framed(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Rows of ordinary ids between the special ids 2 and 3; the lengths are those with the frame."""
    return [[2, *row, 3] for row in words(*(length - 2 for length in lengths), seed=seed)]


def mean_of(loss: Loss, name: str) -> float:
    return loss.terms[name].total.item() / loss.terms[name].count


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def their_mask(batch: Batch) -> Tensor:
    """The reference's mask, of 1 and 0."""
    ids = batch.inputs["ids"]
    return batch.inputs.get("mask", torch.ones_like(ids)).long()


def is_fair(seen: int, of: int, chance: float) -> bool:
    """Whether a count is within 4.5 standard deviations of what a chance makes of so many draws."""
    return abs(seen - of * chance) <= 4.5 * math.sqrt(of * chance * (1 - chance)) + 1e-9


def chi_square(seen: list[int], probs: list[float]) -> float:
    """Pearson's statistic in standard deviations from its mean: degrees of freedom, of variance twice that."""
    total, free = sum(seen), len(seen) - 1
    assert math.isclose(sum(probs), 1)
    statistic = sum((n - total * p) ** 2 / (total * p) for n, p in zip(seen, probs, strict=True))
    return (statistic - free) / math.sqrt(2 * free)
