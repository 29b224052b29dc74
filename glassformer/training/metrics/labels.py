"""Accuracy and F1 of texts that have one label each, by scikit-learn's definitions; from 0 to 1.

A ratio with nothing below it is 0: the precision of a class that was never predicted, the recall of one that never
occurs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.training.metrics.base import F1Score, add_up, check_aligned, check_strings, mean


@dataclass(frozen=True, kw_only=True)
class LabelScores:
    """The confusion matrix: ``confusion[i][j]`` counts texts of label i for which label j was predicted."""

    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]

    @property
    def accuracy(self) -> float:
        """The share of texts whose label is correct."""
        return self._correct / sum(map(sum, self.confusion))

    @property
    def per_class(self) -> dict[str, F1Score]:
        """Precision, recall and F1 of each label."""
        predicted = [sum(column) for column in zip(*self.confusion, strict=True)]
        return {
            label: F1Score(row[index], predicted[index], sum(row))
            for index, (label, row) in enumerate(zip(self.labels, self.confusion, strict=True))
        }

    @property
    def macro_f1(self) -> float:
        """The mean of the labels' F1: rare labels weigh as much as frequent ones."""
        return mean([score.f1 for score in self.per_class.values()])

    @property
    def micro_f1(self) -> float:
        """The F1 of all labels' counts together; with one label for each text it is the accuracy."""
        return add_up(self.per_class.values()).f1

    @property
    def _correct(self) -> int:
        return sum(row[index] for index, row in enumerate(self.confusion))

    def metrics(self) -> dict[str, float]:
        """Accuracy and macro F1, from 0 to 1; the micro F1 would be the accuracy again."""
        return {"accuracy": self.accuracy, "macro f1": self.macro_f1}


def score_labels(predicted: Sequence[str], gold: Sequence[str], *, labels: Sequence[str] | None = None) -> LabelScores:
    """Compare labels by name.

    Args:
        predicted: the label that a model gives each text.
        gold: the correct labels.
        labels: all there are, in the order of the confusion matrix. One that neither occurs nor was predicted has an
            F1 of 0 and lowers the macro F1. By default those that occur or were predicted, in alphabetical order.
    """
    check_aligned(predicted, gold, "predicted labels", "gold labels")
    check_strings("predicted label", predicted)
    check_strings("gold label", gold)
    seen = {*predicted, *gold}
    names = tuple(sorted(seen) if labels is None else labels)
    if len(set(names)) < len(names):
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"labels must differ; more than once there is {', '.join(map(repr, repeated))}.")
    if unknown := sorted(seen.difference(names)):
        raise ValueError(
            f"labels are {', '.join(map(repr, names))}; there {'is' if len(unknown) == 1 else 'are'} also "
            f"{', '.join(map(repr, unknown))}. Add what is missing, or leave labels out."
        )
    counts = Counter(zip(gold, predicted, strict=True))
    return LabelScores(labels=names, confusion=tuple(tuple(counts[row, column] for column in names) for row in names))
