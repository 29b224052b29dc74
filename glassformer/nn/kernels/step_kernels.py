"""Triton kernels of a decoding step: a few vectors per call, where a GPU waits for memory and for launches.

``operators`` has PyTorch's own, which are made for many vectors: for one they load weights at two thirds of the speed
of memory, and take several launches where one is enough. These run where ``chosen`` says so: in a step that is
captured as a CUDA graph (launched from Python, they take longer to launch than to run), or in compiled code without
gradients. Each is tested equal to its formula, by Triton's interpreter on a CPU and by ``benchmarks.decode_gpu`` on a
GPU.

Shapes: ``r`` vectors, ``d_in`` and ``d_out`` widths, ``B`` rows, ``H`` heads, ``G`` key/value heads, ``T`` queries,
``S`` slots, ``K`` width of a head.
"""

import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

FEW = 4  # vectors for which the weights are loaded only once
MOST_SLOTS = 2048  # slots up to which one program per key/value head is enough
# PyTorch's builds for GPUs bring Triton, but not the C compiler that it needs.
HAS_COMPILER = "CC" in os.environ or any(shutil.which(name) for name in ("cc", "gcc", "clang"))
HAS_TRITON = HAS_COMPILER and importlib.util.find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)
# The oldest NVIDIA GPUs, by compute capability, for which Triton compiles a type; (7, 0) for the others.
LEAST_CAPABILITY = {torch.bfloat16: (8, 0), torch.float8_e4m3fn: (8, 9)}


class _Capturing(threading.local):
    captures = False


_THREAD = _Capturing()


@contextmanager
def step_kernels(fused: bool) -> Iterator[None]:
    """Choose these kernels, if ``fused``, for this thread's calls inside: a step that is captured, or warmed up."""
    before, _THREAD.captures = _THREAD.captures, HAS_TRITON and fused
    try:
        yield
    finally:
        _THREAD.captures = before


def captures(x: Tensor) -> bool:
    """Whether the device of ``x`` runs these kernels for a step that is being captured; a compiler has its own."""
    return not torch.compiler.is_compiling() and x.is_cuda and _THREAD.captures and has_type(x.device, x.dtype)


def chosen(x: Tensor) -> bool:
    """Whether the device of ``x`` runs these kernels: in a step that is captured, or in compiled code for inference."""
    if not torch.compiler.is_compiling():
        return captures(x)
    return HAS_TRITON and x.is_cuda and not torch.is_grad_enabled() and has_type(x.device, x.dtype)


def has_type(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a GPU runs these kernels for a type; none does for float64."""
    if dtype == torch.float64:
        return False
    is_amd = torch.version.hip is not None
    return is_amd or torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY.get(dtype, (7, 0))


# As torch.compiler.assume_constant_result does, which would import the compiler.
has_type._dynamo_marked_constant = True  # type: ignore[attr-defined]


# ---- products


def takes_matvec(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = (), factors: Sequence[Tensor] = ()
) -> bool:
    """Whether ``matvec`` is the faster way to multiply these vectors: a few, in half precision."""
    if x.dtype not in HALF or x.numel() > FEW * x.shape[-1] or not chosen(x):
        return False
    is_stored = all(w.is_contiguous() and (w.dtype == x.dtype or w.dtype.itemsize == 1) for w in weights)
    if not is_stored or not all(has_type(x.device, w.dtype) for w in weights):
        return False
    # A number for each row of its matrix, one after the other.
    by_row = (
        number.shape == weight.shape[:1] and number.is_contiguous()
        for numbers in (biases, factors)
        for weight, number in zip(weights, numbers, strict=False)  # none, or one for each
    )
    return all(by_row)


@torch.library.custom_op("glassformer::matvec", mutates_args=())
def matvec(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """W x (+ b) of up to three matrices side by side, their rows multiplied by factors if there are any."""
    from glassformer.nn.kernels import triton_programs

    return triton_programs.matvec(x, weights, biases, factors)


@matvec.register_fake
def _(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    del biases, factors
    return x.new_empty(*x.shape[:-1], sum(weight.shape[0] for weight in weights))


def takes_transposed(x: Tensor, weight: Tensor) -> bool:
    """Whether to compute (x Wᵀ)ᵀ: W has an odd number of rows, so that rows of the result would not be aligned."""
    return weight.shape[0] % 8 != 0 and x.dtype in HALF and x.numel() <= 256 * x.shape[-1] and chosen(x)


def transposed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x (+ b), with the vectors as columns."""
    y = (weight @ x.reshape(-1, x.shape[-1]).t()).t().reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


# ---- attention


def takes_attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Whether ``attend`` is the faster way: a few queries for each key/value head, and a mask that hides most slots."""
    return (
        mask is not None
        and chosen(q)
        and q.shape[1] // k.shape[1] * q.shape[2] <= 16
        and k.shape[2] <= MOST_SLOTS
        and k.shape[-1] == v.shape[-1] <= 256
        and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        and mask.stride(-1) == 1
        and mask.ndim == 4
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


# ---- everything else, for captured steps alone: a compiler fuses it with what is around it


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
    """Let row i of the buffers continue from row ``rows[i]``, a beam of the same prompt; slots since ``since`` move."""
    from glassformer.nn.kernels import triton_programs

    triton_programs.reorder(buffers, rows, slot, beams, since)
