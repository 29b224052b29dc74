"""Batches by number of examples or by a budget of tokens: every example once, at any place, little padding."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.batching import BatchPlan, BudgetPlan, FixedPlan

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def epoch_of(plan: BatchPlan, epoch: int) -> list[list[int]]:
    return [plan.at(epoch, number) for number in range(plan.batches(epoch))]


def together(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


@given(examples=st.integers(1, 40), size=st.integers(1, 12), epoch=st.integers(0, 5), shuffle=st.booleans())
def test_fixed_batches_have_every_example_once(examples: int, size: int, epoch: int, shuffle: bool) -> None:
    batches = epoch_of(FixedPlan(examples, size, seed=1, shuffle=shuffle), epoch)
    assert sorted(together(batches)) == list(range(examples))
    assert all(len(batch) == size for batch in batches[:-1])
    if not shuffle:
        assert together(batches) == list(range(examples))


def test_the_last_small_batch_can_be_dropped() -> None:
    kept, dropped = (FixedPlan(10, 4, seed=1, drop_last=drop) for drop in (False, True))
    assert epoch_of(dropped, 3) == epoch_of(kept, 3)[:2]
    assert (
        len({*together(epoch_of(dropped, 0)), *together(epoch_of(dropped, 1)), *together(epoch_of(dropped, 2))}) == 10
    )
    with pytest.raises(ValueError, match="do not fill a batch of 4"):
        FixedPlan(3, 4, seed=1, drop_last=True)


@given(lengths=LENGTHS, budget=st.integers(30, 200), window=st.integers(1, 70), epoch=st.integers(0, 3), data=st.data())
def test_budgets_hold_and_every_example_comes_once(
    lengths: list[int], budget: int, window: int, epoch: int, data: st.DataObject
) -> None:
    plan = BudgetPlan(lengths, budget, seed=data.draw(st.integers()), window=window, shuffle=data.draw(st.booleans()))
    batches = epoch_of(plan, epoch)
    assert sorted(together(batches)) == list(range(len(lengths)))
    for batch in batches:
        own = [lengths[number] for number in batch]
        assert max(own) * len(batch) <= budget
        assert own == sorted(own)


@pytest.mark.parametrize("window", [50, 400, 2000])
def test_padding_is_bounded_within_every_window(window: int) -> None:
    lengths = (np.random.default_rng(0).lognormal(3, 0.8, 2000).astype(int) + 1).clip(max=512)
    budget = 2048
    batches = epoch_of(BudgetPlan(lengths, budget, seed=1, window=window, shuffle=False), 0)
    padding = np.zeros(-(-len(lengths) // window))
    for batch in batches:
        assert len({number // window for number in batch}) == 1
        own = lengths[batch]
        padding[batch[0] // window] += own.max() * len(own) - own.sum()
    for number, wasted in enumerate(padding):
        own = lengths[number * window : (number + 1) * window]
        assert wasted <= budget * math.log(own.max() / own.min())
    if window == 2000:
        assert padding.sum() / lengths.sum() < 0.08


def test_batches_are_filled_as_far_as_they_can_be() -> None:
    lengths = [7] * 20 + [9] * 20
    batches = epoch_of(BudgetPlan(lengths, 30, seed=1, shuffle=False), 0)
    assert [len(batch) for batch in batches] == [4] * 5 + [3] * 6 + [2]


def test_order_is_shuffled_within_and_between_batches_and_differs_by_epoch() -> None:
    lengths = [1 + number % 5 for number in range(200)]
    plan = BudgetPlan(lengths, 20, seed=1, window=50)
    first, second = epoch_of(plan, 0), epoch_of(plan, 1)
    assert first != second
    longest = [lengths[batch[-1]] for batch in epoch_of(BudgetPlan(lengths, 20, seed=1, window=200), 0)]
    assert longest != sorted(longest)  # short and long batches are mixed, though one window is sorted
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}  # other company, too
    assert epoch_of(BudgetPlan(lengths, 20, seed=2, window=50), 0) != first
    assert epoch_of(BudgetPlan(lengths, 20, seed=1, window=50), 0) == first


def test_any_batch_can_be_asked_for_in_any_order() -> None:
    lengths = [1 + number % 7 for number in range(90)]
    whole = {epoch: epoch_of(BudgetPlan(lengths, 20, seed=1, window=30), epoch) for epoch in range(4)}
    plan = BudgetPlan(lengths, 20, seed=1, window=30)
    positions = [(epoch, number) for epoch, batches in whole.items() for number in range(len(batches))]
    for index in np.random.default_rng(0).permutation(len(positions)):
        epoch, number = positions[index]
        assert plan.at(epoch, number) == whole[epoch][number]


def test_examples_that_are_too_long() -> None:
    lengths = [5, 90, 7, 41, 40]
    with pytest.raises(ValueError, match=r"example 1 has 90 tokens, more than 80 \(1 of 5 do\)"):
        BudgetPlan(lengths, 80, seed=1)
    with pytest.raises(ValueError, match=r"example 1 has 90 tokens, more than 40 \(2 of 5 do\)"):
        BudgetPlan(lengths, 80, seed=1, longest=40)
    skipping = BudgetPlan(lengths, 80, seed=1, longest=40, too_long="skip")
    assert sorted(together(epoch_of(skipping, 0))) == [0, 2, 4]
    assert (skipping.skipped, skipping.examples) == ([1, 3], 5)
    cutting = BudgetPlan(lengths, 80, seed=1, longest=40, too_long="cut")
    assert sorted(together(epoch_of(cutting, 0))) == [0, 1, 2, 3, 4]
    assert all(max(min(lengths[n], 40) for n in batch) * len(batch) <= 80 for batch in epoch_of(cutting, 0))
    assert (cutting.skipped, cutting.longest) == ([], 40)
    with pytest.raises(ValueError, match="all 5 examples have more than 4"):
        BudgetPlan(lengths, 80, seed=1, longest=4, too_long="skip")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": []}, "no examples"),
        ({"lengths": [1, 0]}, "example 1 has no tokens"),
        ({"budget": 0}, "budget must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"longest": 11}, "longest=11 tokens cannot fit into a budget of 10"),
    ],
)
def test_what_makes_no_batches_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BudgetPlan(**{"lengths": [1], "budget": 10, "seed": 0, **settings})


def test_batches_outside_an_epoch_are_refused() -> None:
    for plan in (FixedPlan(4, 2, seed=0), BudgetPlan([1, 1], 1, seed=0)):
        for number in (2, -1):
            with pytest.raises(IndexError, match="has 2 batches"):
                plan.at(0, number)


def test_the_settings_tell_plans_apart() -> None:
    base: dict[str, Any] = {"lengths": [1, 2, 3], "budget": 10, "seed": 0}
    others: list[dict[str, Any]] = [
        {}, {"lengths": [1, 3, 2]}, {"budget": 11}, {"seed": 1}, {"shuffle": False}, {"window": 2}, {"longest": 5},
        {"too_long": "cut"},
    ]  # fmt: skip
    settings = [str(BudgetPlan(**{**base, **other}).settings) for other in others]
    settings += [str(FixedPlan(3, 2, seed=0).settings), str(FixedPlan(3, 2, seed=0, drop_last=True).settings)]
    settings += [str(FixedPlan(3, 1, seed=0).settings), str(FixedPlan(4, 2, seed=0).settings)]
    assert len(set(settings)) == len(settings)
    assert BudgetPlan(**base).settings == BudgetPlan(**base).settings
