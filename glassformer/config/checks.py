"""Checks that refuse a wrong value with an error that teaches: it names the thing, the value and what would do.

Standard library only: reading a config must not cost the import of a tensor library.
"""

from collections.abc import Callable, Collection
from difflib import get_close_matches
from math import inf, isqrt
from numbers import Integral, Real
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting that an error names, with a value or without; Python spells it ``top_k=5``."""

    name: str
    value: Any = ...  # the ellipsis: the name alone
    outside: str | None = None  # its name at the program and at functions that hand it on, where that is another

    def __str__(self) -> str:
        return self.name if self.value is ... else f"{self.name}={self.value!r}"


class SettingError(ValueError):
    """An error that keeps the settings it names as data, so that each surface can spell them its own way.

    ``str()`` spells them as Python does, the command line as options.

    Args:
        template: the message, with ``{}`` for each of ``values``; taken as it is where there are none.
        values: settings, or text such as what the user gave.
    """

    def __init__(self, template: str, *values: Setting | str) -> None:
        self.template, self.values = template, values
        super().__init__(self.spell(str))

    def spell(self, spelling: Callable[[Setting], str]) -> str:
        """The message with every setting as ``spelling`` writes it."""
        if not self.values:
            return self.template
        return self.template.format(*(spelling(one) if isinstance(one, Setting) else one for one in self.values))

    def prefixed(self, prefix: str) -> "SettingError":
        """The same error with text before its message."""
        if not self.values:
            return type(self)(prefix + self.template)
        return type(self)("{}" + self.template, prefix, *self.values)

    def __reduce__(self) -> tuple[Any, ...]:  # copied and pickled as it was made
        return type(self), (self.template, *self.values)


def check_positive(**sizes: int) -> None:
    """Raise unless every named size is a whole number of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__}).")
        if value < 1:
            raise SettingError(f"{{}} must be at least 1, got {value}.", Setting(name))


SEARCHED = 2**31  # of larger numbers, which no model has, only the smallest and largest divisors are named
MOST_LAYERS = 4096  # four times the deepest model that was published


def check_layers(**layers: int) -> None:
    """Raise unless every named number of layers is one that a model can have: work is done for each of them."""
    check_positive(**layers)
    for name, value in layers.items():
        if value > MOST_LAYERS:
            raise SettingError(f"{{}} must be at most {MOST_LAYERS}, got {value}.", Setting(name))


def check_eps(eps: float) -> None:
    """Raise unless ``eps``, which keeps a norm from dividing by zero, is a finite number of at least 0."""
    if not (isinstance(eps, Real) and 0 <= eps < inf):
        raise SettingError("{} must be a finite number of at least 0, got {}.", Setting("eps"), repr(eps))


def check_probability(**probabilities: float) -> None:
    """Raise unless every named value is in [0, 1): the share of values that dropout sets to zero."""
    for name, value in probabilities.items():
        if not 0.0 <= value < 1.0:
            raise SettingError("{} must be at least 0 and below 1, got {}.", Setting(name), str(value))


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise unless ``value`` is one of ``choices``; the error lists them and names the nearest."""
    if value in choices:
        return
    near = get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingError("{} must be one of {}; got {}.{}", Setting(name), ", ".join(sorted(choices)), repr(value), hint)


def check_divides(part: str, part_value: int, whole: str, whole_value: int) -> None:
    """Raise unless ``part_value`` divides ``whole_value``, naming both and the nearest values that work."""
    if whole_value % part_value == 0:
        return
    small = [n for n in range(1, isqrt(min(whole_value, SEARCHED)) + 1) if whole_value % n == 0]
    nearest = sorted(sorted({*small, *(whole_value // n for n in small)}, key=lambda n: abs(n - part_value))[:3])
    raise SettingError(
        f"{{}} does not divide {{}}; values near it that do: {', '.join(map(str, nearest))}.",
        Setting(part, part_value),
        Setting(whole, whole_value),
    )


def check_count(**counts: int) -> None:
    """Raise unless every named value is a whole number of at least 0."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise SettingError("{} must be a whole number of at least 0, got {}.", Setting(name), repr(value))


def check_number(**numbers: float) -> None:
    """Raise unless every named value is a finite number above 0."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < inf:
            raise SettingError("{} must be a finite number above 0, got {}.", Setting(name), repr(value))
