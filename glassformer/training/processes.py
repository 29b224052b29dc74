"""Several processes that train together, as seen by one of them: which it is, what all say, what the first does alone.

With one process none of this communicates. With several, all of them must call these functions, in the same order.
"""

import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import torch
import torch.distributed as dist

from glassformer.data.order import hashed

Value = TypeVar("Value")
_alone: ContextVar[bool] = ContextVar("alone", default=False)  # the first process works, and the others wait


class FailedElsewhereError(RuntimeError):
    """The first process could not do what the others waited for."""


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _several() else 1


def rank() -> int:
    """Which of them this is; the first is 0."""
    return dist.get_rank() if _several() else 0


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def gathered(value: Value) -> list[Value]:
    """What every process has to say, in the order of their ranks: small plain values."""
    if world() == 1:
        return [value]
    if _alone.get():
        raise RuntimeError(
            "the other processes wait until the first is done with its work, and cannot take part in it."
        )
    every: list[Value] = [value] * world()
    dist.all_gather_object(every, value)
    return every


def by_first(work: Callable[[], object]) -> None:
    """Let the first process do something alone, such as writing a file; the others wait.

    What it raises is raised in all of them, so that none waits for a process that has given up. Work that is done so
    already may contain more of the same, and nothing that all must take part in.
    """
    if world() == 1 or _alone.get():
        work()
        return
    error: Exception | None = None
    if rank() == 0:
        before = _alone.set(True)
        try:
            work()
        except Exception as raised:
            error = raised
        finally:
            _alone.reset(before)
    failed = gathered(None if error is None else f"{type(error).__name__}: {error}")[0]
    if error is not None:
        raise error
    if failed is not None:
        raise FailedElsewhereError(f"the first process failed, and so this one stops too. There it was {failed}")


def first_then_all(work: Callable[[], Value]) -> Value:
    """Let the first process do something alone, and then the others, who find the files that it wrote.

    Every process does it once and gets what it made itself; what the first raises is raised in all of them.
    """
    made: list[Value] = []
    by_first(lambda: made.append(work()))
    return made[0] if made else work()


def seed_apart(*parts: int) -> None:
    """Start this process's random numbers anew, from some numbers and its rank."""
    seed = hashed("process", *parts, rank())
    random.seed(seed)
    torch.manual_seed(seed)
