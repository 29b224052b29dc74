"""What one pass through a stack tells each of its layers, in one value.

Shapes: ``B`` batch, ``T`` tokens of this call, ``S`` tokens they may look at, ``M`` tokens of the memory, ``D`` width.
"""

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.config import BlockSparse
from glassformer.nn.attention import AnyMask, AttentionPath
from glassformer.nn.cache import LayerCache
from glassformer.nn.masks import Resolved
from glassformer.nn.rotary import Turns


@dataclass(frozen=True, eq=False)
class Context:
    """The surroundings in which a layer works; what it lacks plays no part."""

    mask: AnyMask | None = None
    turns: Turns | None = None  # rotary positions
    bias: Float[Tensor, "... T S"] | None = None  # added to the scores of every layer
    bias_hides: bool = False  # it is −inf wherever the mask hides, so that the mask need not be read again
    relative: tuple[Float[Tensor, "R D"], Int[Tensor, "... T S"]] | None = None  # vectors, and which for whom
    pattern: BlockSparse | None = None  # instead of a mask, with the real slots:
    real: Bool[Tensor, "B S"] | None = None
    source: Float[Tensor, "... S D"] | None = None  # what self-attention looks at, if not at its own input
    memory: Float[Tensor, "... M D"] | None = None  # what cross-attention looks at
    memory_mask: AnyMask | None = None
    cache: LayerCache | None = None
    remembers_memory: bool = False  # keys and values of the memory come from the cache
    path: AttentionPath = "sdpa"

    def hiding(self) -> tuple[AnyMask | None, Float[Tensor, "... T S"] | None]:
        """The mask and the bias that attention has to read: kernels take them as one tensor."""
        return None if self.bias_hides else self.mask, self.bias

    def near(self, keys: int) -> "Context":
        """The same for the last ``keys`` slots alone: what a layer with a window has kept."""
        if not isinstance(self.mask, Resolved) or self.mask.allowed is None or self.mask.allowed.shape[-1] == keys:
            return self
        assert self.cache is not None
        assert self.mask.allowed.shape[-1] - keys == self.cache.forgotten
        bias = None if self.bias is None else self.bias[..., -keys:]
        return replace(self, mask=Resolved(self.mask.allowed[..., -keys:]), bias=bias)

    def across(self) -> "Context":
        """The surroundings of the cross-attention: the memory's mask, no positions, keys computed once."""
        return Context(mask=self.memory_mask, cache=self.cache, remembers_memory=self.cache is not None, path=self.path)
