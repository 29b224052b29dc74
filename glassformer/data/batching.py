"""Which examples make up each batch: their shuffled order, and plans of batches of a fixed size or a budget of tokens.

Order and plans compute the batch at any position of any epoch without storing the order, so that a run can stop and
resume anywhere. Every example occurs once per epoch.

The order is a permutation by a Feistel network: a number is a pair (left, right) of about √count × √count, and in each
round a hash of one half is added to the other. Each round can be undone, so every pair occurs exactly once (M. Luby,
C. Rackoff 1988; J. Black, P. Rogaway 2002 for sizes that are no power of two). The few pairs beyond ``count`` are
permuted again until they fall within it. It computes with 64-bit integers only, and so is the same on every machine.

Shapes: ``N`` examples, ``W`` examples of a window, ``B`` examples of a batch, ``n`` positions.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isqrt
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int64, Integer
from numpy.typing import NDArray

from glassformer.config.checks import Setting, SettingError, check_choice, check_count, check_positive_integer

_SMALL = 100  # below this count the halves are so short that eight rounds leave a pattern


class Cursor(NamedTuple):
    """A position in a run over the data: the epoch, and the number of items of it that are done."""

    epoch: int
    offset: int


def hashed(*parts: int | str) -> int:
    """Return a 63-bit number that depends on all parts: a way to derive several seeds from one."""
    text = "\x1f".join(f"{type(part).__name__}{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


class Order:
    """The numbers 0 … count − 1, in another order in every epoch; in ascending order with ``shuffle=False``.

    Positions count through all epochs of a run: position p is ``divmod(p, count)``, an epoch and an offset.
    """

    def __init__(self, count: int, seed: int, shuffle: bool = True) -> None:
        check_positive_integer(count=count)
        self.count = count
        self.seed = seed
        self.shuffle = shuffle
        self._left = isqrt(count - 1) + 1
        self._right = -(-count // self._left)

    def at(self, epoch: int, offset: int) -> int:
        """Return the number at one offset of an epoch."""
        check_count(epoch=epoch, offset=offset)
        if offset >= self.count:
            raise IndexError(f"an epoch has {self.count} positions, numbered from 0; got {offset}.")
        return int(self.span(epoch, offset, offset + 1)[0])

    def span(self, epoch: int, start: int, stop: int) -> Int64[np.ndarray, "n"]:
        """Return the numbers at the offsets ``[start, stop)``."""
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"an epoch has {self.count} positions; [{start}, {stop}) is not within them.")
        numbers = np.arange(start, stop, dtype=np.uint64)
        if not self.shuffle:
            return numbers.astype(np.int64)
        # Permute the pairs (left, right); numbers beyond ``count`` are permuted again until they fall within it.
        keys, width, height = _keys(self.count, self.seed, epoch), np.uint64(self._right), np.uint64(self._left)
        outside = np.ones(len(numbers), dtype=bool)
        while outside.any():
            left, right = np.divmod(numbers[outside], width)
            for first, second in zip(keys[::2], keys[1::2], strict=True):
                left = (left + _mix(right ^ np.uint64(first)) % height) % height
                right = (right + _mix(left ^ np.uint64(second)) % width) % width
            numbers[outside] = left * width + right
            outside = numbers >= self.count
        return numbers.astype(np.int64)

    def cursor(self, position: int) -> Cursor:
        """Return the epoch and the offset of a position of the whole run."""
        check_count(position=position)
        return Cursor(*divmod(position, self.count))

    def walk(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[int]:
        """Yield the numbers from a position on, endlessly; process ``rank`` of ``world`` gets every ``world``-th."""
        check_rank(rank, world)
        check_count(start=start)
        position = start + rank
        while True:
            yield self.at(*self.cursor(position))
            position += world


def check_rank(rank: int, world: int) -> None:
    """Raise unless ``rank`` is one of ``world`` processes."""
    check_positive_integer(world=world)
    check_count(rank=rank)
    if rank >= world:
        raise ValueError(f"rank must be below world={world}, counted from 0; got {rank}.")


@lru_cache(maxsize=64)
def _keys(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Return the keys of the rounds of an epoch."""
    check_count(epoch=epoch)
    size = 8 * (16 if count < _SMALL else 8)
    digest = hashlib.shake_256(f"order {count} {seed} {epoch}".encode()).digest(size)
    return tuple(int.from_bytes(digest[start : start + 8], "little") for start in range(0, size, 8))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash whose every bit depends on every bit (S. Vigna's SplitMix64).

    Unsigned integers wrap around.
    """
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Lengths: TypeAlias = Sequence[int] | Integer[np.ndarray, "N"]


def checked_lengths(lengths: Lengths, what: str, purpose: str) -> Int64[np.ndarray, "N"]:
    """Return the lengths as an array; raise if there are none, or if one is below 1.

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
_Indices: TypeAlias = Int64[np.ndarray, "B"]


@runtime_checkable
class BatchPlan(Protocol):
    """Which examples are in each batch."""

    @property
    def examples(self) -> int:
        """The number of examples in the data set."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the batches, in plain values: plans with equal settings make equal batches."""

    def batches(self, epoch: int) -> int:
        """Return the number of batches in an epoch, at least one."""

    def at(self, epoch: int, number: int) -> list[int]:
        """Return the examples of one batch."""


class FixedPlan:
    """``size`` examples per batch, in a shuffled order; the last batch of an epoch may be smaller, or dropped."""

    def __init__(self, examples: int, size: int, *, seed: int, shuffle: bool = True, drop_last: bool = False) -> None:
        check_positive_integer(examples=examples, size=size)
        if drop_last and size > examples:
            raise ValueError(
                f"{examples} examples do not fill a batch of {size}, and the incomplete last batch is dropped."
            )
        self.examples = examples  # of the data set
        self._order = Order(examples, seed, shuffle)
        self._size = size
        self._drop_last = drop_last
        self._batches = examples // size if drop_last else -(-examples // size)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the batches."""
        order = self._order
        values = {"kind": "fixed", "examples": order.count, "seed": order.seed, "shuffle": order.shuffle}
        return values | {"size": self._size, "drop_last": self._drop_last}

    def batches(self, epoch: int) -> int:
        """Return the number of batches in an epoch; the same for all epochs."""
        del epoch
        return self._batches

    def at(self, epoch: int, number: int) -> list[int]:
        """Return the examples of one batch."""
        if not 0 <= number < self._batches:
            raise IndexError(f"the epoch has {self._batches} batches, numbered from 0; got {number}.")
        start = number * self._size
        return self._order.span(epoch, start, min(start + self._size, self.examples)).tolist()


class BudgetPlan:
    """As many examples per batch as fit: examples × longest of them, the padded size, is at most ``budget`` tokens.

    The shuffled order is split into windows of ``window`` examples; a window is sorted by length, so that neighbours
    are about equally long, and cut into batches; finally the batches of an epoch are shuffled. The padding within a
    window is at most budget · ln(longest / shortest), however many examples it has.

    Args:
        lengths: tokens of each example; of a pair, the longer side or the sum, depending on which the budget limits.
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
        check_positive_integer(budget=budget, window=window, longest=self.longest)
        check_choice("too_long", too_long, ("stop", "cut", "skip"))
        if self.longest > budget:
            raise ValueError(f"an example of longest={longest} tokens cannot fit into a budget of {budget}.")
        # Examples that are too long: an error, skipped, or counted as ``longest``.
        counts = checked_lengths(lengths, "example", "to make batches of")
        fits = counts <= self.longest
        if too_long == "stop" and not fits.all():
            raise _too_long(counts, int(fits.argmin()), self.longest)
        self.skipped: list[int] = np.flatnonzero(~fits).tolist() if too_long == "skip" else []
        self._kept = np.flatnonzero(fits) if too_long == "skip" else np.arange(len(counts))
        if not len(self._kept):
            raise ValueError(f"all {len(counts)} examples have more than {self.longest} tokens; none is left.")
        # What the batches are computed from.
        self._lengths = np.minimum(counts, self.longest)
        self._budget, self._window, self._too_long = budget, window, too_long
        self._order = Order(len(self._kept), seed, shuffle)
        self._digest = hashlib.sha256(counts.astype("<i8").tobytes()).hexdigest()
        self._epochs: dict[int, list[_Indices]] = {}

    @property
    def examples(self) -> int:
        """The number of examples in the data set, the skipped ones included."""
        return len(self._lengths)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the batches."""
        values = {"kind": "budget", "examples": self.examples, "seed": self._order.seed, "shuffle": self._order.shuffle}
        values |= {"budget": self._budget, "window": self._window, "longest": self.longest}
        return values | {"too_long": self._too_long, "lengths": self._digest}

    def batches(self, epoch: int) -> int:
        """Return the number of batches in an epoch; epochs differ a little."""
        return len(self._epoch(epoch))

    def at(self, epoch: int, number: int) -> list[int]:
        """Return the examples of one batch, the shortest first."""
        batches = self._epoch(epoch)
        if not 0 <= number < len(batches):
            raise IndexError(f"the epoch has {len(batches)} batches, numbered from 0; got {number}.")
        shuffled = Order(len(batches), hashed("batches", self._order.seed), self._order.shuffle)
        return batches[shuffled.at(epoch, number)].tolist()

    def _epoch(self, epoch: int) -> list[_Indices]:
        """Return all batches of an epoch, window by window; those of the last two epochs used are cached."""
        if epoch not in self._epochs:
            order = self._kept[self._order.span(epoch, 0, self._order.count)]
            windows = (order[start : start + self._window] for start in range(0, len(order), self._window))
            batches = [batch for window in windows for batch in self._cut(window)]
            self._epochs = {**dict(list(self._epochs.items())[-1:]), epoch: batches}
        return self._epochs[epoch]

    def _cut(self, window: Int64[np.ndarray, "W"]) -> Iterator[_Indices]:
        """Cut a window into batches of examples of similar length."""
        # Sort the window by length.
        lengths = self._lengths[window]
        by_length = np.argsort(lengths, kind="stable")
        window, lengths = window[by_length], lengths[by_length]
        # Take as many of the shortest that are left as fit: longest × examples ≤ budget.
        start = 0
        while start < len(window):
            limit = self._budget // int(lengths[start])  # the others are no shorter
            candidates = lengths[start : start + limit]
            stop = start + int((candidates * np.arange(1, len(candidates) + 1) <= self._budget).sum())
            yield window[start:stop]
            start = stop


def _too_long(lengths: Int64[np.ndarray, "N"], first: int, longest: int) -> SettingError:
    count = int((lengths > longest).sum())
    return SettingError(
        f"example {first} has {lengths[first]} tokens, more than {longest} ({count} of {len(lengths)} do). "
        "Raise {}, or set {}.",
        Setting("budget", external_name="batch.tokens"),
        Setting("too_long='cut' or too_long='skip'", external_name="batch.length, to which longer examples are cut"),
    )
