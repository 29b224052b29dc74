"""Entity F1: seqeval's default for thousands of tag sequences, well formed and not."""

import random

import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

from glassformer.metrics.base import F1Score
from glassformer.metrics.tasks import score_entities
from glassformer.tasks.entities import find_entities
from tests.helpers import types_unchecked

KINDS = ("PER", "LOC", "geo-pol")


def anything(draw: random.Random, characters: str, length: int) -> list[str]:
    """Tags in any order, so that most sequences are ill formed."""
    some = KINDS[: draw.randint(1, len(KINDS))]
    return [draw.choice(["O", *(f"{letter}-{kind}" for letter in characters for kind in some)]) for _ in range(length)]


def well_formed(draw: random.Random, scheme: str, length: int) -> list[str]:
    tags: list[str] = []
    while len(tags) < length:
        size, kind = min(draw.randint(1, 3), length - len(tags)), draw.choice(KINDS)
        if draw.random() < 0.4:
            tags.append("O")
        elif scheme == "BIES" and size == 1:
            tags.append(f"S-{kind}")
        else:
            last = "E" if scheme == "BIES" else "I"
            tags += [f"B-{kind}", *[f"I-{kind}"] * (size - 2), *[f"{last}-{kind}"] * (size > 1)]
    return tags


MAKERS = {
    "IOB2": lambda draw, length: well_formed(draw, "BI", length),
    "IOBES": lambda draw, length: well_formed(draw, "BIES", length),
    "ill-formed IOB2": lambda draw, length: anything(draw, "BI", length),
    "ill-formed IOBES": lambda draw, length: anything(draw, "BIES", length),
    "letters alone": lambda draw, length: draw.choices(["O", "B", "I", "E", "S"], k=length),
}


@pytest.mark.parametrize("scheme", MAKERS)
def test_the_same_entities_as_seqeval(scheme: str) -> None:
    draw = random.Random(scheme)
    with types_unchecked():  # checks at every call would take most of the time
        for _ in range(3000):
            tags = MAKERS[scheme](draw, draw.randint(0, 9))
            ours = [(span.kind or "_", span.first, span.end - 1) for span in find_entities(tags)]
            assert ours == get_entities(tags), tags


@pytest.mark.parametrize("scheme", MAKERS)
def test_the_same_scores_as_seqeval(scheme: str) -> None:
    draw = random.Random(f"scores {scheme}")
    for _ in range(40):
        lengths = [draw.randint(0, 8) for _ in range(draw.randint(1, 6))]
        gold = [MAKERS[scheme](draw, length) for length in lengths]
        other = [MAKERS[scheme](draw, length) for length in lengths]
        inputs = [a if draw.random() < 0.5 else b for a, b in zip(gold, other, strict=True)]
        result = score_entities(inputs, gold)
        for ours, reference in (
            (result.overall.precision, precision_score),
            (result.overall.recall, recall_score),
            (result.overall.f1, f1_score),
        ):
            assert ours == pytest.approx(reference(gold, inputs, zero_division=0), abs=1e-12)
        by_kind = precision_recall_fscore_support(gold, inputs, zero_division=0)
        for ours, *reference in zip(
            result.per_kind.values(), *(map(float, numbers) for numbers in by_kind), strict=True
        ):
            assert (ours.precision, ours.recall, ours.f1, ours.gold) == pytest.approx(tuple(reference), abs=1e-12)


def test_by_hand() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    inputs = [["B-PER", "I-PER", "O", "O"], ["B-LOC", "I-LOC"]]  # one right, one missed, one too long
    result = score_entities(inputs, gold)
    assert result.per_kind == {"LOC": F1Score(0, 1, 2), "PER": F1Score(1, 1, 1)}
    assert result.metrics() == {
        "entity precision": 1 / 2,
        "entity recall": 1 / 3,
        "entity f1": pytest.approx(2 / 5),
        "entity f1 of LOC": 0.0,
        "entity f1 of PER": 1.0,
    }
    macro = sum(item.f1 for item in result.per_kind.values()) / 2
    assert macro == 0.5 != result.overall.f1


def test_tags_are_not_what_is_counted() -> None:
    """Two of three tags are right, and no entity is."""
    assert score_entities([["B-A", "I-A", "O"]], [["B-A", "I-A", "I-A"]]).overall == F1Score(0, 1, 1)


def test_the_kind_must_be_right_too() -> None:
    assert score_entities([["B-A"]], [["B-B"]]).overall == F1Score(0, 1, 1)


def test_sentences_are_apart() -> None:
    """An entity neither goes on in the next sentence nor matches one at the same place of another."""
    assert score_entities([["B-A"], ["I-A"]], [["B-A"], ["I-A"]]).overall == F1Score(2, 2, 2)
    assert score_entities([["B-A"], ["O"]], [["O"], ["B-A"]]).overall == F1Score(0, 1, 1)


def test_no_entities_are_no_success() -> None:
    result = score_entities([["O", "O"], []], [["O", "O"], []])
    assert result.metrics() == {"entity precision": 0.0, "entity recall": 0.0, "entity f1": 0.0}


def test_figures_of_batches_do_not_average_to_those_of_all() -> None:
    inputs, gold = [["B-A"], ["B-A", "B-A", "B-A", "O"]], [["B-A"], ["O", "O", "O", "B-A"]]
    parts = [score_entities([a], [b]).overall.f1 for a, b in zip(inputs, gold, strict=True)]
    assert parts == [1.0, 0.0]
    assert score_entities(inputs, gold).overall.f1 == pytest.approx(2 / 6)


def test_errors() -> None:
    with pytest.raises(ValueError, match="sentence 1 has 2 predicted and 1 gold tags"):
        score_entities([["O"], ["O", "O"]], [["O"], ["O"]])
    for tag in ("U-PER", "L-PER", "O-PER", ""):
        with pytest.raises(ValueError, match=rf"sentence 0 has the tag '{tag}'; known prefixes .*write L as E, U as S"):
            score_entities([["O", "O"]], [["O", tag]])
    with types_unchecked(), pytest.raises(TypeError, match="sentence 0 must be a list of tags, got 'O'"):
        score_entities(["O"], [["O"]])
    with types_unchecked(), pytest.raises(TypeError, match="sentence 0: tag 1 must be a string, got 3"):
        score_entities([["O", 3]], [["O", "O"]])
