"""Ready-made layers: the encoder and decoder layer of 2017, and the pre-norm block of today's language models.

Each is a choice of parts for the same mathematics. Shapes: ``T`` tokens, ``S`` tokens of the memory, ``D`` model width.
"""

from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config.parts import Placement
from glassformer.nn.attention import AnyMask, AttentionPath
from glassformer.nn.block import Block, residual
from glassformer.nn.course_attention import CausalMultiHeadSelfAttention, MultiHeadAttention
from glassformer.nn.feedforward import FeedForward, SwiGLU
from glassformer.nn.masks import as_mask, causal
from glassformer.nn.norm import LayerNorm, RMSNorm
from glassformer.nn.rotary import RotaryPositionalEmbedding


class _ClassicLayer(Block):
    """What encoder and decoder layers have in common: LayerNorm, biases and a plain feed-forward network.

    Pre-norm unless ``placement`` says otherwise; a stack of pre-norm layers needs one more norm after the last.
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

    Every decoder layer projects keys and values of its own from the memory.
    """

    _has_memory = True

    def forward(  # type: ignore[override]  # a decoder layer cannot do without its memory
        self,
        x: Float[Tensor, "... T D"],
        memory: Float[Tensor, "... S D"],
        mask: AnyMask | None = None,
        memory_mask: AnyMask | None = None,
        *,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "... T D"]:
        """Causal whatever ``mask`` says: it can only hide more. ``memory_mask`` hides padding of the memory.

        Shapes of boolean masks are those of ``Block.forward``.
        """
        given = as_mask(mask)
        mask = causal() if given is None else causal() & given
        return super().forward(x, mask, memory=memory, memory_mask=memory_mask, path=path)


class TransformerBlock(nn.Module):
    """The pre-norm block of a language model: RMSNorm, causal attention with rotary positions, SwiGLU; no biases.

    Hand in a shared ``rope``, or ``max_seq_len`` and ``theta`` to build one of its own, or neither for no positions.
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
