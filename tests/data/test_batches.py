"""Batches cut from a corpus."""

import itertools

import pytest
import torch

from glassformer.data.batches import RandomWindows


def test_labels_are_the_inputs_one_token_later_and_both_lie_in_the_corpus() -> None:
    tokens = torch.arange(50, dtype=torch.uint8)
    starts = set()
    for batch in itertools.islice(RandomWindows(tokens, 3, 8, seed=0), 200):
        inputs, labels = batch.inputs["ids"], batch.labels["next"]
        assert inputs.shape == labels.shape == (3, 8)
        assert torch.equal(inputs + 1, labels)
        assert torch.equal(inputs.diff(), torch.ones(3, 7, dtype=torch.long))
        assert (batch.counts, batch.tokens) == ({"next": 24}, 24)
        starts |= set(inputs[:, 0].tolist())
    assert starts == set(range(42))  # every place can be cut, the last one included


def test_the_seed_decides_and_so_does_the_number() -> None:
    tokens = torch.randint(256, (500,), dtype=torch.uint8)
    first, again, other = (next(RandomWindows(tokens, 4, 16, seed=s)).inputs["ids"] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    windows = RandomWindows(tokens, 4, 16, seed=1)
    assert not torch.equal(next(windows).inputs["ids"], next(windows).inputs["ids"])


def test_it_goes_on_from_where_it_was() -> None:
    tokens = torch.randint(256, (500,), dtype=torch.uint8)
    windows = RandomWindows(tokens, 4, 16, seed=1)
    next(windows)
    state = windows.state()
    following = [next(windows).inputs["ids"] for _ in range(3)]
    again = RandomWindows(tokens, 4, 16, seed=1)
    again.resume(state)
    assert all(torch.equal(next(again).inputs["ids"], ids) for ids in following)


def test_a_corpus_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="8 tokens is too short for windows of 8"):
        RandomWindows(torch.arange(8), 1, 8, seed=0)
