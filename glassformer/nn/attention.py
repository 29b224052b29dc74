"""Attention: softmax(Q Kᵀ / √d) V, in one head and in many (Vaswani et al., 2017, section 3.2).

Two paths, one meaning: ``eager`` is the formula, readable, and can return its weights; ``sdpa`` hands the same question
to PyTorch's fused kernels. Tests hold the two equal.

Shapes: ``T`` queries, ``S`` keys, ``K`` width of a head, ``V`` width of a value, ``H`` heads, ``G`` key/value heads
(each serves H / G query heads), ``D`` model width, ``...`` any leading axes.
"""

import math
from typing import Literal, TypedDict, Unpack

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer.config import check_choice, check_divides, check_positive, check_probability
from glassformer.nn.linear import Linear
from glassformer.nn.masks import Mask, causal
from glassformer.nn.norm import at_least_float32
from glassformer.nn.positions import RotaryPositionalEmbedding

Path = Literal["eager", "sdpa"]
AnyMask = Mask | Bool[Tensor, "... _ _"]  # (queries, keys), either of which may be 1
MaybeWeights = Float[Tensor, "... T V"] | tuple[Float[Tensor, "... T V"], Float[Tensor, "... T S"]]


def softmax(x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """exp(x) / Σ exp(x) along ``dim``, in at least float32; a slice of nothing but −inf gives zeros, not NaN."""
    if x.shape[dim] == 0:
        return x
    wide = at_least_float32(x)
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
    scale: float | None = None,
    dropout: float = 0.0,
    path: Path = "sdpa",
    return_weights: bool = False,
) -> MaybeWeights:
    """Average the values with the weights softmax(q · k · scale), one average per query.

    Args:
        q, k, v: any leading axes. The axis before the sequence counts as heads: keys and values may have fewer of
            them than queries, and each then serves a group of query heads (no copy is made).
        mask: a :class:`~glassformer.nn.masks.Mask`, or booleans of shape ``(T, S)`` or with as many axes as the
            scores; ``True`` attends. A query with nothing to attend gets zeros. Key slots that no query attends may
            hold anything, NaN included: they reach neither outputs nor gradients.
        scale: factor on q · k; 1 / √K unless given.
        dropout: share of the weights set to zero. Pass 0 outside training.
        path: ``sdpa`` or ``eager``.
        return_weights: also return the weights ``(..., T, S)``, before dropout; needs ``path="eager"``.
    """
    check_choice("path", path, ("eager", "sdpa"))
    check_probability(dropout=dropout)
    if return_weights and path != "eager":
        raise ValueError(f'path={path!r} never writes the attention weights down; ask for them with path="eager".')
    _check_shapes(q, k, v)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    batch = _broadcast(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    is_causal = False
    allowed = None
    if mask is not None:
        mask = _as_mask(mask, q)
        is_causal = path == "sdpa" and q.shape[-2] == k.shape[-2] and mask.is_only_causal(k.shape[-2])
        allowed = None if is_causal else mask.dense((*batch, *q.shape[-3:-1], k.shape[-2]), q.device)
    if allowed is not None:
        attended = _attended_keys(allowed, k)
        k, v = k.where(attended, 0.0), v.where(attended, 0.0)
    if path == "sdpa":
        return _fused(q, k, v, allowed, is_causal, scale, dropout)
    out, weights = _formula(q, k, v, allowed, scale, dropout)
    return (out, weights) if return_weights else out


def _formula(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """The definition, line by line. ``g`` key heads each meet ``r`` query heads; ungrouped, r is 1."""
    grouped = q.ndim > 2
    if grouped:
        q = rearrange(q, "... (g r) t k -> ... g r t k", g=k.shape[-3])
        k, v = k.unsqueeze(-3), v.unsqueeze(-3)
    scores = einsum(q * scale, k, "... t k, ... s k -> ... t s")  # scaled first: q · k alone may overflow in half
    if grouped:
        scores = rearrange(scores, "... g r t s -> ... (g r) t s")
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = softmax(scores, dim=-1)
    kept = F.dropout(weights, dropout)
    if grouped:
        kept = rearrange(kept, "... (g r) t s -> ... g r t s", g=k.shape[-4])
    out = einsum(kept, v, "... t s, ... s v -> ... t v")
    return (rearrange(out, "... g r t v -> ... (g r) t v") if grouped else out), weights


def _fused(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, is_causal: bool, scale: float, dropout: float
) -> Tensor:
    """The same through PyTorch's kernels, which are fast for exactly four axes: batch, heads, sequence, width."""
    batch = _broadcast(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q4, k4, v4 = (_four_axes(x, batch) for x in (q, k, v))
    if allowed is not None and allowed.ndim > 2:
        allowed = _four_axes(allowed, batch)
    out = F.scaled_dot_product_attention(
        q4, k4, v4, allowed, dropout, is_causal, scale=scale, enable_gqa=q4.shape[1] != k4.shape[1]
    )
    return out.reshape(*batch, *q.shape[-3:-1], v.shape[-1])


def _four_axes(x: Tensor, batch: torch.Size) -> Tensor:
    if x.ndim == 2:
        return x[None, None]
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])


def _broadcast(*shapes: torch.Size) -> torch.Size:
    first = shapes[0]
    # Asked only when needed: torch's own answer costs half a second of imports the first time.
    return first if all(s == first for s in shapes) else torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]


