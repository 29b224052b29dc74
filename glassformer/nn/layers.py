"""Ready-made modules under the names and signatures that courses use: attention, encoder and decoder layer, block.

Attention as one head, many heads and many causal heads; the encoder and decoder layer of 2017; the pre-norm block of
today's language models. Each is a choice of parts for the same mathematics.

Shapes: ``T`` tokens or queries, ``S`` keys or tokens of the memory, ``D`` model width, ``...`` batch axes.
"""

from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_divides, check_positive_integer, check_probability
from glassformer.config.parts import Placement
from glassformer.nn.attention import AnyMask, AttentionOutput, AttentionPath
from glassformer.nn.block import Block, residual
from glassformer.nn.feedforward import FeedForward, SwiGLU
from glassformer.nn.linear import Linear
from glassformer.nn.masks import as_mask, causal
from glassformer.nn.multi_head import (
    Attention,
    AttentionContext,
    multi_head,
    prepare_inputs,
    rotary_angles_of,
    split_heads,
)
from glassformer.nn.norm import LayerNorm, RMSNorm
from glassformer.nn.rotary import RotaryPositionalEmbedding


class AttentionHead(nn.Module):
    """One attention head: projections of queries, keys and values to ``head_dim``, then attention."""

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
    ) -> AttentionOutput:
        """Attend from ``query`` to ``key`` (default: itself) and average ``value`` (default: the keys' input).

        A boolean ``mask`` is ``(T, S)`` or ``(batch, T, S)``. ``return_weights`` returns the pair (output, weights
        ``(..., T, S)``).
        """
        query, key, value, mask = prepare_inputs(query, key, value, mask, heads=1)
        # Project, with an axis for the single head: (..., 1, T, K).
        q, k, v = (split_heads(x, 1) for x in (self.q(query), self.k(key), self.v(value)))
        result = multi_head(q, k, v, AttentionContext(mask=mask, path=path), return_weights=return_weights)
        if isinstance(result, tuple):
            return result[0], result[1].squeeze(-3)
        return result


class MultiHeadAttention(Attention):
    """Multi-head attention, self- or cross-, depending on the key and value inputs.

    With ``kv_heads`` below ``num_heads``, groups of query heads share keys and values (Ainslie et al., 2023). ``rope``
    rotates queries and keys by their positions, in self-attention alone. ``dropout`` acts on the weights in training
    mode. The number of parameters does not depend on the number of heads.
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
        check_positive_integer(embed_dim=embed_dim, num_heads=num_heads, kv_heads=kv_heads)
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
    """Multi-head self-attention in which no token attends to a later one: no biases, optional rotary positions.

    Pass a shared ``rope``, or ``max_seq_len`` and ``theta`` to build one, or neither.
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
        check_positive_integer(d_model=d_model, num_heads=num_heads)
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
        """Attend within ``x``; ``token_positions`` default to 0, 1, … T − 1."""
        q, k, v = (split_heads(y, self.num_heads) for y in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        context = AttentionContext(mask=causal(), rope=rotary_angles_of(self.rope, x, token_positions), path=path)
        return self.output_proj(multi_head(q, k, v, context))


class _ClassicLayer(Block):
    """The common part of encoder and decoder layers: LayerNorm, biases and a plain feed-forward network.

    Pre-norm by default; a stack of pre-norm layers needs one more norm after the last.
    """

    _has_memory: ClassVar[bool] = False

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        placement: Placement = "pre",
        activation: str = "relu",
        dropout: float = 0.0,
        norm_eps: float = 1e-5,
    ) -> None:
        attention = partial(MultiHeadAttention, d_model, num_heads, device, dtype, dropout=dropout)
        super().__init__(
            attention(),
            FeedForward(d_model, d_ff, device, dtype, activation=activation),
            partial(LayerNorm, d_model, norm_eps, device=device, dtype=dtype),
            cross=attention() if self._has_memory else None,
            placement=placement,
            dropout=dropout,
        )


class EncoderLayer(_ClassicLayer):
    """Self-attention over the whole sequence, then a feed-forward network. Called ``(x, mask=None)``."""


class DecoderLayer(_ClassicLayer):
    """Causal self-attention, cross-attention to the encoder's output, then a feed-forward network.

    Every decoder layer projects its own keys and values from the memory.
    """

    _has_memory = True

    def forward(  # type: ignore[override]  # a decoder layer requires its memory
        self,
        x: Float[Tensor, "... T D"],
        memory: Float[Tensor, "... S D"],
        mask: AnyMask | None = None,
        memory_mask: AnyMask | None = None,
        *,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "... T D"]:
        """Always causal; ``mask`` can only hide more. ``memory_mask`` hides padding of the memory.

        Boolean masks have the shapes of ``Block.forward``.
        """
        checked = as_mask(mask)
        mask = causal() if checked is None else causal() & checked
        return super().forward(x, mask, memory=memory, memory_mask=memory_mask, path=path)


class TransformerBlock(nn.Module):
    """The pre-norm block of a language model: RMSNorm, causal attention with rotary positions, SwiGLU; no biases.

    Pass a shared ``rope``, or ``max_seq_len`` and ``theta`` to build one, or neither for no positions.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int | None = None,
        max_seq_len: int | None = None,
        theta: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        rope: RotaryPositionalEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.ln1 = RMSNorm(d_model, device=device, dtype=dtype)
        self.attn = CausalMultiHeadSelfAttention(d_model, num_heads, max_seq_len, theta, device, dtype, rope=rope)
        self.ln2 = RMSNorm(d_model, device=device, dtype=dtype)
        self.ffn = SwiGLU(d_model, d_ff, device, dtype)

    def forward(
        self,
        x: Float[Tensor, "... T D"],
        token_positions: Int[Tensor, "... T"] | None = None,
        *,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "... T D"]:
        """x + attention(norm(x)), then the same with the feed-forward network."""
        attend = partial(self.attn, token_positions=token_positions, path=path)
        return residual(x, [(self.ln1, attend), (self.ln2, self.ffn)])
