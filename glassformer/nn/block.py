"""The block: attention, cross-attention and feed-forward network, joined by residual connections.

Where the normalisation stands is the one difference between a pre-norm, a post-norm and a parallel block, and it is
written once, in ``residual``.

Shapes: ``T`` tokens of this sequence, ``S`` tokens of the memory, ``D`` model width, ``...`` batch axes.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config import check_choice, check_probability
from glassformer.nn.attention import AnyMask, AttentionPath
from glassformer.nn.heads import MultiHeadAttention
from glassformer.nn.masks import as_mask

Placement = Literal["pre", "post", "parallel"]
Step = Callable[[Tensor], Tensor]


def residual(
    x: Float[Tensor, "... D"],
    sublayers: Sequence[tuple[Step, Step]],
    placement: Placement = "pre",
    dropout: Step = lambda y: y,
) -> Float[Tensor, "... D"]:
    """Pass ``x`` through pairs (norm, sublayer), each adding its result to the residual stream.

    * ``pre``:      x ← x + dropout(f(norm(x)))    the stream itself is never normalised (Xiong et al., 2020)
    * ``post``:     x ← norm(x + dropout(f(x)))    as first published (Vaswani et al., 2017)
    * ``parallel``: x ← x + Σ dropout(f(norm(x)))  all sublayers read the first norm; the others are not used
    """
    if placement == "parallel":
        shared = sublayers[0][0](x)
        return sum((dropout(sublayer(shared)) for _, sublayer in sublayers), start=x)
    for norm, sublayer in sublayers:
        x = x + dropout(sublayer(norm(x))) if placement == "pre" else norm(x + dropout(sublayer(x)))
    return x


class Block(nn.Module):
    """One layer of any Transformer, from parts that are handed in.

    Args:
        attention: self-attention.
        ffn: feed-forward network, any module from ``(..., D)`` to ``(..., D)``.
        norm: makes a fresh normalisation each time it is called.
        cross: cross-attention to a memory, if the block has one; it stands between the other two.
        placement: where the norms stand; see ``residual``. A parallel block has a single norm.
        dropout: share of each sublayer's result set to zero before it is added, while training.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        ffn: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        cross: MultiHeadAttention | None = None,
        placement: Placement = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("placement", placement, ("pre", "post", "parallel"))
        check_probability(dropout=dropout)
        one_norm = placement == "parallel"
        self.placement: Placement = placement
        self.attention = attention
        self.attention_norm = norm()
        self.cross = cross
        self.cross_norm = None if cross is None or one_norm else norm()
        self.ffn = ffn
        self.ffn_norm = None if one_norm else norm()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "... T D"],
        mask: AnyMask | None = None,
        *,
        memory: Float[Tensor, "... S D"] | None = None,
        memory_mask: AnyMask | None = None,
        token_positions: Int[Tensor, "... T"] | None = None,
        path: AttentionPath = "sdpa",
    ) -> Float[Tensor, "... T D"]:
        """Let every token look at its sequence, then at ``memory`` if the block has cross-attention, then think.

        ``mask`` is a ``Mask``, or booleans ``(T, T)``, ``(batch, T, T)``, ``(batch, 1, 1, T)`` or
        ``(batch, heads, T, T)``; ``memory_mask`` the same with S for the last T. Which slots of a padded batch are
        real, ``(batch, T)``, is said by ``masks.padding(real)``, never by bare booleans: where batch and T are equal
        they would be read as ``(T, T)``.
        """
        mask = as_mask(mask)
        x = x if mask is None else mask.quieten_padding(x)
        if (self.cross is None) != (memory is None):
            has = "has no" if self.cross is None else "has"
            given = "a memory was given" if memory is not None else "no memory was given"
            raise ValueError(f"this block {has} cross-attention, but {given}.")

        def look_around(y: Tensor) -> Tensor:
            return self.attention(y, mask=mask, token_positions=token_positions, path=path)

        def look_across(y: Tensor) -> Tensor:
            assert self.cross is not None
            return self.cross(y, memory, mask=memory_mask, path=path)

        steps: list[tuple[nn.Module | None, Step]] = [(self.attention_norm, look_around)]
        if self.cross is not None:
            steps.append((self.cross_norm, look_across))
        steps.append((self.ffn_norm, self.ffn))
        sublayers = [(norm or self.attention_norm, step) for norm, step in steps]
        return residual(x, sublayers, self.placement, self.dropout)
