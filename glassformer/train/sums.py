"""Totals of a step or of an evaluation: over all of its batches, and over all processes."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from glassformer.data.objectives.base import Loss


class Means(NamedTuple):
    """What a model does on some batches, on average."""

    loss: float
    terms: dict[str, float]
    parts: dict[str, float]


@dataclass
class Sums:
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
        """Add up over processes."""
        if not (dist.is_available() and dist.is_initialized()) or not self.values:
            return
        counts = torch.tensor([float(self.counts[name]) for name in self.values], dtype=torch.float64)
        values = torch.stack(list(self.values.values()))
        together = torch.stack((values, counts.to(values.device)))
        dist.all_reduce(together)
        for place, name in enumerate(self.values):
            self.values[name], self.counts[name] = together[0, place], int(together[1, place])


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def everywhere(counts: dict[str, int], tokens: int, device: torch.device) -> tuple[dict[str, int], int]:
    """Counts and tokens of all processes together."""
    if world() == 1:
        return counts, tokens
    every = torch.tensor([*counts.values(), tokens], dtype=torch.long, device=device)
    dist.all_reduce(every)
    *shared, tokens = every.tolist()
    return dict(zip(counts, shared, strict=True)), tokens
