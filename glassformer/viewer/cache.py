"""A cache with a limit on its memory, and how much memory a value takes."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import torch

Value = TypeVar("Value")


class Cache:
    """The most recently used values, up to a number of entries and a total size."""

    def __init__(self, entries: int, size: int) -> None:
        self.entries, self.size = entries, size
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, value: Any, size: int | None = None) -> None:
        """Hold a value of this size (None: what it takes in memory); forget those that were unused for longest."""
        size = size_of(key) + (size_of(value) if size is None else size)
        with self._lock:
            self._held[key] = value, size
            self._held.move_to_end(key)
            while len(self._held) > self.entries or (self.used > self.size and len(self._held) > 1):
                self._held.popitem(last=False)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made if it is not held."""
        value = self.find(key)
        if value is None:
            value = make()
            self.put(key, value)
        return cast(Value, value)

    def holds(self, key: Hashable) -> bool:
        """Whether there is a value of a key."""
        return self.find(key) is not None

    @property
    def used(self) -> int:
        """The total size of the values."""
        return sum(size for _, size in self._held.values())


def size_of(value: Any) -> int:
    """Return the bytes of a value and of everything in it: tensors, texts, numbers, collections, dataclasses.

    A part that occurs twice is counted twice; a view counts as the whole tensor, which it keeps in memory.
    """
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, tuple | list | set | frozenset):
        parts = list(value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in fields(value)]
    return sys.getsizeof(value) + sum(map(size_of, parts))
