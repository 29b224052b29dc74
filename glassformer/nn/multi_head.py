"""Multi-head attention (Vaswani et al., 2017, section 3.2.2), built from ``config.Attention``.

The mathematics is ``multi_head``; the module owns the projections around it. ``layers`` has it under the names and
signatures that courses use. ``AttentionContext`` is what a stack computes once for the attention of all its layers.

Shapes: ``B`` batch, ``T`` queries, ``S`` keys, ``M`` tokens of the memory, ``N`` rows of the memory, ``H`` heads of
width ``K``, ``G`` key/value heads, ``V`` width of a value, ``D`` model width, ``R`` rows of a table of relative
positions, ``...`` batch axes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from glassformer import config
from glassformer.config import BlockSparse
from glassformer.nn.attention import AnyMask, AttentionOutput, AttentionPath, batch_axes, scaled_dot_product_attention
from glassformer.nn.cache import LayerCache
from glassformer.nn.kernels.joint import joint_linear
from glassformer.nn.linear import Linear
from glassformer.nn.masks import DenseMask, Mask, as_mask
from glassformer.nn.norm import make_norm
from glassformer.nn.observer import Observer, observe
from glassformer.nn.relative import disentangled_bias
from glassformer.nn.rotary import RotaryAngles, RotaryPositionalEmbedding
from glassformer.nn.sparse import block_sparse_attention

ComputeBias = Callable[[Tensor, Tensor], Tensor]  # (queries, keys) to a bias on the scores
MergedOutput = Float[Tensor, "... T HV"] | tuple[Float[Tensor, "... T HV"], Float[Tensor, "... T S"]]


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """What the attention of one layer needs besides its input: mask, positions, memory. None: not used."""

    mask: AnyMask | None = None
    rope: RotaryAngles | None = None  # rotary positions
    bias: Float[Tensor, "... T S"] | None = None  # added to the scores
    bias_includes_mask: bool = False  # the bias is −inf wherever the mask hides
    relative: tuple[Float[Tensor, "R D"], Int[Tensor, "... T S"]] | None = None  # vectors, row of each query and key
    pattern: BlockSparse | None = None  # block-sparse attention; used with ``token_mask`` instead of ``mask``
    token_mask: Bool[Tensor, "B S"] | None = None  # True at real tokens; None: all are
    key_input: Float[Tensor, "... S D"] | None = None  # self-attention's keys and values, if not from its own input
    memory: Float[Tensor, "... M D"] | None = None  # cross-attention's keys and values
    memory_mask: AnyMask | None = None
    last_keys: int | None = None  # a single query with a window: it sees this many of the last keys, without a mask
    is_cross: bool = False  # for cross-attention
    path: AttentionPath = "sdpa"
    observer: Observer | None = None  # sees the values of this part and may replace them

    def crop_keys(self, keys: int) -> "AttentionContext":
        """Return the context for the last ``keys`` slots alone: those that the cache of a layer with a window holds."""
        mask, bias, token_mask = self.mask, self.bias, self.token_mask
        if isinstance(mask, DenseMask) and mask.allowed is not None and mask.allowed.shape[-1] > keys:
            mask = DenseMask(mask.allowed[..., -keys:])
        if bias is not None and bias.shape[-1] > keys:
            bias = bias[..., -keys:]
        if mask is self.mask and bias is self.bias:
            return self
        token_mask = None if token_mask is None else token_mask[..., -keys:]
        return replace(self, mask=mask, bias=bias, token_mask=token_mask)

    @property
    def cross_attention(self) -> "AttentionContext":
        """The context of the cross-attention: the memory's mask, no positions."""
        observer = None if self.observer is None else self.observer.part("cross")
        return AttentionContext(mask=self.memory_mask, is_cross=True, path=self.path, observer=observer)


def multi_head(
    q: Float[Tensor, "... H T K"],
    k: Float[Tensor, "... G S K"],
    v: Float[Tensor, "... G S V"],
    context: AttentionContext,
    cache: LayerCache | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    compute_bias: ComputeBias | None = None,
    return_weights: bool = False,
) -> MergedOutput:
    """Attend in every head and concatenate the results to ``(..., T, H · V)``; see ``split_heads``.

    ``compute_bias(q, k)`` returns a bias already multiplied by the scale; it replaces ``context.bias``. ``cache`` adds
    the keys and values of earlier calls.
    """
    see = partial(observe, context.observer)
    q, k, v = see("q", q), see("k", k), see("v", v)
    # Rotate queries and keys by their positions. Values are not rotated: positions change the weights alone.
    if context.rope is not None:
        q = see("q_rotary", context.rope.apply_rotary_heads(q))
        k = see("k_rotary", context.rope.apply_rotary_heads(k))
    if context.observer is not None and context.bias is not None:
        context = replace(context, bias=see("bias", context.bias.reshape(-1, *context.bias.shape[-3:])))
    # Append the new keys and values to those of earlier calls; from here on, S counts all of them.
    if cache is not None:
        k, v = cache.extend(k, v)
        if context.last_keys is not None:
            k, v = k[..., -context.last_keys :, :], v[..., -context.last_keys :, :]
        context = context.crop_keys(k.shape[-2])
    # Attend: (..., H, T, V), and the weights (..., H, T, S) with return_weights.
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    kwargs: dict[str, Any] = {"scale": scale, "dropout": dropout, "return_weights": return_weights}
    kwargs["observer"] = context.observer
    if context.pattern is not None:
        result = block_sparse_attention(q, k, v, context.pattern, context.token_mask, **kwargs)
    else:
        mask = None if context.bias_includes_mask and compute_bias is None else context.mask
        bias = context.bias if compute_bias is None else compute_bias(q, k)
        result = scaled_dot_product_attention(q, k, v, mask, bias=bias, path=context.path, **kwargs)
    if isinstance(result, tuple):
        return merge_heads(see("heads", result[0])), result[1]
    return merge_heads(see("heads", result))


