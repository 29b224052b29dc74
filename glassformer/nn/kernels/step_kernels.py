"""Triton kernels of a decoding step: a few vectors per call, where a GPU waits for memory and for launches.

PyTorch's own kernels (``operators``) are made for many vectors: for a single one they load weights at two thirds of the
memory bandwidth, and need several launches where one is enough. The kernels here run where ``enabled`` says so: in a
step that is captured as a CUDA graph (from Python, launching them takes longer than running them), or in compiled code
without gradients. Tests compare each with its formula, by Triton's interpreter on a CPU and by
``benchmarks.decode_gpu`` on a GPU.

Shapes: ``r`` vectors, ``d_in`` and ``d_out`` widths, ``B`` rows, ``H`` heads, ``G`` key/value heads, ``T`` queries,
``S`` slots, ``K`` width of a head, ``P`` pairs of its dimensions that rotate.
"""

import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

MAX_VECTORS = 4  # vectors for which the weights are loaded only once
MAX_SLOTS = 2048  # slots up to which one program per key/value head is enough
# PyTorch's builds for GPUs bring Triton, but not the C compiler that it needs.
HAS_COMPILER = "CC" in os.environ or any(shutil.which(name) for name in ("cc", "gcc", "clang"))
HAS_TRITON = HAS_COMPILER and importlib.util.find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)
# The oldest NVIDIA GPUs, by compute capability, for which Triton compiles a type; (7, 0) for the others.
MIN_CAPABILITY = {torch.bfloat16: (8, 0), torch.float8_e4m3fn: (8, 9)}


class _Capturing(threading.local):
    active = False


_THREAD = _Capturing()


@contextmanager
def activate(fused: bool) -> Iterator[None]:
    """Use these kernels, if ``fused``, for this thread's calls in the block: the capture of a step and its warm-up."""
    before, _THREAD.active = _THREAD.active, HAS_TRITON and fused
    try:
        yield
    finally:
        _THREAD.active = before


def capturing(x: Tensor) -> bool:
    """Whether to use these kernels for a step that is being captured on the device of ``x``.

    Not in compiled code, where a compiler fuses them with their neighbours; for those that run there too, see
    ``enabled``.
    """
    return not torch.compiler.is_compiling() and x.is_cuda and _THREAD.active and supports_dtype(x.device, x.dtype)


def enabled(x: Tensor) -> bool:
    """Whether to use these kernels on the device of ``x``: in a captured step, or in compiled code for inference."""
    if not torch.compiler.is_compiling():
        return capturing(x)
    return HAS_TRITON and x.is_cuda and not torch.is_grad_enabled() and supports_dtype(x.device, x.dtype)


def supports_dtype(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether these kernels support a type on a GPU; float64 on none."""
    if dtype == torch.float64:
        return False
    is_amd = torch.version.hip is not None
    return is_amd or torch.cuda.get_device_capability(device) >= MIN_CAPABILITY.get(dtype, (7, 0))


# As torch.compiler.assume_constant_result does, which would import the compiler.
supports_dtype._dynamo_marked_constant = True  # type: ignore[attr-defined]


# ---- products


def use_matvec(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = (), scales: Sequence[Tensor] = ()
) -> bool:
    """Whether ``matvec`` is faster: a few vectors, in half precision."""
    if x.dtype not in HALF or not 0 < x.numel() <= MAX_VECTORS * x.shape[-1] or not enabled(x):
        return False
    has_loadable_weights = all(w.is_contiguous() and (w.dtype == x.dtype or w.dtype.itemsize == 1) for w in weights)
    fits = all(w.shape[1] == x.shape[-1] for w in weights)  # else PyTorch says what is wrong
    if not has_loadable_weights or not fits or not all(supports_dtype(x.device, w.dtype) for w in weights):
        return False
    # Biases and scales have one number per row of their matrix, contiguous.
    per_row = (
        number.shape == weight.shape[:1] and number.is_contiguous()
        for numbers in (biases, scales)
        for weight, number in zip(weights, numbers, strict=False)  # none, or one for each
    )
    return all(per_row)


@torch.library.custom_op("glassformer::matvec", mutates_args=())
def matvec(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """W x (+ b) of up to three matrices side by side, their rows multiplied by scales if there are any."""
    from glassformer.nn.kernels import triton_programs

    return triton_programs.matvec(x, weights, biases, scales)


@matvec.register_fake
def _(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    del biases, scales
    return x.new_empty(*x.shape[:-1], sum(weight.shape[0] for weight in weights))


def use_transposed(x: Tensor, weight: Tensor) -> bool:
    """Whether to compute W xᵀ: the rows of W are not a multiple of 8, so rows of x Wᵀ would not be aligned."""
    return weight.shape[0] % 8 != 0 and x.dtype in HALF and x.numel() <= 256 * x.shape[-1] and enabled(x)


def transposed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x (+ b), with the vectors as columns."""
    y = (weight @ x.reshape(-1, x.shape[-1]).t()).t().reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


# ---- attention


def use_attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> bool:
    """Whether ``attend`` is faster: a mask, and few queries for each key/value head."""
    return (
        mask is not None
        and dropout == 0.0
        and enabled(q)
        and q.shape[1] // k.shape[1] * q.shape[2] <= 16
        and k.shape[2] <= MAX_SLOTS
        and k.shape[-1] == v.shape[-1] <= 256
        and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        and mask.ndim == 4
        and mask.shape[-1] == k.shape[2]
        and mask.stride(-1) == 1
    )


@torch.library.custom_op("glassformer::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention with a mask or a bias ``(B, H, T, S)``, axes of size 1 included; slots that it hides are not loaded."""
    from glassformer.nn.kernels import triton_programs

    return triton_programs.attend(q, k, v, mask, scale)


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    del k, v, mask, scale
    batch, heads, tokens, width = q.shape
    return q.new_empty(batch, tokens, heads, width).transpose(1, 2)


# ---- everything else, only for captured steps: a compiler fuses these with their neighbours


def normalise(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, centre: bool) -> Tensor:
    """LayerNorm (``centre``) or RMSNorm."""
    from glassformer.nn.kernels import triton_programs

    return triton_programs.normalise(x, weight, bias, eps, centre=centre)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    """Rotate the pairs of vectors ``(B, 1, H, K)`` by angles of ``(B or 1, 1, 1, P)``."""
    from glassformer.nn.kernels import triton_programs

    return triton_programs.rotate(x, cos, sin, halves=halves)


def write_slot(k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, slot: Tensor) -> None:
    """Write keys and values ``(B, G, 1, K)`` into a slot of their buffers."""
    from glassformer.nn.kernels import triton_programs

    triton_programs.write_slot(k_new, v_new, k, v, slot)


def reorder(buffers: Sequence[Tensor], rows: Tensor, slot: Tensor, beams: int, since: int) -> None:
    """Copy row ``rows[i]`` of the buffers, a beam of the same prompt, to row i; only slots from ``since`` on."""
    from glassformer.nn.kernels import triton_programs

    triton_programs.reorder(buffers, rows, slot, beams, since)
