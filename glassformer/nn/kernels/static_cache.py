"""A KV cache of fixed size for steps of one token: every step runs the same operations on the same buffers.

An ordinary ``KVCache`` grows: shapes change with every step, and Python counts the slots. Here buffers, masks and
positions have all their slots from the start, and the index of the next slot is on the device, so that a step can be
captured as a CUDA graph, or compiled, once and then repeated. Slots that have not been written yet are masked out.

Shapes: ``B`` rows, ``G`` key/value heads, ``C`` slots (capacity), ``K`` width of a head, ``V`` width of a value, ``M``
source tokens in ``memory`` (the encoder's output), ``N`` its rows, ``L`` layers.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.config.checks import check_positive_integer
from glassformer.nn.cache import KVCache, LayerCache
from glassformer.nn.kernels import step_kernels


class StaticLayerCache(LayerCache):
    """Keys and values of one layer in buffers of fixed size, and those of the encoder's output."""

    def __init__(self, k: Float[Tensor, "B G C K"], v: Float[Tensor, "B G C V"], slot: Int[Tensor, "1"]) -> None:
        super().__init__(k.shape[-2])
        self._k, self._v = k, v
        self.length = k.shape[-2]
        self._slot = slot

    def extend(
        self, k: Float[Tensor, "B G 1 K"], v: Float[Tensor, "B G 1 V"]
    ) -> tuple[Float[Tensor, "B G C K"], Float[Tensor, "B G C V"]]:
        """Write the new token's keys and values into the next slot; return all slots."""
        assert self._k is not None
        assert self._v is not None
        if step_kernels.capturing(k):
            step_kernels.write_slot(k, v, self._k, self._v, self._slot)
            return self._k, self._v
        return self._k.index_copy_(2, self._slot, k), self._v.index_copy_(2, self._slot, v)

    def project_memory_once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the encoder's output, which were projected before."""
        del project
        assert self.memory is not None
        return self.memory

    def fill(self, other: LayerCache, rows: int) -> None:
        """Copy the slots of another cache (evicted ones stay empty) and its keys and values of the encoder's output."""
        assert self._k is not None
        assert self._v is not None
        for own, kept in ((self._k, other.k), (self._v, other.v)):
            if kept is not None:
                own[:rows, :, other.evicted : other.evicted + other.length] = kept
        if self.memory is not None and other.memory is not None:
            for mine, theirs in zip(self.memory, other.memory, strict=True):
                mine[: len(theirs), :, : theirs.shape[2]] = theirs


