"""Attention under the names and signatures that courses use: one head, many heads, and many causal heads.

Each is a thin module around the mathematics of ``heads``. Shapes: ``T`` queries, ``S`` keys, ``D`` model width, ``...``
batch axes.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_divides, check_positive, check_probability
from glassformer.nn.attention import AnyMask, AttentionPath, MaybeWeights
from glassformer.nn.context import AttentionContext
from glassformer.nn.linear import Linear
from glassformer.nn.masks import causal
from glassformer.nn.multi_head import Attention, multi_head, prepare_inputs, rotary_angles_of, split_heads
from glassformer.nn.rotary import RotaryPositionalEmbedding


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
        query, key, value, mask = prepare_inputs(query, key, value, mask, heads=1)
        q, k, v = (split_heads(x, 1) for x in (self.q(query), self.k(key), self.v(value)))
        result = multi_head(q, k, v, AttentionContext(mask=mask, path=path), return_weights=return_weights)
        if isinstance(result, tuple):
            return result[0], result[1].squeeze(-3)
        return result


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
        q, k, v = (split_heads(y, self.num_heads) for y in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        context = AttentionContext(mask=causal(), rope=rotary_angles_of(self.rope, x, token_positions), path=path)
        return self.output_proj(multi_head(q, k, v, context))
