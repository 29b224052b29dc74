"""Attention: softmax(Q Kᵀ / √d) V (Vaswani et al., 2017, section 3.2.1).

The argument ``path`` chooses between two implementations: ``eager`` is the formula, readable, and can return its
weights; ``sdpa`` calls fused kernels: PyTorch's, and in captured steps and compiled inference our Triton kernels
(``step_kernels``). Sliding windows are computed block by block (``windows``), packed documents as variable-length
sequences (``packed``). Tests check that both implementations agree.

Shapes: ``T`` queries, ``S`` keys, ``K`` width of a head, ``V`` width of a value, ``H`` heads, ``G`` key/value heads
(each serves H / G query heads), ``...`` any leading axes.
"""

import math
from typing import get_args

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.config.checks import check_choice, check_probability
from glassformer.config.options import AttentionPath as AttentionPath
from glassformer.nn.kernels import step_kernels
from glassformer.nn.kernels.packed import PackedMask, attend_packed, use_packed
from glassformer.nn.kernels.windows import WindowMask, attend_in_window, has_blocks, make_window_mask
from glassformer.nn.masks import DenseMask, Mask, as_mask
from glassformer.nn.norm import upcast, without_autocast
from glassformer.nn.observer import Observer, needs_formula, observe

PATHS = get_args(AttentionPath)
CAUSAL_PATHS = {"sdpa"}  # paths whose kernel has a flag for causal masks and needs no tensor for them
AnyMask = (
    Mask | DenseMask | WindowMask | PackedMask | Bool[Tensor, "... _ _"]
)  # (queries, keys), either of which may be 1
# Output, or (output, weights).
AttentionOutput = Float[Tensor, "... T V"] | tuple[Float[Tensor, "... T V"], Float[Tensor, "... T S"]]


