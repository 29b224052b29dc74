"""From values to places in a picture, with round numbers along the way. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

ROUND = (1, 2, 5, 10)
MANY = 30.0  # largest through smallest: beyond it a picture of the values themselves hides the small ones


@dataclass(frozen=True)
class Scale:
    """A straight line from values to places, or from their logarithms."""

    values: tuple[float, float]
    places: tuple[float, float]
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        (low, high), (first, last) = self.values, self.places
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(value)
        return first + (value - low) / (high - low) * (last - first)


@dataclass(frozen=True)
class Axis:
    """A scale with its marks: values, and what is written there."""

    scale: Scale
    ticks: list[tuple[float, str]]


def linear_axis(values: Sequence[float], places: tuple[float, float], most: int, *, fits: bool = False) -> Axis:
    """An axis with at most ``most`` + 1 round marks.

    It begins and ends at one of them; with ``fits`` at the smallest and the largest value.
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) / 10 or 1.0), high + (abs(high) / 10 or 1.0)
    step = _round_up((high - low) / most)
    first, last = (ceil(low / step), floor(high / step)) if fits else (floor(low / step), ceil(high / step))
    ends = (low, high) if fits else (first * step, last * step)
    decimals = max(0, -floor(log10(step) + 1e-9))
    return Axis(Scale(ends, places), [(n * step, _number(n * step, decimals)) for n in range(first, last + 1)])


def value_axis(values: Sequence[float], places: tuple[float, float], most: int) -> Axis:
    """A linear axis; a logarithmic one where the values are of very different size."""
    low, high = min(values), max(values)
    if low <= 0 or high / low < MANY:
        return linear_axis(values, places, most)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    marks = [part * 10.0**power for power in powers for part in ROUND[:3]]
    ends = max(mark for mark in marks if mark <= low), min(mark for mark in marks if mark >= high)
    kept = [mark for mark in marks if ends[0] <= mark <= ends[1]]
    if len(kept) > 2 * most:
        kept = [mark for mark in kept if mark in {10.0**power for power in powers}]
    return Axis(Scale(ends, places, logarithmic=True), [(mark, f"{mark:g}") for mark in kept])


def whole_axis(values: Sequence[int], places: tuple[float, float], most: int) -> Axis:
    """A linear axis from the first to the last whole number, with whole marks."""
    axis = linear_axis(values, places, most, fits=True)
    if len(set(values)) == 1:
        return Axis(axis.scale, [(values[0], f"{values[0]:,}")])
    return Axis(axis.scale, [(value, f"{round(value):,}") for value, _ in axis.ticks if value == round(value)])


def _round_up(step: float) -> float:
    power = 10.0 ** floor(log10(step))
    return next(part * power for part in ROUND if part * power >= step * (1 - 1e-9))


def _number(value: float, decimals: int) -> str:
    if value and decimals > 4:
        number, power = f"{value:.1e}".split("e")
        return f"{number.removesuffix('.0')}e{int(power)}"
    return f"{value + 0.0:,.{decimals}f}" if value else "0"
