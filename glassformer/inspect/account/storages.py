"""Memory of a pass on fake tensors, storage by storage: when each comes and goes, and how high the level gets."""

import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

OWNERS = 2  # of the storage of a tensor that shares it with no other: the tensor, and the storage as a Python object


@dataclass(slots=True, eq=False)
class Storage:
    """Memory that the pass allocated."""

    number: int
    nbytes: int
    layer: int  # in which layer; 0: between layers
    products: frozenset[tuple[int, bool]] = frozenset()  # see ``products.AttentionProducts``
    is_normalised: bool = False
    is_saved: bool = False
    is_live: bool = True
    successor: "Storage | None" = None  # the gradient to which it was added up; see ``Storages.add``


class Storages:
    """All storages of a pass. Memory that was there before it, such as weights and inputs, is not among them."""

    def __init__(self, on_free: Callable[[int], None]) -> None:
        self.all: list[Storage] = []
        self._on_free = on_free
        self._timeline: list[int] = []  # n + 1: storage n comes, −n − 1: it goes, 0: an operator has ended
        self._live: dict[int, Storage] = {}
        self._given: dict[int, Any] = {}  # held, so that no other storage takes the same address

    def of(self, tensor: Tensor) -> Storage | None:
        """The storage of a tensor; None if it was there before the pass."""
        return self._live.get(address(tensor))

    def give(self, tensor: Tensor) -> None:
        """A tensor that the pass did not make was there before."""
        key = address(tensor)
        if key not in self._live and key not in self._given:
            self._given[key] = tensor.untyped_storage()

    def make(self, tensor: Tensor, layer: int) -> None:
        """The result of an operator: new memory, unless it is a view of what is known."""
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key in self._live or key in self._given:
            return
        storage = Storage(len(self.all), memory.nbytes(), layer)
        self.all.append(storage)
        self._live[key] = storage
        self._timeline.append(storage.number + 1)
        weakref.finalize(memory, self._free, key)

    def add(self, first: Tensor, second: Tensor, total: Tensor) -> None:
        """Two gradients of the same tensor are added up: autograd writes into one that nobody else holds.

        With fake tensors, as with all subclasses, it does not; the memory of that one is given up here instead.
        """
        for one in (first, second):
            storage, memory = self.of(one), one.untyped_storage()
            alone = torch._C._storage_Use_Count(memory._cdata) == OWNERS
            if storage is not None and alone and storage.nbytes == total.untyped_storage().nbytes():
                self._end(storage)
                break
        self.make(total, 0)
        before = self.of(first)
        if before is not None:
            before.successor = self.of(total)

    def start(self) -> None:
        """What there is by now was there before the pass."""
        self._timeline.clear()
        for storage in self._live.values():
            storage.nbytes = 0

    def end_operator(self) -> None:
        """The level is looked at when an operator has ended."""
        self._timeline.append(0)

    def _free(self, key: int) -> None:
        self._end(self._live.pop(key))
        self._on_free(key)

    def _end(self, storage: Storage) -> None:
        if storage.is_live:
            storage.is_live = False
            self._timeline.append(-storage.number - 1)

    def leading_to(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        """The numbers of the storages of gradients, and of what was there of them before more was added."""
        ends = {storage.number for one in tensors if (storage := self.of(one)) is not None}
        for storage in reversed(self.all):
            if storage.successor is not None and storage.successor.number in ends:
                ends.add(storage.number)
        return frozenset(ends)

    def peak(self, without: Collection[int] = ()) -> int:
        """The most bytes at a time, those of some storages left out."""
        sizes = [0 if one.number in without else one.nbytes for one in self.all]
        level = peak = 0
        for event in self._timeline:
            if event == 0:
                peak = max(peak, level)
            else:
                level += sizes[event - 1] if event > 0 else -sizes[-event - 1]
        return peak


def place(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor and its transposes begin."""
    return address(tensor), int(tensor.storage_offset())


def address(tensor: Tensor) -> int:
    """What tells storages apart while they live."""
    return int(tensor.untyped_storage()._cdata)
