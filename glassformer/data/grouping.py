"""Which examples make up each batch: so many of them, or as many as fit into a budget of tokens.

Both plans know the batch at any place of any epoch, so that a run can stop and go on anywhere. In an epoch every
example comes once.

Shapes: ``N`` examples, ``W`` of a window, ``B`` of a batch.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int64

from glassformer.config.checks import check_choice, check_count, check_positive
from glassformer.data.lengths import Lengths, checked_lengths
from glassformer.data.order import Order, hashed

TooLong: TypeAlias = Literal["stop", "cut", "skip"]
_Numbers: TypeAlias = Int64[np.ndarray, "B"]


@runtime_checkable
class BatchPlan(Protocol):
    """The examples of each batch."""

    @property
    def examples(self) -> int:
        """How many examples there are to choose from."""

    @property
    def facts(self) -> dict[str, Any]:
        """All that decides the batches, in plain values: two plans with the same facts are the same."""

    def batches(self, epoch: int) -> int:
        """How many batches an epoch has, at least one."""

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
        """How many examples there are to choose from."""
        return self._order.count

    @property
    def facts(self) -> dict[str, Any]:
        """All that decides the batches."""
        order = self._order
        facts = {"kind": "fixed", "examples": order.count, "seed": order.seed, "shuffle": order.shuffle}
        return facts | {"size": self._size, "drop_last": self._drop_last}

    def batches(self, epoch: int) -> int:
        """How many batches an epoch has; the same for all."""
        check_count(epoch=epoch)
        return self.examples // self._size if self._drop_last else -(-self.examples // self._size)

    def at(self, epoch: int, number: int) -> list[int]:
        """The examples of one batch."""
        _check_number(number, self.batches(epoch))
        start = number * self._size
        return self._order.span(epoch, start, min(start + self._size, self.examples)).tolist()


class BudgetPlan:
    """As many examples per batch as their padded rectangle, longest × examples, stays within ``budget`` tokens.

    The shuffled order is taken ``window`` examples at a time; within a window examples are sorted by length, so that
    neighbours are about as long as each other, and cut into batches; the batches of an epoch are then shuffled. The
    padding within a window is at most budget · ln(longest / shortest), however many examples it has.

    Args:
        lengths: tokens of each example; for pairs the longer side, or the sum, whatever the budget is meant for.
        budget: tokens of a batch, padding included.
        seed: as in ``Order``.
        shuffle: as in ``Order``.
        window: examples that are sorted together. Larger wastes less, but the examples of a batch are less mixed.
        longest: an example with more tokens is too long; if not given, ``budget``.
        too_long: ``stop`` with an error, ``skip`` it (``skipped`` names them all), or ``cut``: count it as ``longest``,
            to which the caller cuts it.
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
        given = checked_lengths(lengths, "example", "to make batches of")
        fits = given <= self.longest
        if too_long == "stop" and not fits.all():
            raise ValueError(_too_long(given, int(fits.argmin()), self.longest))
        self.skipped: list[int] = np.flatnonzero(~fits).tolist() if too_long == "skip" else []
        self._kept = np.flatnonzero(fits) if too_long == "skip" else np.arange(len(given))
        if not len(self._kept):
            raise ValueError(f"all {len(given)} examples have more than {self.longest} tokens; none is left.")
        self._lengths = np.minimum(given, self.longest)
        self._budget, self._window, self._too_long = budget, window, too_long
        self._order = Order(len(self._kept), seed, shuffle)
        self._digest = hashlib.sha256(given.astype("<i8").tobytes()).hexdigest()
        self._epochs: dict[int, list[_Numbers]] = {}

    @property
    def examples(self) -> int:
        """How many examples there are to choose from, the skipped ones included."""
        return len(self._lengths)

    @property
    def facts(self) -> dict[str, Any]:
        """All that decides the batches."""
        facts = {"kind": "budget", "examples": self.examples, "seed": self._order.seed, "shuffle": self._order.shuffle}
        facts |= {"budget": self._budget, "window": self._window, "longest": self.longest}
        return facts | {"too_long": self._too_long, "lengths": self._digest}

    def batches(self, epoch: int) -> int:
        """How many batches an epoch has; they differ a little."""
        return len(self._epoch(epoch))

    def at(self, epoch: int, number: int) -> list[int]:
        """The examples of one batch, the shortest first."""
        batches = self._epoch(epoch)
        _check_number(number, len(batches))
        shuffled = Order(len(batches), hashed("batches", self._order.seed), self._order.shuffle)
        return batches[shuffled.at(epoch, number)].tolist()

    def _epoch(self, epoch: int) -> list[_Numbers]:
        """All batches of an epoch, window by window; those of the two latest epochs asked for are kept."""
        if epoch not in self._epochs:
            order = self._kept[self._order.span(epoch, 0, self._order.count)]
            windows = (order[start : start + self._window] for start in range(0, len(order), self._window))
            found = [batch for window in windows for batch in self._cut(window)]
            self._epochs = {**dict(list(self._epochs.items())[-1:]), epoch: found}
        return self._epochs[epoch]

    def _cut(self, window: Int64[np.ndarray, "W"]) -> Iterator[_Numbers]:
        lengths = self._lengths[window]
        by_length = np.argsort(lengths, kind="stable")
        window, lengths = window[by_length], lengths[by_length]
        start = 0
        while start < len(window):
            most = self._budget // int(lengths[start])  # the others are no shorter
            some = lengths[start : start + most]
            stop = start + int((some * np.arange(1, len(some) + 1) <= self._budget).sum())
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
