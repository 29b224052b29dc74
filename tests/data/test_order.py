"""The shuffled order: every number once, at any place, the same everywhere and without a pattern."""

import itertools
import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.batching import Cursor, Order, hashed
from tests.helpers import types_unchecked


def z_of_chi_square(counts: np.ndarray, freedom: int) -> float:
    """How many standard deviations the counts are from chance, were all cells equally likely."""
    expected = counts.mean()
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def epochs(count: int, number: int, seed: int = 1) -> np.ndarray:
    order = Order(count, seed)
    with types_unchecked():
        return np.stack([order.span(epoch, 0, count) for epoch in range(number)])


def test_every_number_once_for_all_small_counts() -> None:
    with types_unchecked():
        for count in [*range(1, 300), 997, 1024, 4097]:
            order = Order(count, seed=count)
            for epoch in (0, 1):
                assert np.array_equal(np.sort(order.span(epoch, 0, count)), np.arange(count)), count


@given(count=st.integers(1, 10**12), seed=st.integers(-(10**9), 10**20), epoch=st.integers(0, 10**6), data=st.data())
def test_any_place_can_be_asked_for_by_itself(count: int, seed: int, epoch: int, data: st.DataObject) -> None:
    order = Order(count, seed)
    start = data.draw(st.integers(0, count - 1))
    span = order.span(epoch, start, min(count, start + 7))
    assert [order.at(epoch, start + step) for step in range(len(span))] == span.tolist()
    assert len(set(span.tolist())) == len(span)
    assert span.min() >= 0
    assert span.max() < count


def test_the_same_on_every_machine() -> None:
    """GenerationOutput down once: a change of these numbers would make every run that is resumed see other data."""
    assert Order(10, seed=1).span(0, 0, 10).tolist() == [4, 7, 8, 2, 3, 0, 9, 6, 1, 5]
    assert Order(1000, seed=7).span(5, 0, 4).tolist() == [357, 149, 207, 575]
    assert Order(10**12, seed=-5).at(3, 123_456_789) == 820_985_107_388
    assert hashed("a", 1, -2) == 2_582_137_159_005_741_095


def test_epochs_seeds_and_counts_differ() -> None:
    rows = {tuple(Order(50, seed).span(epoch, 0, 50)) for seed in range(5) for epoch in range(5)}
    assert len(rows) == 25
    assert Order(51, 0).span(0, 0, 5).tolist() != Order(50, 0).span(0, 0, 5).tolist()
    assert Order(5, 0, shuffle=False).span(7, 1, 4).tolist() == [1, 2, 3]
    assert [Order(5, 0, shuffle=False).at(7, position) for position in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_all_orders_of_a_few_numbers_are_equally_likely(count: int) -> None:
    result = Counter(map(tuple, epochs(count, 2000).tolist()))
    counts = np.array([result[order] for order in itertools.permutations(range(count))])
    assert counts.sum() == 2000
    assert abs(z_of_chi_square(counts, len(counts) - 1)) < 4


@pytest.mark.parametrize("count", [7, 16, 60, 101])
def test_every_number_is_equally_likely_at_every_place(count: int) -> None:
    rows = epochs(count, 1500)
    cells = np.stack([np.bincount(rows[:, position], minlength=count) for position in range(count)])
    assert abs(z_of_chi_square(cells, (count - 1) ** 2)) < 4


def test_no_order_is_left() -> None:
    count = 2000
    rows = epochs(count, 300)
    where = np.arange(count)
    slopes = np.array([np.corrcoef(where, row)[0, 1] for row in rows]) * math.sqrt(count)  # standard normal by chance
    assert abs(slopes.mean()) * math.sqrt(len(rows)) < 4
    assert 0.8 < slopes.std() < 1.2
    steps = np.diff(rows, axis=1)
    for step in (1, -1, 2, 45, -45):  # neighbours that stay neighbours: about one per epoch by chance
        assert 0.7 < (steps == step).sum() / len(rows) < 1.3, step
    assert 0.7 < (rows == where).sum() / len(rows) < 1.3
    assert abs(np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]) * math.sqrt(rows.size) < 4
    cells, _, _ = np.histogram2d(np.tile(where, len(rows)), rows.ravel(), bins=10)
    assert z_of_chi_square(cells, 81) < 4  # less than chance is no fault: within an epoch no number comes twice


def test_a_run_is_one_row_of_positions_over_all_epochs() -> None:
    order = Order(7, seed=3)
    assert order.cursor(0) == Cursor(0, 0)
    assert order.cursor(20) == Cursor(2, 6)
    run = list(islice(order.walk(), 35))
    assert run == [number for epoch in range(5) for number in order.span(epoch, 0, 7)]
    for start in range(20):
        assert list(islice(order.walk(start), 10)) == run[start : start + 10]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_processes_together_see_the_order_of_one(world: int) -> None:
    order = Order(7, seed=3)
    shares = [list(islice(order.walk(5, rank=rank, world=world), 6)) for rank in range(world)]
    assert [number for step in zip(*shares, strict=True) for number in step] == list(islice(order.walk(5), 6 * world))


def test_places_outside_are_refused() -> None:
    order = Order(7, seed=3)
    for call in (lambda: order.at(0, 7), lambda: order.span(0, 3, 8), lambda: order.span(0, 3, 2)):
        with pytest.raises(IndexError, match="7 positions"):
            call()
    with pytest.raises(ValueError, match="rank must be below world=2"):
        next(order.walk(rank=2, world=2))
    with pytest.raises(ValueError, match="count must be at least 1"):
        Order(0, seed=0)
    with pytest.raises(ValueError, match="offset must be"):
        order.at(0, -1)


def test_hashes_tell_their_parts_apart() -> None:
    assert len({hashed(1, 23), hashed(12, 3), hashed("1", 23), hashed(1, 2, 3), hashed(123)}) == 5
    assert 0 <= hashed("x") < 2**63
