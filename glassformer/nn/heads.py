"""Attention in heads: one head, many heads, and many causal heads (Vaswani et al., 2017, section 3.2.2).

The mathematics is ``multi_head``; the modules own the projections around it.

Shapes: ``T`` queries, ``S`` keys, ``H`` heads of width ``K``, ``G`` key/value heads, ``D`` model width, ``...``
batch axes.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_divides, check_positive, check_probability
from glassformer.nn.attention import AnyMask, AttentionPath, MaybeWeights, batch_axes, scaled_dot_product_attention
from glassformer.nn.cache import LayerCache
from glassformer.nn.context import Context
from glassformer.nn.dropout import dropout
from glassformer.nn.linear import Linear
from glassformer.nn.masks import Mask, Resolved, as_mask, causal
from glassformer.nn.relative import disentangled_bias
from glassformer.nn.rotary import RotaryPositionalEmbedding, Turns
from glassformer.nn.sparse import block_sparse_attention

Biased = Callable[[Tensor, Tensor], Tensor]


def multi_head(
    q: Float[Tensor, "... T HK"],
    k: Float[Tensor, "... S GK"],
    v: Float[Tensor, "... S GV"],
    context: Context,
    cache: LayerCache | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    score_bias: Biased | None = None,
    return_weights: bool = False,
) -> MaybeWeights:
    """Cut projected queries, keys and values into heads, attend in each, put the results side by side.

    Heads are slices of the last axis, so one matrix product per projection serves all of them. ``score_bias`` computes
    a bias from the queries and keys of all heads, already scaled. ``cache`` adds keys and values of earlier calls.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    if context.turns is not None:  # values are not rotated: position decides the weights, not what is averaged
        q, k = context.turns.rotate(q), context.turns.rotate(k)
    if cache is not None:
        k, v = cache.extend(k, v)
        if context.last is not None:
            k, v = k[..., -context.last :, :], v[..., -context.last :, :]
        context = context.near(k.shape[-2])
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if context.pattern is not None:
        result = block_sparse_attention(
            q, k, v, context.pattern, context.real, scale=scale, dropout=dropout, return_weights=return_weights
        )
    else:
        mask, bias = context.hiding() if score_bias is None else (context.mask, score_bias(q, k))
        result = scaled_dot_product_attention(
            q, k, v, mask,
            bias=bias, scale=scale, dropout=dropout, path=context.path, return_weights=return_weights,
        )  # fmt: skip
    if isinstance(result, tuple):
        return merge_heads(result[0]), result[1]
    return merge_heads(result)


