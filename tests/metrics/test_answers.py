"""Exact match and F1 of answers: SQuAD's rules by hand, where its two programs differ, and what holds for any texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.metrics.tasks import normalise, score_answers
from tests.helpers import types_unchecked

ANSWERS = st.text(alphabet="aAtThe nx.,'-\t7é", max_size=12)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Cat's   hat.", "cats hat"),
        ("a an the", ""),
        ("An apple a day", "apple day"),
        ("theory and antheap", "theory and antheap"),  # articles are words of their own
        ("well-known", "wellknown"),  # punctuation goes first, and joins
        ("the-cat", "thecat"),
        ("$5,000.50", "500050"),
        ("“quoted” – dash", "“quoted” – dash"),  # only ASCII's punctuation
        ("Île\u00a0de\tla\nCité", "île de la cité"),
        ("?!", ""),
        ("", ""),
    ],
)
def test_normalisation(answer: str, expected: str) -> None:
    assert normalise(answer) == expected


def score(answer: str, gold: list[str], version: str = "2.0") -> tuple[float, float]:
    result = score_answers([answer], [gold], version=version)
    return result.exact_match, result.f1


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize(
    ("answer", "gold", "exact", "f1"),
    [
        ("the Broncos", ["Broncos"], 1, 1.0),
        ("Denver Broncos", ["Broncos"], 0, 2 / 3),  # precision 1/2, recall 1
        ("Broncos", ["Denver Broncos of Colorado"], 0, 2 / 5),
        ("of of of", ["of a land"], 0, 2 / 5),  # a word is shared once: 1 of 3 and 1 of 2
        ("panthers", ["Broncos"], 0, 0.0),
        ("red car", ["blue", "the red bus", "car, red!"], 0, 1.0),  # order does not matter to F1
        ("red car", ["red", "a red car", "bus"], 1, 1.0),
        ("red car", ["red", "red car park lot", "bus"], 0, 2 / 3),  # the best: 2/3, 4/6, 0
        ("", ["Broncos"], 0, 0.0),
    ],
)
def test_by_hand(answer: str, gold: list[str], exact: int, f1: float, version: str) -> None:
    assert score(answer, gold, version) == (exact, pytest.approx(f1))


def test_the_best_of_all_gold_answers_counts_and_not_their_mean() -> None:
    assert score("red", ["red", "blue", "green"]) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "gold", "older", "newer"),
    [
        ("A", ["A"], (1, 0), (1, 1)),
        ("", ["the"], (1, 0), (1, 1)),
        ("B", ["A"], (0, 0), (0, 0)),
        ("A", ["A", "grade B"], (1, 0), (0, 0)),
        ("grade B", ["A", "grade B"], (1, 1), (1, 1)),
    ],
)
def test_where_the_two_versions_differ(answer: str, gold: list[str], older: tuple, newer: tuple) -> None:
    assert score(answer, gold, "1.1") == older
    assert score(answer, gold, "2.0") == newer


def test_no_answer() -> None:
    assert score("", []) == (1, 1)
    assert score("the", []) == (1, 1)  # nothing is left of it
    assert score("Broncos", []) == (0, 0)
    result = score_answers(["red bus", "", "green", "x"], [["red"], [], [], ["x"]])
    assert result.has_answer == (True, False, False, True)
    assert result.metrics() == {
        "exact match": 0.5,
        "answer f1": pytest.approx((2 / 3 + 1 + 0 + 1) / 4),
        "exact match of unanswerable": 0.5,
        "exact match of answerable": 0.5,
        "answer f1 of answerable": pytest.approx((2 / 3 + 1) / 2),
    }
    assert score_answers([""], [[]]).metrics() == {
        "exact match": 1.0,
        "answer f1": 1.0,
        "exact match of unanswerable": 1.0,
    }
    assert score_answers(["a b"], [["b"]]).metrics() == {"exact match": 1.0, "answer f1": 1.0}


def test_questions_weigh_alike_and_not_sorts_of_questions() -> None:
    result = score_answers(["x", "y", "z", "w"], [["x"], ["y"], ["z"], []])
    apart = result.only(has_answer=True), result.only(has_answer=False)
    assert result.exact_match == result.f1 == 0.75
    assert apart[0] is not None
    assert apart[1] is not None
    assert (apart[0].exact_match, apart[1].exact_match) == (1.0, 0.0)  # whose mean would be 0.5
    assert apart[0].only(has_answer=False) is None


def test_f1_is_a_mean_over_questions_and_not_of_all_words() -> None:
    result = score_answers(["a b c d e f g h", "x"], [["1 2 3 4 5 6 7 8"], ["x"]])
    assert result.f1 == 0.5


@given(ANSWERS, st.lists(ANSWERS, max_size=3))
def test_properties(answer: str, gold: list[str]) -> None:
    exact, f1 = score(answer, gold)
    assert exact in (0, 1)
    assert exact <= f1 <= 1  # what is the same shares all
    assert score(f"The {answer.upper()}!", gold) == (exact, f1) or not answer.isascii()
    assert score(answer, gold[::-1]) == (exact, f1)
    if gold:
        assert score(gold[0], [gold[0]]) == (1, 1)
    if gold and normalise(answer):
        assert score(answer, [*gold, answer]) == (1, 1)
        more = score(answer, [*gold, "nothing alike"])
        assert more[0] >= exact
        assert more[1] >= f1


@given(ANSWERS, ANSWERS)
def test_f1_does_not_mind_which_is_gold(first: str, second: str) -> None:
    assert score(first, [second])[1] == score(second, [first])[1]


@given(ANSWERS)
def test_normalisation_is_done_once_for_all(answer: str) -> None:
    assert normalise(normalise(answer)) == normalise(answer)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"question 1 has no gold answer, which version 2.0 allows and 1.1 does not"):
        score_answers(["a", "b"], [["a"], []], version="1.1")
    with pytest.raises(ValueError, match="got 2 predicted answers and 1 lists of gold answers"):
        score_answers(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="got 0 predicted answers and 0 lists of gold answers; there is nothing"):
        score_answers([], [])
    with types_unchecked(), pytest.raises(TypeError, match=r"gold answers of question 0 must be a list, got .* 'red'"):
        score_answers(["a"], ["red"])
    with types_unchecked(), pytest.raises(TypeError, match=r"predicted answer 0 must be a string, got None"):
        score_answers([None], [[]])
    with types_unchecked(), pytest.raises(TypeError, match=r"question 0: gold answer 1 must be a string, got 7"):
        score_answers(["a"], [["a", 7]])
    with types_unchecked(), pytest.raises(ValueError, match=r"version must be one of 1.1, 2.0; got '3'"):
        score_answers(["a"], [["a"]], version="3")
