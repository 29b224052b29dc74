"""Published peak FLOP/s and bandwidth of devices, and the roofline: the least time of an account on a device.

Standard library only.

Every arithmetic peak is *dense*. Vendors like to print the peak for matrices with 2:4 sparsity, which is twice as high
and which no ordinary matrix product reaches; where only that is printed, the table has half of it and the source says
so. Consumer cards are listed with float32 accumulation, as training needs. ``float32`` means plain float32 arithmetic;
``tf32`` is the mode that rounds its inputs to 10 bits of mantissa. Gigabytes and gigabytes per second are 10⁹ bytes,
unless the vendor writes GiB. Most devices have a few per cent more memory than that; the driver and the libraries take
about as much.

Roofline (Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model for multicore
architectures"): arithmetic and memory traffic overlap, so the slower of the two sets the time::

    seconds = max(FLOPs / peak, bytes / bandwidth)

Which one it is depends on the arithmetic intensity of the operation, FLOPs / bytes, and on the ridge point of the
device, peak / bandwidth: below the ridge the operation is memory-bound, above it compute-bound. The estimate is a lower
bound without launch overhead, caches and kernels that miss the peak.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import fsum, isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple

from glassformer.config.checks import Setting, SettingError, check_choice, check_positive_number

if TYPE_CHECKING:
    from glassformer.inspect.account.account import Account
    from glassformer.inspect.account.tree import PartCost

OPTIMIZER = "optimizer"
KERNEL = "kernel"
IN_KERNEL = ("scores", "weighted_sum", KERNEL)
DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8")


@dataclass(frozen=True)
class Hardware:
    """One device: its peaks and their source."""

    name: str
    flops: Mapping[str, float]  # dtype → dense peak of matrix products, FLOP/s
    bandwidth: float  # bytes/s between the device's memory and its cores
    memory: float | None  # bytes; None: unknown
    source: str

    def __post_init__(self) -> None:
        if not self.flops:
            raise ValueError(f"{self.name} needs a peak for at least one dtype of {', '.join(DTYPES)}.")
        for dtype, peak in self.flops.items():
            check_choice("dtype", dtype, DTYPES)
            check_positive_number(**{f"flops of {dtype}": peak})
        check_positive_number(bandwidth=self.bandwidth)
        if self.memory is not None:
            check_positive_number(memory=self.memory)

    def peak(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s of matrix products in ``dtype``."""
        check_choice("dtype", dtype, DTYPES)
        if dtype not in self.flops:
            raise ValueError(
                f"{self.name} has no peak for {dtype}: its source gives {', '.join(self.flops)}. "
                "Choose one of these, or pass your own peaks."
            )
        return self.flops[dtype]


def hardware(name: str) -> Hardware:
    """Return a device of the table, whatever the case, spaces and hyphens of its name: ``hardware("a100-sxm-80gb")``.

    A prefix is not enough: an H100 for PCIe is another device than an H100 SXM.
    """
    key = _key(name)
    if key in _BY_KEY:
        return _BY_KEY[key]
    close = hardware_with_prefix(name) or [_BY_KEY[match] for match in get_close_matches(key, _BY_KEY, n=1)]
    hint = f" Did you mean {' or '.join(repr(device.name) for device in close)}?" if close else ""
    raise SettingError(
        "the device {} is not in the table.{} Known: {}. For another device, set {} (FLOP/s) and {} (bytes/s).",
        repr(name),
        hint,
        ", ".join(HARDWARE),
        Setting("flops"),
        Setting("bandwidth"),
    )


def hardware_with_prefix(prefix: str) -> list[Hardware]:
    """Return the devices of the table whose names start with ``prefix``, whatever the case, spaces and hyphens."""
    key = _key(prefix)
    return [device for name, device in _BY_KEY.items() if key and name.startswith(key)]


def custom_hardware(*, flops: float | Mapping[str, float], bandwidth: float, memory: float | None = None) -> Hardware:
    """Return a device that is not in the table.

    Args:
        flops: peak FLOP/s of matrix products; one number for all dtypes, or one for each.
        bandwidth: bytes/s of its memory.
        memory: bytes of its memory.
    """
    if not isinstance(flops, Mapping):
        check_positive_number(flops=flops)
        flops = dict.fromkeys(DTYPES, flops)
    return Hardware("your device", flops, bandwidth, memory, "your own figures")


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


