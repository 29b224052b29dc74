"""How many CPU threads a run computes with: the user's choice, what its checkpoint says, or a short measurement.

More threads are not always faster: a step of a small model spends more time waiting for all of them than it gains,
above all when other programs use the same cores. The number is measured for a new, uncompiled run of at least
``MIN_STEPS`` steps in one process on a CPU, if the user chose none (``run.threads``, OMP_NUM_THREADS) and the
estimated memory suffices: forward and backward passes on the first batches are timed with all threads (at most one for
each core that the process may use), then with fewer, and the smallest number within a tenth of the fastest is used.
Sums have another order with another number of threads, so a resumed run uses that of its checkpoint, with which it
continues bit for bit.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from glassformer.training.checkpoint_contents import saved_threads
from glassformer.training.parallel import Process

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # by which a user sets the number, as torch reads them
CONTROL_GROUP = Path("/sys/fs/cgroup")
MIN_STEPS = 100  # a shorter run is not worth a measurement
TOLERANCE = 1.1  # of the fastest time
SLOW = 1.5  # stop trying fewer threads once a count is this much slower than the fastest
REPEATS = 2  # timed passes, of which the fastest counts, after a warm-up pass
MAX_SECONDS = 5.0  # after which no further count is tried


@dataclass(frozen=True)
class ThreadPlan:
    """The outcome of ``start_threads``."""

    measures: bool  # the number is not decided yet and may be measured, by ``choose_threads``
    notes: tuple[str, ...] = ()


def start_threads(threads: int | None, checkpoint: Path | None, process: Process) -> ThreadPlan:
    """Set the number of threads of a run that begins or resumes, as far as it is decided.

    Args:
        threads: ``run.threads``.
        checkpoint: that the run resumes from.
        process: the current process; each process uses this many.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if process.device.type != "cpu":
        return ThreadPlan(False)
    saved = None if checkpoint is None else saved_threads(checkpoint)
    is_set = threads is not None or any(os.environ.get(name) for name in VARIABLES)
    if saved is None:
        return ThreadPlan(not is_set and checkpoint is None and process.world == 1 and torch.get_num_threads() > 1)
    if not is_set and saved <= usable_cores():
        torch.set_num_threads(saved)
        return ThreadPlan(False, (f"computing with {_count(saved)}, as before",))
    now = torch.get_num_threads()
    if now == saved:
        return ThreadPlan(False)
    reason = f"this process may use {_count(usable_cores(), 'core')}"
    if is_set:
        setting = "run.threads" if threads is not None else next(name for name in VARIABLES if os.environ.get(name))
        reason = f"this run uses {_count(now)} ({setting})"
    note = f"the checkpoint was written with {_count(saved)}, and {reason}"
    return ThreadPlan(False, (f"{note}: results will differ in the last digits from those of an uninterrupted run",))


@contextmanager
def computing_with(threads: int | None) -> Iterator[None]:
    """Set the number of CPU threads in the ``with`` block; None: leave it."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Return how many cores this process may use: those it is bound to, or less if its control group has a quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # versions 2 and 1
        paths = [CONTROL_GROUP / name for name in files]
        if all(path.is_file() for path in paths):
            quota, period = " ".join(path.read_text() for path in paths).split()
            if quota not in ("max", "-1"):
                cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores


def choose_threads(time_pass: Callable[[], float]) -> str:
    """Set the smallest number of threads that is about as fast as the best, and return a note that says why.

    ``time_pass``: makes a pass with the current number of threads and returns its seconds.
    """
    most = min(torch.get_num_threads(), usable_cores())  # torch counts cores beyond the quota of a control group
    seconds = _measure(time_pass, most)
    chosen = min(count for count, taken in seconds.items() if taken <= TOLERANCE * min(seconds.values()))
    torch.set_num_threads(chosen)
    return _explain(chosen, most, seconds)


def _measure(time_pass: Callable[[], float], most: int) -> dict[int, float]:
    """Return seconds by thread count: all threads, then decreasing powers of two, until one is clearly slower."""
    found: dict[int, float] = {}
    spent = 0.0
    for count in [most, *(2**power for power in reversed(range(most.bit_length())) if 2**power < most)]:
        torch.set_num_threads(count)
        taken = [time_pass() for _ in range(1 + REPEATS)]
        found[count] = min(taken[1:])
        spent += sum(taken)
        if found[count] > SLOW * min(found.values()) or spent > MAX_SECONDS:
            break
    return found


def _explain(chosen: int, most: int, seconds: Mapping[int, float]) -> str:
    others = ", ".join(
        f"{1e3 * taken:.3g} ms with {count}" for count, taken in sorted(seconds.items()) if count != chosen
    )
    compared = f" ({others})" if others else ""
    return (
        f"computing with {chosen} of {_count(most)}, the fewest that are about as fast as any: "
        f"{1e3 * seconds[chosen]:.3g} ms forward and backward{compared}; run.threads=N sets another number"
    )


def _count(number: int, what: str = "thread") -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