def split_heads(x: Float[Tensor, "... T HK"], heads: int) -> Float[Tensor, "... H T K"]:
    """Vectors cut into heads, which become an axis before the sequence."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def merge_heads(x: Float[Tensor, "... H T K"]) -> Float[Tensor, "... T HK"]:
    """The reverse of ``split_heads``."""
    return x.transpose(-3, -2).flatten(-2)


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
        path: AttentionPath = "sdpa",
        return_weights: bool = False,
    ) -> MaybeWeights:
        """Attend from ``query`` to ``key`` (default: itself) and average ``value`` (default: the keys' input).

        Booleans as ``mask`` may be ``(T, S)`` or ``(batch, T, S)``. With ``return_weights`` the answer is the pair
        (output, weights ``(..., T, S)``).
        """
        query, key, value, mask = _prepare(query, key, value, mask, heads=1)
        q, k, v = self.q(query), self.k(key), self.v(value)
        result = multi_head(q, k, v, Context(mask=mask, path=path), heads=1, return_weights=return_weights)
        if isinstance(result, tuple):
            return result[0], result[1].squeeze(-3)
        return result


class Attention(nn.Module):
    """Multi-head attention as a page of facts says; see ``config.Attention``. Self- and cross-attention in one.

    Args:
        facts: heads, their width, biases, scale, positions.
        width: of the vectors that come in and go out.
        cross: built to look at another sequence: positions play no part.
    """

    def __init__(
        self,
        facts: config.Attention,
        width: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        cross: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = facts.heads
        self.kv_heads = facts.kv_heads or facts.heads
        self.scale = facts.scale
        self.dropout = facts.dropout
        self.rope: RotaryPositionalEmbedding | None = None
        inner, kv_inner = facts.head_dim * self.num_heads, facts.head_dim * self.kv_heads
        self.q = Linear(width, inner, device, dtype, bias="q" in facts.biases)
        self.k = Linear(width, kv_inner, device, dtype, bias="k" in facts.biases)
        self.v = Linear(width, kv_inner, device, dtype, bias="v" in facts.biases)
        self.o = Linear(inner, width, device, dtype, bias="o" in facts.biases)
        relative = facts.score_bias if isinstance(facts.score_bias, config.Disentangled) and not cross else None
        self.terms = () if relative is None else relative.terms
        self.position_dropout = 0.0 if relative is None else relative.dropout
        self.position_q = self.position_k = None
        if relative is not None and not relative.shared_projections:
            if "p2c" in self.terms:
                self.position_q = Linear(width, inner, device, dtype, bias=True)
            if "c2p" in self.terms:
                self.position_k = Linear(width, inner, device, dtype, bias=relative.key_bias)

    def forward(
        self,
        query: Float[Tensor, "... T D"],
        key: Float[Tensor, "... S D"] | None = None,
        value: Float[Tensor, "... S D"] | None = None,
        mask: AnyMask | None = None,
        *,
        token_positions: Int[Tensor, "... T"] | None = None,
        path: AttentionPath = "sdpa",
        return_weights: bool = False,
        context: Context | None = None,
        cache: LayerCache | None = None,
    ) -> MaybeWeights:
        """Attend from ``query`` to ``key`` (default: itself) and average ``value`` (default: the keys' input).

        Booleans as ``mask`` may be ``(T, S)``, ``(batch, T, S)`` or ``(batch, heads, T, S)``. With ``return_weights``
        the answer is the pair (output, weights ``(..., heads, T, S)``). A ``context`` takes the place of mask,
        positions and path: a stack makes it once for all of its layers. With it goes the ``cache`` of this layer.
        """
        shares_rows = context is not None
        if context is None:
            if self.rope is not None and key is not None and key is not query:
                raise ValueError(
                    "rotary positions compare places in one sequence; cross-attention is built without rope."
                )
            query, key, value, mask = _prepare(query, key, value, mask, self.num_heads)
            context = Context(mask=mask, turns=_turns(self.rope, query, token_positions), path=path)
        key = query if key is None else key
        value = key if value is None else value
        q = self.q(query)
        if cache is not None and context.is_cross:  # a memory does not change
            k, v = cache.memory_once(lambda: (self.k(key), self.v(value)))
            cache = None
        else:
            k, v = self.k(key), self.v(value)
        if shares_rows and len(k) != len(q):  # rows that share a memory attend to it together
            q = q.reshape(len(k), -1, q.shape[-1])
        result = multi_head(
            q,
            k,
            v,
            context,
            cache,
            heads=self.num_heads,
            kv_heads=self.kv_heads,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            score_bias=partial(self._relative_scores, context) if self.terms else None,
            return_weights=return_weights,
        )
        if isinstance(result, tuple):
            return self.o(result[0]), result[1]
        if shares_rows:
            result = result.reshape(*query.shape[:-1], result.shape[-1])
        return self.o(result)

    def _relative_scores(self, context: Context, q: Tensor, k: Tensor) -> Tensor:
        """The part of the scores that knows positions; they share the projections of the content or have their own."""
        if context.relative is None:
            raise ValueError("disentangled attention needs the relative positions that its stack hands it.")
        vectors, rows = context.relative
        vectors = dropout(vectors, self.position_dropout, self.training)
        as_query = (self.position_q or self.q)(vectors) if "p2c" in self.terms else None
        as_key = (self.position_k or self.k)(vectors) if "c2p" in self.terms else None
        as_query, as_key = (None if x is None else split_heads(x, self.num_heads) for x in (as_query, as_key))  # H R K
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        # Scaled before they are multiplied: products in half precision overflow at 65,504.
        return disentangled_bias(q * scale, k * scale, as_query, as_key, rows)


class MultiHeadAttention(Attention):
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
        kv_heads = num_heads if kv_heads is None else kv_heads
        check_positive(embed_dim=embed_dim, num_heads=num_heads, kv_heads=kv_heads)
        check_divides("num_heads", num_heads, "embed_dim", embed_dim)
        check_divides("kv_heads", kv_heads, "num_heads", num_heads)
        check_probability(dropout=dropout)
        facts = config.Attention(
            heads=num_heads,
            head_dim=embed_dim // num_heads,
            kv_heads=kv_heads,
            biases="qkvo" if bias else "",
            dropout=dropout,
        )
        super().__init__(facts, embed_dim, device, dtype)
        self.rope = rope


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
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "... T D"]:
        """Attend within ``x``; without ``token_positions`` they are 0, 1, … T − 1."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        context = Context(mask=causal(), turns=_turns(self.rope, x, token_positions), path=path)
        return self.output_proj(multi_head(q, k, v, context, heads=self.num_heads))


def _turns(
    rope: RotaryPositionalEmbedding | None, x: Tensor, token_positions: Int[Tensor, "... T"] | None
) -> Turns | None:
    if rope is None and token_positions is not None:
        raise ValueError("token_positions were given, but this attention has no rotary positions to use them.")
    return None if rope is None else rope.turns(x.shape[:-1], token_positions, x.device).for_heads(x.dtype)


def _prepare(
    query: Tensor, key: Tensor | None, value: Tensor | None, mask: AnyMask | None, heads: int
) -> tuple[Tensor, Tensor, Tensor, Resolved | Mask | None]:
    """Fill in the inputs left out, and empty the key and value slots that nobody attends.

    That is done before the projections, so that garbage in padding cannot reach their gradients either.
    """
    if key is None and value is not None:
        raise ValueError("a value input without a key input: give both, or only the key.")
    given = as_mask(mask)
    if given is not None and (key is None or key is query):
        query = given.quieten_padding(query)
    key = query if key is None else key
    value = key if value is None else value
    queries, keys = query.shape[-2], key.shape[-2]
    batch = batch_axes(query, key, value, trailing=2)
    if given is None or (given.is_only_causal(keys) and queries == keys):
        return query, key, value, given
    allowed = given.dense((*batch, heads, queries, keys), query.device)
    attended = allowed.any(-2)  # ... H S, or S
    attended = (attended.any(-2) if attended.ndim > 1 else attended).unsqueeze(-1)  # ... S 1
    return query, key.where(attended, 0.0), value.where(attended, 0.0), Resolved(allowed)
