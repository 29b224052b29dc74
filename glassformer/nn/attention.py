"""Attention: softmax(Q Kᵀ / √d) V (Vaswani et al., 2017, section 3.2.1).

Two paths, one meaning: ``eager`` is the formula, readable, and can return its weights; ``sdpa`` hands the same question
to PyTorch's fused kernels. Tests hold the two equal.

Shapes: ``T`` queries, ``S`` keys, ``K`` width of a head, ``V`` width of a value, ``H`` heads, ``G`` key/value heads
(each serves H / G query heads), ``...`` any leading axes.
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.config.checks import check_choice, check_probability
from glassformer.nn.masks import DenseMask, Mask, as_mask
from glassformer.nn.norm import upcast, without_autocast

AttentionPath = Literal["eager", "sdpa"]
PATHS = get_args(AttentionPath)
KNOWS_CAUSAL = {"sdpa"}  # paths whose kernel understands the word "causal" and needs no triangle written out
AnyMask = Mask | DenseMask | Bool[Tensor, "... _ _"]  # (queries, keys), either of which may be 1
MaybeWeights = Float[Tensor, "... T V"] | tuple[Float[Tensor, "... T V"], Float[Tensor, "... T S"]]


def softmax(x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """exp(x) / Σ exp(x) along ``dim``, in at least float32; a slice of nothing but −inf gives zeros, not NaN."""
    if x.shape[dim] == 0:
        return x
    wide = upcast(x)
    largest = wide.detach().amax(dim, keepdim=True)
    # Taking off the largest changes no quotient and keeps exp from overflowing.
    powers = torch.exp(wide - largest.masked_fill(largest == -torch.inf, 0.0))
    total = powers.sum(dim, keepdim=True)
    return (powers / total.masked_fill(total == 0, 1.0)).to(x.dtype)


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
) -> MaybeWeights:
    """Average the values with the weights softmax(q · k · scale + bias), one average per query.

    Args:
        q: any leading axes; the axis before the sequence counts as heads.
        k: may have fewer heads than the queries; each then serves a group of query heads. Keys are not copied for that,
            except by PyTorch itself on the fused path where values and keys differ in width.
        v: as many as there are keys.
        mask: a ``Mask``, or booleans of shape ``(T, S)`` or with as many axes as the
            scores; ``True`` attends. A query with nothing to attend gets zeros. Key slots that no query attends may
            hold anything, NaN included: they reach neither outputs nor gradients.
        bias: added to the scores; fits them by ordinary broadcasting.
        scale: factor on q · k; 1 / √K unless given.
        dropout: share of the weights set to zero. Pass 0 outside training.
        path: ``sdpa`` or ``eager``.
        return_weights: also return the weights ``(..., T, S)``, before dropout; needs ``path="eager"``.
    """
    check_choice("path", path, PATHS)
    check_probability(dropout=dropout)
    if return_weights and path != "eager":
        raise ValueError(f'path={path!r} never writes the attention weights down; ask for them with path="eager".')
    _check_shapes(q, k, v)
    if not isinstance(mask, DenseMask):
        mask = _written_out(q, k, v, mask, keep_causal=path in KNOWS_CAUSAL and bias is None)
        if mask is not None and mask.allowed is not None:
            attended = _attended_keys(mask.allowed, k)
            k, v = k.where(attended, 0.0), v.where(attended, 0.0)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    allowed, is_causal = (None, False) if mask is None else (mask.allowed, mask.causal)
    empty = q.numel() == 0 or k.numel() == 0  # of nothing, the formula makes nothing; some kernels crash
    fused = path == "sdpa" and not empty
    if is_causal and (bias is not None or not fused):  # the flag is only for a kernel that gets no mask tensor besides
        allowed, is_causal = Mask(causal=True).dense((q.shape[-2], k.shape[-2]), q.device), False
    if fused:
        return _fused(q, k, v, hidden_or_biased(allowed, bias, q.dtype), is_causal, scale, dropout)
    assert path == "eager" or empty, f"no kernel for the path {path!r}"
    out, weights = _formula(q, k, v, allowed, bias, scale, dropout)
    return (out, weights) if return_weights else out


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Mask | Tensor | None, *, keep_causal: bool) -> DenseMask | None:
    """The mask as booleans, or as the flag "causal" where the kernel knows it."""
    if mask is None:
        return None
    mask = _unambiguous(mask, q)
    if keep_causal and q.shape[-2] == k.shape[-2] and mask.is_only_causal(k.shape[-2]):
        return DenseMask(causal=True)
    batch = batch_axes(q, k, v, trailing=3)
    return DenseMask(mask.dense((*batch, *q.shape[-3:-1], k.shape[-2]), q.device))


def hidden_or_biased(allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What the fused kernels add to the scores: booleans, or numbers with −inf where nobody may look.

    Both fit the scores ``(..., T, S)`` by broadcasting.
    """
    if bias is None:
        return allowed
    bias = bias.to(dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)


