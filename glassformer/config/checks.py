"""Checks of settings, with errors that name the setting, its value and what would be valid. Standard library only."""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from math import inf, isqrt
from numbers import Integral, Real
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting that an error names, with or without its value; in Python it is written ``top_k=5``."""

    name: str
    value: Any = ...  # the ellipsis: the name alone
    # The name of an option of the program or of a key of a recipe (data.quoted), or a phrase that begins with a key.
    external_name: str | None = None

    def __str__(self) -> str:
        return self.name if self.value is ... else f"{self.name}={self.value!r}"


class Item(NamedTuple):
    """One of several texts that an error names; Python counts them from 0, the command line from 1."""

    kind: str  # "text", "prompt", "question" …
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class SettingError(ValueError):
    """An error that keeps the settings and texts it names as data: Python and the command line name them differently.

    ``str()`` names settings as Python does (``top_k=5``), the command line as options (``--top-k 5``).

    Args:
        template: the message, with ``{}`` for each of ``values``; used unchanged where there are none.
        values: settings, items, or plain text such as the user's input.
    """

    def __init__(self, template: str, *values: Setting | Item | str) -> None:
        self.template, self.values = template, values
        super().__init__(self.message(str))

    def message(self, write: Callable[[Setting | Item], str]) -> str:
        """Return the message; ``write`` turns each setting and item into text."""
        if not self.values:
            return self.template
        written = [write(value) if isinstance(value, Setting | Item) else value for value in self.values]
        return self.template.format(*written)

    def prefixed(self, prefix: str) -> "SettingError":
        """Return the same error with ``prefix`` before its message."""
        template, values = _formatted(self.template, self.values)
        return _rebuild(type(self), "{}" + template, (prefix, *values), vars(self))

    def suffixed(self, template: str, *values: Setting | Item | str) -> "SettingError":
        """Return the same error with another template and its values after its message."""
        before, after = _formatted(self.template, self.values), _formatted(template, values)
        return _rebuild(type(self), before[0] + after[0], (*before[1], *after[1]), vars(self))

    def __reduce__(self) -> tuple[Any, ...]:  # independent of the arguments of a subclass
        return _rebuild, (type(self), self.template, self.values, vars(self))


def _formatted(template: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return a template for ``str.format`` and its values; one without values is itself a value."""
    return (template, values) if values else ("{}", (template,))


def _rebuild(
    kind: type[SettingError], template: str, values: tuple[Any, ...], attributes: Mapping[str, Any]
) -> SettingError:
    """Return an error of type ``kind`` without calling its own ``__init__``, which may take other arguments."""
    error = kind.__new__(kind)
    vars(error).update(attributes)
    SettingError.__init__(error, template, *values)
    return error


def check_positive_integer(**sizes: int) -> None:
    """Raise unless every named size is an integer of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__}).")
        if value < 1:
            raise SettingError(f"{{}} must be at least 1, got {value}.", Setting(name))


MAX_FACTORED = 2**31  # for larger numbers, which no model has, errors list the smallest and largest divisors only
MAX_LAYERS = 4096  # four times the deepest published model


def check_layers(**layers: int) -> None:
    """Raise unless every named number of layers is from 1 to ``MAX_LAYERS``: config code loops over them."""
    check_positive_integer(**layers)
    for name, value in layers.items():
        if value > MAX_LAYERS:
            raise SettingError(f"{{}} must be at most {MAX_LAYERS}, got {value}.", Setting(name))


def check_eps(eps: float) -> None:
    """Raise unless ``eps``, which keeps a norm from dividing by zero, is a finite number of at least 0."""
    if not (isinstance(eps, Real) and 0 <= eps < inf):
        raise SettingError("{} must be a finite number of at least 0, got {}.", Setting("eps"), repr(eps))


def check_probability(**probabilities: float) -> None:
    """Raise unless every named value is in [0, 1)."""
    for name, value in probabilities.items():
        if not 0.0 <= value < 1.0:
            raise SettingError("{} must be at least 0 and below 1, got {}.", Setting(name), str(value))


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise unless ``value`` is in ``choices``; the error lists them and suggests the nearest."""
    if value in choices:
        return
    near = get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingError("{} must be one of {}; got {}.{}", Setting(name), ", ".join(sorted(choices)), repr(value), hint)


def check_known(owner: str, noun: str, name: str, names: Collection[str]) -> None:
    """Raise unless ``name`` is among the ``names`` that ``owner`` has; ``noun`` says what they are."""
    if name in names:
        return
    near = get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingError("{} has no {} {}.{} It has {}.", owner, noun, repr(name), hint, ", ".join(sorted(names)))


def check_divides(part: str, part_value: int, whole: str, whole_value: int) -> None:
    """Raise unless ``part_value`` divides ``whole_value``; the error names both and the nearest divisors."""
    if whole_value % part_value == 0:
        return
    # All divisors: those up to the square root, and their counterparts.
    small = [n for n in range(1, isqrt(min(whole_value, MAX_FACTORED)) + 1) if whole_value % n == 0]
    nearest = sorted(sorted({*small, *(whole_value // n for n in small)}, key=lambda n: abs(n - part_value))[:3])
    raise SettingError(
        f"{{}} does not divide {{}}; values near it that do: {', '.join(map(str, nearest))}.",
        Setting(part, part_value),
        Setting(whole, whole_value),
    )


def check_count(**counts: int) -> None:
    """Raise unless every named value is an integer of at least 0."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise SettingError("{} must be an integer of at least 0, got {}.", Setting(name), repr(value))


def check_positive_number(**numbers: float) -> None:
    """Raise unless every named value is a finite number above 0."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < inf:
            raise SettingError("{} must be a finite number above 0, got {}.", Setting(name), repr(value))
