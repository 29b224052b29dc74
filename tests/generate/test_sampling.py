"""Choosing tokens: the distribution is the one that was asked for."""

import itertools

import pytest
import torch

from glassformer import TransformerLM
from glassformer.generate.sampling import sample_next, write_on

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5])


def frequencies(draws: int = 20_000, **options: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    picked = sample_next(LOGITS.expand(draws, 5), generator=generator, **options)
    return torch.bincount(picked, minlength=5) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, -1)
    assert (frequencies(temperature=temperature) - expected).abs().max() < 0.015


def test_temperature_zero_takes_the_likeliest_and_below_is_refused() -> None:
    assert sample_next(LOGITS, temperature=0).item() == 0
    with pytest.raises(ValueError, match=r"temperature must be 0 .* got -0.1"):
        sample_next(LOGITS, temperature=-0.1)


@pytest.mark.parametrize("temperature", [1e-40, 1e-310, 1e-6])
@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("scale", [1.0, 1e4, -1e4])
def test_a_temperature_near_zero_is_as_good_as_zero(temperature: float, top_k: int | None, scale: float) -> None:
    logits = LOGITS * scale
    drawn = sample_next(logits.expand(50, 5), temperature=temperature, top_k=top_k)
    assert (drawn == sample_next(logits, temperature=0)).all()


def test_top_k_leaves_exactly_k() -> None:
    observed = frequencies(top_k=2)
    expected = torch.softmax(LOGITS[[0, 4]], -1)
    assert observed[[1, 2, 3]].tolist() == [0, 0, 0]
    assert (observed[[0, 4]] - expected).abs().max() < 0.015
    assert (frequencies(top_k=99) - torch.softmax(LOGITS, -1)).abs().max() < 0.015
    ties = sample_next(torch.zeros(5000, 4), top_k=2, generator=torch.Generator().manual_seed(0))
    assert len(ties.unique()) == 2
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        sample_next(LOGITS, top_k=0)


def test_any_leading_axes() -> None:
    assert sample_next(torch.randn(2, 3, 7)).shape == (2, 3)
    assert sample_next(torch.randn(7)).shape == ()


def test_writing_on_is_greedy_step_by_step_and_slides_its_window() -> None:
    model = TransformerLM(10, 6, 32, 1, 4, 64, dtype=torch.float64).eval()
    prompt = torch.tensor([1, 2, 3])
    written = list(itertools.islice(write_on(model, prompt, context_length=6, temperature=0), 8))
    tokens = prompt.tolist()
    for token in written:
        assert token == int(model(torch.tensor([tokens[-6:]]))[0, -1].argmax())
        tokens.append(token)


def test_the_seed_decides_the_text() -> None:
    model = TransformerLM(50, 8, 32, 1, 4, 64).eval()
    texts = [
        list(itertools.islice(write_on(model, torch.tensor([1]), context_length=8, seed=seed), 30))
        for seed in (0, 0, 1)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_an_empty_prompt_is_refused() -> None:
    model = TransformerLM(10, 6, 32, 1, 4, 64)
    with pytest.raises(ValueError, match="no tokens"):
        next(write_on(model, torch.tensor([], dtype=torch.long), context_length=6))
