"""What a decoder remembers between calls, so that each token is looked at once: keys, values and who is real.

A cache belongs to the caller, who makes one per batch and hands it to every call. Keys are kept as attention sees them,
already turned by their positions.

Shapes: ``B`` batch, ``S`` tokens so far, ``T`` new tokens, ``G`` key/value heads, ``K`` width of a head, ``R`` rows
chosen.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.config.checks import check_positive


class LayerCache:
    """Keys and values of one layer; of its cross-attention too, which are computed once.

    New slots are written into memory set aside before: ``capacity`` slots, or twice what is needed whenever it runs
    out. A layer that sees ``window`` slots keeps no more than later tokens can see.
    """

    def __init__(self, capacity: int | None = None, window: int | None = None) -> None:
        self.held = 0  # slots at hand
        self.forgotten = 0  # slots before them
        self.memory: tuple[Tensor, Tensor] | None = None
        self._capacity = capacity
        self._window = window
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def k(self) -> Float[Tensor, "B G S K"] | None:
        """The keys at hand."""
        return None if self._k is None else self._k[:, :, : self.held]

    @property
    def v(self) -> Float[Tensor, "B G S V"] | None:
        """The values at hand."""
        return None if self._v is None else self._v[:, :, : self.held]

    def extend(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T V"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        """Add the new tokens' keys and values; return those of all tokens at hand."""
        new = k.shape[-2]
        if self._k is None or self._v is None:
            self._k, self._v = k[:, :, :0], v[:, :, :0]
        if torch.is_grad_enabled():  # earlier slots may be kept for a backward pass and must not be written to
            before_k, before_v = self._k[:, :, : self.held], self._v[:, :, : self.held]
            self._k, self._v = torch.cat((before_k, k), dim=-2), torch.cat((before_v, v), dim=-2)
            self.held += new
            return self._k, self._v
        if self.held + new > self._k.shape[-2] or _is_locked(self._k):
            self._make_room(new)
        end = self.held + new
        self._k[:, :, self.held : end] = k
        self._v[:, :, self.held : end] = v
        self.held = end
        return self._k[:, :, :end], self._v[:, :, :end]

    def _make_room(self, new: int) -> None:
        assert self._k is not None
        assert self._v is not None
        kept = self.held if self._window is None else min(self.held, self._window - 1)
        needed = kept + new
        room = self._capacity if self._capacity is not None and needed <= self._capacity else 2 * needed
        if self._window is not None:
            room = min(room, max(2 * self._window, needed))
        start, self.held = self.held - kept, kept
        self.forgotten += start
        self._k, self._v = (_moved(x, start, kept, max(room, needed)) for x in (self._k, self._v))

    def memory_once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory: projected at the first call, remembered at the others."""
        if self.memory is None:
            self.memory = project()
        elif _is_locked(self.memory[0]):
            self.memory = self.memory[0].clone(), self.memory[1].clone()
        return self.memory

    def reorder(self, rows: Int[Tensor, "B"], since: int, spare: list[Tensor]) -> None:
        """Let row i go on from where ``rows[i]`` is; their slots before ``since`` are the same and need not move.

        ``spare`` is memory that may be written to; what is left over after the move is put there.
        """
        if self._k is None or self._v is None:
            return
        since = max(0, since - self.forgotten)
        if torch.is_grad_enabled() or _is_locked(self._k):
            self._k, self._v = (x[:, :, : self.held].index_select(0, rows) for x in (self._k, self._v))
            return
        if 2 * since < self.held:  # copied once, to other memory, and that from which it came is free
            self._k, self._v = (_exchanged(x, rows, self.held, spare) for x in (self._k, self._v))
            return
        for kept in (self._k[:, :, since : self.held], self._v[:, :, since : self.held]):
            kept.copy_(kept.index_select(0, rows))

    def select(self, rows: Int[Tensor, "R"], memory_rows: Int[Tensor, "Q"] | None) -> None:
        """Keep these rows, some perhaps more than once, and those of the memory; None keeps the memory as it is."""
        if self._k is not None and self._v is not None:
            room = self._k.shape[-2]
            self._k, self._v = (_moved(x, 0, self.held, room, rows) for x in (self._k, self._v))
        if self.memory is not None and memory_rows is not None:
            k, v = self.memory
            self.memory = k.index_select(0, memory_rows), v.index_select(0, memory_rows)

    @property
    def nbytes(self) -> int:
        """Bytes set aside."""
        return sum(x.nbytes for x in (self._k, self._v, *(self.memory or ())) if x is not None)


def _is_locked(x: Tensor) -> bool:
    """Whether a tensor was made in inference mode and may not be written to, or trained through, outside of it."""
    return x.is_inference() and not torch.is_inference_mode_enabled()


def _moved(x: Tensor, start: int, length: int, room: int, rows: Tensor | None = None) -> Tensor:
    """The slots from ``start`` on, and the chosen rows, in new memory with this much room."""
    batch = len(x) if rows is None else len(rows)
    out = x.new_empty(batch, x.shape[1], room, x.shape[3])
    kept = x[:, :, start : start + length]
    out[:, :, :length] = kept if rows is None else kept[rows]
    return out


def _exchanged(x: Tensor, rows: Tensor, length: int, spare: list[Tensor]) -> Tensor:
    """The first slots of the chosen rows, in memory taken from ``spare`` or new; ``x`` itself is spare then."""
    out = next((other for other in spare if other.shape == x.shape and other.dtype == x.dtype), None)
    out = torch.empty_like(x) if out is None else out
    spare[:] = [x]
    heads = torch.arange(x.shape[1], device=x.device)
    flat_rows = (rows[:, None] * x.shape[1] + heads).flatten()  # heads side by side: what is copied is one piece each
    old, new = (y.flatten(0, 1).flatten(1)[:, : length * x.shape[-1]] for y in (x, out))
    torch.index_select(old, 0, flat_rows, out=new)
    return out


class KVCache:
    """The caches of all layers, which slots hold real tokens, and at which positions they stand.

    Args:
        capacity: slots for which memory is set aside once, for whoever knows how long a text can get; without it, and
            beyond it, the memory doubles whenever it is full. With gradients enabled nothing is written over, and every
            call copies.
        forgets: layers with a window let go of what no later token can see. Padding must then stand on the left.
    """

    def __init__(self, capacity: int | None = None, *, forgets: bool = False) -> None:
        if capacity is not None:
            check_positive(capacity=capacity)
        self.capacity = capacity
        self.forgets = forgets
        self.length = 0  # slots so far, padding included
        self.real: Bool[Tensor, "B S"] | None = None  # None while every slot is real
        self.positions: Int[Tensor, "... S"] | None = None
        self._layers: dict[int, LayerCache] = {}
        self._spare: list[Tensor] = []  # memory of one layer that beams are sorted into; see LayerCache.reorder
        self._memory: tuple[Tensor, Tensor | None] | None = None
        self._owner: tuple[object, int] | None = None

    def layer(self, number: int, window: int | None = None) -> LayerCache:
        """The cache of one layer, made when first asked for."""
        if number not in self._layers:
            self._layers[number] = LayerCache(self.capacity, window if self.forgets else None)
        return self._layers[number]

    @property
    def nbytes(self) -> int:
        """Bytes set aside for keys and values, those of a memory included."""
        return sum(layer.nbytes for layer in self._layers.values()) + sum(x.nbytes for x in self._spare)

    def reorder(self, rows: Int[Tensor, "B"], *, since: int = 0) -> None:
        """Let row i go on from where ``rows[i]`` is, as beams do.

        Slots before ``since`` are the same in both, as is the memory, so that they need not move.
        """
        if self._owner is not None and len(rows) != self._owner[1]:
            raise ValueError(
                f"{self._owner[1]} rows were to be put in order, got {len(rows)}; select keeps some of them."
            )
        for layer in self._layers.values():
            layer.reorder(rows, since, self._spare)
        self._take_rows(rows)

    def select(self, rows: Int[Tensor, "R"], *, memory_rows: Int[Tensor, "Q"] | None = None) -> None:
        """Keep these rows, some perhaps more than once; of the memory ``memory_rows``, None: all as they are."""
        self._spare.clear()  # of another shape now
        for layer in self._layers.values():
            layer.select(rows, memory_rows)
        self._take_rows(rows)
        if self._owner is not None:
            self._owner = (self._owner[0], len(rows))
        if self._memory is not None and memory_rows is not None:
            memory, mask = self._memory
            self._memory = memory[memory_rows], None if mask is None else mask[memory_rows]

    def _take_rows(self, rows: Int[Tensor, "R"]) -> None:
        self.real = None if self.real is None else self.real[rows]
        if self.positions is not None and self.positions.ndim > 1 and len(self.positions) > 1:  # one row is for all
            self.positions = self.positions[rows]

    def crop(self, length: int) -> None:
        """Take back all slots after the first ``length``."""
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} slots cannot be cropped to {length}.")
        dropped = self.length - length
        if dropped and any(layer.forgotten for layer in self._layers.values()):
            raise ValueError("slots cannot be taken back where a window has let go of those before; use forgets=False.")
        for layer in self._layers.values():
            layer.held -= dropped
        self.real = None if self.real is None else self.real[:, :length]
        self.positions = None if self.positions is None else self.positions[..., :length]
        self.length = length

    @property
    def memory(self) -> tuple[Float[Tensor, "B M D"], Bool[Tensor, "B M"] | None] | None:
        """The memory whose keys and values are remembered, and its mask."""
        return self._memory

    def claim(self, owner: object, batch: int) -> None:
        """Raise unless this cache is used by one model and for one batch; ``owner`` is what tells models apart."""
        if self._owner is None:
            self._owner = (owner, batch)
        if self._owner[0] is not owner or self._owner[1] != batch:
            what = f"another batch: {self._owner[1]} rows, not {batch}" if self._owner[0] is owner else "another model"
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
        if self._owner is not None:
            self.claim(self._owner[0], batch)
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
        together = torch.cat((before, added), dim=-1)
        if self.forgets and real is not None and bool((together[:, :-1] & ~together[:, 1:]).any()):
            raise ValueError("a cache that forgets counts slots, so padding must stand on the left of all tokens.")
        self.real = together
        return together

    def extend_positions(self, positions: Int[Tensor, "... T"]) -> Int[Tensor, "... S"]:
        """Positions of all slots so far, the new ones included."""
        before = self.positions
        if before is not None and before.shape[:-1] != positions.shape[:-1]:  # rows counted alike until padding came
            batch = max(len(p) for p in (before, positions) if p.ndim > 1)
            before, positions = (p.expand(batch, -1) for p in (before, positions))
        self.positions = positions if before is None else torch.cat((before, positions), dim=-1)
        self.length = self.positions.shape[-1]
        return self.positions
