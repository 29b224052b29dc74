"""Cancellable work: a query checks regularly whether it has been cancelled.

The server runs each query as a ``RunningQuery`` with a time limit and cancels it when the reader has left. Outside the
server there is none, and ``check`` does nothing.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class CancelledError(Exception):
    """The result of this query is not wanted any more, or it took too long."""


class RunningQuery:
    """One query that runs."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ask the query to end."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether the query should end."""
        return self._cancelled.is_set() or time.monotonic() > self.deadline


_CURRENT: ContextVar[RunningQuery | None] = ContextVar("job", default=None)


@contextmanager
def running(job: RunningQuery) -> Iterator[None]:
    """Make a job the one that ``check`` asks, in this thread."""
    before = _CURRENT.set(job)
    try:
        check()
        yield
    finally:
        _CURRENT.reset(before)


def check() -> None:
    """Raise if the result of the current query is not wanted any more."""
    job = _CURRENT.get()
    if job is not None and job.is_cancelled:
        raise CancelledError


@contextmanager
def holding(lock: threading.RLock) -> Iterator[None]:
    """Hold a lock; while waiting for it, the query can still be cancelled."""
    while not lock.acquire(timeout=0.1):
        check()
    try:
        check()
        yield
    finally:
        lock.release()