def split_heads(x: Float[Tensor, "... T HK"], heads: int) -> Float[Tensor, "... H T K"]:
    """Split projected vectors into heads, an axis before the sequence.

    Heads are slices of the last axis, so one matrix product per projection computes all of them.
    """
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def merge_heads(x: Float[Tensor, "... H T K"]) -> Float[Tensor, "... T HK"]:
    """Concatenate the heads: the reverse of ``split_heads``."""
    return x.transpose(-3, -2).flatten(-2)


class Attention(nn.Module):
    """Multi-head attention, self- or cross-; see ``config.Attention``.

    Args:
        facts: heads, their width, biases, scale, norms of queries and keys, positions.
        width: of the input and output vectors, D.
        cross: build cross-attention, which uses no positions.
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
        # Set by the course classes in layers.py; in a stack, the angles come in the context.
        self.rope: RotaryPositionalEmbedding | None = None
        # Projections: q to H · K, k and v to G · K, o from H · K back to D.
        inner, kv_inner = facts.head_dim * self.num_heads, facts.head_dim * self.kv_heads
        self.q = Linear(width, inner, device, dtype, bias="q" in facts.biases)
        self.k = Linear(width, kv_inner, device, dtype, bias="k" in facts.biases)
        self.v = Linear(width, kv_inner, device, dtype, bias="v" in facts.biases)
        self.o = Linear(inner, width, device, dtype, bias="o" in facts.biases)
        self.q_norm = self.k_norm = None
        if facts.qk_norm is not None:
            self.q_norm = make_norm(facts.qk_norm, facts.head_dim, device, dtype)
            self.k_norm = make_norm(facts.qk_norm, facts.head_dim, device, dtype)
        # Disentangled attention projects relative positions too, by its own projections or by those of the content.
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
    ) -> AttentionOutput:
        """Attend from ``query`` to ``key`` (default: itself) and average ``value`` (default: the keys' input).

        A boolean ``mask`` is ``(T, S)``, ``(batch, T, S)`` or ``(batch, heads, T, S)``. ``return_weights`` returns the
        pair (output, weights ``(..., heads, T, S)``). A ``context`` replaces mask, positions and path: a stack makes it
        once for all of its layers and passes the ``cache`` of this layer with it.
        """
        in_stack = context is not None
        if context is None:
            if self.rope is not None and key is not None and key is not query:
                raise ValueError(
                    "rotary positions compare positions in one sequence; cross-attention is built without rope."
                )
            query, key, value, mask = prepare_inputs(query, key, value, mask, self.num_heads)
            context = AttentionContext(mask=mask, rope=rotary_angles_of(self.rope, query, token_positions), path=path)
        key = query if key is None else key
        value = key if value is None else value
        # Project: q (..., T, H·K), k and v (..., G, S, K). Those of a memory are projected once.
        q, k, v = self._project(query, key, value, cache if context.is_cross else None)
        cache = None if context.is_cross else cache
        # Beams that share a row of the memory become queries of one row: (B, T, H·K) → (N, B/N · T, H·K).
        if in_stack and k.shape[0] != q.shape[0]:
            q, k, v, context = _share_memory(q, k, v, context)
        q = split_heads(q, self.num_heads)
        result = multi_head(
            q if self.q_norm is None else self.q_norm(q),
            k,
            v,
            context,
            cache,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            compute_bias=partial(self._relative_scores, context) if self.terms else None,
            return_weights=return_weights,
        )
        attended, weights = result if isinstance(result, tuple) else (result, None)  # ... T H·K
        # Undo the grouping of rows that share a memory: (N, B/N · T, H·K) → (B, T, H·K).
        if in_stack and attended.shape[0] != query.shape[0]:
            attended = attended.reshape(*query.shape[:-1], attended.shape[-1])
            if weights is not None:
                weights = rearrange(weights, "m h (r t) s -> (m r) h t s", t=query.shape[-2])
        # Project back to the model width.
        return self.o(attended) if weights is None else (self.o(attended), weights)

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, memory_cache: LayerCache | None
    ) -> tuple[Float[Tensor, "... T HK"], Float[Tensor, "... G S K"], Float[Tensor, "... G S V"]]:
        if memory_cache is not None:
            k, v = memory_cache.project_memory_once(lambda: self._keys_and_values(key, value))
            return self.q(query), k, v
        if key is query and value is query:
            q, k, v = joint_linear(query, (self.q, self.k, self.v))
            return q, *self._split_keys(k, v)
        return self.q(query), *self._keys_and_values(key, value)

    def _keys_and_values(
        self, key: Float[Tensor, "... S D"], value: Float[Tensor, "... S D"]
    ) -> tuple[Float[Tensor, "... G S K"], Float[Tensor, "... G S V"]]:
        k, v = joint_linear(key, (self.k, self.v)) if value is key else (self.k(key), self.v(value))
        return self._split_keys(k, v)

    def _split_keys(
        self, k: Float[Tensor, "... S GK"], v: Float[Tensor, "... S GV"]
    ) -> tuple[Float[Tensor, "... G S K"], Float[Tensor, "... G S V"]]:
        k, v = split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        return k if self.k_norm is None else self.k_norm(k), v

    def _relative_scores(self, context: AttentionContext, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores (B, H, T, S) between content and relative positions, already scaled."""
        if context.relative is None:
            raise ValueError("disentangled attention needs the relative positions that its stack passes to it.")
        vectors, rows = context.relative
        vectors = F.dropout(vectors, self.position_dropout, self.training)  # R D
        # Project the positions as queries and as keys.
        as_query = (self.position_q or self.q)(vectors) if "p2c" in self.terms else None
        as_key = (self.position_k or self.k)(vectors) if "c2p" in self.terms else None
        as_query, as_key = (None if x is None else split_heads(x, self.num_heads) for x in (as_query, as_key))  # H R K
        # Scaled before they are multiplied: products in half precision overflow at 65,504.
        scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        return observe(context.observer, "bias", disentangled_bias(q * scale, k * scale, as_query, as_key, rows))


def _share_memory(
    q: Float[Tensor, "B T HK"], k: Float[Tensor, "N G S K"], v: Float[Tensor, "N G S V"], context: AttentionContext
) -> tuple[Tensor, Tensor, Tensor, AttentionContext]:
    """Group the rows that share a row of the memory: (N, r · T, HK). Observed, each row gets its own copy instead."""
    if context.observer is None:
        return q.reshape(len(k), -1, q.shape[-1]), k, v, context
    mask, copies = context.mask, len(q) // len(k)
    if isinstance(mask, DenseMask) and mask.allowed is not None:
        mask = DenseMask(mask.allowed.repeat_interleave(copies, dim=0))
    k, v = k.repeat_interleave(copies, dim=0), v.repeat_interleave(copies, dim=0)
    return q, k, v, replace(context, mask=mask)


def rotary_angles_of(
    rope: RotaryPositionalEmbedding | None, x: Tensor, token_positions: Int[Tensor, "... T"] | None
) -> RotaryAngles | None:
    """Return the rotary angles of the tokens of ``x``; positions for an attention without ``rope`` are an error."""
    if rope is None and token_positions is not None:
        raise ValueError("token_positions were given, but this attention has no rotary positions to use them.")
    return None if rope is None else rope.angles(x.shape[:-1], token_positions, x.device).for_heads(x.dtype)


def prepare_inputs(
    query: Tensor, key: Tensor | None, value: Tensor | None, mask: AnyMask | None, heads: int
) -> tuple[Tensor, Tensor, Tensor, DenseMask | Mask | None]:
    """Fill in missing inputs, and zero the key and value slots that no query attends to.

    That is done before the projections, so that NaN in padding cannot reach their gradients either.
    """
    if key is None and value is not None:
        raise ValueError("got value without key; pass both, or only key.")
    checked = as_mask(mask)
    if checked is not None and (key is None or key is query):
        query = checked.zero_padding(query)
    key = query if key is None else key
    value = key if value is None else value
    queries, keys = query.shape[-2], key.shape[-2]
    batch = batch_axes(query, key, value, trailing=2)
    # Without padding, every slot of a sequence is attended to by its own query.
    if checked is None or (checked.keys is None and checked.pairs is None and queries == keys):
        return query, key, value, checked
    # A slot stays if any query of any head attends to it.
    allowed = checked.dense((*batch, heads, queries, keys), query.device)
    attended = allowed.any(-2)  # ... H S, or S
    attended = (attended.any(-2) if attended.ndim > 1 else attended).unsqueeze(-1)  # ... S 1
    return query, key.where(attended, 0.0), value.where(attended, 0.0), DenseMask(allowed)