def _as_mask(mask: AnyMask, q: Tensor) -> Mask:
    """A Mask as it is; a tensor only if its axes leave no doubt about what they are."""
    if isinstance(mask, Mask):
        return mask
    if mask.ndim not in (2, q.ndim):
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} for queries of shape {tuple(q.shape)} could be read in two ways. "
            f"Give it {q.ndim} axes (mask.unsqueeze(1) for one per batch row), or 2: (queries, keys)."
        )
    return Mask(pairs=mask)


def _attended_keys(allowed: Bool[Tensor, "... T S"], k: Tensor) -> Bool[Tensor, "... S 1"]:
    """Which key slots at least one query attends, shaped to select among ``k``."""
    attended = allowed.any(-2)
    if attended.ndim > 1 and attended.shape[-2] not in (1, k.shape[-3]):  # a mask per query head, keys shared by groups
        attended = rearrange(attended, "... (g r) s -> ... g r s", g=k.shape[-3]).any(-2)
    return attended.unsqueeze(-1)


def _hide_unattended(x: Float[Tensor, "... S D"], allowed: Bool[Tensor, "... T S"]) -> Float[Tensor, "... S D"]:
    """``x`` with zeros in the slots that no query of any head attends, whatever they held; gradients stop there too."""
    attended = allowed.any(-2)  # ... H S, or S
    attended = attended.any(-2) if attended.ndim > 1 else attended
    return x.where(attended.unsqueeze(-1), 0.0)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim or q.ndim < 2:
        raise ValueError(f"q, k and v need the same number of axes, at least two; got {shapes}.")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"queries and keys must have the same width; got {shapes}.")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"every key needs a value; got {shapes}.")
    if q.ndim > 2:
        heads, key_heads, value_heads = q.shape[-3], k.shape[-3], v.shape[-3]
        if key_heads != value_heads or key_heads == 0 or heads % key_heads:
            raise ValueError(f"the key/value heads must be the same number and divide the query heads; got {shapes}.")


class AttentionOptions(TypedDict, total=False):
    """What :func:`multi_head` passes on to :func:`scaled_dot_product_attention`."""

    scale: float | None
    dropout: float
    path: Path
    return_weights: bool


