"""ROUGE: equal to the reference package on drawn, hand-made and empty texts, with and without stems."""

import random

import pytest
from rouge_score.rouge_scorer import RougeScorer

from glassformer.metrics import text as text_metrics
from glassformer.metrics.text import Rouge, RougeScore, rouge, words
from tests.helpers import some_at_once

KINDS = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rouge_l", "rougeLsum": "rouge_lsum"}
THEIRS = {stemmed: RougeScorer(list(KINDS), use_stemmer=stemmed) for stemmed in (False, True)}
BY_HAND = [
    "",
    " \n ",
    "\n\n",
    "!?",
    "a",
    "A\nB",
    "The quick brown fox jumps over the lazy dog.",
    "The quick brown dog\njumps on the log.",
    "dog the lazy\nover jumps fox\nbrown quick the",
    "the the the the",
    "Grüße aus Köln: 3,5 Äpfel",
    "don't can't_won't 2nd-hand U.S.A.",
    "\u212aelvin \u0130stanbul ﬁn",  # letters that change in number or script in lower case
    "relational conditional rationally\nflies died dying, the skies",
    "ads fly",  # words of three letters, whose stems are not asked for
    "ad fli",
]


def drawn(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    vocabulary = ["a", "b", "c", "dd", "e5", "running", "runs", "ran", "happily", "Happy"]
    marks = [" ", " ", " ", ", ", ".\n", "\n", "\n\n"]
    return [
        "".join(draw.choice(vocabulary) + draw.choice(marks) for _ in range(draw.randint(0, 18))) for _ in range(count)
    ]


def three(result: RougeScore) -> tuple[float, float, float]:
    return result.precision, result.recall, result.f1


def assert_equal(ours: Rouge, other: dict) -> None:
    for kind, name in KINDS.items():
        assert three(getattr(ours, name)) == pytest.approx(tuple(other[kind]), abs=1e-12), kind


@pytest.mark.parametrize("stemmed", some_at_once([False, True], bool))
def test_equal_to_the_reference_on_texts_made_by_hand(stemmed: bool) -> None:
    for written in BY_HAND:
        for reference in BY_HAND:
            assert_equal(rouge([written], [reference], stem=stemmed), THEIRS[stemmed].score(reference, written))


@pytest.mark.parametrize("count", some_at_once([60, 300], {60}.__contains__))
@pytest.mark.parametrize("stemmed", [False, True])
def test_equal_to_the_reference_on_drawn_texts(stemmed: bool, count: int) -> None:
    for written, reference in zip(drawn(count, 0), drawn(count, 1), strict=True):
        assert_equal(rouge([written], [reference], stem=stemmed), THEIRS[stemmed].score(reference, written))


def test_of_several_references_the_best_counts_for_each_kind() -> None:
    lists = [drawn(3, seed) for seed in range(60)]
    for written, some in zip(drawn(60, 99), lists, strict=True):
        assert_equal(rouge([written], [some]), THEIRS[False].score_multi(some, written))
    apart = rouge(["a b c d"], [["a b x", "d c b a"]])  # pairs of the first, single words of the second
    assert (apart.rouge1.f1, apart.rouge2.f1) == (1.0, pytest.approx(2 * 1 / (3 + 2)))


def test_by_hand() -> None:
    """GenerationOutput 5 words, reference 4; shared: the, cat, mat; pairs: the cat; in order: the cat … mat."""
    result = rouge(["The cat saw a mat!"], ["the cat, the mat"])
    assert three(result.rouge1) == pytest.approx((3 / 5, 3 / 4, 6 / 9))
    assert three(result.rouge2) == pytest.approx((1 / 4, 1 / 3, 2 / 7))
    assert three(result.rouge_l) == pytest.approx((3 / 5, 3 / 4, 6 / 9))
    names = ["rouge-1", "rouge-2", "rouge-l", "rouge-lsum"]
    assert list(result.metrics()) == names
    assert list(result.metrics().values()) == pytest.approx([6 / 9, 2 / 7, 6 / 9, 6 / 9])
    assert result.texts == 1


def test_sentences_may_change_places_only_in_lsum() -> None:
    result = rouge(["c d\na b"], ["a b\nc d"])
    assert (result.rouge_l.f1, result.rouge_lsum.f1) == (0.5, 1.0)


def test_a_word_written_once_counts_once_in_lsum() -> None:
    """The sentence written shares a word with both of the reference; counted twice, its precision would be 2."""
    assert three(rouge(["a"], ["a\na"]).rouge_lsum) == pytest.approx((1.0, 0.5, 2 / 3))


def test_figures_are_means_over_texts() -> None:
    written, references = ["a", "b c d e f g h i j"], ["a", "x y z"]
    result = rouge(written, references)
    assert three(result.rouge1) == (0.5, 0.5, 0.5)  # all words together would give 1 / 10 and 1 / 4
    uneven = rouge(["a b", "a"], ["a", "a b"])
    assert three(uneven.rouge1) == pytest.approx((0.75, 0.75, 2 / 3))  # the F1 of the means would be 0.75


def test_written_and_reference_are_not_the_same_to_it() -> None:
    result = rouge(["a b c d"], ["a"])
    assert (result.rouge1.precision, result.rouge1.recall) == (0.25, 1.0)


def test_words() -> None:
    assert words("Don't split U.S.-made\nΑ1b2, naïve_x") == [
        "don",
        "t",
        "split",
        "u",
        "s",
        "made",
        "1b2",
        "na",
        "ve",
        "x",
    ]


def test_a_script_that_is_not_seen_is_an_error_with_a_way_out() -> None:
    with pytest.raises(ValueError, match=r"none of the 2 references has a word .*pass tokenize= a function"):
        rouge(["猫が好き", "犬"], ["猫が好き", "犬"])
    result = rouge(["猫が好き", "犬"], ["猫が嫌い", "犬"], tokenize=list)
    assert result.rouge1.f1 == pytest.approx((2 / 4 + 1) / 2)
    assert rouge(["猫"], ["a cat"]).rouge1.f1 == 0  # what a model writes is its own affair
    assert rouge(["a"], [""]).rouge1.f1 == 0


def test_stemming_without_its_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(text_metrics, "import_module", missing)
    with pytest.raises(ImportError, match=r"needs the package nltk.*glassformer\[train\]"):
        rouge(["a"], ["a"], stem=True)
