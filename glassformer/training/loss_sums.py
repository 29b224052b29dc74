"""Sums and means of losses and metrics over several batches: on one device, in one process or in several."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glassformer.objectives.base import Count, Loss, Means
from glassformer.training.parallel import all_gather


def as_float64(number: Tensor) -> Tensor:
    """Return a number in float64, without its gradient; on the CPU if it comes from an Apple GPU, which has none."""
    number = number.detach()
    return (number.cpu() if number.device.type == "mps" else number).double()


@dataclass
class LossAccumulator:
    """Losses of several batches, summed. Means are over targets, not over batches."""

    processes: int = 1  # that each add their own batches; 1 when their sums have been added up
    totals: dict[tuple[str, str], Tensor] = field(default_factory=dict)  # by ("term" or "metric", name)
    counts: dict[tuple[str, str], Count] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)  # of the terms

    def add(self, loss: Loss) -> None:
        """Add the loss of one batch."""
        sums = {("term", name): (term.total, term.count) for name, term in loss.terms.items()}
        sums |= {("metric", name): total_and_count for name, total_and_count in loss.metrics.items()}
        for key, (total, count) in sums.items():
            total = as_float64(total)
            self.totals[key] = total if key not in self.totals else self.totals[key] + total
            self.counts[key] = self.counts.get(key, 0) + count
        self.weights |= {name: term.weight for name, term in loss.terms.items()}

    def stacked(self) -> Tensor:
        """Return all totals and then all counts as one tensor, for a single copy from a GPU to the CPU."""
        totals = list(self.totals.values())
        counts = [n if isinstance(n, Tensor) else totals[0].new_full((), n) for n in self.counts.values()]
        return torch.stack([x.to(totals[0]) for x in (*totals, *counts)])  # a metric may be elsewhere than the loss

    def is_finite(self) -> Tensor:
        """Return whether all terms are finite, as a scalar on their device; metrics may be anything."""
        terms = [total for (kind, _), total in self.totals.items() if kind == "term"]
        return torch.stack(terms).isfinite().all()

    def means(self, stacked: Sequence[float] | None = None) -> Means:
        """Return means over all batches of all processes, each of which must call this; one may have added no batch.

        ``stacked``: the numbers of ``stacked()``, if they have been copied to the CPU.
        """
        if self.processes > 1:
            self._all_reduce()
        numbers = self.stacked().tolist() if stacked is None and self.totals else list(stacked or ())
        totals, counts = numbers[: len(self.totals)], numbers[len(self.totals) :]
        means = {key: total / max(1, n) for key, total, n in zip(self.totals, totals, counts, strict=True)}
        terms = {name: value for (kind, name), value in means.items() if kind == "term"}
        metrics = {name: value for (kind, name), value in means.items() if kind == "metric"}
        return Means(sum(self.weights[name] * mean for name, mean in terms.items()), terms, metrics)

    def _all_reduce(self) -> None:
        own = {key: float(total) for key, total in self.totals.items()}
        every = all_gather((own, self.weights, self.counts))
        self.totals, self.counts, self.processes = {}, {}, 1  # from now on those of all
        for totals, weights, counts in every:  # in the order of ranks, so that all get the same bits
            self.weights |= weights
            for key, value in totals.items():
                self.totals[key] = self.totals.get(key, torch.zeros((), dtype=torch.float64)) + value
                self.counts[key] = self.counts.get(key, 0) + counts[key]
