"""Attention within packed documents, without a mask of all pairs: PyTorch's kernel for variable-length sequences.

For documents packed into rows, ``attend_packed`` replaces the call of PyTorch's kernel with a mask ``(T, T)``, of which
most is hidden. Rows are joined into one sequence, and the kernel is told where each document begins. It needs half
precision, an NVIDIA GPU of the Ampere generation or later and torch 2.10 (``torch.nn.attention.varlen``), and has no
dropout.

Shapes: ``B`` batch, ``H`` heads, ``G`` key/value heads, ``T`` tokens, ``K`` width of a head, ``N`` documents.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from glassformer.nn.masks import Mask

HALF = (torch.float16, torch.bfloat16)
MAX_HEAD_WIDTH = 256  # the kernel's largest head, whose width must be a multiple of 8
MIN_CAPABILITY = (8, 0)  # of a GPU; FlashAttention supports no older one


@dataclass(frozen=True, eq=False)
class PackedMask:
    """Contiguous documents; made once for all layers. A run of padding counts as a document."""

    documents: Integer[Tensor, "B T"]  # the number of each token's document, 0 for padding
    offsets: Int[Tensor, "_"]  # (N + 1) where each document begins in the joined rows, and the end
    longest: int  # tokens of the longest document
    causal: bool

    def dense(self, score_shape: tuple[int, ...], device: torch.device) -> Bool[Tensor, "... T T"]:
        """Return the same mask for scores of shape ``(B, H, T, T)``, as the formula needs it."""
        pairs = self.documents.unsqueeze(-1) == self.documents.unsqueeze(-2)
        return Mask(causal=self.causal, keys=self.documents > 0, pairs=pairs).dense(score_shape, device)


def make_packed_mask(documents: Integer[Tensor, "B T"], *, causal: bool) -> PackedMask | None:
    """Return the mask of packed documents; None if one is not contiguous, or without tokens. Synchronises a GPU."""
    if documents.numel() == 0:
        return None
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    begins = starts.flatten().nonzero().squeeze(-1)  # N
    offsets = F.pad(begins, (0, 1), value=documents.numel())
    # Every document is contiguous if there are as many runs of tokens as documents.
    ordered = documents.sort(-1).values
    is_first = torch.ones_like(starts)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    counts = torch.stack([(starts & (documents > 0)).sum(), (is_first & (ordered > 0)).sum(), offsets.diff().max()])
    runs, distinct, longest = counts.tolist()
    return PackedMask(documents, offsets.int(), longest, causal) if runs == distinct else None


def has_packed_kernel(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether there is a kernel for packed documents and such heads, outside of compiled graphs, without gradients."""
    is_plain = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not is_plain or device.type != "cuda" or dtype not in HALF or width % 8 != 0 or width > MAX_HEAD_WIDTH:
        return False
    return torch.cuda.get_device_capability(device) >= MIN_CAPABILITY and _kernel() is not None


def use_packed(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether ``attend_packed`` takes these queries, keys and values."""
    width = q.shape[-1]
    fits = width == v.shape[-1] and q.ndim == 4 and q.dtype == k.dtype == v.dtype
    return fits and dropout == 0.0 and has_packed_kernel(q.device, q.dtype, width)


def attend_packed(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G T K"],
    v: Float[Tensor, "B G T K"],
    mask: PackedMask,
    scale: float,
) -> Float[Tensor, "B H T K"]:
    """Return attention within each document, as the formula computes it with ``mask.dense``."""
    kernel = _kernel()
    assert kernel is not None
    rows, (heads, groups) = len(q), (q.shape[1], k.shape[1])
    q, k, v = (rearrange(x, "b h t k -> (b t) h k") for x in (q, k, v))  # views, if heads are slices of vectors
    if groups != heads:
        k, v = (x.repeat_interleave(heads // groups, dim=1) for x in (k, v))
    window = (-1, 0) if mask.causal else (-1, -1)
    longest = mask.longest
    out = kernel(q, k, v, mask.offsets, mask.offsets, longest, longest, scale=scale, window_size=window)
    return rearrange(out, "(b t) h k -> b h t k", b=rows)


@cache
def _kernel() -> Callable[..., Any] | None:
    """Return PyTorch's kernel, if this version has it with the arguments that are used here."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"scale", "window_size"} <= inspect.signature(varlen_attn).parameters.keys() else None
