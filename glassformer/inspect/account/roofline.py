"""The roofline: the least time a piece of work can take on a device. Standard library only.

Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model for multicore architectures".
Arithmetic and memory traffic go on at the same time, so the slower of the two sets the time::

    seconds = max(FLOPs / peak, bytes / bandwidth)

Which one it is depends on the arithmetic intensity of the work, FLOPs / bytes, and on the ridge point of the device,
peak / bandwidth: below the ridge the memory sets the time, above it the arithmetic. The estimate is a lower bound: it
knows no launch costs, no caches and no kernel that misses the peak.
"""

from collections.abc import Iterable
from math import fsum, inf, isfinite
from typing import Literal, NamedTuple

from glassformer.inspect.account.hardware import Hardware


class Work(NamedTuple):
    """What one operation does: its floating-point operations and the bytes it moves to and from memory."""

    name: str
    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOPs / bytes: ∞ where nothing is moved, 0 where there is no arithmetic."""
        if self.bytes:
            return self.flops / self.bytes
        return inf if self.flops else 0.0


class Estimate(NamedTuple):
    """The least time of one operation, and what sets it."""

    name: str
    seconds: float  # the larger of the next two
    compute_seconds: float  # FLOPs / peak
    memory_seconds: float  # bytes / bandwidth
    bound: Literal["compute", "memory"]  # which of them is larger; at the ridge point, where they are equal: compute


def roofline(work: Iterable[Work], hardware: Hardware, dtype: str) -> list[Estimate]:
    """Each operation's least time on ``hardware`` in ``dtype``; no work takes no time."""
    peak = hardware.peak(dtype)
    return [_estimate(one, peak, hardware.bandwidth) for one in work]


def total_seconds(estimates: Iterable[Estimate]) -> float:
    """The operations one after the other: the sum of their times."""
    return fsum(one.seconds for one in estimates)


def ridge_point(hardware: Hardware, dtype: str) -> float:
    """peak / bandwidth, FLOPs per byte: the arithmetic intensity from which on the arithmetic sets the time."""
    return hardware.peak(dtype) / hardware.bandwidth


def _estimate(work: Work, peak: float, bandwidth: float) -> Estimate:
    for what, amount in (("flops", work.flops), ("bytes", work.bytes)):
        if not (isfinite(amount) and amount >= 0):
            raise ValueError(f"{what} of {work.name!r} must be a finite number of at least 0, got {amount!r}.")
    compute, memory = work.flops / peak, work.bytes / bandwidth
    bound: Literal["compute", "memory"] = "compute" if compute >= memory else "memory"
    return Estimate(work.name, max(compute, memory), compute, memory, bound)
