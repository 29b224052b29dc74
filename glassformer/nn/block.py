"""The block: attention, cross-attention and feed-forward network, joined by residual connections.

Where the normalisation stands is the one difference between a pre-norm, a post-norm and a parallel block, and it is
written once, in ``residual``.

Shapes: ``T`` tokens of this sequence, ``S`` tokens of the memory, ``D`` model width, ``...`` batch axes.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config.checks import check_choice, check_probability
from glassformer.config.parts import PLACEMENTS, Placement
from glassformer.nn.attention import AnyMask, AttentionPath
from glassformer.nn.context import Context
from glassformer.nn.feedforward import finite_in_half
from glassformer.nn.heads import Attention
from glassformer.nn.kernels import along
from glassformer.nn.masks import as_mask

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
        return finite_in_half(sum((finite_in_half(dropout(sublayer(shared))) for _, sublayer in sublayers), start=x))
    for norm, sublayer in sublayers:
        if placement == "pre":
            x = finite_in_half(x + dropout(sublayer(norm(x))))
        elif placement == "post":
            x = norm(finite_in_half(x + dropout(sublayer(x))))
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
        placement: where the norms stand; see ``residual``. A parallel block has a single norm.
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
        self.dropout = nn.Dropout(dropout)
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
        context: Context | None = None,
    ) -> Float[Tensor, "... T D"]:
        """Let every token look at its sequence, then at ``memory`` if the block has cross-attention, then think.

        ``mask`` is a ``Mask``, or booleans ``(T, T)``, ``(batch, T, T)``, ``(batch, 1, 1, T)`` or
        ``(batch, heads, T, T)``; ``memory_mask`` the same with S for the last T. Which slots of a padded batch are
        real, ``(batch, T)``, is said by ``masks.padding(real)``, never by bare booleans: where batch and T are equal
        they would be read as ``(T, T)``. A ``context`` takes the place of all of these: a stack makes it once for all
        of its layers.
        """
        look_around: Step
        # What a stack has said for all of its layers is said here again: on the way back a block may run by itself.
        as_said = nullcontext() if context is None else along(context.path)
        if context is None:
            context = Context(memory=memory, memory_mask=memory_mask, path=path)
            mask = as_mask(mask)
            x = x if mask is None else mask.quieten_padding(x)
            look_around = partial(self.attention, mask=mask, token_positions=token_positions, path=path)
            look_across = partial(self._look_across, memory=memory, mask=memory_mask, path=path)
        else:
            look_around = partial(self.attention, key=context.source, context=context)
            look_across = partial(self._look_across, memory=context.memory, context=context.across())
        if (self.cross is None) != (context.memory is None):
            has = "has no" if self.cross is None else "has"
            given = "a memory was given" if context.memory is not None else "no memory was given"
            raise ValueError(f"this block {has} cross-attention, but {given}.")
        steps: list[tuple[str, nn.Module | None, Step]] = [("attention", self.attention_norm, look_around)]
        if self.cross is not None:
            steps.append(("cross", self.cross_norm, look_across))
        steps.append(("ffn", self.ffn_norm, self.ffn))
        sublayers = [(norm or self.attention_norm, self._drop_after(name, step)) for name, norm, step in steps]
        with as_said:
            return residual(x, sublayers, self.placement)

    def _drop_after(self, name: str, step: Step) -> Step:
        return (lambda y: self.dropout(step(y))) if name in self.dropout_on else step

    def _look_across(self, y: Tensor, memory: Tensor | None, **surroundings: Any) -> Tensor:
        assert self.cross is not None
        return self.cross(y, memory, **surroundings)
