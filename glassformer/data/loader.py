"""Batches for training, prepared ahead of time by threads.

The contents of a batch depend on the data, the plan, the seed and the batch's position in the run, and on nothing else:
the number of workers, processes and interruptions makes no difference. Threads suffice: tokenizers and tensor
operations release the GIL, and threads share the data and its open files.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from glassformer.config.checks import check_count, check_positive_integer
from glassformer.data.batching import BatchPlan, Cursor, check_rank, hashed

Item_co = TypeVar("Item_co", covariant=True)
Item = TypeVar("Item")
Batch = TypeVar("Batch")
_VERSION = 1


@runtime_checkable
class Dataset(Protocol[Item_co]):
    """Examples by number: a list, ``Indexed``, ``TokenFile``, ``PackedRows``.

    One with a ``fingerprint`` (SHA-256 of its contents) is compared when a run is resumed.
    """

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, number: int, /) -> Item_co:
        """Return one example; with workers several threads call this at once."""


class Loader(Generic[Item, Batch]):
    """An endless iterator over batches, epoch after epoch.

    ``for batch in loader.epoch()`` ends with the epoch. ``state()`` is the current position in plain values, and
    ``resume(state)`` continues there. With several processes, ``rank`` of ``world`` gets every ``world``-th batch of
    the run, across the ends of epochs, so that all take equally many steps; a run may be resumed with another
    ``world``.

    Args:
        dataset: examples by number.
        prepare: makes a batch of examples; all randomness comes from the generator, which is the batch's own.
        plan: which examples are in which batch.
        seed: of the generators.
        workers: threads that prepare batches ahead; 0 prepares each batch when it is needed.
        rank: the number of this process.
        world: the number of processes.
        prefetch: batches that each worker prepares ahead.
    """

    def __init__(
        self,
        dataset: Dataset[Item],
        prepare: Callable[[list[Item], torch.Generator], Batch],
        plan: BatchPlan,
        *,
        seed: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        prefetch: int = 2,
    ) -> None:
        check_count(workers=workers)
        check_positive_integer(prefetch=prefetch)
        check_rank(rank, world)
        if len(dataset) != plan.examples:
            raise ValueError(f"the plan is for {plan.examples} examples; the data set has {len(dataset)}.")
        self._dataset, self._prepare, self._plan, self._seed = dataset, prepare, plan, seed
        self._rank, self._world = rank, world
        self._ahead = max(1, workers * prefetch)
        self._threads = ThreadPoolExecutor(workers, "loader") if workers else None
        self._next = Cursor(0, 0)  # shared by all processes; this one reads the batch ``rank`` later
        self._pending: deque[Future[Batch]] = deque()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._threads is None:
            cursor = self._later(self._next, self._rank)
            batch = self._make(cursor, self._plan.at(*cursor))
        else:
            batch = self._fetch(self._threads)
        self._next = self._later(self._next, self._world)
        return batch

    def epoch(self) -> Iterator[Batch]:
        """Yield the rest of this process's batches of the current epoch.

        The number may differ by one between processes.
        """
        number = self.cursor.epoch
        while self.cursor.epoch == number:
            yield next(self)

    @property
    def cursor(self) -> Cursor:
        """The epoch and number of the next batch of this process."""
        return self._later(self._next, self._rank)

    def state(self) -> dict[str, Any]:
        """Return the current position, for ``resume``; the same for all processes, and serialisable as JSON."""
        return {**self._fingerprint(), "epoch": self._next.epoch, "batch": self._next.offset}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; raise if the data, the plan or the seed differ."""
        fingerprint = self._fingerprint()
        missing = {*fingerprint, "epoch", "batch"} - {*state}
        if missing:
            raise ValueError(f"not a loader state: {', '.join(sorted(missing))} missing.")
        # Data, plan and seed must be the same.
        for name, ours in fingerprint.items():
            if state[name] != ours:
                raise ValueError(
                    f"cannot resume: {name} was {state[name]!r} and is now {ours!r}. Restore it, or start a new run."
                )
        # Go to the position, and drop the batches that were prepared ahead.
        cursor = Cursor(state["epoch"], state["batch"])
        check_count(epoch=cursor.epoch, batch=cursor.offset)
        if cursor.offset >= self._plan.batches(cursor.epoch):
            batches = self._plan.batches(cursor.epoch)
            raise ValueError(
                f"the state points to batch {cursor.offset} of epoch {cursor.epoch}, which has only {batches} batches."
            )
        self._drop()
        self._next = cursor

    def close(self) -> None:
        """Stop the threads after the batches that they are preparing."""
        self._drop()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Loader[Item, Batch]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fingerprint(self) -> dict[str, Any]:
        data = getattr(self._dataset, "fingerprint", None)
        return {"version": _VERSION, "data": data, "seed": self._seed, "plan": self._plan.settings}

    def _later(self, cursor: Cursor, steps: int) -> Cursor:
        """Return the cursor that is ``steps`` batches later, across the ends of epochs."""
        epoch, offset = cursor.epoch, cursor.offset + steps
        while offset >= (count := self._plan.batches(epoch)):
            epoch, offset = epoch + 1, offset - count
        return Cursor(epoch, offset)

    def _fetch(self, threads: ThreadPoolExecutor) -> Batch:
        """Return the next batch, after submitting the batches that follow to the threads."""
        # Submit batches until self._ahead of them are pending.
        next_submit = self._later(self._next, self._world * len(self._pending))
        while len(self._pending) < self._ahead:
            cursor = self._later(next_submit, self._rank)
            self._pending.append(threads.submit(self._make, cursor, self._plan.at(*cursor)))
            next_submit = self._later(next_submit, self._world)
        try:
            return self._pending.popleft().result()
        except BaseException:
            self._drop()  # so that the next call returns this batch, not the one after it
            raise

    def _drop(self) -> None:
        for future in self._pending:
            future.cancel()
        self._pending.clear()

    def _make(self, cursor: Cursor, numbers: list[int]) -> Batch:
        """Return the batch at ``cursor``, of the examples with these numbers, with a random generator seeded for it."""
        items: list[Item] = []
        try:
            items.extend(self._dataset[number] for number in numbers)
            generator = torch.Generator().manual_seed(hashed("batch", self._seed, *cursor))
            return self._prepare(items, generator)
        except Exception as error:
            error.add_note(_describe(cursor, numbers, items))
            raise


def _describe(cursor: Cursor, numbers: list[int], items: Sequence[object]) -> str:
    """Describe a batch for error messages: its number, its examples and their origins, if they have any."""
    origins = [str(item.origin) for item in items if hasattr(item, "origin")]
    names = [f"{', '.join(map(str, values[:4]))}{', …' * (len(values) > 4)}" for values in (numbers, origins)]
    return f"while preparing batch {cursor.offset} of epoch {cursor.epoch} from examples {names[0]}" + (
        f" ({names[1]})" if origins else ""
    )
