"""Choosing tokens: the distribution is the one that was asked for, and each text has its own random numbers."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer import TransformerLM
from glassformer.generation.search import SeededRNG, draw, probs, sample_next, sample_stream
from tests.helpers import FLOATS

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5])


def uniforms(rows: int) -> torch.Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def frequencies(draws: int = 20_000, **options: float) -> torch.Tensor:
    picked = sample_next(LOGITS.expand(draws, 5), uniforms(draws), **options)
    return torch.bincount(picked, minlength=5) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, -1)
    assert (frequencies(temperature=temperature) - expected).abs().max() < 0.015


def test_temperature_zero_takes_the_likeliest_and_below_is_refused() -> None:
    assert sample_next(LOGITS[None], uniforms(1), temperature=0).item() == 0
    with pytest.raises(ValueError, match=r"temperature must be 0 .* got -0.1"):
        sample_next(LOGITS[None], uniforms(1), temperature=-0.1)


@pytest.mark.parametrize("temperature", [1e-40, 1e-310, 1e-6])
@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("scale", [1.0, 1e4, -1e4])
def test_a_temperature_near_zero_is_as_good_as_zero(temperature: float, top_k: int | None, scale: float) -> None:
    logits = LOGITS * scale
    drawn = sample_next(logits.expand(50, 5), uniforms(50), temperature=temperature, top_k=top_k)
    assert (drawn == sample_next(logits[None], uniforms(1), temperature=0)).all()


def test_top_k_leaves_exactly_k() -> None:
    observed = frequencies(top_k=2)
    expected = torch.softmax(LOGITS[[0, 4]], -1)
    assert observed[[1, 2, 3]].tolist() == [0, 0, 0]
    assert (observed[[0, 4]] - expected).abs().max() < 0.015
    assert (frequencies(top_k=99) - torch.softmax(LOGITS, -1)).abs().max() < 0.015
    ties = sample_next(torch.zeros(5000, 4), uniforms(5000), top_k=2)
    assert len(ties.unique()) == 2
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        sample_next(LOGITS[None], uniforms(1), top_k=0)


def test_writing_on_is_greedy_step_by_step_and_slides_its_window() -> None:
    model = TransformerLM(10, 6, 32, 1, 4, 64, dtype=torch.float64).eval()
    prompt = torch.tensor([1, 2, 3])
    written = list(itertools.islice(sample_stream(model, prompt, context_length=6, temperature=0), 8))
    tokens = prompt.tolist()
    for token in written:
        assert token == int(model(torch.tensor([tokens[-6:]]))[0, -1].argmax())
        tokens.append(token)


def test_the_seed_decides_the_text() -> None:
    model = TransformerLM(50, 8, 32, 1, 4, 64).eval()
    texts = [
        list(itertools.islice(sample_stream(model, torch.tensor([1]), context_length=8, seed=seed), 30))
        for seed in (0, 0, 1)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_an_empty_prompt_is_refused() -> None:
    model = TransformerLM(10, 6, 32, 1, 4, 64)
    with pytest.raises(ValueError, match="no tokens"):
        next(sample_stream(model, torch.tensor([], dtype=torch.long), context_length=6))


# --- chances and draws -----------------------------------------------------------------------------------------------

ALMOST_ONE = 1 - 2.0**-53  # the largest float64 below 1
EDGES = torch.tensor([0.0, 5e-324, 0.5, ALMOST_ONE], dtype=torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_chances_are_wide_and_a_forbidden_token_has_none(dtype: torch.dtype, device: torch.device) -> None:
    scores = torch.tensor([[3.0, -torch.inf, 1.0], [-torch.inf, 0.0, -torch.inf]], dtype=dtype, device=device)
    found = probs(scores)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found[0, 1] == 0
    assert found[1].tolist() == [0, 1, 0]
    assert torch.allclose(found.sum(-1), torch.ones(2, dtype=found.dtype, device=device))


def test_a_draw_lays_the_chances_end_to_end(device: torch.device) -> None:
    row = torch.tensor([0.25, 0.0, 0.5, 0.25], dtype=torch.float64, device=device)
    expected = {0.0: 0, 0.2499: 0, 0.25: 2, 0.7499: 2, 0.75: 3, ALMOST_ONE: 3}
    found = draw(row.expand(len(expected), 4), torch.tensor(list(expected), dtype=torch.float64))
    assert found.tolist() == list(expected.values())
    assert found.device.type == device.type


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_of_chance_zero_is_never_drawn_at_the_edges(dtype: torch.dtype, device: torch.device) -> None:
    for only, total in itertools.product((0, 3, 6), (0.3, 0.5, 1.0, 1 - 1e-7, 1 + 3e-7)):  # rounding errors included
        row = torch.zeros(7, dtype=dtype, device=device)
        row[only] = total
        assert draw(row.expand(4, 7), EDGES).tolist() == [only] * 4
    ends = torch.tensor([0.0, 0.0, 0.1, 0.2, 0.7, 0.0, 0.0], dtype=dtype, device=device)
    assert draw(ends.expand(4, 7), EDGES).tolist() == [2, 2, 4, 4]


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-30, 1.0)), min_size=1, max_size=20), st.floats(0, ALMOST_ONE))
def test_every_draw_has_a_chance(row: list[float], uniform: float) -> None:
    if not any(row):
        row[0] = 1.0
    table = torch.tensor([row] * 3, dtype=torch.float64)
    for token in draw(table, torch.tensor([0.0, uniform, ALMOST_ONE], dtype=torch.float64)).tolist():
        assert row[token] > 0


def test_a_large_vocabulary_with_few_allowed_tokens(device: torch.device) -> None:
    """Sums made in parallel must not open a crack through which a forbidden token is drawn."""
    scores = torch.full((64, 50_000), -torch.inf, device=device)
    allowed = torch.arange(0, 50_000, 97, device=device)
    scores[:, allowed] = torch.randn(64, len(allowed), generator=torch.Generator().manual_seed(0)).to(device)
    table = probs(scores)
    sums = table.double().cumsum(-1)
    at_a_seam = sums[torch.arange(64), torch.arange(64) * 700] / sums[:, -1]  # exactly where one token ends
    for uniforms in (at_a_seam.clamp(max=ALMOST_ONE).cpu(), torch.rand(64, dtype=torch.float64)):
        drawn = draw(table, uniforms)
        assert (table.gather(-1, drawn[:, None]) > 0).all()


def test_a_draw_refuses_what_is_no_chance_or_no_number_of_the_dice() -> None:
    half = torch.tensor([0.5], dtype=torch.float64)
    for row in ([0.0, 0.0], [torch.nan, 1.0]):
        with pytest.raises(ValueError, match="no token with a probability above 0"):
            draw(torch.tensor([row]), half)
    for number in (1.0, -0.1, torch.nan):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            draw(torch.tensor([[0.5, 0.5]]), torch.tensor([number], dtype=torch.float64))


# --- dice ------------------------------------------------------------------------------------------------------------


def test_what_a_text_draws_does_not_depend_on_its_neighbours() -> None:
    alone = SeededRNG([(7, 0)])
    mine = [alone.uniform([0]).item() for _ in range(6)]
    crowd = SeededRNG([(1, 0), (7, 0), (7, 1), (2**70, 5)])
    assert [crowd.uniform([0, 1, 2])[1].item(), crowd.uniform([1]).item(), crowd.uniform([3, 1])[1].item()] == mine[:3]
    crowd.uniform([0, 2, 3])  # neighbours go on, this text waits
    assert [crowd.uniform([1]).item() for _ in range(3)] == mine[3:]


def test_streams_differ_and_their_numbers_are_even_and_unrelated() -> None:
    # Seeds alike in their lower 32 bits, seed and sample exchanged, digits that run together.
    streams = [(0, 0), (0, 1), (1, 0), (2**32, 0), (2**63, 0), (11, 1), (1, 11), (-1, 0)]
    rng = SeededRNG(streams)
    numbers = torch.stack([rng.uniform(range(len(streams))) for _ in range(4000)])
    assert numbers.dtype == torch.float64
    assert 0 <= numbers.min() < 0.001 < 0.999 < numbers.max() < 1
    assert len(numbers.flatten().unique()) == numbers.numel()
    assert (numbers.mean(0) - 0.5).abs().max() < 5 * (1 / 12 / 4000) ** 0.5
    related = torch.corrcoef(torch.cat((numbers[1:], numbers[:-1, :1]), 1).T) - torch.eye(len(streams) + 1)
    assert related.abs().max() < 5 / 4000**0.5


def test_the_numbers_stay_the_same_for_ever() -> None:
    """Texts are repeated from their seed: a change of these numbers is a change of every text."""
    assert SeededRNG([(0, 0), (42, 3)]).uniform([0, 1, 1]).tolist() == [
        0.633398068541001,
        0.7368338141251276,
        0.02699877190029243,
    ]


def test_a_stream_that_is_not_there_is_refused() -> None:
    for row in (1, -1):
        with pytest.raises(ValueError, match=f"there is no stream {row}; there are 1"):
            SeededRNG([(0, 0)]).uniform([row])


def test_numbers_of_the_cpu_give_the_same_draws_everywhere(device: torch.device) -> None:
    logits = torch.randn(200, 30, generator=torch.Generator().manual_seed(1))
    expected = sample_next(logits, uniforms(200))
    found = sample_next(logits.to(device), uniforms(200))
    assert torch.equal(found.cpu(), expected)
