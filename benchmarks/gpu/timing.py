"""Time and memory of a step on a device, and the ceilings of the machine."""

import gc
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch

from glassformer.inspect.account.measure import measure_machine

UNTIMED, TIMED = 8, 20  # steps before, which compile and allocate; steps whose median counts


class Timing(NamedTuple):
    """A step's median duration, the peak of its memory, and how long the steps before took."""

    seconds: float
    peak_bytes: int | None  # None: not known
    warmup_seconds: float


class Ceilings(NamedTuple):
    """What the machine can do at best, measured."""

    name: str
    product: float  # FLOP/s of products in bfloat16
    copy: float  # bytes per second, read and write counted


def measure_ceilings(device: str) -> Ceilings:
    """Measure products and copies; on a CPU in float32, because the result only shows that it runs."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    machine = measure_machine(dtype, device)
    release()
    assert machine.bandwidth is not None
    return Ceilings(machine.name.removeprefix("this machine: "), machine.flops[dtype], machine.bandwidth)


def time_steps(step: Callable[[], object], device: str, *, quick: bool = False, before: int = 0) -> Timing:
    """Call ``step`` some times and return the median duration of the later calls.

    On a GPU, events between the steps measure them, so that nothing waits for a step but the step itself.

    Args:
        step: queues or does the work of one step.
        device: where.
        quick: one step before and two timed ones.
        before: bytes that were allocated before anything of the contestant was; see ``allocated``.
    """
    untimed, timed = (1, 2) if quick else (UNTIMED, TIMED)
    start = time.perf_counter()
    for _ in range(untimed):
        step()
    _synchronize(device)
    warmup = time.perf_counter() - start
    seconds = _seconds_by_events(step, timed) if device != "cpu" else [_seconds(step) for _ in range(timed)]
    peak = None if device == "cpu" else torch.cuda.max_memory_allocated() - before
    return Timing(statistics.median(seconds), peak, warmup)


def allocated(device: str) -> int:
    """Return the bytes of tensors by now, and begin a new peak."""
    if device == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def release() -> None:
    """Free what nothing refers to any more: tensors, compiled graphs, the allocator's cache."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _seconds_by_events(step: Callable[[], object], count: int) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
