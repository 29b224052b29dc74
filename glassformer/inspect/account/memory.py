"""Memory of a pass: the storages it allocates and frees, and the bytes of weights, states, activations and the peak.

A storage is identified by the address of its C++ object; a finalizer records when torch frees it. The timeline of
allocations and frees gives the peak. Torch is imported only to compare storages, so that the summary of an account can
be read without it.
"""

import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from glassformer.inspect.account.counts import Workload

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.inspect.account.trace import OpTrace

Optimizer = Literal["adamw", "adamw-master", "adamw-8bit", "none"]
BLOCK = 256  # weights that share a scale in 8-bit states (Dettmers et al., 2022)
OWNERS = 2  # use count of the storage of an unshared tensor: by the tensor, and by the storage's Python object
HOLDERS = 4  # use count of a tensor that only the running operator uses; a formula of autograd adds one


@dataclass(slots=True, eq=False)
class Storage:
    """Memory that the pass allocated."""

    number: int
    nbytes: int
    layer: int  # the layer call that allocated it; 0: outside the layers
    products: frozenset[tuple[int, bool]] = frozenset()  # see ``recorder.AttentionProducts``
    is_normalised: bool = False
    is_saved: bool = False
    is_live: bool = True
    is_zero: bool = False  # allocated as zeros
    successor: "Storage | None" = None  # the storage that replaces it; see ``Storages.overwrite``
    predecessor: "Storage | None" = None  # the storage it replaces, while that is still referenced


class Storages:
    """All storages of a pass. Memory allocated before it, such as weights and inputs, is not included."""

    def __init__(self, on_free: Callable[[int], None]) -> None:
        self.all: list[Storage] = []
        self._on_free = on_free
        self._timeline: list[int] = []  # n + 1: storage n is allocated, −n − 1: it is freed, 0: an operator has ended
        self._live: dict[int, Storage] = {}
        self._external: dict[int, Any] = {}  # referenced, so that no other storage gets the same address

    def of(self, tensor: "Tensor") -> Storage | None:
        """Return the storage of a tensor; None if it was allocated before the pass."""
        return self._live.get(address(tensor))

    def add_external(self, tensor: "Tensor") -> None:
        """Register a tensor that the pass did not allocate."""
        key = address(tensor)
        if key not in self._live and key not in self._external:
            self._external[key] = tensor.untyped_storage()

    def allocate(self, tensor: "Tensor", layer: int) -> None:
        """Register the result of an operator: new memory, unless it is a view."""
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key in self._live or key in self._external:
            return
        storage = Storage(len(self.all), memory.nbytes(), layer)
        self.all.append(storage)
        self._live[key] = storage
        self._timeline.append(storage.number + 1)
        weakref.finalize(memory, self._free, key)

    def overwrite(self, old: "Tensor", new: "Tensor", *, by_formula: bool) -> None:
        """Register ``new``, which autograd computes in the memory of ``old`` if nothing else uses ``old``.

        An example is a sum of gradients. With fake tensors, as with any subclass of tensor, autograd allocates ``new``
        instead; to get the memory of real tensors, ``old`` counts as freed before ``new`` is allocated.
        """
        import torch

        before, memory = self.of(old), old.untyped_storage()
        holders = old._use_count()  # type: ignore[attr-defined]
        is_unshared = holders <= HOLDERS + by_formula and torch._C._storage_Use_Count(memory._cdata) == OWNERS
        if before is not None and is_unshared and before.nbytes == new.untyped_storage().nbytes():
            self._end(before)
        self.allocate(new, 0)
        # Link partial sums to the gradient that they end in; see ``leading_to`` and ``peak``.
        after = self.of(new)
        if before is not None and after is not None:
            before.successor = after
            after.predecessor = before if before.is_live else None

    def start(self, kept: Iterable["Tensor"] = ()) -> None:
        """Start the timeline: the storages of ``kept`` count from the first event, other live storages 0 bytes."""
        numbers = {storage.number for tensor in kept if (storage := self.of(tensor)) is not None}
        self._timeline = [number + 1 for number in sorted(numbers)]
        for storage in self._live.values():
            if storage.number not in numbers:
                storage.nbytes = 0

    def end_operator(self) -> None:
        """Mark the end of an operator, where the level of memory is read."""
        self._timeline.append(0)

    def _free(self, key: int) -> None:
        self._end(self._live.pop(key))
        self._on_free(key)

    def _end(self, storage: Storage) -> None:
        if storage.is_live:
            storage.is_live = False
            self._timeline.append(-storage.number - 1)

    def leading_to(self, gradients: Iterable["Tensor"]) -> frozenset[int]:
        """Return the storages of gradients, and of the partial sums that were accumulated into them, by number."""
        numbers = {storage.number for tensor in gradients if (storage := self.of(tensor)) is not None}
        for storage in reversed(self.all):
            if storage.successor is not None and storage.successor.number in numbers:
                numbers.add(storage.number)
        return frozenset(numbers)

    def peak(self, without: Collection[int] = ()) -> int:
        """Return the most bytes allocated at the end of any operator; storages in ``without`` count 0 bytes."""
        sizes = [0 if storage.number in without else storage.nbytes for storage in self.all]
        level = peak = 0
        for event in self._timeline:
            if event == 0:
                peak = max(peak, level)
                continue
            level += sizes[event - 1] if event > 0 else -sizes[-event - 1]
            # An excluded partial sum that outlives the start of its successor is a second tensor beside the gradient:
            # it counts from here on.
            before = self.all[event - 1].predecessor if event > 0 else None
            if before is not None and sizes[before.number] == 0:
                sizes[before.number] = before.nbytes
                level += before.nbytes
        return peak


