"""Windows over one long text."""

import numpy as np
import pytest
import torch

from glassformer.objectives.causal_lm import Windows


def test_every_stretch_of_a_text_has_its_number() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    windows = Windows(tokens, 8)
    assert len(windows) == 92
    for number in range(len(windows)):
        assert torch.equal(windows[number], torch.arange(number, number + 9))  # eight, and the one after them
    with pytest.raises(IndexError, match="92 windows"):
        windows[92]


@pytest.mark.parametrize("count", [2, 8, 9, 10, 16, 17, 18, 25, 100])
def test_windows_one_after_the_other_ask_for_every_token_once(count: int) -> None:
    windows = Windows(np.arange(count), 8, stride=8)
    expected = torch.cat([windows[number][1:] for number in range(len(windows))])
    assert torch.equal(expected, torch.arange(1, count))
    assert all(len(windows[number]) >= 2 for number in range(len(windows)))


def test_the_fingerprint_is_that_of_the_windows() -> None:
    tokens = np.arange(50)
    every = [Windows(tokens, 8), Windows(tokens, 9), Windows(tokens, 8, stride=2), Windows(tokens + 1, 8)]
    assert len({item.fingerprint for item in every}) == 4
    assert Windows(tokens.copy(), 8).fingerprint == every[0].fingerprint


def test_a_text_without_a_next_token_is_refused() -> None:
    with pytest.raises(ValueError, match="no next token"):
        Windows(np.arange(1), 8)
