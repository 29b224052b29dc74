"""The block: attention, cross-attention and feed-forward network, joined by residual connections.

Pre-norm, post-norm and parallel blocks differ only in where the norms are, their *placement*; ``residual`` is the only
function in ``nn/`` and ``models/`` that implements it. (A rule with more norms per sublayer also needs them in
``Block``.)

Shapes: ``T`` tokens of this sequence, ``M`` tokens of the memory, ``D`` model width, ``...`` batch axes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.config.checks import check_choice, check_probability
from glassformer.config.parts import PLACEMENTS, SUBLAYERS, Placement
from glassformer.nn.attention import AnyMask, AttentionPath
from glassformer.nn.cache import LayerCache
from glassformer.nn.feedforward import clamp_half
from glassformer.nn.masks import as_mask
from glassformer.nn.modes import dropout
from glassformer.nn.multi_head import Attention, AttentionContext
from glassformer.nn.observer import observe

Transform = Callable[[Tensor], Tensor]  # (..., D) to (..., D)


def residual(
    x: Float[Tensor, "... D"],
    sublayers: Sequence[tuple[Transform, Transform]],
    placement: Placement = "pre",
) -> Float[Tensor, "... D"]:
    """Pass ``x`` through pairs (norm, sublayer), each of which adds its result to the residual stream.

    * ``pre``:      x ← x + f(norm(x))    the stream itself is never normalised (Xiong et al., 2020)
    * ``post``:     x ← norm(x + f(x))    as first published (Vaswani et al., 2017)
    * ``parallel``: x ← x + Σ f(norm(x))  all sublayers share one norm; the other norms do not exist
    * ``parallel_norms``: the same sum, but each sublayer has its own norm of x
    """
    # Parallel: all sublayers take the same x as input, and their results are added to it at once.
    if placement in ("parallel", "parallel_norms"):
        shared = sublayers[0][0](x) if placement == "parallel" else None
        inputs = [norm(x) if shared is None else shared for norm, _ in sublayers]
        results = (clamp_half(sublayer(y)) for y, (_, sublayer) in zip(inputs, sublayers, strict=True))
        return clamp_half(sum(results, start=x))
    # One after the other: the input of each sublayer includes the results of those before it.
    for norm, sublayer in sublayers:
        if placement == "pre":
            x = clamp_half(x + sublayer(norm(x)))
        elif placement == "post":
            x = norm(clamp_half(x + sublayer(x)))
        else:
            raise ValueError(f"unknown placement of norms: {placement!r}.")
    return x


class Block(nn.Module):
    """One layer of any Transformer, composed of the modules passed to it.

    Args:
        attention: self-attention.
        ffn: feed-forward network, any module from ``(..., D)`` to ``(..., D)``; to be observed, it takes ``observer``.
        norm: builds a norm each time it is called.
        cross: cross-attention to a memory, if the block has one; it comes between the other two.
        placement: of the norms; see ``residual``. A ``parallel`` block has a single norm.
        dropout: share of each sublayer's result set to zero before it is added, in training mode.
        dropout_on: the sublayers that have this dropout, by name.
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
        dropout_on: Collection[str] = SUBLAYERS,
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
        self.dropout = {name: dropout if name in dropout_on else 0.0 for name in SUBLAYERS}

    def forward(
        self,
        x: Float[Tensor, "... T D"],
        mask: AnyMask | None = None,
        *,
        memory: Float[Tensor, "... M D"] | None = None,
        memory_mask: AnyMask | None = None,
        token_positions: Int[Tensor, "... T"] | None = None,
        path: AttentionPath = "sdpa",
        context: AttentionContext | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "... T D"]:
        """Self-attention, cross-attention to ``memory`` (if the block has it), feed-forward, each with its residual.

        ``mask`` is a ``Mask``, or booleans ``(T, T)``, ``(batch, T, T)``, ``(batch, 1, 1, T)`` or
        ``(batch, heads, T, T)``; ``memory_mask`` the same with M for the last T. Padding, ``(batch, T)``, must be
        wrapped as ``masks.padding(token_mask)``: where batch and T are equal, bare booleans would be read as
        ``(T, T)``. A ``context`` replaces all of these: a stack makes it once for all of its layers and passes the
        ``cache`` of this layer with it.
        """
        # Keyword arguments of the sublayers, from the context of a stack or from the arguments.
        observer = None if context is None else context.observer
        if context is None:
            mask = as_mask(mask)
            x = x if mask is None else mask.zero_padding(x)
            self_kwargs: dict[str, Any] = {"mask": mask, "token_positions": token_positions, "path": path}
            cross_kwargs: dict[str, Any] = {"mask": memory_mask, "path": path}
        else:
            memory = context.memory
            cached = {} if cache is None else {"cache": cache}
            self_context = context if observer is None else replace(context, observer=observer.part("attention"))
            self_kwargs = {"key": context.key_input, "context": self_context, **cached}
            cross_kwargs = {"context": context.cross_attention, **cached} if memory is not None else {}
        if (self.cross is None) != (memory is None):
            has = "has no" if self.cross is None else "has"
            passed = "a memory was given" if memory is not None else "no memory was given"
            raise ValueError(f"this block {has} cross-attention, but {passed}.")
        ffn_observer = None if observer is None else observer.part("ffn")
        ffn_kwargs = {} if ffn_observer is None else {"observer": ffn_observer}

        def apply(name: str, sublayer: Transform, y: Tensor) -> Tensor:
            y = sublayer(observe(observer, f"{name}.input", y))
            return observe(observer, f"{name}.output", dropout(y, self.dropout[name], self.training))

        self_attend = partial(apply, "attention", lambda y: self.attention(y, **self_kwargs))
        feed_forward = partial(apply, "ffn", lambda y: self.ffn(y, **ffn_kwargs))
        # Pair each sublayer, from (..., T, D) to (..., T, D), with its norm; a "parallel" block has only the first.
        first = self.attention_norm
        sublayers: list[tuple[Transform, Transform]] = [(first, self_attend), (self.ffn_norm or first, feed_forward)]
        if self.cross is not None:
            cross = self.cross
            cross_attend = partial(apply, "cross", lambda y: cross(y, memory, **cross_kwargs))
            sublayers.insert(1, (self.cross_norm or first, cross_attend))
        return residual(x, sublayers, self.placement)
