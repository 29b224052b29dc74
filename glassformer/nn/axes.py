"""How the axes of masks and positions meet those of the vectors they are for: one rule, aligned to the left.

A mask or position tensor knows the batch and the sequence but not the heads, so its leading axes are the first ones of
the target, and what it lacks lies just before its own last axes.
"""

from collections.abc import Sequence

from torch import Tensor


def align_left(tensor: Tensor, axes: int, *, trailing: int) -> Tensor:
    """Give ``tensor`` ``axes`` axes by inserting ones of size 1 before its last ``trailing``.

    A tensor of nothing but the trailing axes stays as it is: ordinary broadcasting serves it.
    """
    if tensor.ndim == trailing:
        return tensor
    return tensor[(..., *[None] * (axes - tensor.ndim), *[slice(None)] * trailing)]


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether ``shape`` broadcasts to ``target`` without making it any larger."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size == 1 or size == want for size, want in pairs)
