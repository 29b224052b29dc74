"""Early stopping, by hand; stops by signals."""

import json
import math
import signal

import pytest

from glassformer.training.stopping import EarlyStopping, StopSignals


def decisions(stopping: EarlyStopping, *values: float) -> str:
    """A letter per validation: b for a better one, w for one that waits; an exclamation mark once it is over."""
    marks = ""
    for value in values:
        marks += "b" if stopping.better(value) else "w"
        marks += "!" * stopping.is_over
    return marks


def test_a_loss_that_stops_falling() -> None:
    assert decisions(EarlyStopping(2), 3.0, 2.0, 2.5, 1.5, 1.5, 1.6) == "bbwbww!"
    assert decisions(EarlyStopping(1), 3.0, 3.0) == "bw!"


def test_a_score_that_stops_rising() -> None:
    assert decisions(EarlyStopping(2, smaller_is_better=False), 0.1, 0.3, 0.2, 0.3, 0.9) == "bbww!b"


def test_small_changes_are_measured_from_the_best_that_counted() -> None:
    assert decisions(EarlyStopping(9, least_change=0.25), 1.0, 0.875, 0.75, 0.625, 0.5) == "bwwbw"
    stopping = EarlyStopping(9, smaller_is_better=False, least_change=0.25)
    assert decisions(stopping, 0.0, 0.25, 0.375, 0.5) == "bwbw"
    assert stopping.best == 0.375


@pytest.mark.parametrize("smaller", [True, False])
def test_nan_is_never_better(smaller: bool) -> None:
    stopping = EarlyStopping(3, smaller_is_better=smaller)
    assert decisions(stopping, math.nan, 1.0, math.nan, math.nan, math.nan) == "wbwww!"
    assert stopping.best == 1.0


def test_infinities() -> None:
    assert decisions(EarlyStopping(3), math.inf, 5.0, -math.inf, math.nan) == "wbbw"
    assert decisions(EarlyStopping(3, smaller_is_better=False), -math.inf, 5.0, math.inf) == "wbb"


@pytest.mark.parametrize("before", [0, 1, 4, 5])
def test_it_goes_on_from_where_it_was(before: int) -> None:
    values = (3.0, 2.0, 2.5, 1.5, 1.5, 1.6)
    whole, first, second = EarlyStopping(2), EarlyStopping(2), EarlyStopping(2)
    expected = [whole.better(value) for value in values]
    result = [first.better(value) for value in values[:before]]
    tensors, facts = first.state()
    assert tensors == {}
    second.restore(tensors, json.loads(json.dumps(facts, allow_nan=False)))
    assert second.is_over == first.is_over
    assert result + [second.better(value) for value in values[before:]] == expected
    assert (second.best, second.waited, second.is_over) == (whole.best, whole.waited, True)


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="patience must be at least 1, got 0"):
        EarlyStopping(0)
    for wrong in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="least_change must be a finite number of at least 0"):
            EarlyStopping(1, least_change=wrong)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_after_the_first_signal_either_one_acts_at_once(first: signal.Signals) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with StopSignals() as stop:
        signal.raise_signal(first)
        assert stop.received
        assert {number: signal.getsignal(number) for number in before} == before
    assert {number: signal.getsignal(number) for number in before} == before
