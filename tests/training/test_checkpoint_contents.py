"""A run that is stopped and goes on is, to the bit, the run that was never stopped."""

import json
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.training.checkpoint_contents import Stateful, differences, read_run, write_run
from glassformer.training.checkpoint_folders import CheckpointError, Checkpoints, check
from glassformer.training.logging.sinks import RunLog, read_log
from tests.forked import Forked
from tests.helpers import types_unchecked
from tests.training.a_run import FINGERPRINT, STEPS, made, run


def started(folder: Path) -> Forked:
    """The run in a process of its own, without run-time type checks, which draw random numbers."""
    return Forked(run, folder)


def to_its_end(folder: Path) -> None:
    with started(folder) as it:
        assert it.wait(300) == 0


@pytest.fixture(scope="module")
def unbroken(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return made_once("unbroken", to_its_end)


def without_times(folder: Path) -> list[dict[str, Any]]:
    lines = read_log(folder / "log.jsonl")
    for line in lines:
        del line["measured"]
    return lines


def same(item: Path, other: Path, but: str = "") -> None:
    """Every file of the last checkpoint (but for one), and the log without its times."""
    a, b = (Checkpoints(folder / "checkpoints").latest() for folder in (item, other))
    assert a is not None
    assert b is not None
    files = [{name: facts for name, facts in check(path)["files"].items() if name != but} for path in (a, b)]
    assert files[0] == files[1]
    assert without_times(item) == without_times(other)


@pytest.mark.slow
def test_the_run_learns_and_its_checkpoint_is_a_model(unbroken: Path) -> None:
    lines = without_times(unbroken)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert sum(line["loss"] for line in lines[-5:]) < 0.97 * sum(line["loss"] for line in lines[:5])
    last = Checkpoints(unbroken / "checkpoints").latest()
    assert last is not None
    loaded = glassformer.load(last)
    trainer = made()
    read_run(last, trainer, FINGERPRINT)
    assert torch.equal(loaded.model.decoder.blocks[0].ffn.up.weight, trainer.model.decoder.blocks[0].ffn.up.weight)


def killed_and_resumed(folder: Path, seed: int, kills: int) -> None:
    """Kill −9 so many times at random moments, then let it finish."""
    generator = random.Random(seed)
    for number in range(kills + 1):
        with started(folder) as it:
            if number == kills:
                assert it.wait(300) == 0
                break
            while it.returncode is None and not (folder / "log.jsonl").exists():
                time.sleep(0.02)
            before = len(read_log(folder / "log.jsonl"))
            expected = before + generator.randint(0, 6)
            while it.returncode is None and len(read_log(folder / "log.jsonl")) < min(expected, STEPS):
                time.sleep(0.001)
            time.sleep(generator.random() * 0.05)
            it.send_signal(signal.SIGKILL)


def test_row_35_killed_again_and_again_it_is_the_unbroken_run(unbroken: Path, tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, seed=1, kills=2)
    same(unbroken, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_row_35_killed_at_twenty_moments(unbroken: Path, tmp_path: Path, seed: int) -> None:
    killed_and_resumed(tmp_path, seed=seed, kills=4)
    same(unbroken, tmp_path)


@pytest.mark.parametrize("stop", [1, 3, 23])
def test_stopped_after_any_step(unbroken: Path, tmp_path: Path, stop: int) -> None:
    """In one process: a run that ends, and another that takes its place, at steps with and without a checkpoint."""
    torch.set_num_threads(1)
    first, kept = made(), Checkpoints(tmp_path / "checkpoints")
    with RunLog(tmp_path / "log.jsonl") as log:
        for report in first:
            log.write("step", report.step, {}, {})
            if report.step == stop:
                break
    kept.write(stop, lambda path: write_run(path, first, FINGERPRINT))
    (tmp_path / "log.jsonl").write_text(
        "".join(f"{line}\n" for line in (unbroken / "log.jsonl").read_text().splitlines()[: stop + 2])
    )
    torch.rand(100)  # whatever happens in between
    run(tmp_path)
    same(unbroken, tmp_path, but="run/random.safetensors")  # the type checks of these tests draw from Python's


def test_row_36_another_run_is_refused_and_the_difference_shown(tmp_path: Path) -> None:
    trainer = made()
    trainer.advance()
    path = Checkpoints(tmp_path).write(1, lambda folder: write_run(folder, trainer, FINGERPRINT))
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    other = {"data": "counted", "settings": {"lr": 0.1}, "new": [1]}
    with pytest.raises(
        CheckpointError, match=r"settings\.lr: was 0\.01, is 0\.1\n  new: was None, is \[1\]"
    ) as refused:
        read_run(path, trainer, other)
    assert f"model.start='{path}'" in str(refused.value)
    assert all(torch.equal(before[name], weight) for name, weight in trainer.model.state_dict().items())


def test_a_damaged_run_is_refused_before_anything_changes(tmp_path: Path) -> None:
    trainer, kept = made(), Checkpoints(tmp_path)
    trainer.advance()
    kept.write(1, lambda folder: write_run(folder, trainer, FINGERPRINT))
    trainer.advance()
    last = kept.write(2, lambda folder: write_run(folder, trainer, FINGERPRINT))
    file = last / "run" / "optimizer0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 16
    file.write_bytes(raw)
    fresh = made()
    before = {name: weight.clone() for name, weight in fresh.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="has changed since it was written") as refused:
        read_run(last, fresh, FINGERPRINT)
    assert "step-00000001" in str(refused.value)
    assert fresh.step == 0
    assert all(torch.equal(before[name], weight) for name, weight in fresh.model.state_dict().items())


def test_a_folder_of_weights_alone_is_no_run(tmp_path: Path) -> None:
    trainer = made()
    path = Checkpoints(tmp_path).write(1, lambda folder: glassformer.save(trainer.model, folder) and None)
    with pytest.raises(CheckpointError, match=rf"no run to resume.* model.start='{path}'"):
        read_run(path, trainer, FINGERPRINT)


class Counter:
    """Something that a run must remember."""

    def __init__(self) -> None:
        self.seen = torch.zeros(3)
        self.count = 0

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {"seen": self.seen}, {"count": self.count}

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        self.seen, self.count = tensors["seen"], values["count"]


class Waiting(Counter):
    """One without tensors."""

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {}, {"count": self.count}

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        assert not tensors
        self.count = values["count"]


def test_what_else_a_run_remembers_comes_back(tmp_path: Path) -> None:
    trainer, extras = made(), {"counter": Counter(), "waiting": Waiting()}
    extras["counter"].seen, extras["counter"].count = torch.tensor([1.0, 2.0, 3.0]), 5
    extras["waiting"].count = 7
    path = Checkpoints(tmp_path).write(1, lambda folder: write_run(folder, trainer, FINGERPRINT, extras=extras))
    fresh = {"waiting": Waiting(), "counter": Counter()}
    assert read_run(path, made(), FINGERPRINT, extras=fresh) == []
    assert fresh["counter"].seen.tolist() == [1.0, 2.0, 3.0]
    assert (fresh["counter"].count, fresh["waiting"].count) == (5, 7)


@pytest.mark.parametrize(
    ("now", "named"),
    [(None, "'counter'"), ({"counter": Counter(), "other": Counter()}, "'other'")],
    ids=["lost", "new"],
)
def test_extras_that_were_not_there_or_are_no_longer_are_named(
    tmp_path: Path, now: dict[str, Stateful] | None, named: str
) -> None:
    trainer = made()
    path = Checkpoints(tmp_path).write(
        1, lambda folder: write_run(folder, trainer, FINGERPRINT, extras={"counter": Counter()})
    )
    fresh = made()
    before = {name: weight.clone() for name, weight in fresh.model.state_dict().items()}
    with pytest.raises(CheckpointError, match=rf"with the extras \['counter'\].* {named} would be lost or start anew"):
        read_run(path, fresh, FINGERPRINT, extras=now)
    assert all(torch.equal(before[name], weight) for name, weight in fresh.model.state_dict().items())


def test_an_extra_is_named_plainly_and_knows_its_state(tmp_path: Path) -> None:
    trainer = made()
    with pytest.raises(ValueError, match=r"got '\.\./x'"):
        write_run(tmp_path, trainer, FINGERPRINT, extras={"../x": Counter()})
    with types_unchecked(), pytest.raises(ValueError, match="state and restore; got 'x'"):
        write_run(tmp_path, trainer, FINGERPRINT, extras={"x": object()})  # type: ignore[dict-item]


def test_differences_are_found_at_any_depth() -> None:
    before, now = {"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"b": 2, "c": [1]}, "e": None}
    assert list(differences(before, now)) == [("a.b", 1, 2), ("d", 2, None)]


def test_half_a_line_of_log_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [line["step"] for line in read_log(path)] == [1, 2]
    with RunLog(path, after=1) as log:
        log.write("step", 2, {"loss": float("nan")})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"kind": "step", "step": 2, "loss": None},
    ]
