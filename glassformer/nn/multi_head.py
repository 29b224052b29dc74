"""Attention in many heads (Vaswani et al., 2017, section 3.2.2), as a page of facts says.

The mathematics is ``multi_head``; the module owns the projections around it. Under the names and signatures of courses
it is in ``course_attention``.

Shapes: ``T`` queries, ``S`` keys, ``H`` heads of width ``K``, ``G`` key/value heads, ``D`` model width, ``...``
batch axes.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer import config
from glassformer.nn.attention import AnyMask, AttentionPath, MaybeWeights, batch_axes, scaled_dot_product_attention
from glassformer.nn.cache import LayerCache
from glassformer.nn.context import AttentionContext
from glassformer.nn.dropout import dropout
from glassformer.nn.linear import Linear
from glassformer.nn.masks import DenseMask, Mask, as_mask
from glassformer.nn.norm import make_norm
from glassformer.nn.relative import disentangled_bias
from glassformer.nn.rotary import RotaryAngles, RotaryPositionalEmbedding
from glassformer.nn.sparse import block_sparse_attention

Biased = Callable[[Tensor, Tensor], Tensor]


def multi_head(
    q: Float[Tensor, "... H T K"],
    k: Float[Tensor, "... G S K"],
    v: Float[Tensor, "... G S W"],
    context: AttentionContext,
    cache: LayerCache | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    score_bias: Biased | None = None,
    return_weights: bool = False,
) -> MaybeWeights:
    """Attend in every head and put the results side by side; see ``split_heads``.

    ``score_bias`` computes a bias from the queries and keys of all heads, already scaled. ``cache`` adds the keys and
    values of earlier calls.
    """
    if context.rope is not None:  # values are not rotated: position decides the weights, not what is averaged
        q, k = context.rope.apply_rotary_heads(q), context.rope.apply_rotary_heads(k)
    if cache is not None:
        k, v = cache.extend(k, v)
        if context.last is not None:
            k, v = k[..., -context.last :, :], v[..., -context.last :, :]
        context = context.last_keys(k.shape[-2])
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if context.pattern is not None:
        result = block_sparse_attention(
            q, k, v, context.pattern, context.real, scale=scale, dropout=dropout, return_weights=return_weights
        )
    else:
        mask, bias = context.mask_and_bias() if score_bias is None else (context.mask, score_bias(q, k))
        result = scaled_dot_product_attention(
            q, k, v, mask,
            bias=bias, scale=scale, dropout=dropout, path=context.path, return_weights=return_weights,
        )  # fmt: skip
    if isinstance(result, tuple):
        return merge_heads(result[0]), result[1]
    return merge_heads(result)


def split_heads(x: Float[Tensor, "... T HK"], heads: int) -> Float[Tensor, "... H T K"]:
    """Projected vectors cut into heads, which become an axis before the sequence.

    Heads are slices of the last axis, so one matrix product per projection serves all of them.
    """
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def merge_heads(x: Float[Tensor, "... H T K"]) -> Float[Tensor, "... T HK"]:
    """The reverse of ``split_heads``."""
    return x.transpose(-3, -2).flatten(-2)


class Attention(nn.Module):
    """Multi-head attention as a page of facts says; see ``config.Attention``. Self- and cross-attention in one.

    Args:
        facts: heads, their width, biases, scale, norms of queries and keys, positions.
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
        self.q_norm = self.k_norm = None
        if facts.qk_norm is not None:
            self.q_norm = make_norm(facts.qk_norm, facts.head_dim, device, dtype)
            self.k_norm = make_norm(facts.qk_norm, facts.head_dim, device, dtype)
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
        context: AttentionContext | None = None,
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
            query, key, value, mask = prepare_inputs(query, key, value, mask, self.num_heads)
            context = AttentionContext(mask=mask, rope=rotary_angles_of(self.rope, query, token_positions), path=path)
        key = query if key is None else key
        value = key if value is None else value
        q = self.q(query)
        if cache is not None and context.is_cross:  # a memory does not change
            k, v = cache.memory_once(lambda: self._keys_and_values(key, value))
            cache = None
        else:
            k, v = self._keys_and_values(key, value)
        if shares_rows and len(k) != len(q):  # rows that share a memory attend to it together
            q = q.reshape(len(k), -1, q.shape[-1])
        q = split_heads(q, self.num_heads)
        result = multi_head(
            q if self.q_norm is None else self.q_norm(q),
            k,
            v,
            context,
            cache,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            score_bias=partial(self._relative_scores, context) if self.terms else None,
            return_weights=return_weights,
        )
        attended, weights = result if isinstance(result, tuple) else (result, None)
        if shares_rows and len(attended) != len(query):
            attended = attended.reshape(*query.shape[:-1], attended.shape[-1])
            if weights is not None:
                weights = rearrange(weights, "q h (r t) s -> (q r) h t s", t=query.shape[-2])
        return self.o(attended) if weights is None else (self.o(attended), weights)

    def _keys_and_values(
        self, key: Float[Tensor, "... S D"], value: Float[Tensor, "... S D"]
    ) -> tuple[Float[Tensor, "... G S K"], Float[Tensor, "... G S V"]]:
        k, v = split_heads(self.k(key), self.kv_heads), split_heads(self.v(value), self.kv_heads)
        return k if self.k_norm is None else self.k_norm(k), v

    def _relative_scores(self, context: AttentionContext, q: Tensor, k: Tensor) -> Tensor:
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


def rotary_angles_of(
    rope: RotaryPositionalEmbedding | None, x: Tensor, token_positions: Int[Tensor, "... T"] | None
) -> RotaryAngles | None:
    """The rotary angles of the tokens of ``x``; positions without rotary positions to use them are an error."""
    if rope is None and token_positions is not None:
        raise ValueError("token_positions were given, but this attention has no rotary positions to use them.")
    return None if rope is None else rope.angles(x.shape[:-1], token_positions, x.device).for_heads(x.dtype)


def prepare_inputs(
    query: Tensor, key: Tensor | None, value: Tensor | None, mask: AnyMask | None, heads: int
) -> tuple[Tensor, Tensor, Tensor, DenseMask | Mask | None]:
    """Fill in the inputs left out, and empty the key and value slots that nobody attends.

    That is done before the projections, so that garbage in padding cannot reach their gradients either.
    """
    if key is None and value is not None:
        raise ValueError("a value input without a key input: give both, or only the key.")
    given = as_mask(mask)
    if given is not None and (key is None or key is query):
        query = given.zero_padding(query)
    key = query if key is None else key
    value = key if value is None else value
    queries, keys = query.shape[-2], key.shape[-2]
    batch = batch_axes(query, key, value, trailing=2)
    if given is None or (given.is_only_causal(keys) and queries == keys):
        return query, key, value, given
    allowed = given.dense((*batch, heads, queries, keys), query.device)
    attended = allowed.any(-2)  # ... H S, or S
    attended = (attended.any(-2) if attended.ndim > 1 else attended).unsqueeze(-1)  # ... S 1
    return query, key.where(attended, 0.0), value.where(attended, 0.0), DenseMask(allowed)
