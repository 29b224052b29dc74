"""Observers see the values of a pass by name and may replace them; ``inspect.record`` has the table of names.

A model runs without one. Where a call has an observer, each part passes its values to the observer of that part, under
names such as ``q`` or ``output``, and goes on with what it returns.

Nothing is attached to a model: each thread has a table of the models that it observes, in which a model looks itself up
whenever it calls one of its parts. Compiled code looks nothing up.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Observer(Protocol):
    """Sees the values of one part of a model."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """See a value; return it, or another of its shape to replace it."""
        ...

    def part(self, name: str) -> "Observer | None":
        """Return the observer of a submodule of this part; None: nothing in it is observed."""
        ...

    def wants(self, *names: str) -> bool:
        """Whether any of these values of this part is observed."""
        ...


def observe(observer: Observer | None, name: str, value: Tensor) -> Tensor:
    """Show a value to the observer, if there is one; return the value, or its replacement."""
    return value if observer is None else observer(name, value)


def needs_formula(observer: Observer | None) -> bool:
    """Whether attention must be computed by the formula, because fused kernels have no scores and no weights."""
    return observer is not None and observer.wants("scores", "weights")


# ---- which models are observed


class ModelKey:
    """The key by which observers of a model are looked up; views of a model share it, copies have their own."""


@runtime_checkable
class HasModelKey(Protocol):
    """A model that can be observed."""

    model_key: ModelKey


@dataclass(frozen=True)
class PartCall:
    """One call of a part of a model: of embeddings, a stack or the head."""

    part: str
    tokens: int  # of each row
    cached: int | None = None  # tokens of each row before them, in a cache; None: there is no cache
    path: str = "sdpa"


FindObserver = Callable[[PartCall], Observer | None]  # returns the observer of the part that is called


class _Thread(threading.local):
    def __init__(self) -> None:
        self.observers: dict[ModelKey, FindObserver] = {}


_THREAD = _Thread()


def thread_observers() -> dict[ModelKey, FindObserver]:
    """Return the table of the models that this thread observes."""
    return _THREAD.observers


def is_observed(model: HasModelKey) -> bool:
    """Whether this thread observes a model."""
    return not torch.compiler.is_compiling() and model.model_key in _THREAD.observers


def observer_of(
    model: HasModelKey, part: str, tokens: int, cached: int | None = None, path: str = "sdpa"
) -> Observer | None:
    """Return the observer of a part of a model for a call in this thread, if there is one; see ``PartCall``."""
    if torch.compiler.is_compiling():
        return None
    find = _THREAD.observers.get(model.model_key)
    return None if find is None else find(PartCall(part, tokens, cached, path))


@contextmanager
def unobserved() -> Iterator[None]:
    """Hide this thread's calls in the ``with`` block from observers, which neither see nor change their values."""
    before, _THREAD.observers = _THREAD.observers, {}
    try:
        yield
    finally:
        _THREAD.observers = before
