"""Checkpoints of several processes: any number of them goes on, and what is damaged or half written is never read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.training import parallel
from glassformer.training.checkpoint_contents import read_run, write_run
from glassformer.training.checkpoint_folders import CheckpointError, Checkpoints, check, step_of
from tests.helpers import some_at_once
from tests.training import parallel_runs as runs
from tests.training.parallel_runs import ALONE, FINGERPRINT, Plan, RunRecord
from tests.training.several import together
from tests.training.test_parallel import KINDS, largest, same

ROOT = Path(__file__).parents[2]
PLAN = Plan(steps=4)
STOP = 2


def run(count: int, work: Any, plan: Plan, *inputs: Any) -> list[Any]:
    """In one process here, or in several."""
    result = [work(ALONE, plan, *inputs)] if count == 1 else together(count, work, plan, *inputs)
    assert not any(item is None or isinstance(item, str) for item in result), result
    return result


def stopped_and_resumed(before: int, after: int, plan: Plan, folder: Path) -> list[RunRecord]:
    """Some processes begin, others go on: together they are the run that was never stopped."""
    unbroken = runs.train(ALONE, plan)
    first: RunRecord = run(before, runs.train_and_save, plan, folder, STOP)[0]
    result = run(after, runs.go_on, plan, folder)
    for rest, means in result:
        joined = rest._replace(**{name: getattr(first, name) + getattr(rest, name) for name in RunRecord._fields[:4]})
        same(joined, unbroken, 1e-10)
        assert all(torch.equal(means[name], first.weights[name] * 0.25) for name in means)
    return [rest for rest, _ in result]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    some_at_once(
        [("ddp", 2, 1), ("ddp", 1, 2), ("ddp", 2, 2), ("fsdp", 2, 1), ("fsdp", 1, 2), ("fsdp", 2, 2)],
        lambda item: item in [("ddp", 2, 1), ("fsdp", 2, 1), ("fsdp", 1, 2)],
    ),
)
def test_any_number_of_processes_goes_on(kind: parallel.ParallelKind, before: int, after: int, tmp_path: Path) -> None:
    result = stopped_and_resumed(before, after, PLAN._replace(kind=kind), tmp_path)
    for item in result:
        assert len(item.notes) == (before != after)
        assert all("start anew, from the seed" in note for note in item.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_from_two_shards_to_four_and_back(before: int, after: int, tmp_path: Path) -> None:
    stopped_and_resumed(before, after, PLAN._replace(kind="fsdp", optimizer="muon"), tmp_path)


@pytest.mark.parametrize("kind", some_at_once(KINDS, lambda kind: kind == "ddp"))
def test_a_run_of_two_models_goes_on_too(kind: parallel.ParallelKind, tmp_path: Path) -> None:
    """Which no single model's folder holds, with tables that both share."""
    stopped_and_resumed(2, 1, PLAN._replace(kind=kind, what="two models"), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_with_as_many_processes_it_is_the_unbroken_run_to_the_bit(kind: parallel.ParallelKind, tmp_path: Path) -> None:
    """With dropout: every process draws its own numbers, and goes on drawing them."""
    plan = PLAN._replace(kind=kind, dropout=0.3)
    unbroken = run(2, runs.train, plan)
    begun = run(2, runs.train_and_save, plan, tmp_path, STOP)
    result = run(2, runs.go_on, plan, tmp_path)
    for whole, first, (rest, _) in zip(unbroken, begun, result, strict=True):
        assert first.losses + rest.losses == whole.losses
        assert largest(rest.weights, whole.weights) == 0
        assert rest.drawn == whole.drawn
    assert result[0][0].drawn != result[1][0].drawn
    same_masks = runs.train(ALONE, plan)
    assert same_masks.losses[0] != unbroken[0].losses[0], "both processes dropped the same"


def test_new_random_numbers_follow_from_the_step_and_the_process(tmp_path: Path) -> None:
    for stop in (2, 3):
        run(1, runs.train_and_save, PLAN, tmp_path / str(stop), stop)
    once, again, later = (
        [item.drawn for item, _ in run(2, runs.go_on, PLAN, tmp_path / stop)] for stop in ("2", "2", "3")
    )
    assert once == again
    assert len({*once, *later}) == 4


def test_what_shards_wrote_is_a_model_like_any_other(tmp_path: Path) -> None:
    reported = run(2, runs.train_and_save, PLAN._replace(kind="fsdp"), tmp_path / "shards", STOP)
    run(1, runs.train_and_save, PLAN, tmp_path / "alone", STOP)
    paths = [Checkpoints(tmp_path / name).latest() for name in ("shards", "alone")]
    assert paths[0] is not None
    assert paths[1] is not None
    files = [sorted(check(path)["files"]) for path in paths if path is not None]
    assert files[0] == files[1]
    assert not any(name.endswith((".pt", ".bin", ".pkl", ".distcp")) for name in files[0])
    loaded = glassformer.load(paths[0])
    assert largest(dict(loaded.model.state_dict()), reported[0].weights) == 0
    file = paths[0] / "run" / "optimizer0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 16
    file.write_bytes(raw)
    for result in together(2, runs.go_on, PLAN, tmp_path / "shards"):
        assert "has changed since it was written" in result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("victim", "file"), [(0, 1), (0, 2), (1, 0)])
def test_killed_during_a_checkpoint_the_one_before_stands(
    kind: parallel.ParallelKind, victim: int, file: int, tmp_path: Path
) -> None:
    plan = PLAN._replace(kind=kind)
    result = together(2, runs.die_while_writing, plan, tmp_path, victim, file)
    assert result[victim] is None
    assert result[1 - victim].startswith("LostProcessError")
    kept = Checkpoints(tmp_path)
    kept.tidy()
    last = kept.latest()
    assert last is not None
    assert step_of(last) == 1
    trainer = runs.made(ALONE, plan)
    assert len(read_run(last, trainer, FINGERPRINT)) == 1
    assert trainer.step == 1


def test_a_full_disk_is_everybodys_error_and_nobody_waits(tmp_path: Path) -> None:
    first, second = together(2, runs.full_disk, PLAN._replace(kind="fsdp"), tmp_path)
    assert first.startswith("CheckpointError")
    assert "No space left on device" in first
    assert "step-00000001" in first
    assert second.startswith("FailedElsewhereError: the first process failed")
    assert "No space left on device" in second
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_another_number_of_micro_batches_is_another_run(tmp_path: Path) -> None:
    """One process reads four a step; two that read four each would make other steps of it."""
    trainer = runs.made(ALONE, PLAN)
    without = {"data": "uneven"}
    path = Checkpoints(tmp_path).write(1, lambda folder: write_run(folder, trainer, without))
    assert json.loads((path / "run" / "state.json").read_text())["identity"] == FINGERPRINT
    trainer.settings = runs.Settings(steps=4, accumulate=2)
    with pytest.raises(CheckpointError, match=r"batch\.micro_batches: was 4, is 2"):
        read_run(path, trainer, without)
    with pytest.raises(ValueError, match=r"says 4 micro-batches a step, and 1 processes read 2 each"):
        read_run(path, trainer, FINGERPRINT)


@pytest.mark.slow
def test_torchrun_starts_them(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", runs.__name__]
    completed = subprocess.run(
        [sys.executable, *command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    alone = runs.train(ALONE, Plan(steps=3))
    assert json.loads(completed.stdout) == pytest.approx(alone.losses[:2], rel=1e-10)
    assert Checkpoints(tmp_path).latest() is not None