def location(tensor: "Tensor") -> tuple[int, int]:
    """Storage and offset of a tensor, the same for its transposes."""
    return address(tensor), int(tensor.storage_offset())


def address(tensor: "Tensor") -> int:
    """Identifies a storage while it is allocated."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(frozen=True)
class Weight:
    """A parameter or a buffer."""

    shape: tuple[int, ...]
    numel: int
    itemsize: int  # bytes per element
    is_trained: bool = True

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * self.itemsize


@dataclass(frozen=True)
class Memory:
    """Bytes. ``activations`` are those saved for the backward pass, ``checkpointed`` the same with activation
    checkpointing of every layer; ``peak`` is the highest level, everything included."""

    weights: int  # parameters and buffers
    gradients: int = 0
    optimizer: int = 0
    kv_cache: int = 0
    kv_cache_per_token: int = 0
    activations: int = 0
    checkpointed: int = 0
    working: int = 0  # peak of a training step without weights, their gradients and the optimizer states
    peak: int = 0

    @property
    def resident(self) -> int:
        """What stays allocated from one pass to the next."""
        return self.weights + self.gradients + self.optimizer + self.kv_cache


def memory_of(trace: "OpTrace", workload: Workload, optimizer: Optimizer) -> Memory:
    """Return the memory of a traced pass."""
    recorder, storages = trace.recorder, trace.recorder.storages
    weights = sum(weight.nbytes for weight in (*trace.weights.values(), *trace.buffers.values()))
    if workload.mode != "train":
        peak = weights + trace.cache_bytes + storages.peak()
        return Memory(weights, kv_cache=trace.cache_bytes, kv_cache_per_token=trace.cache_bytes_per_token, peak=peak)
    trained = [weight for weight in trace.weights.values() if weight.is_trained]
    gradients, states = sum(weight.nbytes for weight in trained), optimizer_bytes(optimizer, trained)

    def size(numbers: Iterable[int]) -> int:
        return sum(storages.all[number].nbytes for number in numbers)

    return Memory(
        weights,
        gradients=gradients,
        optimizer=states,
        kv_cache_per_token=trace.cache_bytes_per_token,
        activations=size(saved.storage for saved in recorder.saved),
        # Checkpointing keeps what is saved between the layers, and recomputes the inside of one layer at a time.
        checkpointed=size(recorder.saved_outside) + max(map(size, recorder.saved_inside), default=0),
        working=storages.peak(trace.gradients),
        # Either during the optimizer's step, or in the pass, which allocates the gradients itself.
        peak=max(weights + gradients + states, weights + states + storages.peak()),
    )


def optimizer_bytes(optimizer: Optimizer, trained: Iterable[Weight]) -> int:
    """Return the bytes of optimizer states: two moments, with ``adamw-master`` also a float32 copy of the weights."""
    weights = list(trained)
    count = sum(weight.numel for weight in weights)
    if optimizer == "adamw":
        return 2 * sum(weight.nbytes for weight in weights)
    if optimizer == "adamw-master":
        return 3 * count * 4
    if optimizer == "adamw-8bit":
        return 2 * (count + 4 * -(-count // BLOCK))
    return 0
