"""Attention masks as values: which query may attend to which key, before any tensor is made. ``True``: may attend.

A ``Mask`` is a small frozen value; masks are combined with ``&``. Queries are aligned to the *end* of the keys, so
the last query always sees the last key: one rule that is right for a whole sequence, for a chunk and for a cached step.

Shapes: ``T`` queries, ``S`` keys, ``...`` batch axes. A mask has batch and sequence axes but no heads, so its axes are
aligned to the left: a padding mask ``(batch, S)`` fits scores ``(batch, T, S)`` and ``(batch, heads, T, S)`` alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.config.checks import check_positive_integer


def align_left(tensor: Tensor, axes: int, *, trailing: int) -> Tensor:
    """Insert axes of size 1 before the last ``trailing`` ones, so that ``tensor`` has ``axes`` axes.

    A tensor that has only the trailing axes stays as it is: ordinary broadcasting is right for it.
    """
    if tensor.ndim == trailing:
        return tensor
    return tensor[(..., *[None] * (axes - tensor.ndim), *[slice(None)] * trailing)]


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether ``shape`` broadcasts to ``target`` without making it any larger."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size == 1 or size == wanted for size, wanted in pairs)


@dataclass(frozen=True, eq=False)
class Mask:
    """Conditions under which a query at position i may attend to a key at position j; all must hold."""

    causal: bool = False  # j ≤ i
    window: int | None = None  # |i − j| < window
    keys: Bool[Tensor, "... S"] | None = None  # key j is a real token
    pairs: Bool[Tensor, "... T S"] | None = None  # any other rule, as booleans

    def __post_init__(self) -> None:
        if self.window is not None:
            check_positive_integer(window=self.window)
        for name, least in (("keys", 1), ("pairs", 2)):
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if tensor.dtype != torch.bool:
                raise TypeError(
                    f"a mask is boolean, True where a query may attend; got {tensor.dtype}. "
                    f"Turn 1/0 into True/False with mask.bool(), and 0/−inf with mask == 0."
                )
            if tensor.ndim < least:
                raise ValueError(f"Mask.{name} needs at least {least} axes; got shape {tuple(tensor.shape)}.")

    def __and__(self, other: "Mask") -> "Mask":
        """Attend where both masks do."""
        if not isinstance(other, Mask):
            raise TypeError(
                f"a Mask combines with a Mask, not with {type(other).__name__}: use masks.padding(token_mask) for key "
                f"slots (batch, keys), or Mask(pairs=...) for booleans that end in (queries, keys)."
            )
        windows = [w for w in (self.window, other.window) if w is not None]
        return Mask(
            causal=self.causal or other.causal,
            window=min(windows, default=None),
            keys=_both(self.keys, other.keys, trailing=1),
            pairs=_both(self.pairs, other.pairs, trailing=2),
        )

    def is_only_causal(self, keys: int) -> bool:
        """Whether the mask hides later keys and nothing else; a window as long as the keys hides nothing."""
        unlimited = self.window is None or self.window >= keys
        return self.causal and unlimited and self.keys is None and self.pairs is None

    def dense(self, score_shape: Sequence[int], device: torch.device | None = None) -> Bool[Tensor, "... T S"]:
        """Return the booleans for scores of shape ``(..., T, S)``: as ``(T, S)``, or with all axes, some of size 1."""
        axes, (queries, keys) = len(score_shape), score_shape[-2:]
        allowed = torch.ones(1, 1, dtype=torch.bool, device=device).expand(queries, keys)  # T S
        # Causal and window masks depend on the distance j − i alone.
        if self.causal or self.window is not None:
            query_positions = torch.arange(keys - queries, keys, device=device)[:, None]
            distance = torch.arange(keys, device=device)[None, :] - query_positions  # T S
            if self.causal:
                allowed = allowed & (distance <= 0)
            if self.window is not None:
                allowed = allowed & (distance.abs() < self.window)
        # Padding is the same for all queries, and for all heads unless it has an axis for them.
        if self.keys is not None:
            token_mask = _align(self.keys, axes - 1, trailing=1).unsqueeze(-2)  # ... 1 S
            allowed = allowed & _fit(token_mask, score_shape, self.keys)
        if self.pairs is not None:
            allowed = allowed & _fit(_align(self.pairs, axes, trailing=2), score_shape, self.pairs)
        return allowed

    def zero_padding(self, x: Float[Tensor, "... S D"]) -> Float[Tensor, "... S D"]:
        """Replace NaN and infinities by 0 in the padded slots of ``x``.

        No query attends to those slots, but in self-attention they pass through the same matrices as real tokens, and
        0 · NaN in the backward pass would make every gradient NaN.
        """
        if self.keys is None:
            return x
        # With one mask per head, a slot is a token if any head may attend to it.
        token_mask = self.keys.any(-2) if self.keys.ndim == x.ndim else self.keys  # ... S
        return x.where(_align(token_mask, x.ndim - 1, trailing=1).unsqueeze(-1) | x.isfinite(), 0.0)


@dataclass(frozen=True, eq=False)
class DenseMask:
    """A mask as booleans, made once for all layers; it does not replace NaN in padding, as ``Mask.zero_padding`` does.

    ``causal`` stands for the triangle of booleans where kernels need no tensor; then T equals S.
    """

    allowed: Bool[Tensor, "... T S"] | None = None
    causal: bool = False


def resolve(
    mask: Mask, score_shape: Sequence[int], device: torch.device | None, *, keep_causal: bool
) -> DenseMask | None:
    """Make ``mask`` dense for scores of shape ``(..., T, S)``; None where it hides nothing.

    ``keep_causal``: return a plain causal mask as the flag ``causal``, for kernels that have such a flag.
    """
    queries, keys = score_shape[-2:]
    if mask.is_only_causal(keys) and (queries == 1 or (keep_causal and queries == keys)):
        return None if queries == 1 else DenseMask(causal=True)
    if not mask.causal and mask.window is None and mask.keys is None and mask.pairs is None:
        return None
    return DenseMask(mask.dense(score_shape, device))


def as_mask(mask: object) -> Mask | None:
    """Convert booleans that end in (queries, keys) to a Mask; a Mask and None are returned as they are.

    Booleans that are the same for all queries, ``(..., 1, S)``, are a padding mask.
    """
    if mask is None or isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"a mask is a Mask or a boolean tensor, True where a query may attend; got {type(mask).__name__}."
        )
    if mask.ndim < 2:
        raise ValueError(f"a mask ends in (queries, keys); got shape {tuple(mask.shape)}.")
    return Mask(keys=mask.squeeze(-2)) if mask.shape[-2] == 1 else Mask(pairs=mask)


def causal() -> Mask:
    """Let no query attend to a later key: as a matrix, the lower triangle is True."""
    return Mask(causal=True)


def window(size: int) -> Mask:
    """Let a query attend to keys less than ``size`` positions away, itself included; ``& causal()`` keeps the past."""
    return Mask(window=size)


def padding(token_mask: Bool[Tensor, "... S"]) -> Mask:
    """Let no query attend to padding; ``token_mask[..., j]`` is True where slot j holds a token."""
    return Mask(keys=token_mask)


def cross(query_mask: Bool[Tensor, "... T"], key_mask: Bool[Tensor, "... S"]) -> Mask:
    """For attention from one padded sequence to another: tokens attend to tokens, padded queries to nothing."""
    return Mask(pairs=query_mask.unsqueeze(-1) & key_mask.unsqueeze(-2))


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


def _fit(tensor: Tensor, score_shape: Sequence[int], original: Tensor) -> Tensor:
    if not fits(tensor.shape, score_shape):
        queries, keys = score_shape[-2:]
        raise ValueError(
            f"the mask of shape {tuple(original.shape)} does not fit {queries} queries and {keys} keys, scores "
            f"{tuple(score_shape)}. A mask ends in (queries, keys); for padding, (batch, keys), use "
            f"masks.padding(token_mask)."
        )
    return tensor
