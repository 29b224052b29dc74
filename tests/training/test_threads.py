"""How many threads a run computes with: who decides, in which order, and that a resumed run keeps the number."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.training import threads
from glassformer.training.build import Run, build_run
from glassformer.training.cost import estimate_memory, fastest_threads
from glassformer.training.parallel import Process
from glassformer.training.session import Session
from glassformer.training.threads import choose_threads, start_threads
from tests.training.small_sessions import HERE, Listens, Stopped, StopsAt, losses, small, trained

CPU = Process(torch.device("cpu"))


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Torch's number of threads, without changing it: 16 of 16 cores, and nothing in the environment."""
    now = [16]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)
    monkeypatch.setattr(threads, "usable_cores", lambda: 16)
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return now


@pytest.mark.parametrize(
    ("seconds", "chosen", "tried"),
    [
        ({16: 1.0, 8: 0.95, 4: 0.9, 2: 0.98, 1: 1.4}, 2, [16, 8, 4, 2, 1]),  # a small model
        ({16: 1.0, 8: 1.8}, 16, [16, 8]),  # a large one
        ({16: 9.0}, 16, [16]),  # so slow that nothing else is tried
        ({16: 1.0, 8: 0.02, 4: 0.025, 2: 0.04}, 8, [16, 8, 4, 2]),  # another program on the same cores
        ({6: 1.0, 4: 1.0, 2: 1.0, 1: 1.0}, 1, [6, 4, 2, 1]),
    ],
)
def test_the_fewest_threads_that_are_about_as_fast_as_any_are_chosen(
    seconds: dict[int, float], chosen: int, tried: list[int], number: list[int]
) -> None:
    number[:] = [max(seconds)]
    note = choose_threads(lambda: seconds[torch.get_num_threads()] / 10 if max(seconds.values()) < 9 else 9.0)
    assert number[-1] == chosen
    assert number[1:-1] == tried
    assert f"computing with {chosen} of {max(seconds)} threads" in note
    assert all(f"with {count}" in note for count in tried if count != chosen)


@pytest.mark.parametrize(("cores", "tried"), [(6, [6, 4, 2, 1]), (2, [2, 1]), (1, [1])])
def test_no_more_threads_are_tried_than_cores_may_be_used(
    cores: int, tried: list[int], number: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run would not compute with more; torch has a thread per core, whatever the control group allows."""
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    assert f"of {cores} thread" in choose_threads(lambda: 0.1)
    assert number[1:-1] == tried
    monkeypatch.setattr(threads, "saved_threads", lambda _: number[-1])
    assert start_threads(None, Path("checkpoint"), CPU).notes == ("computing with 1 thread, as before",)


def test_what_the_user_sets_is_used(monkeypatch: pytest.MonkeyPatch, number: list[int]) -> None:
    assert start_threads(None, None, CPU).measures
    assert not start_threads(3, None, CPU).measures
    assert number[-1] == 3
    assert not start_threads(None, None, Process(torch.device("cpu"), world=2)).measures
    assert not start_threads(None, None, Process(torch.device("cuda"))).measures
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert not start_threads(None, None, CPU).measures
    number.append(1)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert not start_threads(None, None, CPU).measures  # there is nothing to choose


@pytest.mark.parametrize(
    ("setting", "saved", "used", "note"),
    [
        (None, 2, 2, "computing with 2 threads, as before"),
        (2, 2, 2, None),
        (
            4,
            2,
            4,
            "written with 2 threads, and this run uses 4 threads (run.threads): results will differ in the last digits",
        ),
        (None, 32, 16, "written with 32 threads, and this process may use 16 cores: results will differ"),
        (None, None, 16, None),  # a checkpoint of a GPU
    ],
)
def test_a_resumed_run_keeps_the_number_of_its_checkpoint(
    setting: int | None,
    saved: int | None,
    used: int,
    note: str | None,
    number: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "saved_threads", lambda _: saved)
    plan = start_threads(setting, Path("checkpoint"), CPU)
    assert not plan.measures
    assert number[-1] == used
    assert [note in text for text in plan.notes] == ([] if note is None else [True])


@pytest.mark.usefixtures("number")
def test_who_set_another_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "saved_threads", lambda _: 2)
    monkeypatch.setattr(threads, "usable_cores", lambda: 1)
    (note,) = start_threads(None, Path("checkpoint"), CPU).notes
    assert "this process may use 1 core:" in note
    monkeypatch.setenv("OMP_NUM_THREADS", "16")  # torchrun does so
    (note,) = start_threads(None, Path("checkpoint"), CPU).notes
    assert "this run uses 16 threads (OMP_NUM_THREADS):" in note


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 6),
        ({"cpu.max": "max 100000"}, 6),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ],
)
def test_cores_are_those_that_the_process_may_use(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert threads.usable_cores() == cores
    monkeypatch.delattr("os.sched_getaffinity")
    assert threads.usable_cores() == (64 if cores == 6 else cores)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads on two cores, which nobody asked for."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_measurement_changes_no_random_number_and_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = build_run(small("translate", tmp_path, "model.sizes.dropout=0.5"), tmp_path, HERE)
    estimate = estimate_memory(run, HERE, tmp_path)
    monkeypatch.setattr("glassformer.training.cost.MIN_STEPS", estimate.steps + 1)
    assert fastest_threads(estimate, run, HERE) is None  # too short a run
    monkeypatch.setattr("glassformer.training.cost.MIN_STEPS", 1)
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    state, position = torch.get_rng_state(), run.trainer.batches.state()
    note = fastest_threads(estimate, run, HERE)
    assert note is not None
    assert note.startswith(f"computing with {torch.get_num_threads()} of 2 threads")
    assert torch.equal(torch.get_rng_state(), state)
    assert run.trainer.batches.state() == position
    assert all(torch.equal(tensor, weights[name]) for name, tensor in run.model.state_dict().items())


@pytest.mark.usefixtures("two_threads")
def test_a_run_is_built_with_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def build(*args: Any, **kwargs: Any) -> Run:
        seen.append(torch.get_num_threads())
        return build_run(*args, **kwargs)

    monkeypatch.setattr("glassformer.training.session.build_run", build)
    for number in (1, None):
        changes = [] if number is None else [f"run.threads={number}"]
        Session(small("toy", tmp_path, *changes), tmp_path / str(number), HERE, Listens())
        assert torch.get_num_threads() == 2
    assert seen == [1, 2]


@pytest.mark.usefixtures("two_threads")
def test_a_run_resumes_with_its_threads_and_gives_back_those_before(tmp_path: Path) -> None:
    recipe = small("toy", tmp_path, "run.steps=8", "run.checkpoint_every=3", "optimizer.warmup=1")
    one = replace(recipe, run=replace(recipe.run, threads=1))
    trained(one, tmp_path / "whole")
    with pytest.raises(Stopped):
        Session(one, tmp_path / "stopped", HERE, StopsAt(5)).train()
    assert torch.get_num_threads() == 2
    assert threads.saved_threads(next((tmp_path / "stopped" / "checkpoints").glob("*3"))) == 1
    listens = Listens()
    Session(recipe, tmp_path / "stopped", HERE, listens, resume=True).train()
    assert "computing with 1 thread, as before" in listens.notes
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert torch.get_num_threads() == 2
