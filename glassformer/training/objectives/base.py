"""What every training objective is: examples in, a batch out; a model and a batch in, a loss out.

A loss is never averaged here. It is a set of terms, each a sum over positions together with their number. A training
step minimises Σ weight · total / count, where total and count are those of the whole step, over all micro-batches and
processes: a mean of means would weight a token by the length of its neighbours.

Shapes: ``B`` rows, ``T`` tokens of the longest row, ``N`` tokens of one row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor, nn

from glassformer.config.checks import check_choice, check_positive

IGNORE = -100  # the label of a position that is not counted in the loss
Example = TypeVar("Example", contravariant=True)
Ids = Sequence[int] | Integer[Tensor, "_"]
PER_TOKEN = ("segments", "languages", "positions")  # further inputs of a model, one number per token


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Padded rows, ready for a model and its loss."""

    inputs: dict[str, Tensor]  # arguments of the model: ids, mask, target, target_mask, segments, languages, positions
    labels: dict[str, Tensor]  # the target at each position; IGNORE where nothing is counted in the loss
    counts: dict[str, int]  # the number of positions that each term of the loss is a sum over
    tokens: int  # real tokens that the model reads
    seed: int = 0  # of random numbers drawn while the loss is computed

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in pinned memory; torch's DataLoader calls a method of this name."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        inputs = {name: change(tensor) for name, tensor in self.inputs.items()}
        labels = {name: change(tensor) for name, tensor in self.labels.items()}
        return replace(self, inputs=inputs, labels=labels)


@dataclass(frozen=True, eq=False)
class Term:
    """One part of the loss: a sum over ``count`` positions, which enters the loss as weight · total / count."""

    total: Tensor  # a differentiable scalar, in float32 at least
    count: int
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of a model on one batch: the terms that it is trained on, and metrics such as accuracy.

    ``parts`` are for logs: a detached sum and its count, so that they can be added up over batches too.
    """

    terms: dict[str, Term]
    parts: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    def mean(self, counts: Mapping[str, int] | None = None) -> Tensor:
        """Σ weight · total / count.

        With the ``counts`` of a whole step (``add_counts``), this is the batch's share of the step's loss: the shares
        of all micro-batches add up to the loss of one large batch, and so do their gradients.
        """
        means = [
            term.total * (term.weight / max(1, term.count if counts is None else counts[name]))
            for name, term in self.terms.items()
        ]
        return torch.stack(means).sum()


def add_counts(batches: Iterable[Batch]) -> dict[str, int]:
    """The number of positions of each term in several batches together; known before the forward pass."""
    total: dict[str, int] = {}
    for batch in batches:
        for name, count in batch.counts.items():
            total[name] = total.get(name, 0) + count
    return total


@runtime_checkable
class Objective(Protocol[Example]):
    """What a model is trained for.

    An objective is a frozen value with settings and no state: all randomness comes from the caller's generator, so that
    a batch can be made again exactly. Examples are tokenised already, and are never changed.
    """

    def prepare(self, examples: Sequence[Example], generator: torch.Generator) -> Batch:
        """A batch of these examples, noise included."""

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss of the model on a batch.

        Some objectives call parts of the model, past wrappers: a wrapper that must see every call (for distributed
        training) has to wrap model and objective together.
        """


@dataclass(frozen=True, eq=False)
class TokenRow:
    """The ids of a text with its special tokens, and further numbers per token, all as long as the ids."""

    ids: Ids
    segments: Ids | None = None
    languages: Ids | None = None
    positions: Ids | None = None  # None: counted from 0
    words: Ids | None = None  # the number of each token's word, −1 for special tokens around the text

    def __post_init__(self) -> None:
        for name in (*PER_TOKEN, "words"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) != len(self.ids):
                raise ValueError(f"{name} are one number per token: {len(self.ids)} ids, but {len(numbers)} {name}.")


def as_ids(ids: Ids) -> Int[Tensor, "N"]:
    """Numbers as a tensor of one axis; a tensor is not copied, so the result must not be written to."""
    tensor = torch.as_tensor(ids) if len(ids) else torch.zeros(0, dtype=torch.long)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise TypeError(
            f"a row of ids is whole numbers in one axis; got {tensor.dtype} of shape {tuple(tensor.shape)}."
        )
    return tensor.long()


def as_token_row(example: Ids | TokenRow) -> TokenRow:
    """Ids alone become a row without further numbers."""
    return example if isinstance(example, TokenRow) else TokenRow(as_ids(example))


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How rows are padded to one length. What is real follows from the lengths, never from an id."""

    side: Literal["right", "left"] = "right"
    multiple: int = 1  # the length is rounded up to a multiple: 8 or 64 are faster on some hardware
    fill: int = 0  # the id in padding; it has no effect, because the mask is False there

    def __post_init__(self) -> None:
        check_choice("side", self.side, ("right", "left"))
        check_positive(multiple=self.multiple)

    def padded(self, rows: Sequence[Integer[Tensor, "_"]], fill: int) -> Int[Tensor, "B T"]:
        """Rows padded with ``fill``."""
        token_mask = self.mask(rows)
        padded = torch.full(token_mask.shape, fill)
        padded[token_mask] = torch.cat([*rows]).long()  # all at once: faster for many short rows
        return padded

    def mask(self, rows: Sequence[Integer[Tensor, "_"]]) -> Bool[Tensor, "B T"]:
        """True where a row has a token."""
        if not rows:
            raise ValueError("a batch needs at least one example, got none.")
        lengths = [row.shape[0] for row in rows]
        width = -(-max(1, *lengths) // self.multiple) * self.multiple
        positions, count = torch.arange(width), torch.tensor(lengths)[:, None]
        return positions < count if self.side == "right" else positions >= width - count

    def labels(self, rows: Sequence[Integer[Tensor, "_"]]) -> Int[Tensor, "B T"]:
        """Labels of tokens; padding is not counted in the loss."""
        return self.padded(rows, IGNORE)

    def inputs(self, texts: Sequence[TokenRow]) -> dict[str, Tensor]:
        """The arguments of a model that reads these texts.

        There is no mask if nothing is padded: attention is faster without one.
        """
        rows = [as_ids(text.ids) for text in texts]
        inputs = {"ids": self.padded(rows, self.fill)}
        if min(row.shape[0] for row in rows) < inputs["ids"].shape[-1]:
            inputs["mask"] = self.mask(rows)
        for name in PER_TOKEN:
            present = [getattr(text, name) for text in texts if getattr(text, name) is not None]
            if present and len(present) < len(texts):
                raise ValueError(f"{len(present)} of the {len(texts)} texts of a batch have {name}; say them for all.")
            if present:
                inputs[name] = self.padded([as_ids(numbers) for numbers in present], 0)
        return inputs


def flip(probability: float, generator: torch.Generator) -> bool:
    """True with this probability."""
    return float(torch.rand((), generator=generator, dtype=torch.float64)) < probability


def pick(low: int, high: int, generator: torch.Generator) -> int:
    """A uniformly distributed integer from ``low`` to ``high``, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))
