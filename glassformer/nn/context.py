"""What one pass through a stack tells each of its layers, in one value.

Shapes: ``B`` batch, ``T`` tokens of this call, ``S`` tokens they may look at, ``M`` tokens of the memory, ``D`` width.
"""

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.config import BlockSparse
from glassformer.nn.attention import AnyMask, AttentionPath
from glassformer.nn.masks import DenseMask
from glassformer.nn.rotary import RotaryAngles


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """The surroundings in which layers work; what it lacks plays no part."""

    mask: AnyMask | None = None
    rope: RotaryAngles | None = None  # rotary positions
    bias: Float[Tensor, "... T S"] | None = None  # added to the scores of every layer
    bias_includes_mask: bool = False  # it is −inf wherever the mask hides, so that the mask need not be read again
    relative: tuple[Float[Tensor, "R D"], Int[Tensor, "... T S"]] | None = None  # vectors, and which for whom
    pattern: BlockSparse | None = None  # instead of a mask, with the real slots:
    real: Bool[Tensor, "B S"] | None = None
    source: Float[Tensor, "... S D"] | None = None  # what self-attention looks at, if not at its own input
    memory: Float[Tensor, "... M D"] | None = None  # what cross-attention looks at
    memory_mask: AnyMask | None = None
    last: int | None = None  # one query with a window: it sees the last so many keys and needs no mask
    is_cross: bool = False  # this is for cross-attention
    path: AttentionPath = "sdpa"

    def mask_and_bias(self) -> tuple[AnyMask | None, Float[Tensor, "... T S"] | None]:
        """The mask and the bias that attention has to read: kernels take them as one tensor."""
        return None if self.bias_includes_mask else self.mask, self.bias

    def last_keys(self, keys: int) -> "AttentionContext":
        """The same for the last ``keys`` slots alone: what a layer with a window has kept."""
        mask, bias, real = self.mask, self.bias, self.real
        if isinstance(mask, DenseMask) and mask.allowed is not None and mask.allowed.shape[-1] > keys:
            mask = DenseMask(mask.allowed[..., -keys:])
        if bias is not None and bias.shape[-1] > keys:
            bias = bias[..., -keys:]
        if mask is self.mask and bias is self.bias:
            return self
        return replace(self, mask=mask, bias=bias, real=None if real is None else real[..., -keys:])

    @property
    def across(self) -> "AttentionContext":
        """The surroundings of the cross-attention: the memory's mask, no positions."""
        return AttentionContext(mask=self.memory_mask, is_cross=True, path=self.path)
