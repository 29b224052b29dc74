"""Rows 35 and 36 of the known silent bugs: the same batches whatever the workers, the processes, the interruptions."""

import json
import random
import threading
import time
import traceback
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.batching import BatchPlan, BudgetPlan, FixedPlan
from glassformer.data.loader import Loader
from glassformer.data.packing import PackedRows, StreamPlan
from glassformer.data.readers.text import read_text
from glassformer.data.token_files import write_tokens

DATA = [f"example {number}" for number in range(23)]
LENGTHS = [1 + (7 * number) % 11 for number in range(23)]


class Batch(NamedTuple):
    texts: tuple[str, ...]
    noise: float


def prepare(items: list[str], generator: torch.Generator) -> Batch:
    return Batch(tuple(items), float(torch.rand((), generator=generator)))


def unevenly(items: list[str], generator: torch.Generator) -> Batch:
    """Later batches may well be ready before earlier ones."""
    time.sleep(random.random() * 0.003)
    return prepare(items, generator)


def plan(kind: str, seed: int = 5) -> BatchPlan:
    return FixedPlan(len(DATA), 4, seed=seed) if kind == "fixed" else BudgetPlan(LENGTHS, 24, seed=seed, window=9)


def loader(kind: str = "fixed", **more: Any) -> Loader[str, Batch]:
    return Loader(DATA, more.pop("prepare", prepare), more.pop("plan", plan(kind)), seed=more.pop("seed", 1), **more)


def run(kind: str, count: int = 40) -> list[Batch]:
    return list(islice(loader(kind), count))


KINDS = pytest.mark.parametrize("kind", ["fixed", "budget"])


@KINDS
def test_a_run_goes_through_every_epoch_once(kind: str) -> None:
    ours, batches = plan(kind), iter(loader(kind))
    for epoch in range(4):
        some = list(islice(batches, ours.batches(epoch)))
        assert sorted(text for batch in some for text in batch.texts) == sorted(DATA)


@KINDS
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 4), (3, 1), (3, 2), (3, 9)])
def test_the_same_batches_whatever_the_workers(kind: str, workers: int, prefetch: int) -> None:
    with loader(kind, workers=workers, prefetch=prefetch, prepare=unevenly) as ours:
        assert list(islice(ours, 40)) == run(kind)


def test_chance_belongs_to_the_batch_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    batches = run("fixed", 30)
    assert torch.equal(before, torch.get_rng_state())
    assert len({batch.noise for batch in batches}) == 30
    assert [batch.noise for batch in islice(loader(seed=2), 30)] != [batch.noise for batch in batches]
    assert [batch.texts for batch in islice(loader(seed=2), 30)] == [batch.texts for batch in batches]
    # The same examples in the same order get other noise in the next epoch.
    unshuffled = list(islice(loader(plan=FixedPlan(23, 23, seed=0, shuffle=False)), 3))
    assert len({batch.texts for batch in unshuffled}) == 1
    assert len({batch.noise for batch in unshuffled}) == 3


@KINDS
@pytest.mark.parametrize("workers", [0, 3])
def test_row_35_stopped_anywhere_a_run_goes_on_as_if_it_had_not(kind: str, workers: int) -> None:
    unbroken = run(kind)
    for stop in (0, 1, 5, 6, 7, 13, 19):
        with loader(kind, workers=workers) as first:
            assert list(islice(first, stop)) == unbroken[:stop]
            state = json.loads(json.dumps(first.state()))
        with loader(kind, workers=2 - workers // 2) as second:
            assert next(second) == unbroken[0]  # what it has done before does not matter
            second.resume(state)
            assert second.state() == state
            assert list(islice(second, 20)) == unbroken[stop : stop + 20]


@given(steps=st.lists(st.integers(0, 9), max_size=6), kind=st.sampled_from(["fixed", "budget"]))
def test_row_35_any_number_of_interruptions(steps: list[int], kind: str) -> None:
    result: list[Batch] = []
    state = loader(kind).state()
    for count in steps:
        ours = loader(kind)
        ours.resume(state)
        result += islice(ours, count)
        state = ours.state()
    assert result == run(kind, sum(steps))


def changed(name: str) -> Loader[Any, Any]:
    more: dict[str, Any] = {
        "seed": {"seed": 2},
        "order": {"plan": plan("fixed", seed=6)},
        "size": {"plan": FixedPlan(23, 5, seed=5)},
        "kind": {"plan": plan("budget")},
    }[name]
    return loader(**more)


@pytest.mark.parametrize("name", ["seed", "order", "size", "kind"])
def test_row_36_another_run_cannot_go_on(name: str) -> None:
    ours = loader()
    next(ours)
    with pytest.raises(ValueError, match=r"cannot resume: (seed|plan) was .* and is now"):
        changed(name).resume(ours.state())


def test_row_36_other_data_of_the_same_size_is_noticed(tmp_path: Path) -> None:
    def of(text: str) -> Loader[Any, Any]:
        (tmp_path / "a.txt").write_text(text)
        data = read_text(tmp_path / "a.txt", documents="line").index()
        return Loader(data, lambda items, _: items, FixedPlan(2, 1, seed=0), seed=0)

    state = of("one\ntwo\n").state()
    of("one\ntwo\n").resume(state)
    with pytest.raises(ValueError, match="data was"):
        of("one\nTwo\n").resume(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": -1}, "epoch must be"),
        ({"batch": 6}, "points to batch 6 of epoch 0, which has only 6 batches"),
        ({"version": 0}, "version was 0"),
    ],
)
def test_a_state_that_cannot_be_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader().resume(loader().state() | change)
    with pytest.raises(ValueError, match=r"not a loader state: batch, data, epoch, plan.* missing"):
        loader().resume({"version": 1, "seed": 1})


