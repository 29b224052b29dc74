"""What every training objective is: examples in, a batch out; a model and a batch in, a loss out.

A loss is never averaged here. It is a set of terms, each a sum over the places that it judges, with how many they are.
What a step of training goes down on is Σ weight · total / count, where total and count are those of the whole step,
over all of its micro-batches and processes: averages of averages would weigh a token by the length of its neighbours.

Shapes: ``B`` rows, ``T`` tokens of a row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

IGNORE = -100  # the label of a place that is not judged

Example = TypeVar("Example", contravariant=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Rows as rectangles, ready for a model and its loss."""

    inputs: dict[str, Tensor]  # arguments of the model: ids, mask, target, target_mask, segments, languages, positions
    labels: dict[str, Tensor]  # what is right at each place; IGNORE where nothing is judged
    counts: dict[str, int]  # how many places each term of the loss is a sum over
    tokens: int  # real tokens that the model reads
    seed: int = 0  # of what is drawn while the loss is computed

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in memory that a GPU can fetch by itself; torch's DataLoader asks for it by this name."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Any) -> "Batch":
        moved = [{name: change(tensor) for name, tensor in some.items()} for some in (self.inputs, self.labels)]
        return replace(self, inputs=moved[0], labels=moved[1])


@dataclass(frozen=True, eq=False)
class Term:
    """One thing that is trained for: a sum over ``count`` places, which enters the loss as weight · total / count."""

    total: Tensor  # differentiable, of no axes, in float32 at least
    count: int
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Loss:
    """What a model did on one batch: the terms that it is trained on, and what is only told about it.

    ``parts`` are for logs: a detached sum and how many it is over, so that they add up over batches too.
    """

    terms: dict[str, Term]
    parts: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    def mean(self, counts: Mapping[str, int] | None = None) -> Tensor:
        """Σ weight · total / count.

        With ``counts``, those of a whole step (``add_counts``), this is the batch's share of the step's loss: the
        shares of all micro-batches add up to the loss of one great batch, and so do their gradients.
        """
        found = [
            term.total * (term.weight / max(1, term.count if counts is None else counts[name]))
            for name, term in self.terms.items()
        ]
        return torch.stack(found).sum()


def add_counts(batches: Iterable[Batch]) -> dict[str, int]:
    """How many places each term is a sum over in several batches together; known before any model is asked."""
    total: dict[str, int] = {}
    for batch in batches:
        for name, count in batch.counts.items():
            total[name] = total.get(name, 0) + count
    return total


@runtime_checkable
class Objective(Protocol[Example]):
    """What a model is trained for.

    An objective is a frozen value with its settings and no state: all randomness is the caller's generator, so that a
    batch can be made again exactly. Examples are tokenised already, and are never changed.
    """

    def prepare(self, examples: Sequence[Example], generator: torch.Generator) -> Batch:
        """A batch of these examples, noise included."""

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """How far the model is from the labels. Some objectives look inside the model, past wrappers: a wrapper that
        must see every call (for distributed training) has to wrap model and objective together."""