def softmax(x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """exp(x) / Σ exp(x) along ``dim``, in at least float32; a slice of nothing but −inf gives zeros, not NaN."""
    if x.shape[dim] == 0:
        return x
    wide = upcast(x)
    # Subtracting the maximum changes no quotient and keeps exp from overflowing.
    maximum = wide.detach().amax(dim, keepdim=True)
    exponentials = torch.exp(wide - maximum.masked_fill(maximum == -torch.inf, 0.0))
    total = exponentials.sum(dim, keepdim=True)
    return (exponentials / total.masked_fill(total == 0, 1.0)).to(x.dtype)


def scaled_dot_product_attention(
    q: Float[Tensor, "... T K"],
    k: Float[Tensor, "... S K"],
    v: Float[Tensor, "... S V"],
    mask: AnyMask | None = None,
    *,
    bias: Float[Tensor, "... #T #S"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    path: AttentionPath = "sdpa",
    return_weights: bool = False,
    observer: Observer | None = None,
) -> AttentionOutput:
    """Average the values with the weights softmax(q · k · scale + bias), one average per query.

    Args:
        q: queries with any leading axes; the axis before the sequence is the heads.
        k: keys, which may have fewer heads than the queries; each then serves a group of query heads. Keys are not
            copied for that, except by PyTorch itself on the fused path where values and keys differ in width.
        v: values, one per key.
        mask: a ``Mask``, or booleans of shape ``(T, S)`` or with as many axes as the scores; ``True``: may attend. A
            query with nothing to attend to gets zeros. Key slots that no query attends to may hold anything, NaN
            included: they reach neither outputs nor gradients.
        bias: added to the scores; broadcasts to their shape.
        scale: factor on q · k; default 1 / √K.
        dropout: share of the weights set to zero. Pass 0 outside training.
        path: ``sdpa``, fused kernels, or ``eager``, the formula.
        return_weights: also return the weights ``(..., T, S)``, before dropout; needs ``path="eager"``.
        observer: sees ``scores`` and ``weights``; if it wants them, the formula is computed whatever ``path`` is.
    """
    if path not in PATHS or not 0.0 <= dropout < 1.0:
        check_choice("path", path, PATHS)
        check_probability(dropout=dropout)
    if observer is not None and needs_formula(observer):
        path = "eager"
    if return_weights and path != "eager":
        raise ValueError(f'path={path!r} does not compute the attention weights; use path="eager" to return them.')
    _check_shapes(q, k, v)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    empty = q.numel() == 0 or k.numel() == 0  # the formula handles empty tensors; some kernels crash
    fused = path == "sdpa" and not empty
    mask = _resolve_parts(q, k, v, mask, dropout, by_kernels=fused and bias is None)
    if isinstance(mask, WindowMask | PackedMask):  # blocks or documents instead of all pairs
        return _fused(q, k, v, mask, False, scale, dropout)
    # A Mask becomes booleans (or the flag "causal"), and the slots that it hides from every query become zeros.
    if not isinstance(mask, DenseMask):
        mask = _make_dense(q, k, v, mask, keep_causal=path in CAUSAL_PATHS and bias is None)
        if mask is not None and mask.allowed is not None:
            attended = _attended_keys(mask.allowed, k)  # ... S 1
            k, v = k.where(attended, 0.0), v.where(attended, 0.0)
    allowed, is_causal = (None, False) if mask is None else (mask.allowed, mask.causal)
    # Kernels take the causal flag only without a mask tensor; elsewhere it becomes the triangle (T, S).
    if is_causal and (bias is not None or not fused):
        allowed, is_causal = Mask(causal=True).dense((q.shape[-2], k.shape[-2]), q.device), False
    if fused:
        attn_mask = allowed if bias is None else merge_mask(bias.to(q.dtype), allowed)
        return _fused(q, k, v, attn_mask, is_causal, scale, dropout)
    assert path == "eager" or empty, f"no kernel for the path {path!r}"
    out, weights = _eager(q, k, v, allowed, bias, scale, dropout, observer)
    return (out, weights) if return_weights else out


def _resolve_parts(
    q: Tensor, k: Tensor, v: Tensor, mask: AnyMask | None, dropout: float, *, by_kernels: bool
) -> AnyMask | None:
    """Return a window and nothing else as blocks, where kernels take them; else blocks and documents as booleans."""
    if isinstance(mask, WindowMask | PackedMask):
        is_taken = by_kernels and (isinstance(mask, WindowMask) or use_packed(q, k, v, dropout))
        return mask if is_taken else DenseMask(mask.dense((*q.shape[:-1], k.shape[-2]), q.device))
    if not by_kernels or not isinstance(mask, Mask) or mask.window is None:
        return mask
    use_blocks = mask.keys is None and mask.pairs is None and has_blocks(mask, q.shape[-2], k.shape[-2])
    return make_window_mask(mask, q.shape[-2], q.device) if use_blocks else mask


def _make_dense(q: Tensor, k: Tensor, v: Tensor, mask: Mask | Tensor | None, *, keep_causal: bool) -> DenseMask | None:
    """Return the mask as booleans, or as the flag "causal" where the kernel has one."""
    if mask is None:
        return None
    mask = _check_mask_axes(mask, q)
    if keep_causal and q.shape[-2] == k.shape[-2] and mask.is_only_causal(k.shape[-2]):
        return DenseMask(causal=True)
    batch = batch_axes(q, k, v, trailing=3)
    return DenseMask(mask.dense((*batch, *q.shape[-3:-1], k.shape[-2]), q.device))


def merge_mask(
    bias: Float[Tensor, "... #T #S"], allowed: Bool[Tensor, "... #T #S"] | None
) -> Float[Tensor, "... #T #S"]:
    """Return the bias with −inf where the mask hides: fused kernels take mask and bias as one tensor."""
    return bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)


def _eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    scale: float,
    dropout: float,
    observer: Observer | None,
) -> tuple[Float[Tensor, "... T V"], Float[Tensor, "... T S"]]:
    """Follow the definition line by line. With fewer key heads, each of ``g`` key heads serves ``r`` query heads."""
    grouped = q.ndim > 2 and q.shape[-3] != k.shape[-3]
    if grouped:
        q = rearrange(q, "... (g r) t k -> ... g r t k", g=k.shape[-3])
        k, v = k.unsqueeze(-3), v.unsqueeze(-3)  # ... G 1 S K, ... G 1 S V
    # Scores q · k · scale, in at least float32 as inside the fused kernels: half precision overflows at 65,504.
    with without_autocast(q):
        scores = einsum(upcast(q), upcast(k), "... t k, ... s k -> ... t s") * scale
    if grouped:
        scores = rearrange(scores, "... g r t s -> ... (g r) t s")  # ... H T S
    if bias is not None:
        scores = scores + bias
    # Hidden keys get a weight of exactly 0: exp(−inf).
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    scores = observe(observer, "scores", scores)
    weights = observe(observer, "weights", softmax(scores, dim=-1).to(v.dtype))
    kept = F.dropout(weights, dropout)
    # Average the values.
    if grouped:
        kept = rearrange(kept, "... (g r) t s -> ... g r t s", g=k.shape[-4])
    out = einsum(kept, v, "... t s, ... s v -> ... t v")
    return (rearrange(out, "... g r t v -> ... (g r) t v") if grouped else out), weights


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | WindowMask | PackedMask | None,
    is_causal: bool,
    scale: float,
    dropout: float,
) -> Float[Tensor, "... T V"]:
    """Return the same by fused kernels (see above), on exactly four axes: batch, heads, sequence, width."""
    batch, shape = None, q.shape
    # Bring the inputs to four axes; a mask of three would keep PyTorch from its fused kernels.
    if q.ndim == 4 and q.shape[0] == k.shape[0] == v.shape[0]:
        if isinstance(attn_mask, Tensor) and attn_mask.ndim == 3:
            attn_mask = attn_mask[None]  # 1 H T S
    else:
        batch = batch_axes(q, k, v, trailing=3)
        q, k, v = (_four_axes(x, batch) for x in (q, k, v))
        if isinstance(attn_mask, Tensor) and attn_mask.ndim > 2:
            attn_mask = _four_axes(attn_mask, batch)
    # From here on: q (B, H, T, K), k (B, G, S, K), v (B, G, S, V).
    heads, groups = q.shape[1], k.shape[1]
    if isinstance(attn_mask, WindowMask):
        out = attend_in_window(q, k, v, attn_mask, scale, dropout)
    elif isinstance(attn_mask, PackedMask):
        out = attend_packed(q, k, v, attn_mask, scale)
    elif attn_mask is not None and step_kernels.use_attend(q, k, v, attn_mask, dropout):
        out = step_kernels.attend(q, k, v, attn_mask, scale)
    elif heads == groups:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal, scale=scale)
    elif q.shape[2] > 1:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal, scale=scale, enable_gqa=True)
    else:
        # A single query: the query heads of a group become the queries of one head, which copies no keys.
        q = q.reshape(len(q), groups, heads // groups, -1)  # B G r K
        if attn_mask is not None and attn_mask.ndim > 2 and attn_mask.shape[-3] > 1:
            attn_mask = attn_mask.reshape(*attn_mask.shape[:-3], groups, heads // groups, attn_mask.shape[-1])
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, scale=scale)
        out = out.reshape(len(q), heads, 1, -1)  # B H 1 V
    return out if batch is None else out.reshape(*batch, *shape[-3:-1], v.shape[-1])


def _four_axes(x: Tensor, batch: torch.Size) -> Tensor:
    if x.ndim == 2:
        return x[None, None]
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])


