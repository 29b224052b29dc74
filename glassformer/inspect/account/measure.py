"""Benchmarks this machine (FLOP/s of matrix products, memory bandwidth), and the time of an account's step on it.

The two peaks are the axes of the roofline. Torch is imported when something is measured.

Shapes: ``B`` batch, ``T`` tokens, ``S`` tokens of the source.
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from glassformer.config.checks import Setting, SettingError, check_choice, check_positive_integer
from glassformer.inspect.account.hardware import DTYPES, Hardware

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from glassformer.inspect.account.account import Account
    from glassformer.models.transformer import Transformer
    from glassformer.nn.attention import AttentionPath

TimedStep = Callable[[], object]

PRODUCT_SECONDS = 0.1  # long enough that launch overhead does not count
REPEATS = 10
CPU_BUDGET = 2**30  # bytes of main memory that a measurement may use
MAX_COPY = 2**30  # bytes: beyond every cache


def measure_machine(dtype: str = "float32", device: str | None = None) -> Hardware:
    """Return this machine's peak of matrix products in ``dtype`` and its memory bandwidth; takes a few seconds.

    FLOP/s: the best of several products of two square matrices, large enough that one takes about a tenth of a second.
    Bytes/s: the best of several copies, read and write both counted. ``device`` is "cpu", "cuda" or "cuda:1"; by
    default the GPU if there is one. Only ``dtype`` is measured: 16-bit products are slow on most CPUs, and some virtual
    machines that claim to support matrix instructions crash on the first of them.
    """
    import torch

    check_choice("dtype", dtype, DTYPES)
    target = _device(device)
    if dtype == "float8":
        raise ValueError(
            "float8 products are not measured: they need scales. Measure bfloat16, or use a published peak."
        )
    if dtype == "tf32" and target.type != "cuda":
        raise ValueError(f"tf32 is a mode of GPUs and cannot be measured on {target}: measure float32.")
    # FLOP/s: the fastest product of large square matrices.
    budget = _budget(target)
    with _precision("high" if dtype == "tf32" else "highest"):
        stored = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        size = _product_size(stored, target, budget)
        flops = _best_product(size, REPEATS, stored, target)
    # Bytes/s: the fastest copy.
    copied = min(MAX_COPY, budget // 4)
    bandwidth = _best_copy(copied, REPEATS, target)
    threads = f", threads: {torch.get_num_threads()}" if target.type == "cpu" else ""
    source = (
        f"measured: best of {REPEATS} {dtype} products of {size:,} × {size:,} matrices and of {REPEATS} copies of "
        f"{copied / 2**20:,.0f} MiB, read and write counted; torch {torch.__version__}{threads}"
    )
    return Hardware(f"this machine: {_name(target)}", {dtype: flops}, bandwidth, _memory(target), source)


def measure_step(run: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of ``run()`` in seconds, after one warm-up call, which also compiles and allocates.

    If CUDA is in use, the time includes a synchronisation with the current GPU.
    """
    import torch

    check_positive_integer(repeats=repeats)
    run()
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")  # type: ignore[no-untyped-call]
    return median(_seconds(run, device) for _ in range(repeats))


def processor() -> str:
    """Return the name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main_memory() -> int | None:
    """Return the size of main memory in bytes; None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _device(name: str | None) -> "torch.device":
    """Return the device of that name; raises if it cannot be measured."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda or a GPU by its index such as cuda:1, got {name!r}.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"only cpu and cuda can be measured, got {name!r}. For another device, pass your own peaks.")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        template = f"{{}} cannot be measured: torch sees {count} GPUs. Measure the CPU: {{}}."
        raise SettingError(template, repr(name), Setting("device", "cpu"))
    return device


def _name(device: "torch.device") -> str:
    import torch

    return processor() if device.type == "cpu" else torch.cuda.get_device_name(device)


def _memory(device: "torch.device") -> int | None:
    import torch

    return main_memory() if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory


def _budget(device: "torch.device") -> int:
    """Return how many bytes a measurement may use: a quarter of the free memory of a GPU."""
    import torch

    return CPU_BUDGET if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // 4


@contextmanager
def _precision(name: str) -> Iterator[None]:
    """Set the precision of float32 products, "highest" or tf32 ("high"), and restore it afterwards."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _product_size(dtype: "torch.dtype", device: "torch.device", budget: int, seconds: float = PRODUCT_SECONDS) -> int:
    """Return the size of square matrices whose product takes about ``seconds``.

    All three matrices fit in ``budget`` bytes.
    """
    largest = int((budget / 3 / dtype.itemsize) ** 0.5)
    size = min(256, largest)
    while size < largest:
        elapsed = 2 * size**3 / _best_product(size, 2, dtype, device)
        if elapsed >= seconds / 8:  # close enough to extrapolate: twice the size is eight times the work
            size = int(size * (seconds / elapsed) ** (1 / 3))
            break
        size *= 2
    size = min(size, largest)
    return size // 64 * 64 or size  # kernels are fastest for multiples of their tiles


