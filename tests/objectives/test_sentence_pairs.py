"""Pairs of sentences from documents: whose they are, how long, how often."""

import pytest

from glassformer.objectives.sentence_pairs import (
    PairLengths,
    SentencePair,
    next_sentence_pairs,
    sentence_order_pairs,
)
from tests.objectives.models import is_fair, seeded

# Token 1000 · document + place: where a token is from can be read off it.
SIZES = (3, 1, 4, 2, 6, 1, 5)


def documents(number: int, sentences: int) -> list[list[list[int]]]:
    result = []
    for document in range(1, number + 1):
        first, some = 1000 * document, []
        for sentence in range(sentences):
            size = SIZES[sentence % len(SIZES)]
            some.append(list(range(first, first + size)))
            first += size
        result.append(some)
    return result


def is_run(ids: list[int]) -> bool:
    return ids == list(range(ids[0], ids[0] + len(ids)))


ROWS = PairLengths(length=16)
MANY = documents(30, 40)


def check_form(pairs: list[SentencePair]) -> None:
    for first, second, label in pairs:
        assert is_run(first)
        assert is_run(second)
        assert 2 <= len(first) + len(second) <= 16
        assert label in (0, 1)


def test_next_sentences_follow_or_come_from_elsewhere() -> None:
    pairs = next_sentence_pairs(MANY, ROWS, seeded())
    check_form(pairs)
    for first, second, label in pairs:
        same = first[0] // 1000 == second[0] // 1000
        assert same == (label == 0)
        assert label == 1 or second[0] > first[-1]
    # Single sentences left over at the end of a document always get another's text: a little over one half.
    others = sum(pair.label for pair in pairs)
    assert 0.45 < others / len(pairs) < 0.6
    whole = [p for p in pairs if p.label == 0 and p.second[0] == p.first[-1] + 1]
    assert len(whole) > len(pairs) / 10  # where nothing was cut off in between, the second follows at once


def test_the_other_documents_are_all_drawn() -> None:
    pairs = next_sentence_pairs(MANY, ROWS, seeded(1))
    assert {p.second[0] // 1000 for p in pairs if p.label == 1} == set(range(1, 31))


def test_sentences_after_a_random_second_part_are_used_again() -> None:
    pairs = next_sentence_pairs(MANY, PairLengths(length=40, short=0.0), seeded(2))
    read = {token for p in pairs for token in p.first + (p.second if p.label == 0 else [])}
    expected = {token for document in MANY for sentence in document for token in sentence}
    assert len(expected - read) / len(expected) < 0.1  # what is missing was cut off at the length


def test_two_halves_in_order_or_swapped() -> None:
    pairs = sentence_order_pairs(MANY, ROWS, seeded(3))
    check_form(pairs)
    for first, second, label in pairs:
        assert first[0] // 1000 == second[0] // 1000
        assert (first[0] > second[0]) == (label == 1)
    assert is_fair(sum(pair.label for pair in pairs), len(pairs), 0.5)


@pytest.mark.parametrize("make", [next_sentence_pairs, sentence_order_pairs])
def test_rows_are_filled_and_now_and_then_short(make: object) -> None:
    assert callable(make)
    full = make(MANY, PairLengths(length=16, short=0.0), seeded(4))
    assert sum(len(p.first) + len(p.second) == 16 for p in full) / len(full) > 0.5
    short = make(MANY, PairLengths(length=16, short=0.9), seeded(4))
    assert sum(len(p.first) + len(p.second) < 10 for p in short) / len(short) > 0.4
    assert max(len(p.first) + len(p.second) for p in short) <= 16


def test_tokens_are_cut_off_the_longer_part_at_either_end() -> None:
    long = [[list(range(1000, 1010)), list(range(1010, 1110))]]
    ends = set()
    for seed in range(20):
        ((first, second, label),) = sentence_order_pairs(long, PairLengths(length=16, short=0.0), seeded(seed))
        parts = (first, second) if label == 0 else (second, first)
        assert len(parts[0]) == len(parts[1]) == 8
        assert 1030 < parts[1][0] < 1080  # about as much was cut off at either end
        ends.add((parts[0][0] - 1000, 1009 - parts[0][-1]))
    assert ends == {(0, 2), (1, 1), (2, 0)}


def test_documents_and_the_seed_decide_and_documents_are_left_alone() -> None:
    copy = [[list(sentence) for sentence in document] for document in MANY]
    for make in (next_sentence_pairs, sentence_order_pairs):
        assert make(MANY, ROWS, seeded(5)) == make(MANY, ROWS, seeded(5))
        assert make(MANY, ROWS, seeded(5)) != make(MANY, ROWS, seeded(6))
    assert copy == MANY


def test_documents_with_nothing_in_them() -> None:
    text = documents(2, 5)
    assert next_sentence_pairs([[], *text, [[]]], ROWS, seeded(7)) == next_sentence_pairs(text, ROWS, seeded(7))
    with pytest.raises(ValueError, match="two documents with text; got 1"):
        next_sentence_pairs([text[0], [[]]], ROWS, seeded())
    assert sentence_order_pairs([[[1, 2, 3]]], ROWS, seeded()) == []
    with pytest.raises(ValueError, match="at least 2; got 1"):
        PairLengths(length=1)
