"""Numbers for people: FLOPs, bytes and operations with a prefix. A prefix is a power of 1,000: 1 GB = 10⁹ bytes."""

from typing import NamedTuple

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
LARGEST = 10_000  # in a column whose unit is fixed: beyond it the next prefix


class Scale(NamedTuple):
    """One unit for a whole column, so that its numbers can be compared."""

    unit: str
    factor: int

    def __call__(self, value: float) -> str:
        """The number in that unit; nothing for nothing, and a sign where it is too small to be seen."""
        if value == 0:
            return ""
        if self.factor == 1:
            return f"{value:,.0f}"
        return f"{value / self.factor:,.3f}" if value >= self.factor / 2000 else "< 0.001"


def scale_for(largest: float, unit: str) -> Scale:
    """The unit in which the largest of a column's numbers has at most four digits before the point."""
    power = 0
    while largest >= LARGEST * 1000**power and power < len(PREFIXES) - 1:
        power += 1
    return Scale(PREFIXES[power] + unit, 1000**power)


def human(value: float, unit: str) -> str:
    """Four digits and the prefix that suits: ``4.513 TFLOP``; whole numbers below 1,000 as they are."""
    power = 0
    while abs(value) >= 999.95 * 1000**power and power < len(PREFIXES) - 1:
        power += 1
    if power == 0 and value == int(value):
        return f"{int(value):,} {unit}"
    number = value / 1000**power
    decimals = 3 if abs(number) < 9.9995 else 2 if abs(number) < 99.995 else 1
    return f"{number:,.{decimals}f} {PREFIXES[power]}{unit}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:,.4g} {unit}"
    return f"{seconds / 1e-9:,.4g} ns"
