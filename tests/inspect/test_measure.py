"""Measuring with tiny sizes: that the figures are figures. How high they are is the machine's business."""

from math import isfinite

import pytest
import torch

from glassformer.inspect.account import measure
from glassformer.inspect.account.hardware import Hardware
from glassformer.inspect.account.measure import main_memory, measure_machine, measure_step, processor

CPU = torch.device("cpu")


@pytest.fixture
def tiny(monkeypatch):
    """The whole measurement, in milliseconds: matrices and copies of kilobytes."""
    monkeypatch.setattr(measure, "CPU_BUDGET", 2**14)
    monkeypatch.setattr(measure, "REPEATS", 2)


@pytest.mark.usefixtures("tiny")
def test_a_machine():
    machine = measure_machine(device="cpu")
    assert isinstance(machine, Hardware)
    assert machine.name == f"this machine: {processor()}"
    assert list(machine.flops) == ["float32"]
    assert 0 < machine.peak("float32") < float("inf")
    assert 0 < machine.bandwidth < float("inf")
    assert machine.memory == main_memory()
    assert "best of 2 float32 products of 36 × 36 matrices" in machine.source  # 3 × 36² × 4 bytes are within 2¹⁴
    assert f"torch {torch.__version__}, threads: {torch.get_num_threads()}" in machine.source


@pytest.mark.usefixtures("tiny")
def test_only_the_requested_dtype_is_measured(monkeypatch):
    seen = []
    best = measure._best_product
    monkeypatch.setattr(measure, "_best_product", lambda *args: seen.append(args[2]) or best(*args))
    assert list(measure_machine("float16", "cpu").flops) == ["float16"]
    assert set(seen) == {torch.float16}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("chosen", ["highest", "medium"])
def test_float32_is_measured_in_full_and_the_choice_restored(monkeypatch, chosen):
    during = []
    best = measure._best_product
    monkeypatch.setattr(
        measure, "_best_product", lambda *args: during.append(torch.get_float32_matmul_precision()) or best(*args)
    )
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(chosen)
    try:
        measure_machine(device="cpu")
        assert set(during) == {"highest"}
        assert torch.get_float32_matmul_precision() == chosen
    finally:
        torch.set_float32_matmul_precision(before)


def test_flops_and_bytes_are_counted(monkeypatch, device):
    """With a clock that says a tenth of a second: 2·n³ FLOPs, and every byte read and written."""
    monkeypatch.setattr(measure, "_seconds", lambda run, _: (run(), 0.1)[1])
    assert measure._best_product(8, 3, torch.float32, device) == pytest.approx(10_240)
    assert measure._best_copy(400, 3, device) == pytest.approx(8000)


def test_real_clocks(device):
    for figure in (measure._best_product(16, 2, torch.float32, device), measure._best_copy(4096, 2, device)):
        assert isfinite(figure)
        assert figure > 0


def test_the_fastest_call_counts(monkeypatch):
    times = iter([0.5, 0.2, 0.3])
    monkeypatch.setattr(measure, "_seconds", lambda *_: next(times))
    calls = []
    assert measure._fastest(lambda: calls.append(1), 3, CPU) == 0.2
    assert len(calls) == 1  # the one that is not timed


def test_the_size_is_chosen_for_the_time(monkeypatch):
    """A machine of 10¹² FLOP/s does 10¹¹ FLOPs in a tenth of a second: matrices of (10¹¹ / 2)^⅓ ≈ 3,684."""
    monkeypatch.setattr(measure, "_best_product", lambda *_: 1e12)
    assert measure._product_size(torch.float32, CPU, 2**40, 0.1) == 3648  # 57 × 64
    assert measure._product_size(torch.float32, CPU, 3 * 4 * 1000**2, 0.1) == 960  # the memory allows 1,000
    assert measure._product_size(torch.float16, CPU, 3 * 2 * 1000**2, 0.1) == 960
    monkeypatch.setattr(measure, "_best_product", lambda *_: 1e6)  # 33 seconds already for the first
    assert measure._product_size(torch.float32, CPU, 2**40, 0.1) == 36


@pytest.mark.parametrize(
    ("dtype", "device", "message"),
    [
        ("float64", "cpu", "dtype must be one of"),
        ("float8", "cpu", "float8 products are not measured"),
        ("tf32", "cpu", "tf32 is a mode of GPUs and cannot be measured on cpu"),
        ("float32", "abacus", "device must be cpu, cuda or a GPU by its index such as cuda:1, got 'abacus'"),
        ("float32", "meta", "only cpu and cuda can be measured, got 'meta'"),
        ("float32", "cuda:99", r"'cuda:99' cannot be measured: torch sees \d+ GPUs\. .* device='cpu'\.$"),
    ],
)
def test_unsupported_measurements_are_refused(dtype, device, message):
    with pytest.raises(ValueError, match=message):
        measure_machine(dtype, device)


def test_a_step_is_timed_by_its_median(monkeypatch):
    times = iter([5.0, 0.1, 0.2, 9.0, 0.3])
    monkeypatch.setattr(measure, "_seconds", lambda run, _: (run(), next(times))[1])
    calls = []
    assert measure_step(lambda: calls.append(1)) == 0.3
    assert len(calls) == 6  # five that are timed, after one that is not


def test_a_step_is_timed_until_the_device_is_synchronized(monkeypatch):
    events = []
    monkeypatch.setattr(measure, "_synchronize", lambda _: events.append("finished"))
    monkeypatch.setattr(measure, "perf_counter", lambda: events.append("clock") or float(len(events)))
    assert measure_step(lambda: events.append("run"), repeats=1) == 3.0  # from the third event to the sixth
    assert events == ["run", "finished", "clock", "run", "finished", "clock"]


def test_a_step_is_timed_at_least_once():
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        measure_step(lambda: None, repeats=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "bfloat16"])
def test_a_gpu(dtype, monkeypatch):
    monkeypatch.setattr(measure, "_budget", lambda _: 2**22)
    machine = measure_machine(dtype)
    assert machine.name == f"this machine: {torch.cuda.get_device_name()}"
    assert machine.peak(dtype) > 0
    assert machine.memory == torch.cuda.get_device_properties(0).total_memory