class StaticCache(KVCache):
    """The caches of all layers, of fixed size; filled from an ordinary cache after the prefill.

    Call ``decode`` with one token per row, then ``advance``, until the cache is full. Nothing is checked: the caller
    counts the steps.

    Args:
        like: a cache that is not empty, from which rows, layers and head widths are taken.
        capacity: slots.
        memory_slots: slots for source tokens, at least as many as in ``like``; the caller masks out the rest.
        max_length: positions of the model; rows that have ended, but are still computed, stay at the last of them.
    """

    is_static = True

    def __init__(
        self, like: KVCache, capacity: int, memory_slots: int | None = None, *, max_length: int | None = None
    ) -> None:
        super().__init__(capacity)
        self._last = None if max_length is None else max_length - 1
        check_positive_integer(capacity=capacity)
        layers = like.layers
        first = next((layer for layer in layers.values() if layer.k is not None), None)
        if first is None or first.k is None:
            raise ValueError("a static cache is made from a cache that holds at least one token.")
        rows, device = len(first.k), first.k.device
        self._slot = torch.zeros(1, dtype=torch.long, device=device)
        self._next_position = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._token_mask = torch.zeros(rows, capacity, dtype=torch.bool, device=device)
        self._key_positions = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        self.length = 1  # a placeholder that means "not empty"; only the device knows how many slots are in use
        for number, layer in layers.items():
            assert layer.k is not None
            assert layer.v is not None
            k, v = (x.new_zeros(rows, x.shape[1], capacity, x.shape[-1]) for x in (layer.k, layer.v))
            own = self._layers[number] = StaticLayerCache(k, v, self._slot)
            if layer.memory is not None:
                n, slots = layer.memory[0].shape[0], memory_slots or layer.memory[0].shape[2]
                mk, mv = (x.new_zeros(n, x.shape[1], slots, x.shape[-1]) for x in layer.memory)
                own.memory = mk, mv

    def fill(self, cache: KVCache) -> None:
        """Continue from an ordinary cache with as many rows, or from a smaller static one."""
        rows, capacity = self._token_mask.shape
        used = cache.capacity if isinstance(cache, StaticCache) else cache.length
        assert used is not None
        if used > capacity:
            raise ValueError(f"a static cache of {capacity} slots cannot hold the {used} slots of another cache.")
        self._token_mask.zero_()
        self._key_positions.zero_()
        if isinstance(cache, StaticCache):
            self._token_mask[:, :used] = cache._token_mask
            self._key_positions[:, :used] = cache._key_positions
            self._next_position.copy_(cache._next_position)
            self._slot.copy_(cache._slot)
        else:
            assert cache.positions is not None
            self._token_mask[:, :used] = True if cache.token_mask is None else cache.token_mask
            self._key_positions[:, :used] = cache.positions
            self._next_position.copy_(cache.next_positions(torch.Size((rows, 1)), None).expand(rows, 1))
            self._slot.fill_(used)
        # Zero all buffers, by one kernel: a NaN left by an earlier text would survive the mask, since 0 · NaN is NaN.
        torch._foreach_zero_(self._buffers())
        for number, layer in self._layers.items():
            assert isinstance(layer, StaticLayerCache)
            layer.fill(cache.layers[number], rows)

    def tensors(self) -> list[Tensor]:
        """Return every tensor of the cache."""
        return [self._slot, self._next_position, self._token_mask, self._key_positions, *self._buffers()]

    def _buffers(self) -> list[Tensor]:
        layers = self._layers.values()
        return [x for layer in layers for x in (layer._k, layer._v, *(layer.memory or ())) if x is not None]

    def advance(self) -> None:
        """Go on to the next slot and the next position; call it after each step."""
        self._slot += 1
        self._next_position += 1
        if self._last is not None:
            self._next_position.clamp_(max=self._last)

    def reorder(self, rows: Int[Tensor, "B"], *, since: int = 0, beams: int | None = None) -> None:
        """Make row i continue from row ``rows[i]``; they must have the same mask and positions, as beams of a prompt.

        Slots before ``since`` are equal in both and stay where they are. ``beams``: how many consecutive rows are the
        beams of one prompt.
        """
        for layer in self._layers.values():
            assert layer._k is not None
            assert layer._v is not None
            if beams is not None and step_kernels.capturing(layer._k):
                step_kernels.reorder((layer._k, layer._v), rows, self._slot, beams, since)
                continue
            for buffer in (layer._k, layer._v):
                moved = buffer[:, :, since:]
                moved.copy_(moved.index_select(0, rows))

    # ---- the methods of a cache that a model calls

    def claim(self, owner: object, batch: int) -> None:
        """Nothing to check: the caller made the cache for these rows."""

    def check_memory(self, memory: Float[Tensor, "N M D"], mask: Bool[Tensor, "N M"] | None) -> None:
        """Nothing to check: keys and values of the encoder's output are in the cache."""

    def next_positions(self, shape: torch.Size, token_mask: Bool[Tensor, "B 1"] | None) -> Int[Tensor, "B 1"]:
        """Return the position of the next token of each row."""
        if shape[-1] != 1 or token_mask is not None:
            raise ValueError(f"a static cache takes one real token per row and call, got {shape[-1]}, or a mask.")
        return self._next_position

    def extend_token_mask(
        self, token_mask: Bool[Tensor, "B 1"] | None, batch: int, new: int
    ) -> Bool[Tensor, "B C"] | None:
        """Mark the next slot as a token's; return which of all slots hold one."""
        del token_mask, batch, new
        return self._token_mask.index_fill_(1, self._slot, True)

    def extend_positions(self, positions: Int[Tensor, "B 1"]) -> Int[Tensor, "B C"]:
        """Write the positions of the next slot and return those of all."""
        return self._key_positions.index_copy_(1, self._slot, positions.expand(len(self._key_positions), 1))

    def select(self, rows: Int[Tensor, "R"], *, memory_rows: Int[Tensor, "N"] | None = None) -> None:
        """Refused: the rows of a static cache are fixed."""
        del rows, memory_rows
        raise ValueError("a static cache keeps its rows; select them in the ordinary cache that it is filled from.")

    def crop(self, length: int) -> None:
        """Refused: the slots in use are counted on the device."""
        del length
        raise ValueError("a static cache cannot be cropped; use a KVCache.")


def capacity_for(slots: int, least: int = 64) -> int:
    """Round ``slots`` up to one of few capacities, so that captured steps are reused.

    Multiples of 64 up to 512, of 128 up to 1,024, and so on: of an eighth of the next power of two.
    """
    unit = max(least, (1 << (slots - 1).bit_length()) // 8)
    return -(-slots // unit) * unit


def layer_shapes(cache: KVCache) -> Sequence[tuple[object, ...]]:
    """Return what the buffers of a static cache depend on: head counts, widths and types, layer by layer."""
    shapes: list[tuple[object, ...]] = []
    for number, layer in sorted(cache.layers.items()):
        assert layer.k is not None
        assert layer.v is not None
        memory = None if layer.memory is None else tuple((x.shape[1], x.shape[3], x.dtype) for x in layer.memory)
        shapes.append((number, *((x.shape[1], x.shape[3], x.dtype) for x in (layer.k, layer.v)), memory))
    return shapes