def _formula(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, bias: Tensor | None, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """The definition, line by line. Where there are fewer key heads, each of ``g`` meets its ``r`` query heads."""
    grouped = q.ndim > 2 and q.shape[-3] != k.shape[-3]
    if grouped:
        q = rearrange(q, "... (g r) t k -> ... g r t k", g=k.shape[-3])
        k, v = k.unsqueeze(-3), v.unsqueeze(-3)
    with without_autocast(q):  # in at least float32, as the fused kernels do inside: half overflows at 65,504
        scores = einsum(upcast(q), upcast(k), "... t k, ... s k -> ... t s") * scale
    if grouped:
        scores = rearrange(scores, "... g r t s -> ... (g r) t s")
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = softmax(scores, dim=-1).to(v.dtype)
    kept = F.dropout(weights, dropout)
    if grouped:
        kept = rearrange(kept, "... (g r) t s -> ... g r t s", g=k.shape[-4])
    out = einsum(kept, v, "... t s, ... s v -> ... t v")
    return (rearrange(out, "... g r t v -> ... (g r) t v") if grouped else out), weights


def _fused(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, is_causal: bool, scale: float, dropout: float
) -> Tensor:
    """The same through PyTorch's kernels, which are fast for exactly four axes: batch, heads, sequence, width."""
    if q.ndim == 4 and len(q) == len(k) == len(v):
        if hidden is not None and hidden.ndim == 3:  # with three axes PyTorch passes the fused kernels over
            hidden = hidden[None]  # 1 H T S
        return _four_axes_fused(q, k, v, hidden, is_causal, scale, dropout)
    batch = batch_axes(q, k, v, trailing=3)
    q4, k4, v4 = (_four_axes(x, batch) for x in (q, k, v))
    if hidden is not None and hidden.ndim > 2:
        hidden = _four_axes(hidden, batch)
    out = _four_axes_fused(q4, k4, v4, hidden, is_causal, scale, dropout)
    return out.reshape(*batch, *q.shape[-3:-1], v.shape[-1])


def _four_axes_fused(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    hidden: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B H T V"]:
    heads, groups = q.shape[1], k.shape[1]
    if heads == groups:
        return F.scaled_dot_product_attention(q, k, v, hidden, dropout, is_causal, scale=scale)
    if q.shape[2] == 1:  # one query: the query heads of a group as so many queries of one head, which copies no keys
        q = q.reshape(len(q), groups, heads // groups, -1)
        if hidden is not None and hidden.ndim > 2 and hidden.shape[-3] > 1:
            hidden = hidden.reshape(*hidden.shape[:-3], groups, heads // groups, hidden.shape[-1])
        out = F.scaled_dot_product_attention(q, k, v, hidden, dropout, scale=scale)
        return out.reshape(len(q), heads, 1, -1)
    return F.scaled_dot_product_attention(q, k, v, hidden, dropout, is_causal, scale=scale, enable_gqa=True)


def _four_axes(x: Tensor, batch: torch.Size) -> Tensor:
    if x.ndim == 2:
        return x[None, None]
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])


def batch_axes(*tensors: Tensor, trailing: int) -> torch.Size:
    """What the axes of ``tensors`` before the last ``trailing`` ones broadcast to."""
    shapes = [tensor.shape[:-trailing] for tensor in tensors]
    if all(shape == shapes[0] for shape in shapes):  # the usual case; torch's own answer costs half a second of imports
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        named = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(f"queries, keys and values of shapes {named} belong to batches of different sizes.") from None


def _unambiguous(mask: Mask | Tensor, q: Tensor) -> Mask:
    """A Mask as it is; a tensor only if its axes leave no doubt about what they are."""
    if isinstance(mask, Tensor) and 2 < mask.ndim < q.ndim:
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} for queries of shape {tuple(q.shape)} could be read in two ways. "
            f"Give it {q.ndim} axes (mask.unsqueeze(1) for one per batch row), or 2: (queries, keys)."
        )
    known = as_mask(mask)
    assert known is not None
    return known


def _attended_keys(allowed: Bool[Tensor, "... T S"], k: Tensor) -> Bool[Tensor, "... S 1"]:
    """Which key slots at least one query attends, shaped to select among ``k``."""
    attended = allowed.any(-2)
    if attended.ndim > 1 and attended.shape[-2] not in (1, k.shape[-3]):  # a mask per query head, keys shared by groups
        attended = rearrange(attended, "... (g r) s -> ... g r s", g=k.shape[-3]).any(-2)
    return attended.unsqueeze(-1)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    wrong = None
    if not q.ndim == k.ndim == v.ndim or q.ndim < 2:
        wrong = "q, k and v need the same number of axes, at least two"
    elif q.shape[-1] != k.shape[-1]:
        wrong = "queries and keys must have the same width"
    elif k.shape[-2] != v.shape[-2]:
        wrong = "every key needs a value"
    elif q.ndim > 2 and (k.shape[-3] != v.shape[-3] or q.shape[-3] % max(1, k.shape[-3])):
        wrong = "the key/value heads must be the same number and divide the query heads"
    if wrong is not None:
        raise ValueError(f"{wrong}; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}.")
