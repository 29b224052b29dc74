"""The roofline against times worked out by hand."""

from math import inf, nan

import pytest

from glassformer.inspect.account.hardware import (
    Estimate,
    Operation,
    custom_hardware,
    hardware,
    ridge_point,
    roofline,
    total_seconds,
)
from tests.helpers import types_unchecked

DEVICE = custom_hardware(
    flops={"float32": 100, "float16": 400}, bandwidth=10
)  # FLOP/s, bytes/s: ridges at 10 and 40 FLOPs a byte


def test_the_slower_of_arithmetic_and_memory_sets_the_time():
    product, sum_, nothing = roofline(
        [Operation("product", 1000, 20), Operation("sum", 30, 120), Operation("nothing", 0, 0)], DEVICE, "float32"
    )
    assert product == Estimate("product", 10.0, 10.0, 2.0, "compute")
    assert sum_ == Estimate("sum", 12.0, 0.3, 12.0, "memory")
    assert (nothing.seconds, nothing.compute_seconds, nothing.memory_seconds) == (0, 0, 0)
    assert total_seconds([product, sum_, nothing]) == 22.0


def test_the_dtype_chooses_the_peak():
    [half] = roofline([Operation("product", 1000, 20)], DEVICE, "float16")
    assert half == Estimate("product", 2.5, 2.5, 2.0, "compute")
    with pytest.raises(ValueError, match="has no peak for tf32"):
        roofline([], DEVICE, "tf32")


def test_only_arithmetic_and_only_memory():
    arithmetic, memory = roofline([Operation("a", 50, 0), Operation("m", 0, 5)], DEVICE, "float32")
    assert arithmetic == Estimate("a", 0.5, 0.5, 0.0, "compute")
    assert memory == Estimate("m", 0.5, 0.0, 0.5, "memory")


@pytest.mark.parametrize(("dtype", "ridge"), [("float32", 10), ("float16", 40)])
def test_the_bound_changes_at_the_ridge(dtype, ridge):
    assert ridge_point(DEVICE, dtype) == ridge
    below, at, above = roofline(
        [Operation("below", ridge - 1, 1), Operation("at", ridge, 1), Operation("above", ridge + 1, 1)], DEVICE, dtype
    )
    assert [estimate.bound for estimate in (below, at, above)] == ["memory", "compute", "compute"]
    assert at.compute_seconds == at.memory_seconds == at.seconds == below.seconds == 0.1
    assert above.seconds > 0.1


def test_a_published_ridge():
    """312 TFLOP/s over 2,039 GB/s."""
    assert ridge_point(hardware("a100 sxm 80gb"), "bfloat16") == pytest.approx(153.02, abs=0.005)


def test_one_pass_over_an_iterator_and_none_at_all():
    assert len(roofline((Operation(str(n), n, n) for n in range(3)), DEVICE, "float32")) == 3
    assert roofline([], DEVICE, "float32") == []
    assert total_seconds([]) == 0


@pytest.mark.parametrize("bad", [-1, inf, nan])
def test_impossible_work_is_refused(bad):
    with types_unchecked():
        with pytest.raises(ValueError, match="flops of 'odd' must be a finite number of at least 0"):
            roofline([Operation("odd", bad, 1)], DEVICE, "float32")
        with pytest.raises(ValueError, match="bytes of 'odd' must be a finite number of at least 0"):
            roofline([Operation("odd", 1, bad)], DEVICE, "float32")