# ---- the roofline


class Operation(NamedTuple):
    """One operation: its FLOPs, and the bytes it moves to and from memory."""

    name: str
    flops: float
    bytes: float


class Estimate(NamedTuple):
    """The least time of one operation, and what bounds it."""

    name: str
    seconds: float  # the larger of the next two
    compute_seconds: float  # FLOPs / peak
    memory_seconds: float  # bytes / bandwidth
    bound: Literal["compute", "memory"]  # which of them is larger; compute at the ridge point, where they are equal


def roofline(operations: Iterable[Operation], device: Hardware, dtype: str) -> list[Estimate]:
    """Return the least time of each operation on a device in ``dtype``."""
    peak = device.peak(dtype)
    return [_estimate(operation, peak, device.bandwidth) for operation in operations]


def _estimate(operation: Operation, peak: float, bandwidth: float) -> Estimate:
    for name, amount in (("flops", operation.flops), ("bytes", operation.bytes)):
        if not (isfinite(amount) and amount >= 0):
            raise ValueError(f"{name} of {operation.name!r} must be a finite number of at least 0, got {amount!r}.")
    compute, memory = operation.flops / peak, operation.bytes / bandwidth
    bound: Literal["compute", "memory"] = "compute" if compute >= memory else "memory"
    return Estimate(operation.name, max(compute, memory), compute, memory, bound)


def total_seconds(estimates: Iterable[Estimate]) -> float:
    """Return the time of all operations, one after the other."""
    return fsum(estimate.seconds for estimate in estimates)


def ridge_point(device: Hardware, dtype: str) -> float:
    """peak / bandwidth in FLOPs per byte: the arithmetic intensity from which operations are compute-bound."""
    return device.peak(dtype) / device.bandwidth


@dataclass(frozen=True)
class Timing:
    """The least time of every operation of an account on one device; ``work`` and ``estimates`` have the same order."""

    hardware: Hardware
    dtype: str
    tokens: int
    work: list[Operation]
    estimates: list[Estimate]

    @property
    def seconds(self) -> float:
        """One operation after the other."""
        return total_seconds(self.estimates)

    @property
    def tokens_per_second(self) -> float:
        """Upper bound of the throughput."""
        return self.tokens / self.seconds

    @property
    def ridge(self) -> float:
        """Ridge point in FLOPs per byte."""
        return ridge_point(self.hardware, self.dtype)

    @property
    def compute_share(self) -> float:
        """The share of the time in compute-bound operations; the rest is memory-bound."""
        return total_seconds(estimate for estimate in self.estimates if estimate.bound == "compute") / self.seconds

    @property
    def bound(self) -> str:
        """What bounds most of the time."""
        return "compute" if self.compute_share >= 0.5 else "memory"


def time_on(account: "Account", device: Hardware) -> Timing:
    """Return the least time of an account on a device.

    Each part is one operation, and so is a fused kernel, which multiplies twice and moves its data once. A training
    step is the forward pass, the traced backward pass, and the optimizer, which reads weights, gradients and its states
    and writes weights and states.
    """
    work = _operations(account)
    return Timing(device, account.dtype, account.tokens, work, roofline(work, device, account.dtype))


def _operations(account: "Account") -> list[Operation]:
    """Return the work of each part without its inner parts, forward and, in training, backward."""
    kernels = {part.path.removesuffix(f".{KERNEL}") for part in account.root.walk() if part.name == KERNEL}
    operations: dict[str, Operation] = {}
    for part in account.root.walk():
        # The products of a fused kernel are part of the kernel.
        parent, _, name = part.path.rpartition(".")
        path = f"{parent}.{KERNEL}" if name in IN_KERNEL and parent in kernels else part.path
        known = operations.get(path, Operation(path, 0, 0))
        flops = sum(_exclusive(part, field) for field in ("flops", "backward_flops", "recomputed"))
        size = sum(_exclusive(part, field) for field in ("bytes_moved", "backward_bytes"))
        operations[path] = Operation(path, known.flops + flops, known.bytes + size)
    if account.mode == "train":
        gradients, states = (
            account.memory.gradients,
            account.memory.optimizer,
        )  # trained weights: as many bytes as grads
        operations[OPTIMIZER] = Operation(OPTIMIZER, 0, 2 * (gradients + states) + gradients)
    return [operation for operation in operations.values() if operation.flops or operation.bytes]


