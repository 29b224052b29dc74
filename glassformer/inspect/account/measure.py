"""What this machine can do: its best matrix product and its best copy, measured; and the time of a step.

The two figures are the axes of the roofline, for the machine one sits at. Torch is imported when something is measured.
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from glassformer.config.checks import check_choice, check_positive
from glassformer.inspect.account.hardware import DTYPES, Hardware

if TYPE_CHECKING:
    import torch

PRODUCT_SECONDS = 0.1  # long enough that starting it does not count
REPEATS = 10
CPU_BUDGET = 2**30  # bytes that a measurement may hold in main memory
LARGEST_COPY = 2**30  # bytes: beyond every cache


def measure_machine(dtype: str = "float32", device: str | None = None) -> Hardware:
    """Peak of matrix products in ``dtype`` and memory bandwidth of this machine, in a few seconds.

    FLOP/s: the best of several products of two square matrices, large enough that one takes about a tenth of a second.
    Bytes/s: the best of several copies, what is read and what is written both counted. ``device`` is "cpu", "cuda" or
    "cuda:1"; without it, the GPU where there is one. Only ``dtype`` is measured: 16-bit products are slow on most
    CPUs, and some virtual machines that promise matrix instructions stop the process at the first of them.
    """
    import torch

    check_choice("dtype", dtype, DTYPES)
    where = _device(device)
    if dtype == "float8":
        raise ValueError("float8 products are not measured: they need scales. Measure bfloat16, or look the peak up.")
    if dtype == "tf32" and where.type != "cuda":
        raise ValueError(f"tf32 is a mode of GPUs and cannot be measured on {where}: measure float32.")
    budget = _budget(where)
    with _precision("high" if dtype == "tf32" else "highest"):
        stored = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        size = _product_size(stored, where, budget)
        flops = _best_product(size, REPEATS, stored, where)
    copied = min(LARGEST_COPY, budget // 4)
    bandwidth = _best_copy(copied, REPEATS, where)
    threads = f", threads: {torch.get_num_threads()}" if where.type == "cpu" else ""
    source = (
        f"measured: best of {REPEATS} {dtype} products of {size:,} × {size:,} matrices and of {REPEATS} copies of "
        f"{copied / 2**20:,.0f} MiB, read and write counted; torch {torch.__version__}{threads}"
    )
    return Hardware(f"this machine: {_name(where)}", {dtype: flops}, bandwidth, _memory(where), source)


def measure_step(run: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds of ``run()``, after one call that is not timed: the first one also compiles and allocates.

    Where CUDA is in use, the time lasts until the current GPU has finished.
    """
    import torch

    check_positive(repeats=repeats)
    run()
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")  # type: ignore[no-untyped-call]
    return median(_seconds(run, device) for _ in range(repeats))


def processor() -> str:
    """The name of the CPU."""
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main_memory() -> int | None:
    """Bytes of main memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _device(name: str | None) -> "torch.device":
    """The device of that name, if it can be measured here."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda or a GPU by its number such as cuda:1, got {name!r}.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"only cpu and cuda can be measured, got {name!r}. For another device, give your own figures.")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"{name!r} cannot be measured: torch sees {count} GPUs here. Measure the CPU: device='cpu'.")
    return device


def _name(device: "torch.device") -> str:
    import torch

    return processor() if device.type == "cpu" else torch.cuda.get_device_name(device)


def _memory(device: "torch.device") -> int | None:
    import torch

    return main_memory() if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory


def _budget(device: "torch.device") -> int:
    """Bytes that a measurement may hold: a quarter of what is free on a GPU."""
    import torch

    return CPU_BUDGET if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // 4


@contextmanager
def _precision(name: str) -> Iterator[None]:
    """Products of float32 in full ("highest") or as tf32 ("high"), whatever the program has chosen for itself."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _product_size(dtype: "torch.dtype", device: "torch.device", budget: int, seconds: float = PRODUCT_SECONDS) -> int:
    """Side of square matrices whose product takes about ``seconds``, the three of them within ``budget`` bytes."""
    largest = int((budget / 3 / dtype.itemsize) ** 0.5)
    size = min(256, largest)
    while size < largest:
        took = 2 * size**3 / _best_product(size, 2, dtype, device)
        if took >= seconds / 8:  # near enough to reckon from: twice the side is eight times the work
            size = int(size * (seconds / took) ** (1 / 3))
            break
        size *= 2
    size = min(size, largest)
    return size // 64 * 64 or size  # kernels are at their best with multiples of their tiles


def _best_product(size: int, repeats: int, dtype: "torch.dtype", device: "torch.device") -> float:
    """FLOP/s of the fastest of ``repeats`` products of two (size, size) matrices, 2·size³ FLOPs each."""
    import torch

    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))  # (size, size)
    product = torch.empty_like(left)
    return 2 * size**3 / _fastest(lambda: torch.mm(left, right, out=product), repeats, device)


def _best_copy(size: int, repeats: int, device: "torch.device") -> float:
    """Bytes/s of the fastest of ``repeats`` copies of ``size`` bytes, which are read once and written once."""
    import torch

    source = torch.ones(size // 4, device=device)  # written, for memory that never was may not be read from memory
    target = torch.zeros_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), repeats, device)


def _fastest(run: Callable[[], object], repeats: int, device: "torch.device") -> float:
    """Seconds of the fastest of ``repeats`` calls, after one that is not timed."""
    run()
    return min(_seconds(run, device) for _ in range(repeats))


def _seconds(run: Callable[[], object], device: "torch.device") -> float:
    """Seconds of one call, until the device has finished."""
    _finish(device)
    start = perf_counter()
    run()
    _finish(device)
    return perf_counter() - start


def _finish(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
