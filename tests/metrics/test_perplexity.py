"""Perplexity and bits: from sums, exact where they are known, infinite where no number is great enough."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.metrics.text import perplexity


@pytest.mark.parametrize("choices", [1, 2, 10, 50_257])
def test_a_model_that_knows_nothing_has_as_many_choices_as_there_are(choices: int) -> None:
    result = perplexity(7 * math.log(choices), 7, text_bytes=14)
    assert result.perplexity == pytest.approx(choices)
    assert result.bits_per_token == pytest.approx(math.log2(choices))
    assert result.bits_per_byte == pytest.approx(math.log2(choices) / 2)
    assert result.loss == pytest.approx(math.log(choices))


def test_figures() -> None:
    assert perplexity(8 * math.log(2), 4).metrics() == pytest.approx({"perplexity": 4.0, "bits per token": 2.0})
    with_bytes = perplexity(8 * math.log(2), 4, text_bytes=16).metrics()
    assert with_bytes == pytest.approx({"perplexity": 4.0, "bits per token": 2.0, "bits per byte": 0.5})
    assert perplexity(1.0, 4).bits_per_byte is None


def test_it_is_of_sums_and_no_mean_of_batches() -> None:
    batches = [(2.0, 10), (30.0, 10), (5.0, 1)]
    whole = perplexity(37.0, 21)
    assert whole.perplexity == pytest.approx(math.exp(37 / 21))
    losses = [nll / tokens for nll, tokens in batches]
    assert abs(whole.perplexity - math.exp(sum(losses) / 3)) > 1
    assert abs(whole.perplexity - sum(perplexity(*batch).perplexity for batch in batches) / 3) > 1


@given(st.floats(0, allow_nan=False, allow_infinity=True), st.integers(1, 10**12))
def test_no_sum_is_too_great(nll: float, tokens: int) -> None:
    result = perplexity(nll, tokens, text_bytes=tokens)
    assert result.perplexity >= 1
    assert all(value >= 0 for value in result.metrics().values())


def test_overflow_is_infinite() -> None:
    assert math.isfinite(perplexity(709.0, 1).perplexity)
    for nll in (710.0, 1e308, math.inf):
        assert perplexity(nll, 1).perplexity == math.inf
    assert perplexity(1e308, 1).bits_per_token == pytest.approx(1e308 / math.log(2))
    assert math.isnan(perplexity(math.nan, 3).perplexity)  # what is no number stays none


def test_errors() -> None:
    for tokens in (0, -1):
        with pytest.raises(ValueError, match=f"tokens must be at least 1, got {tokens}"):
            perplexity(1.0, tokens)
    with pytest.raises(ValueError, match="text_bytes must be at least 1, got 0"):
        perplexity(1.0, 1, text_bytes=0)
    with pytest.raises(ValueError, match=r"nll must be at least 0, got -3.0: of log-probabilities, give the negative"):
        perplexity(-3.0, 2)
    assert perplexity(-1e-7, 3).perplexity == pytest.approx(1.0)  # a sum of rounded numbers
