"""What all metrics share: named numbers for logs, the counts behind precision and recall, checks of the inputs.

Standard library only, like everything in this package but the scores that other packages compute.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol, runtime_checkable

from glassformer.config.checks import Item, SettingError


@runtime_checkable
class Metric(Protocol):
    """The result of a comparison: numbers by name, and perhaps more, such as a signature or counts."""

    def metrics(self) -> dict[str, float]:
        """Return its numbers for a log; no two metrics of this package use the same name."""


@dataclass(frozen=True)
class F1Score:
    """Precision, recall and F1, from counts. A ratio with a zero denominator is 0."""

    correct: int  # true positives
    predicted: int  # true and false positives
    gold: int  # true positives and false negatives

    @property
    def precision(self) -> float:
        """The share of the predictions that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of the gold items that were predicted."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, 2 · correct / (predicted + gold)."""
        return 2 * self.correct / (self.predicted + self.gold) if self.correct else 0.0


def add_up(scores: Iterable[F1Score]) -> F1Score:
    """Return all counts added up (micro average): frequent classes weigh more, unlike in a mean of ratios."""
    counts = [(score.correct, score.predicted, score.gold) for score in scores]
    return F1Score(*map(sum, zip(*counts, strict=True))) if counts else F1Score(0, 0, 0)


def mean(numbers: Sequence[float]) -> float:
    """Return the mean, every number with the same weight."""
    return fsum(numbers) / len(numbers)


def check_aligned(predicted: Sequence[object], gold: Sequence[object], name: str, gold_name: str) -> None:
    """Raise unless two lists have the same length, and are not empty; the error names the counts."""
    for kind, values in ((name, predicted), (gold_name, gold)):
        if isinstance(values, str):
            raise TypeError(f"{kind} must be a list, got the single text {values!r:.60}; put it into a list.")
    counts = f"{len(predicted)} {name} and {len(gold)} {gold_name}"
    if len(predicted) != len(gold):
        raise ValueError(f"got {counts}; they are compared one by one, so there must be equal numbers of both.")
    if not predicted:
        raise ValueError(f"got {counts}; there is nothing to compare. Is the data empty?")


def check_strings(name: str, values: Iterable[object]) -> None:
    """Raise unless every value is a string; the error names the first that is not."""
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise TypeError(f"{name} {number} must be a string, got {value!r:.60} ({type(value).__name__}).")


def reference_lists(references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """Return the references of each text as a list; raise if a text has none."""
    lists = []
    for number, reference in enumerate(references):
        if not isinstance(reference, Sequence):
            raise TypeError(
                f"the reference of text {number} must be a string or a list of strings, got {reference!r:.60}."
            )
        texts = [reference] if isinstance(reference, str) else list(reference)
        check_strings(f"text {number}: reference", texts)
        if not texts:
            raise SettingError("{} has no reference; leave it out or give it one.", Item("text", number))
        lists.append(texts)
    return lists
