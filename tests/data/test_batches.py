"""Batches cut from a corpus."""

import itertools

import pytest
import torch

from glassformer.data.batches import random_windows


def test_targets_are_the_inputs_one_token_later_and_both_lie_in_the_corpus() -> None:
    tokens = torch.arange(50, dtype=torch.uint8)
    starts = set()
    for inputs, targets in itertools.islice(random_windows(tokens, 3, 8, seed=0), 200):
        assert inputs.shape == targets.shape == (3, 8)
        assert torch.equal(inputs + 1, targets)
        assert torch.equal(inputs.diff(), torch.ones(3, 7, dtype=torch.long))
        starts |= set(inputs[:, 0].tolist())
    assert starts == set(range(42))  # every place can be cut, the last one included


def test_the_seed_decides() -> None:
    tokens = torch.randint(256, (500,), dtype=torch.uint8)
    first, again, other = (next(random_windows(tokens, 4, 16, seed=s))[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_corpus_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="8 tokens is too short for windows of 8"):
        next(random_windows(torch.arange(8), 1, 8, seed=0))