def _best_product(size: int, repeats: int, dtype: "torch.dtype", device: "torch.device") -> float:
    """FLOP/s of the fastest of ``repeats`` products of two (size, size) matrices, 2·size³ FLOPs each."""
    import torch

    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))  # (size, size)
    product = torch.empty_like(left)
    return 2 * size**3 / _fastest(lambda: torch.mm(left, right, out=product), repeats, device)


def _best_copy(size: int, repeats: int, device: "torch.device") -> float:
    """Bytes/s of the fastest of ``repeats`` copies of ``size`` bytes, each read once and written once."""
    import torch

    source = torch.ones(
        size // 4, device=device
    )  # ones, not empty: pages that were never written may not be read from memory
    target = torch.zeros_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), repeats, device)


def _fastest(run: Callable[[], object], repeats: int, device: "torch.device") -> float:
    """Return the time in seconds of the fastest of ``repeats`` calls, after one warm-up call."""
    run()
    return min(_seconds(run, device) for _ in range(repeats))


def _seconds(run: Callable[[], object], device: "torch.device") -> float:
    """Return the time of one call in seconds, including synchronisation of the device."""
    _synchronize(device)
    start = perf_counter()
    run()
    _synchronize(device)
    return perf_counter() - start


def _synchronize(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- a step of an account


def measure_account(account: "Account", *, device: str | None = None, repeats: int = 3) -> float:
    """Return the median time of the pass, training step or decoding step of an account, with random weights.

    ``device`` defaults to the GPU if there is one. A training step is forward, cross-entropy, backward and AdamW.
    Attention runs as in the account (``sdpa`` or ``eager``).
    """
    import torch

    from glassformer.models.transformer import Transformer

    if account.config is None:
        raise ValueError(f"{account.name} is no Transformer of this library; time it with measure.measure_step.")
    if account.mode == "train" and account.optimizer != "adamw":
        raise ValueError(f"a step is run with optimizer='adamw', and this account has {account.optimizer!r}.")
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _check_memory(account, target)
    model = Transformer(account.config, target, getattr(torch, account.dtype))
    tokens = account.source if account.config.decoder is None else account.context
    ids = torch.zeros(account.batch, tokens, dtype=torch.long, device=target)  # (B, T)
    source = torch.zeros(account.batch, account.source, dtype=torch.long, device=target)  # (B, S)
    path = account.attention
    model.fused = path == "sdpa"
    make_step = {"forward": _forward_step, "train": _training_step, "decode": _decoding_step}[account.mode]
    return measure_step(make_step(model, ids, source, path), repeats)


def _check_memory(account: "Account", device: "torch.device") -> None:
    import torch

    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else main_memory()
    if available is not None and account.memory.peak > available:
        raise ValueError(
            f"{account.name} needs {account.memory.peak / 1e9:.1f} GB to run, and {device} has {available / 1e9:.1f} "
            f"GB. Take a smaller batch or context, or a narrower dtype."
        )


def _logits(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> "Tensor":
    """Return the output of the model for every token: (B, T, vocabulary or labels)."""
    is_encoder_decoder = model.config.family == "encoder-decoder"
    output = model(source, target=ids, path=path) if is_encoder_decoder else model(ids, path=path)
    logits: Tensor = output[0] if isinstance(output, tuple) else output
    return logits


def _forward_step(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> TimedStep:
    import torch

    model.eval()
    return torch.inference_mode()(lambda: _logits(model, ids, source, path))


def _training_step(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> TimedStep:
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        logits = _logits(model, ids, source, path).flatten(0, -2)  # (B·T, classes)
        targets = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        F.cross_entropy(logits, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _decoding_step(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> TimedStep:
    """Decode one more token; each call removes from the cache what it added."""
    import torch

    from glassformer.nn.cache import KVCache

    model.eval()
    length = ids.shape[1] - 1
    cache = KVCache(capacity=length + 1)
    with torch.inference_mode():
        memory = None if model.encoder is None else model.encode(source, path=path)
        model.decode(ids[:, : max(1, length)], memory=memory, cache=cache, path=path)
        cache.crop(length)

    def step() -> None:
        with torch.inference_mode():
            hidden = model.decode(ids[:, -1:], memory=memory, cache=cache, path=path)  # (B, 1, width)
            model.apply_head(hidden)
            cache.crop(length)

    return step
