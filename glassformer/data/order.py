"""The order in which examples are seen: shuffled anew in every epoch, and known at any place without being stored.

A permutation of ``count`` numbers is computed number by number: a number is written as a pair (left, right) of about
√count × √count, and several times one half is turned by a hash of the other, which can be undone and so gives every
pair once (M. Luby, C. Rackoff 1988; J. Black, P. Rogaway 2002 for sizes that are no power of two). Few pairs stand for
no number; from these one goes on until one does. Whole numbers of 64 bits alone: the same on every machine.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from math import isqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt64
from numpy.typing import NDArray

from glassformer.config.checks import check_count, check_positive

_SMALL = 100  # below so many numbers the halves are so short that eight rounds leave a pattern
_WORD = 2**64 - 1


class Place(NamedTuple):
    """A place in a run over the data: the epoch, and how many of it are done."""

    epoch: int
    offset: int


def hashed(*parts: int | str) -> int:
    """A number of 63 bits that depends on all parts: a seed, where several things need one each."""
    text = "\x1f".join(f"{type(part).__name__}{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


class Order:
    """The numbers 0 … count − 1, in another order in every epoch; ``shuffle=False`` leaves them in their own.

    A run over several epochs is one long row of positions: position p is ``divmod(p, count)``, an epoch and an offset.
    """

    def __init__(self, count: int, seed: int, shuffle: bool = True) -> None:
        check_positive(count=count)
        self.count = count
        self.seed = seed
        self.shuffle = shuffle
        self._left = isqrt(count - 1) + 1
        self._right = -(-count // self._left)

    def at(self, epoch: int, offset: int) -> int:
        """The number at one place."""
        check_count(epoch=epoch, offset=offset)
        if offset >= self.count:
            raise IndexError(f"an epoch has {self.count} places, numbered from 0; got {offset}.")
        if not self.shuffle:
            return offset
        keys = _keys(self.count, self.seed, epoch)
        number = self._turned(offset, keys)
        while number >= self.count:
            number = self._turned(number, keys)
        return number

    def span(self, epoch: int, start: int, stop: int) -> Int64[np.ndarray, "n"]:
        """The numbers at the places ``[start, stop)``: ``at`` of many."""
        check_count(epoch=epoch, start=start)
        if not start <= stop <= self.count:
            raise IndexError(f"an epoch has {self.count} places; [{start}, {stop}) is not within them.")
        numbers = np.arange(start, stop, dtype=np.uint64)
        if self.shuffle:
            keys = _keys(self.count, self.seed, epoch)
            outside = np.ones(len(numbers), dtype=bool)
            while outside.any():
                numbers[outside] = self._turned_many(numbers[outside], keys)
                outside = numbers >= self.count
        return numbers.astype(np.int64)

    def place(self, position: int) -> Place:
        """The epoch and the offset of a position of the whole run."""
        check_count(position=position)
        return Place(*divmod(position, self.count))

    def walk(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[int]:
        """The numbers from a position on, without end; process ``rank`` of ``world`` gets every ``world``-th."""
        check_rank(rank, world)
        check_count(start=start)
        position = start + rank
        while True:
            yield self.at(*self.place(position))
            position += world

    def _turned(self, number: int, keys: tuple[int, ...]) -> int:
        left, right = divmod(number, self._right)
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _mixed(right ^ first)) % self._left
            right = (right + _mixed(left ^ second)) % self._right
        return left * self._right + right

    def _turned_many(self, numbers: UInt64[np.ndarray, "n"], keys: tuple[int, ...]) -> UInt64[np.ndarray, "n"]:
        width, height = np.uint64(self._right), np.uint64(self._left)
        left: NDArray[np.uint64] = numbers // width
        right: NDArray[np.uint64] = numbers % width
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _mixed_many(right ^ np.uint64(first)) % height) % height
            right = (right + _mixed_many(left ^ np.uint64(second)) % width) % width
        return left * width + right


def check_rank(rank: int, world: int) -> None:
    """Raise unless ``rank`` is one of ``world`` processes."""
    check_positive(world=world)
    check_count(rank=rank)
    if rank >= world:
        raise ValueError(f"rank must be below world={world}, counted from 0; got {rank}.")


@lru_cache(maxsize=64)
def _keys(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    size = 8 * (16 if count < _SMALL else 8)
    digest = hashlib.shake_256(f"order {count} {seed} {epoch}".encode()).digest(size)
    return tuple(int.from_bytes(digest[start : start + 8], "little") for start in range(0, size, 8))


def _mixed(x: int) -> int:
    """A hash of 64 bits whose every bit depends on every bit (S. Vigna's SplitMix64)."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def _mixed_many(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``_mixed`` of many; numpy's whole numbers wrap round by themselves."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
