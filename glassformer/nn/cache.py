"""What a decoder remembers between calls, so that each token is looked at once: keys, values and who is real.

A cache belongs to the caller, who makes one per batch and hands it to every call. Keys are kept as attention sees them,
already turned by their positions.

Shapes: ``B`` batch, ``S`` tokens so far, ``T`` new tokens, ``G`` key/value heads, ``K`` width of a head.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class LayerCache:
    """Keys and values of one layer; of its cross-attention too, which are computed once."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.memory: tuple[Tensor, Tensor] | None = None

    def extend(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T V"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        """Add the new tokens' keys and values; return those of all tokens so far."""
        self.k = k if self.k is None else torch.cat((self.k, k), dim=-2)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=-2)
        return self.k, self.v

    def memory_once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory: projected at the first call, remembered at the others."""
        if self.memory is None:
            self.memory = project()
        return self.memory


class KVCache:
    """The caches of all layers, which slots hold real tokens, and at which positions they stand."""

    def __init__(self) -> None:
        self.length = 0  # slots so far, padding included
        self.real: Bool[Tensor, "B S"] | None = None  # None while every slot is real
        self.positions: Int[Tensor, "... S"] | None = None
        self._layers: dict[int, LayerCache] = {}
        self._memory: tuple[Tensor, Tensor | None] | None = None
        self._owner: tuple[object, int] | None = None

    def layer(self, number: int) -> LayerCache:
        """The cache of one layer, made when first asked for."""
        return self._layers.setdefault(number, LayerCache())

    def claim(self, owner: object, batch: int) -> None:
        """Raise unless this cache is used by one model and for one batch; ``owner`` is what tells models apart."""
        if self._owner is None:
            self._owner = (owner, batch)
        if self._owner != (owner, batch):
            what = f"another batch: {self._owner[1]} rows, not {batch}" if self._owner[0] == owner else "another model"
            raise ValueError(f"this cache was filled by {what}. Make a new KVCache for each batch.")

    def check_memory(self, memory: Float[Tensor, "B M D"], mask: Bool[Tensor, "B M"] | None) -> None:
        """Raise unless the memory is the one whose keys and values are remembered, up to rounding."""
        if self._memory is None:
            self._memory = (memory, mask)
        before, before_mask = self._memory
        same = memory is before or (memory.shape == before.shape and torch.allclose(memory, before, 1e-2, 1e-2, True))
        if mask is not None and before_mask is not None and mask is not before_mask:
            same = same and torch.equal(mask, before_mask)
        if not same or (mask is None) != (before_mask is None):
            raise ValueError("this cache remembers the keys and values of another memory; make a new KVCache for it.")

    def next_positions(self, shape: torch.Size, real: Bool[Tensor, "B T"] | None) -> Int[Tensor, "... T"]:
        """Positions of new slots ``(B, T)``: the real ones of each row are counted on from its last."""
        assert self.positions is not None
        batch, new = shape
        if real is None and self.real is None:
            return self.positions[..., -1:] + torch.arange(1, new + 1, device=self.positions.device)
        places = self.positions.expand(batch, -1)
        seen = places if self.real is None else places.where(self.real, -1)
        added = torch.ones(shape, dtype=torch.long, device=places.device) if real is None else real.long()
        return (seen.amax(-1, keepdim=True) + torch.cumsum(added, dim=-1)).clamp(min=0)

    def extend_real(self, real: Bool[Tensor, "B T"] | None, batch: int, new: int) -> Bool[Tensor, "B S"] | None:
        """Which slots are real, the ``new`` ones included; call before ``extend_positions``."""
        if real is None and self.real is None:
            return None
        device = self.real.device if real is None else real.device  # type: ignore[union-attr]
        before = self.real if self.real is not None else torch.ones(batch, self.length, dtype=torch.bool, device=device)
        added = real if real is not None else torch.ones(batch, new, dtype=torch.bool, device=device)
        self.real = torch.cat((before, added), dim=-1)
        return self.real

    def extend_positions(self, positions: Int[Tensor, "... T"]) -> Int[Tensor, "... S"]:
        """Positions of all slots so far, the new ones included."""
        before = self.positions
        if before is not None and before.shape[:-1] != positions.shape[:-1]:  # rows counted alike until padding came
            batch = max(len(p) for p in (before, positions) if p.ndim > 1)
            before, positions = (p.expand(batch, -1) for p in (before, positions))
        self.positions = positions if before is None else torch.cat((before, positions), dim=-1)
        self.length = self.positions.shape[-1]
        return self.positions
