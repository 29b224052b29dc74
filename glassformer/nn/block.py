"""The block: attention, cross-attention and feed-forward network, joined by residual connections.

Where the normalisation stands is the one difference between pre-norm, post-norm and parallel blocks, and it is written
once, in ``residual``.

Shapes: ``T`` tokens of this sequence, ``S`` tokens of the memory, ``D`` model width, ``...`` batch axes.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config.checks import check_choice, check_probability
from glassformer.config.parts import PLACEMENTS, Placement
from glassformer.nn.attention import AnyMask, AttentionPath
from glassformer.nn.cache import LayerCache
from glassformer.nn.context import AttentionContext
from glassformer.nn.dropout import dropout
from glassformer.nn.feedforward import clamp_half
from glassformer.nn.masks import as_mask
from glassformer.nn.multi_head import Attention

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
    * ``parallel_norms``: the same sum, but each sublayer reads its own norm of x
    """
    if placement in ("parallel", "parallel_norms"):
        shared = sublayers[0][0](x) if placement == "parallel" else None
        inputs = [norm(x) if shared is None else shared for norm, _ in sublayers]
        added = (clamp_half(dropout(sublayer(y))) for y, (_, sublayer) in zip(inputs, sublayers, strict=True))
        return clamp_half(sum(added, start=x))
    for norm, sublayer in sublayers:
        if placement == "pre":
            x = clamp_half(x + dropout(sublayer(norm(x))))
        elif placement == "post":
            x = norm(clamp_half(x + dropout(sublayer(x))))
        else:
            raise ValueError(f"no rule says how to add with placement={placement!r}.")
    return x


class Block(nn.Module):
    """One layer of any Transformer, from parts that are handed in.

    Args:
        attention: self-attention.
        ffn: feed-forward network, any module from ``(..., D)`` to ``(..., D)``.
        norm: makes a fresh normalisation each time it is called.
        cross: cross-attention to a memory, if the block has one; it stands between the other two.
        placement: where the norms stand; see ``residual``. A ``parallel`` block has a single norm.
        dropout: share of each sublayer's result set to zero before it is added, while training.
        dropout_on: the sublayers on which it falls, by name.
    """

    def __init__(
        self,
        attention: Attention,
        ffn: nn.Module,
        norm: Callable[[], nn.Module],
        *,
        cross: Attention | None = None,
        placement: Placement = "pre",
        dropout: float = 0.0,
        dropout_on: Collection[str] = ("attention", "cross", "ffn"),
    ) -> None:
        super().__init__()
        check_choice("placement", placement, PLACEMENTS)
        check_probability(dropout=dropout)
        one_norm = placement == "parallel"
        self.placement: Placement = placement
        self.attention = attention
        self.attention_norm = norm()
        self.cross = cross
        self.cross_norm = None if cross is None or one_norm else norm()
        self.ffn = ffn
        self.ffn_norm = None if one_norm else norm()
        self.dropout = dropout
        self.dropout_on = tuple(dropout_on)

    def forward(
        self,
        x: Float[Tensor, "... T D"],
        mask: AnyMask | None = None,
        *,
        memory: Float[Tensor, "... S D"] | None = None,
        memory_mask: AnyMask | None = None,
        token_positions: Int[Tensor, "... T"] | None = None,
        path: AttentionPath = "sdpa",
        context: AttentionContext | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "... T D"]:
        """Self-attention, cross-attention to ``memory`` (if the block has it), feed-forward, each with its residual.

        ``mask`` is a ``Mask``, or booleans ``(T, T)``, ``(batch, T, T)``, ``(batch, 1, 1, T)`` or
        ``(batch, heads, T, T)``; ``memory_mask`` the same with S for the last T. Which slots of a padded batch are
        real, ``(batch, T)``, is said by ``masks.padding(real)``, never by bare booleans: where batch and T are equal
        they would be read as ``(T, T)``. A ``context`` takes the place of all of these: a stack makes it once for all
        of its layers. With it goes the ``cache`` of this layer.
        """
        if context is None:
            mask = as_mask(mask)
            x = x if mask is None else mask.zero_padding(x)
            around: dict[str, Any] = {"mask": mask, "token_positions": token_positions, "path": path}
            across: dict[str, Any] = {"mask": memory_mask, "path": path}
        else:
            memory = context.memory
            own = {} if cache is None else {"cache": cache}
            around = {"key": context.source, "context": context, **own}
            across = {"context": context.across, **own} if memory is not None else {}
        if (self.cross is None) != (memory is None):
            has = "has no" if self.cross is None else "has"
            given = "a memory was given" if memory is not None else "no memory was given"
            raise ValueError(f"this block {has} cross-attention, but {given}.")

        def self_attend(y: Tensor) -> Tensor:
            return self._drop("attention", self.attention(y, **around))

        def cross_attend(y: Tensor) -> Tensor:
            assert self.cross is not None
            return self._drop("cross", self.cross(y, memory, **across))

        def feed_forward(y: Tensor) -> Tensor:
            return self._drop("ffn", self.ffn(y))

        shared = self.attention_norm  # the only norm of a block with placement "parallel"
        sublayers: list[tuple[Step, Step]] = [(shared, self_attend), (self.ffn_norm or shared, feed_forward)]
        if self.cross is not None:
            sublayers.insert(1, (self.cross_norm or shared, cross_attend))
        return residual(x, sublayers, self.placement)

    def _drop(self, sublayer: str, y: Tensor) -> Tensor:
        return dropout(y, self.dropout, self.training) if sublayer in self.dropout_on else y
