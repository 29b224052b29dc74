"""Which examples make up each batch: a fixed number of them, or as many as fit into a budget of tokens.

Both plans compute the batch at any position of any epoch, so that a run can stop and resume anywhere. Every example
occurs once per epoch.

Shapes: ``N`` examples, ``W`` examples of a window, ``B`` examples of a batch.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int64, Integer

from glassformer.config.checks import check_choice, check_count, check_positive
from glassformer.data.order import Order, hashed

Lengths: TypeAlias = Sequence[int] | Integer[np.ndarray, "N"]


def checked_lengths(lengths: Lengths, what: str, purpose: str) -> Int64[np.ndarray, "N"]:
    """The lengths as an array; raise if there are none, or if one is below 1.

    Args:
        lengths: in tokens.
        what: "example" or "document", for errors.
        purpose: the end of the error message: "there are no documents *to pack*".
    """
    numbers = np.asarray(lengths)
    if not numbers.size:
        raise ValueError(f"there are no {what}s {purpose}.")
    if numbers.min() < 1:
        raise ValueError(f"{what} {int(numbers.argmin())} has no tokens; leave it out.")
    return numbers.astype(np.int64)


TooLong: TypeAlias = Literal["stop", "cut", "skip"]
_Numbers: TypeAlias = Int64[np.ndarray, "B"]


@runtime_checkable
class BatchPlan(Protocol):
    """Which examples are in each batch."""

    @property
    def examples(self) -> int:
        """The number of examples in the data set."""

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that determines the batches, in plain values: plans with equal facts make equal batches."""

    def batches(self, epoch: int) -> int:
        """The number of batches in an epoch, at least one."""

    def at(self, epoch: int, number: int) -> list[int]:
        """The examples of one batch."""


