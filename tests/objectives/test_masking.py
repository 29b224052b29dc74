"""Which words are hidden, and behind what: exact counts, fair draws, whole words."""

from collections import Counter
from typing import Any

import pytest
import torch

from glassformer.objectives.base import IGNORE
from glassformer.objectives.masking import COUNTS, Masking, MaskVocabulary, choose_tokens, replace_tokens
from tests.objectives.models import MASK, MASKING, WORDS, chi_square, is_fair, seeded
from tests.parity.harness import FIRST_WORD, VOCAB
from tests.tasks.models import save_tokenizer

ALL = torch.ones(40, dtype=torch.bool)


def test_a_fixed_number_is_rounded_and_at_least_one() -> None:
    generator = seeded()
    for length, expected in ((1, 1), (3, 1), (10, 2), (20, 3), (30, 4), (40, 6), (128, 19)):  # 1.5 and 4.5 to even
        for _ in range(5):
            assert int(choose_tokens(ALL[:1].expand(length), 0.15, generator).sum()) == expected


def test_the_share_is_of_all_tokens_but_only_some_may_be_hidden() -> None:
    maskable = torch.arange(20) % 2 == 0
    for seed in range(20):
        chosen = choose_tokens(maskable, 0.15, seeded(seed))
        assert int(chosen.sum()) == 3
        assert not bool((chosen & ~maskable).any())
    few = torch.arange(20) < 2
    assert torch.equal(choose_tokens(few, 0.15, seeded()), few)


@pytest.mark.parametrize("count", COUNTS)
def test_every_token_is_as_likely_as_any_other(count: Any) -> None:
    generator, draws = seeded(1), 1500
    seen = sum(choose_tokens(ALL, 0.15, generator, count=count).long() for _ in range(draws))
    assert isinstance(seen, torch.Tensor)
    assert is_fair(int(seen.sum()), 40 * draws, 0.15) or count == "fixed"
    assert all(is_fair(n, draws, 0.15) for n in seen.tolist())
    # In a fixed number the places hinder each other, which makes the statistic smaller still.
    assert chi_square(seen.tolist(), [1 / 40] * 40) < 4.5


def test_how_many_are_hidden_by_each_way_of_counting() -> None:
    generator, row = seeded(2), torch.ones(30, dtype=torch.bool)

    def counts(how: Any) -> Counter[int]:
        return Counter(int(choose_tokens(row, 0.15, generator, count=how).sum()) for _ in range(1000))

    assert counts("fixed") == {4: 1000}
    rounded = counts("rounded")
    assert rounded.keys() == {4, 5}
    assert is_fair(rounded[5], 1000, 0.5)
    independent = counts("independent")
    spread = sum(n * (k - 4.5) ** 2 for k, n in independent.items()) / 1000
    assert abs(spread - 30 * 0.15 * 0.85) < 0.5  # the variance of a binomial
    assert 0 not in independent


@pytest.mark.parametrize("count", COUNTS)
def test_at_least_one_token_is_hidden_if_any_can_be(count: Any) -> None:
    generator = seeded(3)
    two = torch.tensor([False, True, True, False])
    assert all(bool(choose_tokens(two, 0.01, generator, count=count).any()) for _ in range(50))
    assert not bool(choose_tokens(torch.zeros(4, dtype=torch.bool), 0.5, generator, count=count).any())


def test_what_stands_in_a_hidden_place() -> None:
    ids, chosen, generator = torch.full((1000,), 9), torch.arange(1000) % 2 == 0, seeded(4)
    seen: Counter[int] = Counter()
    for _ in range(40):
        noisy = replace_tokens(ids, chosen, WORDS, generator)
        assert bool((noisy[~chosen] == 9).all())
        seen.update(noisy[chosen].tolist())
    total = sum(seen.values())
    assert is_fair(seen[MASK], total, 0.8)
    ordinary = VOCAB - FIRST_WORD
    assert is_fair(seen[9], total, 0.1 + 0.1 / ordinary)
    others = [seen[token] for token in range(FIRST_WORD, VOCAB) if token != 9]
    assert seen.keys() == {MASK, *range(FIRST_WORD, VOCAB)}  # no special token but the mask
    assert chi_square(others, [1 / len(others)] * len(others)) < 4.5


