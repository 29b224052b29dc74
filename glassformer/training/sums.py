"""Totals of a step or of an evaluation: over all of its batches, and over all processes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.training.objectives.base import Loss
from glassformer.training.processes import gathered, world


class Means(NamedTuple):
    """What a model does on some batches, on average."""

    loss: float
    terms: dict[str, float]
    parts: dict[str, float]


@dataclass
class LossAccumulator:
    """What objectives said of several batches, added up; means are over what was judged, not over batches."""

    values: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Loss) -> None:
        """One batch more."""
        for name, term in loss.terms.items():
            self._add(f"term {name}", term.total, term.count)
            self.weights[name] = term.weight
        for name, (total, count) in loss.parts.items():
            self._add(f"part {name}", total, count)

    def _add(self, name: str, total: Tensor, count: int) -> None:
        total = total.detach().double()
        self.values[name] = total if name not in self.values else self.values[name] + total
        self.counts[name] = self.counts.get(name, 0) + count

    def means(self, kind: str) -> dict[str, float]:
        """Of every ``term`` of the loss, or of every ``part`` that is only told."""
        names = [name for name in self.values if name.startswith(f"{kind} ")]
        return {name.partition(" ")[2]: float(self.values[name]) / max(1, self.counts[name]) for name in names}

    def loss(self) -> float:
        """Σ weight · mean."""
        return sum(self.weights[name] * mean for name, mean in self.means("term").items())

    def share(self) -> None:
        """Add up over processes; one of them may have seen no batch, or none with some of the terms."""
        if world() == 1:
            return
        every = gathered(({name: float(value) for name, value in self.values.items()}, self.weights, self.counts))
        self.values, self.weights = {}, {}
        for values, weights, _ in every:  # in the order of ranks, so that all get the same to the bit
            self.weights |= weights
            for name, value in values.items():
                self.values[name] = self.values.get(name, torch.zeros((), dtype=torch.float64)) + value
        self.counts = _added(counts for _, _, counts in every)


def all_reduce_counts(counts: dict[str, int], tokens: int) -> tuple[dict[str, int], int]:
    """Counts and tokens of all processes together."""
    every = gathered((counts, tokens))
    return _added(counts for counts, _ in every), sum(tokens for _, tokens in every)


def _added(every: Iterable[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for counts in every:
        total.update(counts)  # unlike +, this keeps what was counted and is 0
    return dict(total)