class FixedPlan:
    """``size`` examples per batch, in a shuffled order; the last batch of an epoch may be smaller, or dropped."""

    def __init__(self, examples: int, size: int, *, seed: int, shuffle: bool = True, drop_last: bool = False) -> None:
        check_positive(examples=examples, size=size)
        if drop_last and size > examples:
            raise ValueError(f"batches of {size} out of {examples} examples leave none if the last is dropped.")
        self._order = Order(examples, seed, shuffle)
        self._size = size
        self._drop_last = drop_last

    @property
    def examples(self) -> int:
        """The number of examples in the data set."""
        return self._order.count

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that determines the batches."""
        order = self._order
        facts = {"kind": "fixed", "examples": order.count, "seed": order.seed, "shuffle": order.shuffle}
        return facts | {"size": self._size, "drop_last": self._drop_last}

    def batches(self, epoch: int) -> int:
        """The number of batches in an epoch; the same for all epochs."""
        check_count(epoch=epoch)
        return self.examples // self._size if self._drop_last else -(-self.examples // self._size)

    def at(self, epoch: int, number: int) -> list[int]:
        """The examples of one batch."""
        _check_number(number, self.batches(epoch))
        start = number * self._size
        return self._order.span(epoch, start, min(start + self._size, self.examples)).tolist()


class BudgetPlan:
    """As many examples per batch as fit: longest × examples, padding included, is at most ``budget`` tokens.

    The shuffled order is split into windows of ``window`` examples; a window is sorted by length, so that neighbours
    are about equally long, and cut into batches; finally the batches of an epoch are shuffled. The padding within a
    window is at most budget · ln(longest / shortest), however many examples it has.

    Args:
        lengths: tokens of each example; for pairs the longer side or the sum, whichever the budget limits.
        budget: tokens of a batch, padding included.
        seed: as in ``Order``.
        shuffle: as in ``Order``.
        window: examples that are sorted together. Larger windows pad less, but mix the examples of a batch less.
        longest: an example with more tokens is too long; default ``budget``.
        too_long: what to do with such an example: ``stop`` with an error, ``skip`` it (see ``skipped``), or ``cut``:
            count it as ``longest`` tokens, to which the caller truncates it.
    """

    def __init__(
        self,
        lengths: Lengths,
        budget: int,
        *,
        seed: int,
        shuffle: bool = True,
        window: int = 8192,
        longest: int | None = None,
        too_long: TooLong = "stop",
    ) -> None:
        self.longest = budget if longest is None else longest
        check_positive(budget=budget, window=window, longest=self.longest)
        check_choice("too_long", too_long, ("stop", "cut", "skip"))
        if self.longest > budget:
            raise ValueError(f"an example of longest={longest} tokens cannot fit into a budget of {budget}.")
        counts = checked_lengths(lengths, "example", "to make batches of")
        fits = counts <= self.longest
        if too_long == "stop" and not fits.all():
            raise ValueError(_too_long(counts, int(fits.argmin()), self.longest))
        self.skipped: list[int] = np.flatnonzero(~fits).tolist() if too_long == "skip" else []
        self._kept = np.flatnonzero(fits) if too_long == "skip" else np.arange(len(counts))
        if not len(self._kept):
            raise ValueError(f"all {len(counts)} examples have more than {self.longest} tokens; none is left.")
        self._lengths = np.minimum(counts, self.longest)
        self._budget, self._window, self._too_long = budget, window, too_long
        self._order = Order(len(self._kept), seed, shuffle)
        self._digest = hashlib.sha256(counts.astype("<i8").tobytes()).hexdigest()
        self._epochs: dict[int, list[_Numbers]] = {}

    @property
    def examples(self) -> int:
        """The number of examples in the data set, the skipped ones included."""
        return len(self._lengths)

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that determines the batches."""
        facts = {"kind": "budget", "examples": self.examples, "seed": self._order.seed, "shuffle": self._order.shuffle}
        facts |= {"budget": self._budget, "window": self._window, "longest": self.longest}
        return facts | {"too_long": self._too_long, "lengths": self._digest}

    def batches(self, epoch: int) -> int:
        """The number of batches in an epoch; epochs differ a little."""
        return len(self._epoch(epoch))

    def at(self, epoch: int, number: int) -> list[int]:
        """The examples of one batch, the shortest first."""
        batches = self._epoch(epoch)
        _check_number(number, len(batches))
        shuffled = Order(len(batches), hashed("batches", self._order.seed), self._order.shuffle)
        return batches[shuffled.at(epoch, number)].tolist()

    def _epoch(self, epoch: int) -> list[_Numbers]:
        """All batches of an epoch, window by window; those of the last two epochs used are cached."""
        if epoch not in self._epochs:
            order = self._kept[self._order.span(epoch, 0, self._order.count)]
            windows = (order[start : start + self._window] for start in range(0, len(order), self._window))
            batches = [batch for window in windows for batch in self._cut(window)]
            self._epochs = {**dict(list(self._epochs.items())[-1:]), epoch: batches}
        return self._epochs[epoch]

    def _cut(self, window: Int64[np.ndarray, "W"]) -> Iterator[_Numbers]:
        """A window as batches of examples of similar length."""
        lengths = self._lengths[window]
        by_length = np.argsort(lengths, kind="stable")
        window, lengths = window[by_length], lengths[by_length]
        start = 0
        while start < len(window):
            limit = self._budget // int(lengths[start])  # the others are no shorter
            candidates = lengths[start : start + limit]
            stop = start + int((candidates * np.arange(1, len(candidates) + 1) <= self._budget).sum())
            yield window[start:stop]
            start = stop


def _too_long(lengths: Int64[np.ndarray, "N"], first: int, longest: int) -> str:
    count = int((lengths > longest).sum())
    return (
        f"example {first} has {lengths[first]} tokens, more than {longest} ({count} of {len(lengths)} do). Raise the "
        f'budget or longest=, or say too_long="skip" to leave such examples out, too_long="cut" to cut them.'
    )


def _check_number(number: int, batches: int) -> None:
    if not 0 <= number < batches:
        raise IndexError(f"the epoch has {batches} batches, numbered from 0; got {number}.")
