"""Accuracy and F1 of texts that have one label each, by scikit-learn's definitions; shares from 0 to 1.

A share of nothing is 0: the precision of a class that was never given, the recall of one that never occurs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.training.metrics.base import Found, check_aligned, check_strings, mean, together


@dataclass(frozen=True, kw_only=True)
class LabelScores:
    """How often each label was given for each: ``confusion[i][j]`` counts texts of label i that were given label j."""

    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]

    @property
    def accuracy(self) -> float:
        """The share of texts whose label is right."""
        return self._right / sum(map(sum, self.confusion))

    @property
    def per_class(self) -> dict[str, Found]:
        """Precision, recall and F1 of each label."""
        given = [sum(column) for column in zip(*self.confusion, strict=True)]
        return {
            label: Found(row[place], given[place], sum(row))
            for place, (label, row) in enumerate(zip(self.labels, self.confusion, strict=True))
        }

    @property
    def macro_f1(self) -> float:
        """The mean of the labels' F1: rare labels weigh as much as frequent ones."""
        return mean([found.f1 for found in self.per_class.values()])

    @property
    def micro_f1(self) -> float:
        """The F1 of all labels' counts together; with one label for each text it is the accuracy."""
        return together(self.per_class.values()).f1

    @property
    def _right(self) -> int:
        return sum(row[place] for place, row in enumerate(self.confusion))

    def figures(self) -> dict[str, float]:
        """Accuracy and macro F1, from 0 to 1; the micro F1 would be the accuracy again."""
        return {"accuracy": self.accuracy, "macro f1": self.macro_f1}


def score_labels(given: Sequence[str], gold: Sequence[str], *, labels: Sequence[str] | None = None) -> LabelScores:
    """Compare labels by name.

    Args:
        given: what a model said of each text.
        gold: what is right.
        labels: all there are, in the order of the confusion matrix. One that neither occurs nor was given has an F1 of
            0 and lowers the macro F1. Unless told, those that occur or were given, in alphabetical order.
    """
    check_aligned(given, gold, "given labels", "gold labels")
    check_strings("given label", given)
    check_strings("gold label", gold)
    seen = {*given, *gold}
    names = tuple(sorted(seen) if labels is None else labels)
    if len(set(names)) < len(names):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"labels must differ; more than once there is {', '.join(map(repr, twice))}.")
    if unknown := sorted(seen.difference(names)):
        raise ValueError(
            f"labels are {', '.join(map(repr, names))}; there {'is' if len(unknown) == 1 else 'are'} also "
            f"{', '.join(map(repr, unknown))}. Add what is missing, or leave labels out."
        )
    counts = Counter(zip(gold, given, strict=True))
    return LabelScores(labels=names, confusion=tuple(tuple(counts[row, column] for column in names) for row in names))
