"""Unigram training: expectations as counted by hand, and pieces as good as those of the reference."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import exp

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers

from glassformer.text import unigram_training
from glassformer.text.unigram_training import _build, _digamma, _parts, _segment, learn_unigram
from tests.text.test_tokenizer import LINES

WORDS = {"abab": 3, "ab": 2, "bab": 4, "c": 1, "cabc": 2}


def cuts(word: str, known: set[str]) -> Iterator[list[str]]:
    """All ways to write a word in known pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in known:
            for rest in cuts(word[end:], known):
                yield [word[:end], *rest]


def counted(counts: dict[str, int], score: dict[str, float], *, best: bool) -> Counter[str]:
    """How often each piece is expected, by listing all cuts of all words."""
    expected = Counter[str]()
    for word, count in counts.items():
        ways = list(cuts(word, set(score)))
        probs = [exp(sum(score[piece] for piece in way)) for way in ways]
        if best:
            probs = [float(chance == max(probs)) for chance in probs]
        for way, chance in zip(ways, probs, strict=True):
            for piece in way:
                expected[piece] += count * chance / sum(probs)
    return expected


@pytest.mark.parametrize("best", [False, True])
def test_expectations_equal_those_over_all_cuts(best: bool) -> None:
    lattice, texts, covered = _build(_parts(WORDS), 2)
    assert set(texts) == {"a", "b", "c", "ab", "ba", "bab", "abab", "aba", "ca", "cab", "bc", "abc", "cabc"}
    assert dict(zip(texts, covered, strict=True))["bab"] == 3 * (3 + 4)
    scores = np.random.default_rng(0).normal(-2, 1, len(texts))
    wanted = counted(WORDS, dict(zip(texts, scores, strict=True)), best=best)
    counts = lattice.flow(scores, best=best)
    assert counts == pytest.approx([wanted[text] for text in texts])
    keep = np.array([len(text) < 3 for text in texts])
    lattice.keep(keep)
    left = [text for text, kept in zip(texts, keep, strict=True) if kept]
    wanted = counted(WORDS, dict(zip(left, scores[keep], strict=True)), best=best)
    assert lattice.flow(scores[keep], best=best) == pytest.approx([wanted[text] for text in left])


def test_without_itself_a_piece_is_cut_at_best() -> None:
    texts = ["abab", "ab", "a", "b", "aba"]
    scores = [-1.0, -4.0, -1.5, -2.0, -5.5]
    parts = _segment("abab", {text: i for i, text in enumerate(texts)}, scores)
    assert sorted(texts[part] for part in parts) == ["a", "a", "b", "b"]
    scores[1] = -2.0
    assert [texts[part] for part in _segment("abab", {text: i for i, text in enumerate(texts)}, scores)] == ["ab", "ab"]


def test_digamma_equals_torch() -> None:
    x = np.concatenate([np.linspace(0.5, 20, 200), [1e3, 1e9]])
    assert _digamma(x) == pytest.approx(torch.digamma(torch.tensor(x)).numpy(), abs=1e-9)


def test_likely_pieces_win_and_letters_stay() -> None:
    pieces = dict(learn_unigram({"▁hug": 30, "▁hugs": 20, "▁pug": 10, "▁z": 1}, 10))
    assert {"▁", "h", "u", "g", "s", "p", "z"} <= set(pieces)
    assert len(pieces) == 10
    assert max(pieces, key=pieces.__getitem__) == "▁hug"
    assert set(learn_unigram({"ab": 5}, 2)) == set(learn_unigram({"ab": 5}, 2))
    assert [text for text, _ in learn_unigram({"ab": 5}, 2)] == ["a", "b"]


def test_scores_fall_and_do_not_depend_on_the_order_of_words() -> None:
    counts = Counter(word for line in LINES[:200] for word in line.split())
    pieces = learn_unigram(counts, 300, progress=(left := []).append)
    assert all(a >= b for (_, a), (_, b) in pairwise(pieces))
    assert left == sorted(left, reverse=True)
    mixed = list(counts.items())
    random.Random(0).shuffle(mixed)
    assert learn_unigram(dict(mixed), 300) == pieces
    assert not [text for text, _ in learn_unigram(counts, 300, 10**6) if len(text) > 1]


def test_too_many_words_leave_out_the_rare_ones_but_none_of_their_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unigram_training, "MAX_CHARACTERS", 8)
    monkeypatch.setattr(unigram_training, "LONGEST_WORD", 4)
    assert _parts({"abcd": 5, "efgh": 4, "aéz": 1}) == [("abcd", 5), ("efgh", 4), ("z", 1), ("é", 1)]
    assert _parts({"abcdabcdab": 2, "ab": 1}) == [("abcd", 4), ("ab", 3)]
    assert _parts({"abcd": 5, "efgh": 5, "ijkl": 5})[:2] == _parts({"ijkl": 5, "efgh": 5, "abcd": 5})[:2]
    monkeypatch.setattr(unigram_training, "MAX_SEEDS", 1)
    assert _build([("abab", 3)], 2)[1] == ["a", "b", "ab"]  # covers most; "abab" is longer, but no more


def test_pieces_are_as_good_as_the_library_s() -> None:
    """The library's trainer adds up in another order each time; its vocabulary is as good, not the same."""
    words = pre_tokenizers.Metaspace()
    theirs = tokenizers.Tokenizer(models.Unigram())
    theirs.pre_tokenizer = words
    options = {"vocab_size": 800, "special_tokens": ["<unk>"], "unk_token": "<unk>", "show_progress": False}
    theirs.train_from_iterator(LINES, trainers.UnigramTrainer(**options))
    counts = Counter(word for line in LINES for word, _ in words.pre_tokenize_str(line))
    ours = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *learn_unigram(counts, 799)], 0))
    ours.pre_tokenizer = words
    assert ours.get_vocab_size() == theirs.get_vocab_size() == 800
    lengths = [sum(len(encoding.ids) for encoding in tokenizer.encode_batch(LINES)) for tokenizer in (ours, theirs)]
    assert lengths[0] < 1.02 * lengths[1]
