"""Checks that refuse a wrong value with an error that teaches: it names the thing, the value and what would do.

Standard library only: reading a config must not cost the import of a tensor library.
"""

from collections.abc import Collection
from difflib import get_close_matches
from math import inf, isqrt
from numbers import Integral, Real


def check_positive(**sizes: int) -> None:
    """Raise unless every named size is a whole number of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__}).")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")


SEARCHED = 2**31  # of larger numbers, which no model has, only the smallest and largest divisors are named
MOST_LAYERS = 4096  # four times the deepest model that was published


def check_layers(**layers: int) -> None:
    """Raise unless every named number of layers is one that a model can have: work is done for each of them."""
    check_positive(**layers)
    for name, value in layers.items():
        if value > MOST_LAYERS:
            raise ValueError(f"{name} must be at most {MOST_LAYERS}, got {value}.")


def check_eps(eps: float) -> None:
    """Raise unless ``eps``, which keeps a norm from dividing by zero, is a finite number of at least 0."""
    if not (isinstance(eps, Real) and 0 <= eps < inf):
        raise ValueError(f"eps must be a finite number of at least 0, got {eps!r}.")


def check_probability(**probabilities: float) -> None:
    """Raise unless every named value is in [0, 1): the share of values that dropout sets to zero."""
    for name, value in probabilities.items():
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}.")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise unless ``value`` is one of ``choices``; the error lists them and names the nearest."""
    if value in choices:
        return
    near = get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(sorted(choices))}; got {value!r}.{hint}")


def check_divides(part: str, part_value: int, whole: str, whole_value: int) -> None:
    """Raise unless ``part_value`` divides ``whole_value``, naming both and the nearest values that work."""
    if whole_value % part_value == 0:
        return
    small = [n for n in range(1, isqrt(min(whole_value, SEARCHED)) + 1) if whole_value % n == 0]
    nearest = sorted(sorted({*small, *(whole_value // n for n in small)}, key=lambda n: abs(n - part_value))[:3])
    raise ValueError(
        f"{part}={part_value} does not divide {whole}={whole_value}; "
        f"values near it that do: {', '.join(map(str, nearest))}."
    )


def check_count(**counts: int) -> None:
    """Raise unless every named value is a whole number of at least 0."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}.")


def check_number(**numbers: float) -> None:
    """Raise unless every named value is a finite number above 0."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < inf:
            raise ValueError(f"{name} must be a finite number above 0, got {value!r}.")
