"""Accuracy and F1 of single labels: scikit-learn's with zero_division=0, and no class that flatters by its absence."""

import random

import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from glassformer.metrics.base import F1Score
from glassformer.metrics.tasks import score_labels
from tests.helpers import types_unchecked

# Nine texts of a, one of b; every one was called a.
GIVEN, GOLD = ["a"] * 10, ["a"] * 9 + ["b"]


def test_by_hand() -> None:
    result = score_labels(["a", "a", "b", "c", "a"], ["a", "b", "b", "b", "c"])
    assert result.labels == ("a", "b", "c")
    assert result.confusion == ((1, 0, 0), (1, 1, 1), (1, 0, 0))  # rows: what is right
    assert result.per_class == {
        "a": F1Score(1, 3, 1),
        "b": F1Score(1, 1, 3),
        "c": F1Score(0, 1, 1),
    }
    assert result.per_class["b"].precision == 1
    assert result.per_class["b"].recall == pytest.approx(1 / 3)
    assert result.accuracy == pytest.approx(0.4)
    assert result.macro_f1 == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert result.metrics() == {"accuracy": result.accuracy, "macro f1": result.macro_f1}


def test_macro_is_not_micro() -> None:
    result = score_labels(GIVEN, GOLD)
    assert result.accuracy == 0.9
    assert result.macro_f1 == pytest.approx((2 * 9 / 19 + 0) / 2)


def test_macro_f1_is_the_mean_of_f1_and_not_the_f1_of_means() -> None:
    result = score_labels(["a", "a", "a", "b"], ["a", "b", "b", "b"])
    precision, recall = (1 / 3 + 1) / 2, (1 + 1 / 3) / 2
    assert result.macro_f1 == pytest.approx(0.5)
    assert abs(result.macro_f1 - 2 * precision * recall / (precision + recall)) > 0.1


def test_figures_of_batches_do_not_average_to_those_of_all() -> None:
    whole = score_labels(["a", "a", "b", "b"], ["a", "b", "b", "b"])
    parts = [score_labels(["a"], ["a"]), score_labels(["a", "b", "b"], ["b", "b", "b"])]
    assert abs(whole.macro_f1 - sum(part.macro_f1 for part in parts) / 2) > 1e-3
    assert abs(whole.accuracy - sum(part.accuracy for part in parts) / 2) > 1e-3


def test_a_class_that_never_occurs_is_never_perfect() -> None:
    result = score_labels(["a", "a"], ["a", "a"], labels=["a", "b"])
    assert result.per_class["b"] == F1Score(0, 0, 0)
    assert (result.per_class["b"].precision, result.per_class["b"].recall, result.per_class["b"].f1) == (0, 0, 0)
    assert (result.accuracy, result.macro_f1) == (1.0, 0.5)
    given_only = score_labels(["a", "b"], ["a", "a"]).per_class["b"]
    assert (given_only.precision, given_only.recall, given_only.f1) == (0, 0, 0)
    gold_only = score_labels(GIVEN, GOLD).per_class["b"]
    assert (gold_only.precision, gold_only.recall, gold_only.f1) == (0, 0, 0)


@pytest.mark.filterwarnings("ignore:A single label was found")  # by scikit-learn, of its matrix's shape
@pytest.mark.parametrize("seed", range(60))
def test_equal_to_scikit_learn(seed: int) -> None:
    draw = random.Random(seed)
    every = [f"class {n}" for n in range(draw.randint(1, 6))]
    count = draw.choice((1, 2, 5, 30))
    gold = draw.choices(every, weights=[draw.random() ** 3 for _ in every], k=count)
    inputs = [label if draw.random() < 0.6 else draw.choice(every) for label in gold]
    draw.shuffle(every)
    for labels in (None, every):
        result = score_labels(inputs, gold, labels=labels)
        names = list(result.labels)
        assert names == (sorted({*inputs, *gold}) if labels is None else every)
        assert [list(row) for row in result.confusion] == confusion_matrix(gold, inputs, labels=names).tolist()
        assert result.accuracy == pytest.approx(accuracy_score(gold, inputs))
        for average, ours in (("macro", result.macro_f1), ("micro", result.accuracy)):
            reference = f1_score(gold, inputs, labels=labels, average=average, zero_division=0)
            assert ours == pytest.approx(reference, abs=1e-12)
        by_class = precision_recall_fscore_support(gold, inputs, labels=names, zero_division=0)
        for name, *reference in zip(names, *(numbers.tolist() for numbers in by_class), strict=True):
            item = result.per_class[name]
            assert (item.precision, item.recall, item.f1, item.gold) == pytest.approx(tuple(reference), abs=1e-12)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"labels are 'a', 'b'; there is also 'c'. Add what is missing"):
        score_labels(["a", "c"], ["a", "b"], labels=["a", "b"])
    with pytest.raises(ValueError, match="labels must differ; these are repeated: 'a'"):
        score_labels(["a"], ["a"], labels=["a", "b", "a"])
    with types_unchecked(), pytest.raises(TypeError, match=r"gold label 1 must be a string, got 1 \(int\)"):
        score_labels(["a", "b"], ["a", 1])