def batch_axes(*tensors: Tensor, trailing: int) -> torch.Size:
    """Return the shape that the axes of ``tensors`` before the last ``trailing`` ones broadcast to."""
    shapes = [tensor.shape[:-trailing] for tensor in tensors]
    if all(shape == shapes[0] for shape in shapes):  # the usual case; torch.broadcast_shapes imports for half a second
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        listed = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(f"queries, keys and values of shapes {listed} belong to batches of different sizes.") from None


def _check_mask_axes(mask: Mask | Tensor, q: Tensor) -> Mask:
    """Return booleans as a Mask, unless it is ambiguous which axes they have."""
    if isinstance(mask, Tensor) and 2 < mask.ndim < q.ndim:
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} for queries of shape {tuple(q.shape)} could be read in two ways. "
            f"Give it {q.ndim} axes (mask.unsqueeze(1) for one per batch row), or 2: (queries, keys)."
        )
    checked = as_mask(mask)
    assert checked is not None
    return checked


def _attended_keys(allowed: Bool[Tensor, "... T S"], k: Tensor) -> Bool[Tensor, "... S 1"]:
    """Return which key slots at least one query attends to, shaped to broadcast against ``k``."""
    attended = allowed.any(-2)
    if attended.ndim > 1 and attended.shape[-2] not in (1, k.shape[-3]):  # a mask per query head, keys shared by groups
        attended = rearrange(attended, "... (g r) s -> ... g r s", g=k.shape[-3]).any(-2)
    return attended.unsqueeze(-1)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    problem = None
    if not q.ndim == k.ndim == v.ndim or q.ndim < 2:
        problem = "q, k and v need the same number of axes, at least two"
    elif q.shape[-1] != k.shape[-1]:
        problem = "queries and keys must have the same width"
    elif k.shape[-2] != v.shape[-2]:
        problem = "k and v must have the same length"
    elif q.ndim > 2 and (k.shape[-3] != v.shape[-3] or q.shape[-3] % max(1, k.shape[-3])):
        problem = "the key/value heads must be the same number and divide the query heads"
    if problem is not None:
        raise ValueError(f"{problem}; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}.")
