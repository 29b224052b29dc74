"""Several processes do what one does with all of their batches, whole or in shards; and they end together."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.training import parallel
from glassformer.training.loop import Settings, Trainer
from tests.helpers import types_unchecked
from tests.training import parallel_runs as runs
from tests.training.parallel_runs import ALONE, Plan, RunRecord
from tests.training.several import together

KINDS = ("ddp", "fsdp")


def largest(item: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert item.keys() == other.keys()
    return max(float((item[name].double() - other[name].double()).abs().max()) for name in item)


def same(item: RunRecord, other: RunRecord, bound: float) -> None:
    """Losses and lengths of gradients relative to their size, weights absolutely; whatever is counted exactly."""
    assert item.losses == pytest.approx(other.losses, rel=bound)
    assert item.norms == pytest.approx(other.norms, rel=bound)
    assert item.tokens == other.tokens
    for mine, reference in zip(item.parts, other.parts, strict=True):
        assert mine == pytest.approx(reference, rel=bound)
    assert largest(item.weights, other.weights) < bound


def several(count: int, plan: Plan) -> list[RunRecord]:
    result: list[RunRecord] = together(count, runs.train, plan)
    assert all(isinstance(item, RunRecord) for item in result), result
    for item in result[1:]:  # every process reports the same, to the bit, and has the same weights
        assert (item.losses, item.norms, item.tokens, item.parts) == result[0][:4]
        assert largest(item.weights, result[0].weights) == 0
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_two_processes_are_one(kind: parallel.ParallelKind, optimizer: str) -> None:
    """Batches of unequal size, two a process; clipped, so that a gradient of another length would show."""
    plan = Plan(kind=kind, optimizer=optimizer)
    alone = runs.train(ALONE, plan)
    assert min(alone.norms) > 0.5, "nothing is clipped"
    result = several(2, plan)
    same(result[0], alone, 1e-10)
    assert (result[0].shards > 0) == (kind == "fsdp")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["unused", "chunks", "shared blocks", "two stacks", "two models"])
def test_two_processes_are_one_for_every_build(kind: parallel.ParallelKind, what: str) -> None:
    plan = Plan(kind=kind, what=what, steps=2)
    same(several(2, plan)[0], runs.train(ALONE, plan), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_first_recompute_then_compile_then_wrap(kind: parallel.ParallelKind, compiles: bool) -> None:
    plan = Plan(kind=kind, steps=2, recomputes=True, compiles=compiles)
    same(several(2, plan)[0], runs.train(ALONE, Plan(steps=2)), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_float32(kind: parallel.ParallelKind) -> None:
    plan = Plan(kind=kind, dtype=torch.float32, optimizer="sgd")  # AdamW makes steps of what is rounding alone
    same(several(2, plan)[0], runs.train(ALONE, plan), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_means_the_same_as_alone(kind: parallel.ParallelKind) -> None:
    """Products are rounded alike; gradients are added up in float32, in another order."""
    plan = Plan(kind=kind, dtype=torch.float32, precision="bfloat16", optimizer="sgd")
    alone, wide = runs.train(ALONE, plan), runs.train(ALONE, plan._replace(precision="float32"))
    result = several(2, plan)[0]
    same(result, alone, 2e-3)
    assert result.losses[0] == pytest.approx(alone.losses[0], rel=1e-6)
    assert abs(result.losses[0] - wide.losses[0]) > 1e-5, "nothing was rounded"
    assert all(weight.dtype == torch.float32 for weight in result.weights.values())


@pytest.mark.parametrize("kind", KINDS)
def test_an_overflow_in_float16_is_everybodys(kind: parallel.ParallelKind) -> None:
    """The usual first scale of 65536 is too large here: the first steps are skipped, by all processes or by none."""
    plan = Plan(kind=kind, dtype=torch.float32, precision="float16", steps=4)
    same(several(2, plan)[0], runs.train(ALONE, plan), 5e-3)


def test_micro_batches_that_cannot_be_shared_out() -> None:
    assert [parallel.micro_batches_per_process(4, processes) for processes in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(ValueError, match=r"4 micro-batches .* among 3 processes\. Start 1, 2, 4 of them"):
        parallel.micro_batches_per_process(4, 3)


@pytest.mark.slow
def test_parts_of_unequal_size() -> None:
    """Of 31 rows of a table the last of four processes has fewer; and Muon needs whole matrices."""
    plan = Plan(kind="fsdp", optimizer="muon", steps=2)
    same(several(4, plan)[0], runs.train(ALONE, plan), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_processes_draw_different_numbers_and_the_first_its_own(kind: parallel.ParallelKind) -> None:
    alone = runs.draw(ALONE, Plan(kind=kind))
    first, second = together(2, runs.draw, Plan(kind=kind))
    assert first == alone
    assert second[0] == alone[0]
    assert second[1] != alone[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batches", [1, 5])
def test_evaluation_is_shared_out(kind: parallel.ParallelKind, batches: int) -> None:
    """With one batch, the second process has none; before the first step and between steps."""
    plan = Plan(kind=kind, what="chunks")
    alone = runs.evaluate_and_train(ALONE, plan, batches)
    for result in together(2, runs.evaluate_and_train, plan, batches):
        assert [result[1], result[3]] == pytest.approx([alone[1], alone[3]], rel=1e-10)
        for path in (0, 2):
            assert result[path].loss == pytest.approx(alone[path].loss, rel=1e-12)
            assert result[path].metrics == pytest.approx(alone[path].metrics, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_evaluate_on_is_everybodys_error(kind: parallel.ParallelKind) -> None:
    for result in together(2, runs.evaluate_and_train, Plan(kind=kind), 0):
        assert result == "ValueError: there are no batches to evaluate on."


def test_what_the_first_does_alone_is_waited_for_and_its_errors_are_everybodys() -> None:
    first, second = together(2, runs.by_the_first)
    refused = "the other processes wait until the first is done with its work, and cannot take part."
    assert first == [0, 0, 1, "ZeroDivisionError: integer division or modulo by zero", f"RuntimeError: {refused}", 0, 1]
    assert second[:2] == [0, 1]
    assert second[2].startswith(
        "FailedElsewhereError: the first process failed, so this process stops too; its error was"
    )
    assert second[2].endswith(first[3])
    assert second[3].endswith(first[4])
    assert second[4:] == [0, 1]


def test_the_first_is_done_before_the_others_begin_and_each_does_it_once(tmp_path: Path) -> None:
    first, second = together(2, runs.first_and_then, tmp_path)
    assert first == ["written", 0, "ZeroDivisionError"]
    assert second == ["by 0", 1, "FailedElsewhereError"]


def test_a_shard_keeps_no_more_than_itself_alive() -> None:
    result = together(2, runs.share_out)
    assert [item[0] for item in result] == [4 * 4 * 4, 3 * 4 * 4]
    assert all(item[1:] == list(range(28)) for item in result)


def test_a_process_that_dies_ends_the_others() -> None:
    first, second = together(2, runs.die, Plan())
    assert second is None
    assert first.startswith("LostProcessError: process 0 of 2 waited for another one that has stopped or hangs")


def test_an_error_in_one_process_ends_the_others() -> None:
    first, second = together(2, runs.fail)
    assert second == "KeyError: 'mine'"
    assert first.startswith("LostProcessError")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("optimizer first", "make it after parallel.wrap"),
        ("no wrap", "pass wrap"),
        ("seconds", "set steps"),
        ("another model", "was not sharded"),
    ],
)
def test_what_would_train_something_else_is_refused(how: str, says: str) -> None:
    for result in together(2, runs.wrongly_made, how):
        assert result.startswith("ValueError")
        assert says in result


def test_one_process_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with parallel.start("cpu") as process:
        assert process == ALONE
        assert process.is_first
        assert not torch.distributed.is_initialized()
        model = torch.nn.Linear(2, 2)
        assert parallel.wrap("fsdp", model)(model) is model
        assert list(parallel.own_batches([1, 2, 3])) == [1, 2, 3]


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("banana", "device banana cannot be used here: choose cpu, cuda, cuda:1, mps or xpu"),
        ("meta", "device meta cannot be used here: choose cpu"),
        ("cpu:banana", "device cpu:banana cannot be used here"),
        ("cuda:99", r"device cuda:99 cannot be used here: .+\. The CPU always can: device cpu\.$"),
    ],
)
def test_a_device_that_is_not_there_is_explained(monkeypatch: pytest.MonkeyPatch, device: str, says: str) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=says), parallel.start(device):
        pytest.fail("it started")


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE must be an integer"),
        ({"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0"}, "below world=2"),
    ],
)
def test_a_strange_environment_is_explained(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says), parallel.start("cpu"):
        pytest.fail("it started")


def test_more_processes_than_gpus_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "64", "RANK": "63", "LOCAL_RANK": "63"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="has no GPU"), parallel.start("cuda"):
        pytest.fail("it started")
    with pytest.raises(ValueError, match="mps"), parallel.start("mps"):
        pytest.fail("it started")


def test_nonsense_is_refused() -> None:
    model: Any = torch.nn.Linear(2, 2)
    with types_unchecked(), pytest.raises(ValueError, match="fdsp"):
        parallel.wrap("fdsp", model)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="micro_batches"):
        parallel.micro_batches_per_process(0, 2)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1)
    with pytest.raises(ValueError, match="not the model's"):
        Trainer(model, runs.OBJECTIVES["next"], runs.Uneven("next"), [other], Settings(steps=1))
