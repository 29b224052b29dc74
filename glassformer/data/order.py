"""The order of examples: shuffled anew in every epoch, and computed at any position without being stored.

A permutation of ``count`` numbers is a Feistel network: a number is a pair (left, right) of about √count × √count, and
in each round a hash of one half is added to the other. Each round can be undone, so every pair occurs exactly once (M.
Luby, C. Rackoff 1988; J. Black, P. Rogaway 2002 for sizes that are no power of two). The few pairs beyond ``count`` are
permuted again until they fall within it. It computes with 64-bit integers only, and so is the same on every machine.
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

_SMALL = 100  # below this count the halves are so short that eight rounds leave a pattern
_WORD = 2**64 - 1


class Cursor(NamedTuple):
    """A position in a run over the data: the epoch, and the number of items of it that are done."""

    epoch: int
    offset: int


def hashed(*parts: int | str) -> int:
    """A 63-bit number that depends on all parts: a way to derive several seeds from one."""
    text = "\x1f".join(f"{type(part).__name__}{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


class Order:
    """The numbers 0 … count − 1, in another order in every epoch; in ascending order with ``shuffle=False``.

    Positions count through all epochs of a run: position p is ``divmod(p, count)``, an epoch and an offset.
    """

    def __init__(self, count: int, seed: int, shuffle: bool = True) -> None:
        check_positive(count=count)
        self.count = count
        self.seed = seed
        self.shuffle = shuffle
        self._left = isqrt(count - 1) + 1
        self._right = -(-count // self._left)

    def at(self, epoch: int, offset: int) -> int:
        """The number at one offset of an epoch."""
        check_count(epoch=epoch, offset=offset)
        if offset >= self.count:
            raise IndexError(f"an epoch has {self.count} positions, numbered from 0; got {offset}.")
        if not self.shuffle:
            return offset
        keys = _keys(self.count, self.seed, epoch)
        number = self._permute(offset, keys)
        while number >= self.count:
            number = self._permute(number, keys)
        return number

    def span(self, epoch: int, start: int, stop: int) -> Int64[np.ndarray, "n"]:
        """The numbers at the offsets ``[start, stop)``."""
        check_count(epoch=epoch, start=start)
        if not start <= stop <= self.count:
            raise IndexError(f"an epoch has {self.count} positions; [{start}, {stop}) is not within them.")
        numbers = np.arange(start, stop, dtype=np.uint64)
        if self.shuffle:
            keys = _keys(self.count, self.seed, epoch)
            outside = np.ones(len(numbers), dtype=bool)
            while outside.any():
                numbers[outside] = self._permute_many(numbers[outside], keys)
                outside = numbers >= self.count
        return numbers.astype(np.int64)

    def cursor(self, position: int) -> Cursor:
        """The epoch and the offset of a position of the whole run."""
        check_count(position=position)
        return Cursor(*divmod(position, self.count))

    def walk(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[int]:
        """The numbers from a position on, endlessly; process ``rank`` of ``world`` gets every ``world``-th."""
        check_rank(rank, world)
        check_count(start=start)
        position = start + rank
        while True:
            yield self.at(*self.cursor(position))
            position += world

    def _permute(self, number: int, keys: tuple[int, ...]) -> int:
        left, right = divmod(number, self._right)
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _mix(right ^ first)) % self._left
            right = (right + _mix(left ^ second)) % self._right
        return left * self._right + right

    def _permute_many(self, numbers: UInt64[np.ndarray, "n"], keys: tuple[int, ...]) -> UInt64[np.ndarray, "n"]:
        width, height = np.uint64(self._right), np.uint64(self._left)
        left: NDArray[np.uint64] = numbers // width
        right: NDArray[np.uint64] = numbers % width
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _mix_many(right ^ np.uint64(first)) % height) % height
            right = (right + _mix_many(left ^ np.uint64(second)) % width) % width
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


def _mix(x: int) -> int:
    """A 64-bit hash whose every bit depends on every bit (S. Vigna's SplitMix64)."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def _mix_many(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``_mix`` of an array; numpy's unsigned integers wrap around by themselves."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