def multi_head(
    q: Float[Tensor, "... T HK"],
    k: Float[Tensor, "... S GK"],
    v: Float[Tensor, "... S GV"],
    mask: Mask | None,
    *,
    heads: int,
    kv_heads: int | None = None,
    rope: RotaryPositionalEmbedding | None = None,
    token_positions: Int[Tensor, "... T"] | None = None,
    **options: Unpack[AttentionOptions],
) -> MaybeWeights:
    """Cut projected queries, keys and values into heads, attend in each, put the results side by side.

    Heads are slices of the last axis, so one matrix product per projection serves all of them.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    q = rearrange(q, "... t (h k) -> ... t h k", h=heads)
    k, v = (rearrange(x, "... s (g k) -> ... s g k", g=kv_heads) for x in (k, v))
    if rope is not None:  # values are not turned: position decides who is looked at, not what is seen
        cos, sin = (turn.unsqueeze(-2) for turn in rope.turns(q.shape[:-2], token_positions))  # the same for all heads
        q, k = rope.rotate(q, cos, sin), rope.rotate(k, cos, sin)
    q, k, v = (rearrange(x, "... t h k -> ... h t k") for x in (q, k, v))
    result = scaled_dot_product_attention(q, k, v, mask, **options)
    out, weights = result if isinstance(result, tuple) else (result, None)
    merged = rearrange(out, "... h t v -> ... t (h v)")
    return merged if weights is None else (merged, weights)


class AttentionHead(nn.Module):
    """One attention head: three projections to ``head_dim`` and the formula."""

    def __init__(
        self,
        embed_dim: int,
        head_dim: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.q = Linear(embed_dim, head_dim, device, dtype, bias=bias)
        self.k = Linear(embed_dim, head_dim, device, dtype, bias=bias)
        self.v = Linear(embed_dim, head_dim, device, dtype, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "... T D"],
        key: Float[Tensor, "... S D"] | None = None,
        value: Float[Tensor, "... S D"] | None = None,
        mask: AnyMask | None = None,
        *,
        path: Path = "sdpa",
        return_weights: bool = False,
    ) -> MaybeWeights:
        """Attend from ``query`` to ``key`` (default: itself) and average ``value`` (default: the keys' input)."""
        key, value = _default_inputs(query, key, value)
        q, k, v = self.q(query), self.k(key), self.v(value)
        return scaled_dot_product_attention(q, k, v, mask, path=path, return_weights=return_weights)


class MultiHeadAttention(nn.Module):
    """Multi-head attention with separate inputs for queries and for keys and values: self- and cross-attention in one.

    ``kv_heads`` below ``num_heads`` lets groups of query heads share keys and values (Ainslie et al., 2023). ``rope``
    turns queries and keys by their positions and is for self-attention alone. ``dropout`` acts on the weights while
    training. The number of parameters does not depend on the number of heads.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rope: RotaryPositionalEmbedding | None = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if kv_heads is None else kv_heads
        check_positive(embed_dim=embed_dim, num_heads=num_heads, kv_heads=kv_heads)
        check_divides("num_heads", num_heads, "embed_dim", embed_dim)
        check_divides("kv_heads", kv_heads, "num_heads", num_heads)
        check_probability(dropout=dropout)
        self.num_heads = num_heads
        self.kv_heads = kv_heads
        self.dropout = dropout
        self.rope = rope
        kv_dim = embed_dim // num_heads * kv_heads
        self.q = Linear(embed_dim, embed_dim, device, dtype, bias=bias)
        self.k = Linear(embed_dim, kv_dim, device, dtype, bias=bias)
        self.v = Linear(embed_dim, kv_dim, device, dtype, bias=bias)
        self.o = Linear(embed_dim, embed_dim, device, dtype, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "... T D"],
        key: Float[Tensor, "... S D"] | None = None,
        value: Float[Tensor, "... S D"] | None = None,
        mask: AnyMask | None = None,
        *,
        token_positions: Int[Tensor, "... T"] | None = None,
        path: Path = "sdpa",
        return_weights: bool = False,
    ) -> MaybeWeights:
        """Attend from ``query`` to ``key`` (default: itself) and average ``value`` (default: the keys' input).

        Booleans as ``mask`` may be ``(T, S)``, ``(batch, T, S)`` or ``(batch, heads, T, S)``. With ``return_weights``
        the answer is the pair (output, weights ``(..., heads, T, S)``).
        """
        if self.rope is not None and key is not None and key is not query:
            raise ValueError("rotary positions compare places in one sequence; cross-attention is built without rope.")
        key, value = _default_inputs(query, key, value)
        mask = Mask(pairs=mask) if isinstance(mask, Tensor) else mask
        if mask is not None and not (mask.is_only_causal(key.shape[-2]) and key.shape[-2] == query.shape[-2]):
            batch = _broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
            allowed = mask.dense((*batch, self.num_heads, query.shape[-2], key.shape[-2]), query.device)
            mask = Mask(pairs=allowed)
            # Before the projections, so that garbage in padding cannot reach their gradients.
            key, value = _hide_unattended(key, allowed), _hide_unattended(value, allowed)
        result = multi_head(
            self.q(query),
            self.k(key),
            self.v(value),
            mask,
            heads=self.num_heads,
            kv_heads=self.kv_heads,
            rope=self.rope,
            token_positions=token_positions,
            dropout=self.dropout if self.training else 0.0,
            path=path,
            return_weights=return_weights,
        )
        if isinstance(result, tuple):
            return self.o(result[0]), result[1]
        return self.o(result)


class CausalMultiHeadSelfAttention(nn.Module):
    """Multi-head self-attention in which no token sees a later one: no biases, rotary positions if given.

    Hand in a shared ``rope``, or ``max_seq_len`` and ``theta`` to build one of its own, or neither.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_seq_len: int | None = None,
        theta: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        rope: RotaryPositionalEmbedding | None = None,
    ) -> None:
        super().__init__()
        check_positive(d_model=d_model, num_heads=num_heads)
        check_divides("num_heads", num_heads, "d_model", d_model)
        if (max_seq_len is None) != (theta is None) or (rope is not None and theta is not None):
            raise ValueError("rotary positions need either rope, or max_seq_len and theta together.")
        if max_seq_len is not None and theta is not None:
            rope = RotaryPositionalEmbedding(theta, d_model // num_heads, max_seq_len, device)
        self.num_heads = num_heads
        self.rope = rope
        self.q_proj = Linear(d_model, d_model, device, dtype)
        self.k_proj = Linear(d_model, d_model, device, dtype)
        self.v_proj = Linear(d_model, d_model, device, dtype)
        self.output_proj = Linear(d_model, d_model, device, dtype)

    def forward(
        self,
        x: Float[Tensor, "... T D"],
        token_positions: Int[Tensor, "... T"] | None = None,
        *,
        path: Path = "sdpa",
    ) -> Float[Tensor, "... T D"]:
        """Attend within ``x``; without ``token_positions`` they are 0, 1, … T − 1."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        heads = multi_head(
            q, k, v, causal(), heads=self.num_heads, rope=self.rope, token_positions=token_positions, path=path
        )
        return self.output_proj(heads)


def _default_inputs(query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor]:
    if key is None and value is not None:
        raise ValueError("a value input without a key input: give both, or only the key.")
    key = query if key is None else key
    return key, key if value is None else value
