"""Memory of a pass on fake tensors, storage by storage: when each comes and goes, and how high the level gets."""

import weakref
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

OWNERS = 2  # of the storage of a tensor that shares it with no other: the tensor, and the storage as a Python object
HOLDERS = 4  # of a tensor that is the operand of an operator and that nobody else holds; a formula holds its own


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
    is_zero: bool = False  # it was made as zeros
    successor: "Storage | None" = None  # what stands in its place; see ``Storages.overwrite``
    beside: "Storage | None" = None  # what it stands in the place of, but that is held for a while yet


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

    def overwrite(self, old: Tensor, new: Tensor, *, by_formula: bool) -> None:
        """Autograd writes a result over an operand that nobody else holds, such as the sum of two gradients.

        With fake tensors, as with all subclasses, it does not; the memory of the operand is given up here instead.
        """
        before, memory = self.of(old), old.untyped_storage()
        holders = old._use_count()  # type: ignore[attr-defined]
        alone = holders <= HOLDERS + by_formula and torch._C._storage_Use_Count(memory._cdata) == OWNERS
        if before is not None and alone and before.nbytes == new.untyped_storage().nbytes():
            self._end(before)
        self.make(new, 0)
        after = self.of(new)
        if before is not None and after is not None:
            before.successor = after
            after.beside = before if before.is_live else None

    def start(self, held: Iterable[Tensor] = ()) -> None:
        """What there is by now was there before the pass; what is ``held`` counts all the same."""
        kept = {storage.number for one in held if (storage := self.of(one)) is not None}
        self._timeline = [number + 1 for number in sorted(kept)]
        for storage in self._live.values():
            if storage.number not in kept:
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
                before = self.all[event - 1].beside if event > 0 else None
                if before is not None and sizes[before.number] == 0:  # left out as long as it was the only one
                    sizes[before.number] = before.nbytes
                    level += before.nbytes
        return peak


def place(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor and its transposes begin."""
    return address(tensor), int(tensor.storage_offset())


def address(tensor: Tensor) -> int:
    """What tells storages apart while they live."""
    return int(tensor.untyped_storage()._cdata)