@KINDS
@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_processes_together_see_what_one_sees(kind: str, world: int, workers: int) -> None:
    shares = []
    for rank in range(world):
        with loader(kind, rank=rank, world=world, workers=workers) as ours:
            shares.append(list(islice(ours, 6)))
    assert [batch for step in zip(*shares, strict=True) for batch in step] == run(kind, 6 * world)


@KINDS
def test_a_run_goes_on_with_another_number_of_processes(kind: str) -> None:
    three = [loader(kind, rank=rank, world=3) for rank in range(3)]
    for ours in three:
        list(islice(ours, 4))
    (state,) = {json.dumps(ours.state()) for ours in three}
    two = [loader(kind, rank=rank, world=2) for rank in range(2)]
    for ours in two:
        ours.resume(json.loads(state))
    assert [next(two[step % 2]) for step in range(10)] == run(kind)[12:22]


@KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_end_and_the_next_begins(kind: str, workers: int) -> None:
    ours, unbroken = plan(kind), run(kind)
    with loader(kind, workers=workers) as batches:
        next(batches)
        assert list(batches.epoch()) == unbroken[1 : ours.batches(0)]
        assert batches.cursor == (1, 0)
        assert next(batches.epoch()) == unbroken[ours.batches(0)]


@KINDS
def test_one_epoch_over_several_processes_has_every_example_once(kind: str) -> None:
    shares = [list(loader(kind, rank=rank, world=3).epoch()) for rank in range(3)]
    assert sorted(text for share in shares for batch in share for text in batch.texts) == sorted(DATA)
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_tells_where_it_comes_from_and_the_batch_can_be_asked_for_again(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"row {number}" for number in range(40)))
    data = read_text(tmp_path / "a.txt", documents="line").index()
    fails = True

    def picky(items: list[Any], generator: torch.Generator) -> list[str]:  # noqa: ARG001
        if fails and any(item.text == "row 7" for item in items):
            raise KeyError("a word that nobody knows")
        return [item.text for item in items]

    with Loader(data, picky, FixedPlan(40, 2, seed=0, shuffle=False), seed=0, workers=workers) as ours:
        assert [batch[0] for batch in islice(ours, 3)] == ["row 0", "row 2", "row 4"]
        for _ in range(2):
            with pytest.raises(KeyError, match="nobody knows") as caught:
                next(ours)
            (note,) = caught.value.__notes__
            assert note.startswith("while preparing batch 3 of epoch 0 from examples 6, 7 (")
            assert f"{tmp_path}/a.txt:7, {tmp_path}/a.txt:8)" in note
            assert "in picky" in "".join(traceback.format_exception(caught.value))
            assert ours.cursor == (0, 3)
        fails = False
        assert next(ours) == ["row 6", "row 7"]


def test_workers_work_ahead_and_no_further_than_they_may() -> None:
    begun = 0
    lock, enough = threading.Lock(), threading.Event()

    def count(items: list[str], generator: torch.Generator) -> Batch:
        nonlocal begun
        with lock:
            begun += 1
            if begun == 6:
                enough.set()
        return prepare(items, generator)

    with loader(workers=3, prefetch=2, prepare=count) as ours:
        next(ours)
        assert enough.wait(timeout=20)
        assert begun == 6
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("loader") for name in names)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="plan is for 5 examples; the data set has 23"):
        loader(plan=FixedPlan(5, 2, seed=0))
    with pytest.raises(ValueError, match="rank must be below world=2"):
        loader(rank=2, world=2)
    with pytest.raises(ValueError, match="workers must be"):
        loader(workers=-1)
    with pytest.raises(ValueError, match="prefetch must be"):
        loader(prefetch=0)


def test_from_text_to_packed_batches(tmp_path: Path) -> None:
    """All parts together: text, token file, rows, loader; stopped and resumed, with workers and without."""
    texts = [row.text for row in read_text(written(tmp_path), documents="line")]
    tokens = write_tokens(tmp_path / "a.bin", ([*text.encode()] for text in texts), vocab_size=256, tokenizer="bytes")

    def batch(rows: list[Any], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.stack([row.ids for row in rows])
        return ids, torch.rand(ids.shape, generator=generator)

    def of(workers: int) -> Loader[Any, Any]:
        rows = PackedRows(tokens, StreamPlan(tokens.lengths, 16))
        return Loader(rows, batch, FixedPlan(len(rows), 3, seed=2), seed=3, workers=workers)

    unbroken = list(islice(of(0), 20))
    every = torch.cat([ids for ids, _ in unbroken[: len(list(of(0).epoch()))]])
    assert sorted(every[every > 0].tolist()) == sorted("".join(texts).encode())
    with of(2) as first, of(1) as second:
        list(islice(first, 5))
        second.resume(first.state())
        for (ids, noise), (own_ids, own_noise) in zip(unbroken[5:], second, strict=False):
            assert torch.equal(ids, own_ids)
            assert torch.equal(noise, own_noise)


def written(folder: Path) -> Path:
    path = folder / "a.txt"
    path.write_text("\n".join(f"document {number} " + "word " * (number % 5) for number in range(30)))
    return path