def test_other_splits() -> None:
    ids, chosen = torch.full((2000,), 9), torch.ones(2000, dtype=torch.bool)
    seen = Counter(replace_tokens(ids, chosen, WORDS, seeded(5), (0.85, 0.0, 0.15)).tolist())
    assert seen.keys() == {MASK, 9}
    assert is_fair(seen[MASK], 2000, 0.85)
    assert Counter(replace_tokens(ids, chosen, WORDS, seeded(), (1.0, 0.0, 0.0)).tolist()) == {MASK: 2000}


def test_labels_are_the_original_ids_of_what_was_chosen_and_of_nothing_else() -> None:
    ids = torch.randint(FIRST_WORD, VOCAB, (200,))
    ids[::10] = 2  # special
    before = ids.clone()
    noisy, labels = MASKING.apply(ids, seeded(6))
    chosen = labels != IGNORE
    assert torch.equal(ids, before)
    assert int(chosen.sum()) == 30
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(noisy[~chosen], ids[~chosen])
    assert not bool((ids[chosen] == 2).any())
    assert int((noisy[chosen] == ids[chosen]).sum()) > 0  # some are kept, and count in the loss all the same


@pytest.mark.parametrize("count", COUNTS)
def test_whole_words_are_hidden_together(count: Any) -> None:
    masking = Masking(vocabulary=WORDS, whole_words=True, count=count, share=0.3)
    words = torch.tensor([-1, 0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4, 5, -1])
    ids, generator, seen = torch.arange(len(words)) + FIRST_WORD, seeded(7), Counter()
    for _ in range(300):
        _, labels = masking.apply(ids, generator, words)
        chosen = labels != IGNORE
        assert not bool(chosen[words < 0].any())
        for word in range(6):
            assert len(set(chosen[words == word].tolist())) == 1
        seen.update(words[chosen].unique().tolist())
        if count == "fixed":
            assert int(chosen.sum()) <= 4  # round(0.3 · 14)
    assert set(seen) == set(range(6))
    if count == "independent":
        # The chance of a word, or one of six where none was drawn.
        assert all(is_fair(n, 300, 0.3 + 0.7**6 / 6) for n in seen.values())


def test_a_word_longer_than_the_number_is_hidden_only_where_nothing_else_can_be() -> None:
    words = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1])
    seen = {tuple(choose_tokens(words >= 0, 0.2, seeded(s), words=words).tolist()) for s in range(30)}
    assert seen == {(False,) * 7 + (True,) * 2}
    only = torch.zeros(9, dtype=torch.long)
    assert bool(choose_tokens(only >= 0, 0.2, seeded(), words=only).all())


def test_a_vocabulary_knows_the_special_tokens_of_a_tokenizer(tmp_path: Any) -> None:
    tokenizer = save_tokenizer("words", tmp_path)
    vocabulary = MaskVocabulary.of(tokenizer)
    assert vocabulary.mask == tokenizer.mask
    assert {tokenizer.cls, tokenizer.sep, tokenizer.pad, tokenizer.mask, tokenizer.unk} <= vocabulary.special
    assert vocabulary.size == tokenizer.vocab_size
    assert sorted({*vocabulary.ordinary.tolist(), *vocabulary.special}) == list(range(vocabulary.size))
    with pytest.raises(ValueError, match="no mask token"):
        MaskVocabulary.of(save_tokenizer("bytes", tmp_path / "other"))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        Masking(vocabulary=WORDS, split=(0.8, 0.1, 0.2))
    with pytest.raises(ValueError, match="share must be"):
        Masking(vocabulary=WORDS, share=1.0)
    with pytest.raises(ValueError, match=r"\[61\] are outside a vocabulary of 61"):
        MaskVocabulary(61, 61, frozenset())
    with pytest.raises(ValueError, match="none is left"):
        MaskVocabulary(3, 1, frozenset({0, 1, 2}))
    with pytest.raises(ValueError, match="whole_words needs the words"):
        Masking(vocabulary=WORDS, whole_words=True).apply(torch.tensor([7, 8]), seeded())
