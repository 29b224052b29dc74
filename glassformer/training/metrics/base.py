"""What all metrics share: figures for logs, counts behind precision and recall, and checks of what is compared.

Standard library only, like everything in this package until a score by another package is asked for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol, runtime_checkable


@runtime_checkable
class Metric(Protocol):
    """What a comparison gives. Beside its numbers by name it may hold more, such as a signature or counts."""

    def figures(self) -> dict[str, float]:
        """Its numbers for a log; no two metrics of this package use the same name."""


@dataclass(frozen=True)
class Found:
    """How well things were found, as counts. A share of nothing is 0, never 1 and never an error."""

    right: int  # given, and rightly so
    given: int
    gold: int  # should have been given

    @property
    def precision(self) -> float:
        """The share of what was given that is right."""
        return self.right / self.given if self.given else 0.0

    @property
    def recall(self) -> float:
        """The share of what should have been given that was."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, 2 · right / (given + gold)."""
        return 2 * self.right / (self.given + self.gold) if self.right else 0.0


def together(several: Iterable[Found]) -> Found:
    """All counts added up: what is often weighs more, unlike in a mean of shares."""
    counts = [(one.right, one.given, one.gold) for one in several]
    return Found(*map(sum, zip(*counts, strict=True))) if counts else Found(0, 0, 0)


def mean(numbers: Sequence[float]) -> float:
    """The mean, every number alike."""
    return fsum(numbers) / len(numbers)


def check_aligned(given: Sequence[object], gold: Sequence[object], given_name: str, gold_name: str) -> None:
    """Raise unless two lists hold equally many things, and some at all; the error names the counts."""
    for name, values in ((given_name, given), (gold_name, gold)):
        if isinstance(values, str):
            raise TypeError(f"{name} must be a list, got the single text {values!r:.60}; put it into a list.")
    counts = f"{len(given)} {given_name} and {len(gold)} {gold_name}"
    if len(given) != len(gold):
        raise ValueError(f"got {counts}; they are compared one by one and must be equally many.")
    if not given:
        raise ValueError(f"got {counts}; there is nothing to compare. Is the data empty?")


def check_strings(name: str, values: Iterable[object]) -> None:
    """Raise unless every value is a string; the error says which is not."""
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise TypeError(f"{name} {number} must be a string, got {value!r:.60} ({type(value).__name__}).")


def several(references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """For each text the list of its references, of which there may be one or several, but not none."""
    lists = []
    for number, one in enumerate(references):
        if not isinstance(one, Sequence):
            raise TypeError(f"the reference of text {number} must be a string or a list of several, got {one!r:.60}.")
        some = [one] if isinstance(one, str) else list(one)
        check_strings(f"text {number}: reference", some)
        if not some:
            raise ValueError(f"text {number} has no reference; leave it out or give it one.")
        lists.append(some)
    return lists
