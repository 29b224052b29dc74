"""What all metrics share: names for logs, what they cost to import, and how they refuse what cannot be compared."""

import json
import math
import subprocess
import sys

import pytest

from glassformer.metrics import (
    Metric,
    bleu,
    chrf,
    perplexity,
    rouge,
    score_answers,
    score_entities,
    score_labels,
)
from glassformer.metrics.base import F1Score, add_up, mean
from tests.helpers import types_unchecked

RESULTS = {
    "bleu": lambda: bleu(["a b c d e"], ["a b c d f"]),
    "chrf": lambda: chrf(["a b c d e"], ["a b c d f"]),
    "chrf++": lambda: chrf(["a b c d e"], ["a b c d f"], word_order=2),
    "rouge": lambda: rouge(["a b c"], ["a c"]),
    "labels": lambda: score_labels(["x", "y"], ["x", "x"]),
    "entities": lambda: score_entities([["B-A", "O"]], [["B-A", "B-B"]]),
    "answers": lambda: score_answers(["a cat", ""], [["cat"], []]),
    "perplexity": lambda: perplexity(10.0, 4, text_bytes=9),
}


def test_all_are_logged_alike_and_no_name_means_two_things() -> None:
    seen: dict[str, str] = {}
    for kind, make in RESULTS.items():
        result = make()
        assert isinstance(result, Metric)
        scores = result.metrics()
        assert scores
        for name, value in scores.items():
            assert type(value) is float, (kind, name)
            assert math.isfinite(value)
            assert seen.setdefault(name, kind) == kind
        assert json.loads(json.dumps(scores)) == scores
        with pytest.raises(AttributeError):
            result.figures = dict


def test_scales() -> None:
    for kind in ("rouge", "labels", "entities", "answers"):
        assert all(0 <= value <= 1 for value in RESULTS[kind]().metrics().values()), kind
    text = ["a text of five words"]
    for metric in (bleu(text, text), chrf(text, text)):
        assert list(metric.metrics().values()) == pytest.approx([100.0])
    assert set(rouge(text, text).metrics().values()) == {1.0}


@pytest.mark.parametrize(
    "compare",
    [bleu, chrf, rouge, score_labels, lambda a, b: score_entities([*map(list, a)], [*map(list, b)])],
    ids=["bleu", "chrf", "rouge", "labels", "entities"],
)
def test_counts_must_agree_and_lists_must_not_be_empty(compare) -> None:
    with pytest.raises(ValueError, match=r"got 3 .* and 2 .* there must be equal numbers of both"):
        compare(["O", "O", "O"], ["O", "O"])
    with pytest.raises(ValueError, match=r"got 0 .* and 0 .*nothing to compare"):
        compare([], [])


@pytest.mark.parametrize("compare", [bleu, chrf, rouge, score_labels, score_entities, score_answers])
def test_a_single_text_is_no_list_of_letters(compare) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=r"must be a list, got the single text 'abc'"):
        compare("abc", ["a", "b", "c"])
    with types_unchecked(), pytest.raises(TypeError, match=r"must be a list, got the single text 'abc'"):
        compare([["a"], ["b"], ["c"]] if compare is score_entities else ["a", "b", "c"], "abc")


@pytest.mark.parametrize("compare", [bleu, chrf, rouge])
def test_references_are_strings_or_lists_of_them(compare) -> None:
    with types_unchecked(), pytest.raises(TypeError, match=r"the reference of text 1 must be a string .* got None"):
        compare(["a", "b"], ["a", None])
    with types_unchecked(), pytest.raises(TypeError, match=r"text 1: reference 1 must be a string, got 3 \(int\)"):
        compare(["a", "b"], ["a", ["b", 3]])
    with types_unchecked(), pytest.raises(TypeError, match=r"generated text 0 must be a string, got None"):
        compare([None], ["a"])
    with pytest.raises(ValueError, match="text 1 has no reference"):
        compare(["a", "b"], ["a", []])


def test_importing_metrics_costs_nothing() -> None:
    code = (
        "import sys, glassformer.metrics as m\n"
        "m.rouge(['a'], ['a']), m.score_labels(['a'], ['a']), m.score_entities([['O']], [['O']])\n"
        "m.score_answers(['a'], [['a']]), m.perplexity(1.0, 1)\n"
        "print([name for name in ('torch', 'numpy', 'sacrebleu', 'nltk', 'sklearn') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- counts


def test_a_share_of_nothing_is_zero() -> None:
    for actual in (
        F1Score(0, 0, 0),
        F1Score(0, 3, 0),
        F1Score(0, 0, 3),
        F1Score(0, 2, 2),
    ):
        assert (actual.precision, actual.recall, actual.f1) == (0, 0, 0)


def test_precision_is_of_what_was_given() -> None:
    actual = F1Score(2, 4, 5)
    assert (actual.precision, actual.recall) == (0.5, 0.4)
    assert actual.f1 == pytest.approx(2 * 0.5 * 0.4 / 0.9)


def test_counts_add_up_and_shares_do_not() -> None:
    several = [F1Score(1, 1, 1), F1Score(0, 9, 9)]
    assert add_up(several) == F1Score(1, 10, 10)
    assert add_up(several).f1 == pytest.approx(0.1)
    assert mean([item.f1 for item in several]) == 0.5
    assert add_up([]) == F1Score(0, 0, 0)
