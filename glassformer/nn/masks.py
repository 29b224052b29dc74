"""Masks as values: who may look at whom, written down before any tensor is made. ``True`` attends.

A ``Mask`` is a small frozen value; masks are combined with ``&``. Queries are aligned to the *end* of the keys, so
the last query always sees the last key: one rule that is right for a whole sequence, for a chunk and for a cached step.

Shapes: ``T`` queries, ``S`` keys, ``...`` batch axes. Batch axes are aligned to the left: a padding mask
``(batch, S)`` serves scores ``(batch, T, S)`` and ``(batch, heads, T, S)`` alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.config.checks import check_positive
from glassformer.nn.axes import align_left, fits


@dataclass(frozen=True, eq=False)
class Mask:
    """The conditions under which a query at position i may attend to a key at position j; all must hold."""

    causal: bool = False  # j ≤ i
    window: int | None = None  # |i − j| < window
    keys: Bool[Tensor, "... S"] | None = None  # key j is a real token
    pairs: Bool[Tensor, "... T S"] | None = None  # any other rule, written out

    def __post_init__(self) -> None:
        if self.window is not None:
            check_positive(window=self.window)
        for name, least in (("keys", 1), ("pairs", 2)):
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if tensor.dtype != torch.bool:
                raise TypeError(
                    f"a mask is boolean and True attends; got {tensor.dtype}. "
                    f"Turn 1/0 into True/False with mask.bool(), and 0/−inf with mask == 0."
                )
            if tensor.ndim < least:
                raise ValueError(f"Mask.{name} needs at least {least} axes; got shape {tuple(tensor.shape)}.")

    def __and__(self, other: "Mask") -> "Mask":
        """Attend where both masks do."""
        if not isinstance(other, Mask):
            raise TypeError(
                f"a Mask combines with a Mask, not with {type(other).__name__}: say masks.padding(real) of key slots "
                f"(batch, keys), or Mask(pairs=...) of booleans that end in (queries, keys)."
            )
        windows = [w for w in (self.window, other.window) if w is not None]
        return Mask(
            causal=self.causal or other.causal,
            window=min(windows, default=None),
            keys=_both(self.keys, other.keys, trailing=1),
            pairs=_both(self.pairs, other.pairs, trailing=2),
        )

    def is_only_causal(self, keys: int) -> bool:
        """Whether the mask says "not the future" and nothing else; a window as long as the keys says nothing."""
        wide = self.window is None or self.window >= keys
        return self.causal and wide and self.keys is None and self.pairs is None

    def dense(self, scores: Sequence[int], device: torch.device | None = None) -> Bool[Tensor, "... T S"]:
        """The mask written out for scores of shape ``(..., T, S)``: as ``(T, S)``, or with all axes, some of size 1."""
        axes, (queries, keys) = len(scores), scores[-2:]
        allowed = torch.ones(1, 1, dtype=torch.bool, device=device).expand(queries, keys)
        if self.causal or self.window is not None:
            query_positions = torch.arange(keys - queries, keys, device=device)[:, None]
            ahead = torch.arange(keys, device=device)[None, :] - query_positions  # T S
            if self.causal:
                allowed = allowed & (ahead <= 0)
            if self.window is not None:
                allowed = allowed & (ahead.abs() < self.window)
        if self.keys is not None:
            real = _align(self.keys, axes - 1, trailing=1).unsqueeze(-2)
            allowed = allowed & _fit(real, scores, self.keys)
        if self.pairs is not None:
            allowed = allowed & _fit(_align(self.pairs, axes, trailing=2), scores, self.pairs)
        return allowed

    def zero_padding(self, x: Float[Tensor, "... S D"]) -> Float[Tensor, "... S D"]:
        """``x`` with 0 for NaN and infinities in slots that the padding mask says hold no token.

        Nobody attends to those slots, but where the same sequence asks the questions they pass through the same
        matrices as real tokens, and 0 · NaN in a backward pass would spoil the gradients of all.
        """
        if self.keys is None:
            return x
        real = self.keys.any(-2) if self.keys.ndim == x.ndim else self.keys  # one mask per head: real for any of them
        return x.where(_align(real, x.ndim - 1, trailing=1).unsqueeze(-1) | x.isfinite(), 0.0)


@dataclass(frozen=True, eq=False)
class DenseMask:
    """A mask written out once for many layers, by someone who knows that padding holds finite numbers.

    ``causal`` stands for the whole triangle where no tensor is needed; queries and keys are then equally many.
    """

    allowed: Bool[Tensor, "... T S"] | None = None
    causal: bool = False


def resolve(mask: Mask, scores: Sequence[int], device: torch.device | None, *, keep_causal: bool) -> DenseMask | None:
    """``mask`` for scores of shape ``(..., T, S)``; None where it hides nothing.

    ``keep_causal``: leave a plain causal mask unwritten, for kernels that know what that means.
    """
    queries, keys = scores[-2:]
    if mask.is_only_causal(keys) and (queries == 1 or (keep_causal and queries == keys)):
        return None if queries == 1 else DenseMask(causal=True)
    if not mask.causal and mask.window is None and mask.keys is None and mask.pairs is None:
        return None
    return DenseMask(mask.dense(scores, device))


def as_mask(mask: object) -> Mask | None:
    """A Mask as it is; booleans that end in (queries, keys) as a Mask; None for none.

    Booleans that are the same for all queries, ``(..., 1, S)``, say which slots are real: they are a padding mask.
    """
    if mask is None or isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise TypeError(f"a mask is a Mask or a boolean tensor, True attends; got {type(mask).__name__}.")
    if mask.ndim < 2:
        raise ValueError(f"a mask ends in (queries, keys); got shape {tuple(mask.shape)}.")
    return Mask(keys=mask.squeeze(-2)) if mask.shape[-2] == 1 else Mask(pairs=mask)


def causal() -> Mask:
    """No query sees a key that comes after it: written as a matrix, the lower triangle is True."""
    return Mask(causal=True)


def window(size: int) -> Mask:
    """A query sees keys less than ``size`` positions away, itself included; ``& causal()`` keeps the past alone."""
    return Mask(window=size)


def padding(real: Bool[Tensor, "... S"]) -> Mask:
    """``real[..., j]`` is True where slot j holds a token; nobody attends to the others."""
    return Mask(keys=real)


def cross(real_queries: Bool[Tensor, "... T"], real_keys: Bool[Tensor, "... S"]) -> Mask:
    """For attention from one padded sequence to another: real queries see real keys, padded queries see nothing."""
    return Mask(pairs=real_queries.unsqueeze(-1) & real_keys.unsqueeze(-2))


def _align(tensor: Tensor, axes: int, *, trailing: int) -> Tensor:
    if tensor.ndim > axes:
        raise ValueError(f"a mask of shape {tuple(tensor.shape)} has more axes than the scores it masks ({axes}).")
    return align_left(tensor, axes, trailing=trailing)


def _both(a: Tensor | None, b: Tensor | None, *, trailing: int) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    axes = max(a.ndim, b.ndim)
    left, right = _align(a, axes, trailing=trailing), _align(b, axes, trailing=trailing)
    sizes = zip(reversed(left.shape), reversed(right.shape), strict=False)
    if any(m != n and m != 1 and n != 1 for m, n in sizes):
        raise ValueError(f"masks of shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit each other.")
    return left & right


def _fit(tensor: Tensor, scores: Sequence[int], given: Tensor) -> Tensor:
    if not fits(tensor.shape, scores):
        queries, keys = scores[-2:]
        raise ValueError(
            f"the mask of shape {tuple(given.shape)} does not fit {queries} queries and {keys} keys, scores "
            f"{tuple(scores)}. A mask ends in (queries, keys); which key slots are real, (batch, keys), is said by "
            f"masks.padding(real)."
        )
    return tensor
