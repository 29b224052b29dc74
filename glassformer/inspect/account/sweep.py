"""The same account at several sizes, and the size from which one kind of work costs as much as another.

A point where two kinds of work cost the same is found among whole numbers: the first size at which the one costs at
least as much as the other, in FLOPs (see ``growth``). Nothing is read off a curve.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from glassformer.config.checks import check_choice
from glassformer.inspect.account.account import Account
from glassformer.inspect.account.growth import Axis, Growth, at

AXES = ("context", "batch", "source")
FORM = (
    "context=1024..65536 (doubled each time), context=1024,2048,4096 (these), or the same with batch or, for an "
    "encoder-decoder, source"
)
RIVALS = ("projections", "ffn")  # with which attention catches up as the context grows


@dataclass(frozen=True)
class Sweep:
    """Which size is varied, and its values in rising order."""

    axis: Axis
    values: tuple[int, ...]


def parse_sweep(said: str) -> Sweep:
    """``context=1024..65536``, which doubles from the first to the last, or ``context=1024,2048,4096``."""
    axis, equals, values = said.replace(" ", "").partition("=")
    if not equals:
        raise ValueError(f"a sweep names what it varies: {FORM}; got {said!r}.")
    if axis not in AXES:
        check_choice("what a sweep varies", axis, AXES)
    first, dots, last = values.partition("..")
    numbers = [_whole(one, said) for one in ((first, last) if dots else values.split(","))]
    if any(b <= a for a, b in pairwise(numbers)):
        raise ValueError(f"the values of a sweep rise: {FORM}; got {said!r}.")
    return Sweep(axis, tuple(_doubled(*numbers) if dots else numbers))  # type: ignore[arg-type]


def _whole(text: str, said: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"a sweep goes over whole numbers of at least 1: {FORM}; got {said!r}.")
    return int(text)


def _doubled(first: int, last: int) -> list[int]:
    """first, 2 · first, 4 · first … and the last in any case."""
    values = [first]
    while values[-1] * 2 < last:
        values.append(values[-1] * 2)
    return [*values, last]


def run_sweep(base: Account, sweep: Sweep) -> list[Account]:
    """The account at each size."""
    if base.config is None:
        raise ValueError(f"{base.name} is a module with inputs of its own; account for it with others instead.")
    if sweep.axis == "source" and not base.has_source:
        raise ValueError(
            f"{base.name} is of the family {base.config.family} and reads no source of its own: vary the context."
        )
    return [at(base, sweep.axis, value) for value in sweep.values]


class Crossing(NamedTuple):
    """From which size on attention's products cost at least as much as those of another kind."""

    rival: str
    axis: Axis
    value: int | None  # None: they never do


def crossings(base: Account, axis: Axis = "context") -> list[Crossing]:
    """Where attention catches up with the projections and with the feed-forward network, all else unchanged."""
    known = [rival for rival in RIVALS if rival in base.shares() and base.config is not None]
    if not known:
        return []
    growth = Growth(base, axis)
    return [Crossing(rival, axis, _first(partial(_caught_up, growth, rival), growth.farthest)) for rival in known]


def _caught_up(growth: Growth, rival: str, size: int) -> bool:
    flops = growth.at(size)
    return flops.get("attention", 0) >= flops[rival]


def _first(holds: Callable[[int], bool], farthest: int) -> int | None:
    """The smallest whole number from which on a statement holds; None if it does not hold far out."""
    if not holds(farthest):
        return None
    high = 1
    while not holds(high):
        high = min(2 * high, farthest)
    low = high // 2  # it does not hold there
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
