"""Batches for training: which examples, in which order, prepared ahead of time by threads.

What is in a batch depends on the data, the plan, the seed and the batch's place in the run, on nothing else: the number
of workers, of processes and of interruptions makes no difference. Threads serve, and no processes: tokenizers and
tensors work outside Python's lock, and threads share the data and its open files.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from glassformer.config.checks import check_count, check_positive
from glassformer.data.grouping import BatchPlan
from glassformer.data.order import Place, check_rank, hashed

Item_co = TypeVar("Item_co", covariant=True)
Item = TypeVar("Item")
Batch = TypeVar("Batch")
_VERSION = 1


@runtime_checkable
class Dataset(Protocol[Item_co]):
    """Examples by number: a list, ``Indexed``, ``TokenFile``, ``PackedRows``.

    One that has a ``fingerprint`` (SHA-256 of what it holds) is recognised when a run goes on.
    """

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int, /) -> Item_co:
        """One of them; with workers several threads ask at once."""


class Loader(Generic[Item, Batch]):
    """An endless iterator over batches, epoch after epoch.

    ``for batch in loader.epoch()`` ends with the epoch. ``state()`` is where it stands, in plain numbers and texts;
    ``resume(state)`` goes on there. Over several processes, ``rank`` of ``world`` gets every ``world``-th batch of the
    run, across the ends of epochs, so that all make equally many steps; a run may go on with another ``world``.

    Args:
        dataset: examples by number.
        prepare: makes a batch of examples; all it draws at random comes from the generator, which is the batch's own.
        plan: which examples are in which batch.
        seed: decides the generators.
        workers: threads that prepare batches ahead; 0 prepares each when it is asked for.
        rank: this process.
        world: how many there are.
        prefetch: batches that each worker is ahead.
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
        check_positive(prefetch=prefetch)
        check_rank(rank, world)
        if len(dataset) != plan.examples:
            raise ValueError(f"the plan is for {plan.examples} examples; the data set has {len(dataset)}.")
        self._dataset, self._prepare, self._plan, self._seed = dataset, prepare, plan, seed
        self._rank, self._world = rank, world
        self._ahead = max(1, workers * prefetch)
        self._threads = ThreadPoolExecutor(workers, "loader") if workers else None
        self._next = Place(0, 0)  # of all processes together
        self._begun: deque[Future[Batch]] = deque()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._prepared() if self._threads is None else self._fetch(self._threads)
        self._next = self._later(self._next, self._world)
        return batch

    def epoch(self) -> Iterator[Batch]:
        """What is left of this process's batches of the present epoch; processes may differ by one batch."""
        number = self._own(self._next).epoch
        while self._own(self._next).epoch == number:
            yield next(self)

    @property
    def place(self) -> Place:
        """The epoch and the batch that comes next."""
        return self._own(self._next)

    def state(self) -> dict[str, Any]:
        """Where the run stands, for ``resume``; the same for all processes, and it can be written as JSON."""
        return {**self._facts(), "epoch": self._next.epoch, "batch": self._next.offset}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; other data, another plan or seed are errors, for they are another run."""
        facts = self._facts()
        missing = {*facts, "epoch", "batch"} - {*state}
        if missing:
            raise ValueError(f"this is no state of a loader: it lacks {', '.join(sorted(missing))}.")
        for name, ours in facts.items():
            if state[name] != ours:
                raise ValueError(
                    f"the run cannot go on with other data or settings: {name} was {state[name]!r} and is {ours!r}. "
                    f"Restore what it was, or start a new run."
                )
        place = Place(state["epoch"], state["batch"])
        check_count(epoch=place.epoch, batch=place.offset)
        if place.offset >= self._plan.batches(place.epoch):
            raise ValueError(f"epoch {place.epoch} has {self._plan.batches(place.epoch)} batches; got {place.offset}.")
        self._drop()
        self._next = place

    def close(self) -> None:
        """Stop the threads; batches that are being prepared are finished first."""
        self._drop()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Loader[Item, Batch]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _facts(self) -> dict[str, Any]:
        data = getattr(self._dataset, "fingerprint", None)
        return {"version": _VERSION, "data": data, "seed": self._seed, "plan": self._plan.facts}

    def _prepared(self) -> Batch:
        place = self._own(self._next)
        return self._make(place, self._plan.at(*place))

    def _later(self, place: Place, steps: int) -> Place:
        epoch, offset = place.epoch, place.offset + steps
        while offset >= (count := self._plan.batches(epoch)):
            epoch, offset = epoch + 1, offset - count
        return Place(epoch, offset)

    def _own(self, place: Place) -> Place:
        return self._later(place, self._rank)

    def _fetch(self, threads: ThreadPoolExecutor) -> Batch:
        """The next batch, after setting the threads to work on those that follow."""
        ahead = self._later(self._next, self._world * len(self._begun))
        while len(self._begun) < self._ahead:
            place = self._own(ahead)
            self._begun.append(threads.submit(self._make, place, self._plan.at(*place)))
            ahead = self._later(ahead, self._world)
        try:
            return self._begun.popleft().result()
        except BaseException:
            self._drop()  # asked again, it is this batch that comes, not the one after it
            raise

    def _drop(self) -> None:
        for begun in self._begun:
            begun.cancel()
        self._begun.clear()

    def _make(self, place: Place, numbers: list[int]) -> Batch:
        items: list[Item] = []
        try:
            items.extend(self._dataset[number] for number in numbers)
            return self._prepare(items, self._generator(place))
        except Exception as error:
            error.add_note(_whereabouts(place, numbers, items))
            raise

    def _generator(self, place: Place) -> torch.Generator:
        return torch.Generator().manual_seed(hashed("batch", self._seed, *place))


def _whereabouts(place: Place, numbers: list[int], items: Sequence[object]) -> str:
    """What a batch was made of, for an error: its place, its examples and, if they know it, where they came from."""
    origins = [str(item.origin) for item in items if hasattr(item, "origin")]
    names = [f"{', '.join(map(str, some[:4]))}{', …' * (len(some) > 4)}" for some in (numbers, origins)]
    return f"while preparing batch {place.offset} of epoch {place.epoch} from examples {names[0]}" + (
        f" ({names[1]})" if origins else ""
    )