def _exclusive(part: "PartCost", field: str) -> int:
    """Return an amount of a part without its inner parts."""
    total: int = getattr(part, field)
    return total - sum(getattr(inner, field) for inner in part.parts)


# ---- the table of devices

_HALVED = "tensor-core figures halved (the datasheet quotes them with sparsity)"
_DEVICES: tuple[tuple[str, tuple[float | None, ...], float, float, str], ...] = (
    # name, TFLOP/s in float32, tf32, float16, bfloat16, float8, bytes/s, bytes, source
    ("V100 SXM2 32GB", (15.7, None, 125, None, None), 900e9, 32e9,
     "NVIDIA V100 Tensor Core GPU datasheet, January 2020"),
    ("T4", (8.1, None, 65, None, None), 320e9, 16e9,
     "NVIDIA T4 datasheet, March 2019; bandwidth from the T4 product brief (256 bits at 10 Gbit/s)"),
    ("A100 SXM 40GB", (19.5, 156, 312, 312, None), 1555e9, 40e9,
     "NVIDIA A100 Tensor Core GPU Architecture, whitepaper, 2020"),
    ("A100 SXM 80GB", (19.5, 156, 312, 312, None), 2039e9, 80e9,
     "NVIDIA A100 Tensor Core GPU datasheet, June 2021"),
    ("H100 SXM", (66.9, 494.7, 989.4, 989.4, 1978.9), 3.35e12, 80e9,
     "NVIDIA H100 Tensor Core GPU Architecture, whitepaper, 2022; bandwidth from the H100 datasheet"),
    ("H200 SXM", (67, 494.5, 989.5, 989.5, 1979), 4.8e12, 141e9,
     f"NVIDIA H200 Tensor Core GPU datasheet, 2024; {_HALVED}"),
    ("B200", (75, 1100, 2250, 2250, 4500), 7.7e12, 180e9,
     f"NVIDIA Blackwell datasheet, one GPU of an HGX B200, 2025; {_HALVED}"),
    ("L4", (30.3, 60, 121, 121, 242.5), 300e9, 24e9,
     f"NVIDIA L4 Tensor Core GPU datasheet, 2023; {_HALVED}"),
    ("L40S", (91.6, 183, 362.05, 362.05, 733), 864e9, 48e9,
     "NVIDIA L40S datasheet, 2023"),
    ("RTX 3090", (35.6, 35.6, 71, 71, None), 936e9, 24e9,
     "NVIDIA Ampere GA102 GPU Architecture, whitepaper v2.0, 2021; float32 accumulation"),
    ("RTX 4090", (82.6, 82.6, 165.2, 165.2, 330.3), 1008e9, 24e9,
     "NVIDIA Ada GPU Architecture, whitepaper, 2022; float32 accumulation"),
    ("MI300X", (163.4, 653.7, 1307.4, 1307.4, 2614.9), 5.3e12, 192e9,
     "AMD Instinct MI300X Accelerator data sheet, December 2023"),
    ("Apple M1 Max", (10.4, None, None, None, None), 400e9, 64e9,
     "Apple, presentation and press release of 18 October 2021: 32-core GPU, largest memory, unified"),
    ("Apple M2", (3.6, None, None, None, None), 100e9, 24e9,
     "Apple, presentation and press release of 6 June 2022: 10-core GPU, largest memory, unified"),
    ("TPU v4", (None, None, None, 275, None), 1200e9, 32 * 2**30,
     "Google Cloud documentation, one chip: https://cloud.google.com/tpu/docs/v4"),
    ("TPU v5e", (None, None, None, 197, None), 819e9, 16e9,
     "Google Cloud documentation, one chip: https://cloud.google.com/tpu/docs/v5e"),
    ("TPU v5p", (None, None, None, 459, None), 2765e9, 95e9,
     "Google Cloud documentation, one chip: https://cloud.google.com/tpu/docs/v5p"),
)  # fmt: skip
HARDWARE: dict[str, Hardware] = {
    name: Hardware(
        name,
        {dtype: float(round(peak * 1e12)) for dtype, peak in zip(DTYPES, peaks, strict=True) if peak is not None},
        bandwidth,
        memory,
        source,
    )
    for name, peaks, bandwidth, memory, source in _DEVICES
}
_BY_KEY = {_key(name): device for name, device in HARDWARE.items()}
