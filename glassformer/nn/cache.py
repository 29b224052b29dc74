"""The KV cache: keys, values, padding and positions of earlier calls, so that each token is processed once.

A cache belongs to the caller, who makes one per batch and passes it to every call. Keys are stored as attention reads
them, with their rotary positions applied.

Shapes: ``B`` batch, ``S`` tokens so far, ``T`` new tokens, ``G`` key/value heads, ``K`` width of a head, ``V`` width of
a value, ``M`` source tokens in ``memory`` (the encoder's output), ``N`` its rows, ``D`` model width, ``R`` selected
rows.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.config.checks import check_positive_integer


class LayerCache:
    """Keys and values of one layer, and of its cross-attention, which are computed once.

    New slots are written into a preallocated buffer: ``capacity`` slots, or twice what is needed whenever it runs out.
    With a ``window``, slots that no later token can attend to are dropped when the buffer is reallocated; never with
    gradients enabled.
    """

    def __init__(self, capacity: int | None = None, window: int | None = None) -> None:
        self.length = 0  # slots in the buffers
        self.evicted = 0  # slots dropped before them
        self.memory: tuple[Tensor, Tensor] | None = None
        self._capacity = capacity
        self._window = window
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def k(self) -> Float[Tensor, "B G S K"] | None:
        """The keys of all slots that are kept."""
        return None if self._k is None else self._k[:, :, : self.length]

    @property
    def v(self) -> Float[Tensor, "B G S V"] | None:
        """The values of all slots that are kept."""
        return None if self._v is None else self._v[:, :, : self.length]

    def extend(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T V"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        """Append the new tokens' keys and values; return those of all slots that are kept."""
        new = k.shape[-2]
        if self._k is None or self._v is None:
            self._k, self._v = k[:, :, :0], v[:, :, :0]
        # With gradients, earlier slots may be saved for the backward pass and must not be written to.
        if torch.is_grad_enabled():
            before_k, before_v = self._k[:, :, : self.length], self._v[:, :, : self.length]
            self._k, self._v = torch.cat((before_k, k), dim=-2), torch.cat((before_v, v), dim=-2)
            self.length += new
            return self._k, self._v
        # Without, write into the buffers (B, G, capacity, K) in place.
        if self.length + new > self._k.shape[-2] or _is_read_only(self._k):
            self._grow(new)
        end = self.length + new
        self._k[:, :, self.length : end] = k
        self._v[:, :, self.length : end] = v
        self.length = end
        return self._k[:, :, :end], self._v[:, :, :end]

    def _grow(self, new: int) -> None:
        """Allocate larger buffers for ``new`` more slots, without the slots that left the window."""
        assert self._k is not None
        assert self._v is not None
        kept = self.length if self._window is None else min(self.length, self._window - 1)
        needed = kept + new
        capacity = self._capacity if self._capacity is not None and needed <= self._capacity else 2 * needed
        if self._window is not None:
            capacity = min(capacity, max(2 * self._window, needed))
        start, self.length = self.length - kept, kept
        self.evicted += start
        self._k, self._v = (_reallocate(x, start, kept, max(capacity, needed)) for x in (self._k, self._v))

    def project_memory_once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the memory: projected at the first call, cached for the others."""
        if self.memory is None:
            self.memory = project()
        elif _is_read_only(self.memory[0]):
            self.memory = self.memory[0].clone(), self.memory[1].clone()
        return self.memory

    def reorder(self, rows: Int[Tensor, "B"], since: int, spare: list[Tensor]) -> None:
        """Make row i continue from row ``rows[i]``; their slots before ``since`` are equal and need not move.

        ``spare`` holds buffers that may be overwritten; buffers that become unused are put there.
        """
        if self._k is None or self._v is None:
            return
        since = max(0, since - self.evicted)
        if torch.is_grad_enabled() or _is_read_only(self._k):
            self._k, self._v = (x[:, :, : self.length].index_select(0, rows) for x in (self._k, self._v))
            return
        # Most slots move: one copy into a spare buffer, whose place the old buffer takes.
        if 2 * since < self.length:
            self._k, self._v = (_select_into_spare(x, rows, self.length, spare) for x in (self._k, self._v))
            return
        # Few slots move: copy them in place.
        for moved in (self._k[:, :, since : self.length], self._v[:, :, since : self.length]):
            moved.copy_(moved.index_select(0, rows))

    def select(self, rows: Int[Tensor, "R"], memory_rows: Int[Tensor, "N"] | None) -> None:
        """Keep these rows, which may repeat, and those of the memory; None keeps the memory as it is."""
        if self._k is not None and self._v is not None:
            capacity = self._k.shape[-2]
            self._k, self._v = (_reallocate(x, 0, self.length, capacity, rows) for x in (self._k, self._v))
        if self.memory is not None and memory_rows is not None:
            k, v = self.memory
            self.memory = k.index_select(0, memory_rows), v.index_select(0, memory_rows)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(x.nbytes for x in (self._k, self._v, *(self.memory or ())) if x is not None)


def _is_read_only(x: Tensor) -> bool:
    """Whether a tensor was made in inference mode and may not be written to, or trained through, outside of it."""
    return x.is_inference() and not torch.is_inference_mode_enabled()


def _reallocate(
    x: Float[Tensor, "B G _ K"], start: int, length: int, capacity: int, rows: Int[Tensor, "R"] | None = None
) -> Float[Tensor, "_ G {capacity} K"]:
    """Copy ``length`` slots from ``start`` on, of the selected rows, into a new buffer of ``capacity`` slots."""
    batch = len(x) if rows is None else len(rows)
    out = x.new_empty(batch, x.shape[1], capacity, x.shape[3])
    kept = x[:, :, start : start + length]
    out[:, :, :length] = kept if rows is None else kept[rows]
    return out


def _select_into_spare(
    x: Float[Tensor, "B G S K"], rows: Int[Tensor, "B"], length: int, spare: list[Tensor]
) -> Float[Tensor, "B G S K"]:
    """Copy the first ``length`` slots of the selected rows into a spare buffer; ``x`` becomes the spare one."""
    out = next((other for other in spare if other.shape == x.shape and other.dtype == x.dtype), None)
    out = torch.empty_like(x) if out is None else out
    spare[:] = [x]
    # One row per batch row and head, (B · G, length · K): each is copied as one contiguous piece.
    heads = torch.arange(x.shape[1], device=x.device)
    flat_rows = (rows[:, None] * x.shape[1] + heads).flatten()
    old, new = (y.flatten(0, 1).flatten(1)[:, : length * x.shape[-1]] for y in (x, out))
    torch.index_select(old, 0, flat_rows, out=new)
    return out


class KVCache:
    """The caches of all layers, with the token mask and the positions of all slots.

    Args:
        capacity: slots to allocate at once, if the longest text is known in advance; without it, and beyond it, the
            buffers double whenever they are full. With gradients enabled nothing is overwritten, and every call copies.
        evicts: layers with a window drop slots that no later token can attend to. Padding must then be on the left.
    """

    is_static = False  # True: of fixed size, with slots that are not written yet; see ``static_cache``

    def __init__(self, capacity: int | None = None, *, evicts: bool = False) -> None:
        if capacity is not None:
            check_positive_integer(capacity=capacity)
        self.capacity = capacity
        self.evicts = evicts
        self.length = 0  # slots so far, padding included
        self.token_mask: Bool[Tensor, "B S"] | None = None  # True at real tokens; None while there is no padding
        self.positions: Int[Tensor, "... S"] | None = None
        self._layers: dict[int, LayerCache] = {}
        self._spare: list[Tensor] = []  # a buffer for reordering beams; see LayerCache.reorder
        self._memory: tuple[Tensor, Tensor | None] | None = None
        self._owner: tuple[object, int] | None = None  # model and batch size

    def layer(self, number: int, window: int | None = None) -> LayerCache:
        """Return the cache of one layer, made at the first call."""
        if number not in self._layers:
            self._layers[number] = LayerCache(self.capacity, window if self.evicts else None)
        return self._layers[number]

    @property
    def layers(self) -> dict[int, LayerCache]:
        """The caches of the layers, by number."""
        return self._layers

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values, those of a memory included."""
        return sum(layer.nbytes for layer in self._layers.values()) + sum(x.nbytes for x in self._spare)

    def reorder(self, rows: Int[Tensor, "B"], *, since: int = 0) -> None:
        """Make row i continue from row ``rows[i]``, as in beam search.

        Slots before ``since`` are equal in both, as is the memory, so they need not move.
        """
        if self._owner is not None and len(rows) != self._owner[1]:
            raise ValueError(
                f"reorder needs an index for each of the {self._owner[1]} rows, got {len(rows)}; select keeps some of "
                f"them."
            )
        for layer in self._layers.values():
            layer.reorder(rows, since, self._spare)
        self._take_rows(rows)

    def select(self, rows: Int[Tensor, "R"], *, memory_rows: Int[Tensor, "N"] | None = None) -> None:
        """Keep these rows, which may repeat, and ``memory_rows`` of the memory; None keeps the memory as it is."""
        self._spare.clear()  # the buffers change their shape
        for layer in self._layers.values():
            layer.select(rows, memory_rows)
        self._take_rows(rows)
        if self._owner is not None:
            self._owner = (self._owner[0], len(rows))
        if self._memory is not None and memory_rows is not None:
            memory, mask = self._memory
            self._memory = memory[memory_rows], None if mask is None else mask[memory_rows]

    def _take_rows(self, rows: Int[Tensor, "R"]) -> None:
        self.token_mask = None if self.token_mask is None else self.token_mask[rows]
        if self.positions is not None and self.positions.ndim > 1 and len(self.positions) > 1:  # one row: all share it
            self.positions = self.positions[rows]

    def crop(self, length: int) -> None:
        """Remove all slots after the first ``length``."""
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} slots cannot be cropped to {length}.")
        dropped = self.length - length
        if dropped and any(layer.evicted for layer in self._layers.values()):
            raise ValueError("a cache that has evicted slots cannot be cropped; use evicts=False.")
        for layer in self._layers.values():
            layer.length -= dropped
        self.token_mask = None if self.token_mask is None else self.token_mask[:, :length]
        self.positions = None if self.positions is None else self.positions[..., :length]
        self.length = length

    @property
    def memory(self) -> tuple[Float[Tensor, "N M D"], Bool[Tensor, "N M"] | None] | None:
        """The memory whose keys and values are cached, and its mask."""
        return self._memory

    def claim(self, owner: object, batch: int) -> None:
        """Bind the cache to one model and one batch size at the first call; raise if a later call has others."""
        if self._owner is None:
            self._owner = (owner, batch)
        if self._owner[0] is not owner or self._owner[1] != batch:
            what = f"another batch: {self._owner[1]} rows, not {batch}" if self._owner[0] is owner else "another model"
            raise ValueError(f"this cache was filled by {what}. Make a new KVCache for each batch.")

    def check_memory(self, memory: Float[Tensor, "N M D"], mask: Bool[Tensor, "N M"] | None) -> None:
        """Raise unless the memory is the one whose keys and values are cached, up to rounding."""
        if self._memory is None:
            self._memory = (memory, mask)
        before, before_mask = self._memory
        same = memory is before or (memory.shape == before.shape and torch.allclose(memory, before, 1e-2, 1e-2, True))
        if mask is not None and before_mask is not None and mask is not before_mask:
            same = same and torch.equal(mask, before_mask)
        if not same or (mask is None) != (before_mask is None):
            raise ValueError("this cache holds the keys and values of another memory; make a new KVCache for it.")

    def next_positions(self, shape: torch.Size, token_mask: Bool[Tensor, "B T"] | None) -> Int[Tensor, "... T"]:
        """Return the positions of new slots ``(B, T)``: real tokens continue the count of their row."""
        assert self.positions is not None
        batch, length = shape
        # No padding so far: all rows have the same positions.
        if token_mask is None and self.token_mask is None:
            return self.positions[..., -1:] + torch.arange(1, length + 1, device=self.positions.device)
        if self._owner is not None:
            self.claim(self._owner[0], batch)
        # The last position of each row, −1 where it has no token yet, plus the count of new tokens.
        positions = self.positions.expand(batch, -1)  # B S
        token_positions = positions if self.token_mask is None else positions.where(self.token_mask, -1)
        new = torch.ones(shape, dtype=torch.long, device=positions.device) if token_mask is None else token_mask.long()
        return (token_positions.amax(-1, keepdim=True) + torch.cumsum(new, dim=-1)).clamp(min=0)

    def extend_token_mask(
        self, token_mask: Bool[Tensor, "B T"] | None, batch: int, new: int
    ) -> Bool[Tensor, "B S"] | None:
        """Append the mask of ``new`` slots and return that of all; call before ``extend_positions``."""
        if token_mask is None and self.token_mask is None:
            return None
        # None: all slots hold tokens.
        before, added = self.token_mask, token_mask
        device = before.device if added is None else added.device  # type: ignore[union-attr]
        before = torch.ones(batch, self.length, dtype=torch.bool, device=device) if before is None else before
        added = torch.ones(batch, new, dtype=torch.bool, device=device) if added is None else added
        whole = torch.cat((before, added), dim=-1)  # B S
        if self.evicts and token_mask is not None and bool((whole[:, :-1] & ~whole[:, 1:]).any()):
            raise ValueError("a cache that evicts slots counts them, so padding must be on the left of all tokens.")
        self.token_mask = whole
        return whole

    def extend_positions(self, positions: Int[Tensor, "... T"]) -> Int[Tensor, "... S"]:
        """Append the positions of new slots and return those of all."""
        before = self.positions
        # All rows shared their positions until there was padding.
        if before is not None and before.shape[:-1] != positions.shape[:-1]:
            batch = max(len(p) for p in (before, positions) if p.ndim > 1)
            before, positions = (p.expand(batch, -1) for p in (before, positions))
        self.positions = positions if before is None else torch.cat((before, positions), dim=-1)
        self.length = self.positions.shape[-1]
        return self.positions
