"""Steps whose numbers reach the CPU only after the next one has begun: here on the CPU, and without CUDA graphs.

CUDA graphs themselves need a GPU: ``python -m benchmarks.gpu --check`` compares steps with and without them.
"""

import gc
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glassformer.nn.kernels import compiler
from glassformer.nn.kernels.compiler import VERSIONS
from glassformer.objectives import base
from glassformer.objectives.base import (
    IGNORE,
    Batch,
    Loss,
    LossTerm,
    counted_positions,
    is_traceable,
    round_up,
)
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.classification import Classification, ClassificationExample
from glassformer.objectives.job import job_of
from glassformer.training import build, loop
from glassformer.training.logging.progress import Monitor
from glassformer.training.loop import Settings, StepReport, Trainer, TrainModule
from glassformer.training.optim import adamw, muon_and_adamw
from glassformer.training.parallel import Process
from glassformer.training.session import Session
from tests.helpers import largest_difference
from tests.objectives.models import seeded
from tests.objectives.test_objectives import OBJECTIVES
from tests.training.small_sessions import HERE, losses, small, trained
from tests.training.test_loop import small as small_model
from tests.training.test_loop import trainer

later = pytest.mark.usefixtures("_later")


@pytest.fixture(autouse=True)
def _nothing_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of a step are on the CPU already."""
    monkeypatch.setattr(loop, "_copying", lambda values: {"numbers": values})


@pytest.fixture
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave it to the device whether weights change, as on a GPU."""
    monkeypatch.setattr(Trainer, "_reasons_to_synchronise", lambda _: [])


def late_trainer(model: Any, **settings: Any) -> Trainer:
    batches = trainer(small_model(), **settings).batches
    return Trainer(model, NextToken(), batches, [adamw(model, 1e-2)], Settings(**settings), capture=False)


@later
def test_a_step_that_is_fetched_later_is_the_same_step() -> None:
    now, late = small_model(), small_model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_reasons_to_synchronise", lambda _: ["it is slow"])
        expected = list(trainer(now, steps=12, accumulate=2))
    reports = late_trainer(late, steps=12, accumulate=2)
    reports.must_fetch = lambda step: step == 5
    steps = [(report, reports.step) for report in reports]
    # All but the one that must be fetched, and the last, are reported when the next step has begun.
    assert [step for _, step in steps] == [2, 3, 4, 5, 5, 7, 8, 9, 10, 11, 12, 12]
    assert [report.step for report, _ in steps] == list(range(1, 13))
    for (report, _), other in zip(steps, expected, strict=True):
        assert report.loss == pytest.approx(other.loss, rel=1e-6)
        assert report.grad_norm == pytest.approx(other.grad_norm, rel=1e-6)
        assert (report.lr, report.tokens_seen, report.fraction) == (other.lr, other.tokens_seen, other.fraction)
    assert all(largest_difference(a, b) < 1e-6 for a, b in zip(late.parameters(), now.parameters(), strict=True))


@later
def test_a_step_that_is_not_finite_and_those_after_it_change_nothing() -> None:
    model = small_model()
    run = late_trainer(model, steps=9)
    run.must_fetch = lambda _: False
    before: list[torch.Tensor] = []

    def poison() -> None:
        if run.step == 3:  # the fourth step has been made; the fifth fails
            with torch.no_grad():
                model.decoder.blocks[0].attention.q.weight[0, 0] = float("inf")
            before.extend(p.clone() for p in model.parameters())

    run.after_update.append(poison)
    seen: list[int] = []
    with pytest.raises(FloatingPointError, match=r"at step 5; no weight was changed"):
        seen.extend(report.step for report in run)
    assert seen == [1, 2, 3, 4]
    assert (run.step, run.tokens_seen) == (4, 4 * 32)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    # Once the cause is removed, steps count and change weights again.
    run.after_update.clear()
    with torch.no_grad():
        model.decoder.blocks[0].attention.q.weight[0, 0] = 0.0
    assert run.advance().step == 5
    assert not torch.equal(before[-1], list(model.parameters())[-1])


class Breaks:
    """Batches, of which one cannot be read."""

    def __init__(self, batches: Any, number: int) -> None:
        self.batches, self.left = batches, number

    def __next__(self) -> Batch:
        self.left -= 1
        if self.left == 0:
            raise OSError("a row cannot be read")
        batch: Batch = next(self.batches)
        return batch


def infinite_at(run: Trainer, step: int) -> None:
    """Let the loss of a step be infinite, and of no other."""
    plain, calls = run.train_module.objective.loss, [0]

    def loss(model: Any, batch: Batch) -> Loss:
        calls[0] += 1
        found: Loss = plain(model, batch)
        term = found.terms["next"]
        plus = math.inf if calls[0] == step else 0.0
        return Loss({"next": LossTerm(term.total + plus, term.count)}, found.metrics)

    object.__setattr__(run.train_module.objective, "loss", loss)


@later
def test_a_step_that_is_not_finite_is_told_where_the_next_one_cannot_begin() -> None:
    model = small_model()
    run = late_trainer(model, steps=9)
    run.must_fetch = lambda _: False
    run.batches = Breaks(run.batches, 5)  # type: ignore[assignment]
    infinite_at(run, 4)
    with pytest.raises(FloatingPointError, match="at step 4; no weight was changed"):
        list(run)
    assert run.step == 3
    before = [p.clone() for p in model.parameters()]
    assert [report.step for report in run] == [4, 5, 6, 7, 8, 9]
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@later
def test_a_step_is_reported_where_the_next_one_cannot_begin() -> None:
    run = late_trainer(small_model(), steps=9)
    run.must_fetch = lambda _: False
    run.batches = Breaks(run.batches, 5)  # type: ignore[assignment]
    seen: list[int] = []
    with pytest.raises(OSError, match="a row cannot be read"):
        seen.extend(report.step for report in run)
    assert seen == [1, 2, 3, 4]


@later
def test_a_step_that_nobody_waits_for_and_is_not_finite_holds_back_no_other() -> None:
    model = small_model()
    run = late_trainer(model, steps=9)
    run.must_fetch = lambda _: False
    infinite_at(run, 4)
    for report in run:
        if report.step == 3:  # the fourth has begun
            break
    del report
    gc.collect()
    assert run.step == 3
    before = [p.clone() for p in model.parameters()]
    assert run.advance().step == 4
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@dataclass(frozen=True)
class Odd(NextToken):
    """A loss that is infinite where its gradient is finite, or a metric that is not a number."""

    loss_plus: float = 0.0
    metric: float = 0.0

    def loss(self, model: Any, batch: Batch) -> Loss:
        loss = super().loss(model, batch)
        term = loss.terms["next"]
        odd = torch.tensor(self.metric)
        return Loss({"next": LossTerm(term.total + self.loss_plus, term.count)}, {"odd": (odd, 1)})


@pytest.mark.parametrize("is_late", [False, True])
def test_an_infinite_loss_ends_a_run_and_an_odd_metric_does_not(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_reasons_to_synchronise", lambda _: [] if is_late else ["it is slow"])
    for objective, is_wrong in ((Odd(loss_plus=math.inf), True), (Odd(metric=math.nan), False)):
        model = small_model()
        batches = trainer(small_model(), steps=3).batches
        run = Trainer(model, objective, batches, [adamw(model, 1e-2)], Settings(steps=3), capture=False)
        before = [p.clone() for p in model.parameters()]
        if is_wrong:
            with pytest.raises(FloatingPointError, match="the loss became inf at step 1; no weight was changed"):
                run.advance()
            assert all(p.grad is None for p in model.parameters())
        else:
            assert math.isnan(run.advance().metrics["odd"])
        assert is_wrong == all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_step_lasts_no_longer_because_of_what_happens_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for reasons in ([], ["it is slow"]):
        monkeypatch.setattr(Trainer, "_reasons_to_synchronise", lambda _, reasons=reasons: list(reasons))
        now = [0.0]
        monkeypatch.setattr("glassformer.training.loop.time.perf_counter", lambda now=now: now[0])
        run = late_trainer(small_model(), steps=3)
        run.after_update.append(lambda now=now: now.append(now.pop() + 1.0))  # the time that a step takes
        seconds = []
        for report in run:
            seconds.append(report.seconds)
            now[0] += 100.0  # an evaluation
        assert seconds == [1.0, 1.0, 1.0]


def test_where_steps_can_be_captured_and_where_they_are_refused() -> None:
    model = small_model()
    options: dict[str, Any] = {"capture": True}
    with pytest.raises(ValueError, match=r"run.capture=true is not possible: the device is cpu, not an NVIDIA GPU"):
        Trainer(model, NextToken(), trainer(model, steps=1).batches, [adamw(model, 1e-2)], Settings(steps=1), **options)
    plain = Trainer(model, NextToken(), trainer(model, steps=1).batches, [adamw(model, 1e-2)], Settings(steps=1))
    assert plain.captured is None
    muon = Trainer(model, NextToken(), plain.batches, muon_and_adamw(model, 1e-2), Settings(steps=1))
    assert "not all optimizers are fused AdamW" in muon._reasons_to_synchronise()


@pytest.mark.parametrize(
    ("device", "world", "changes", "reason"),
    [
        ("cpu", 1, [], "the device is cpu, not an NVIDIA GPU"),
        ("cuda", 2, [], "several processes train"),
        ("cuda", 1, ["run.precision=float16"], "float16 adapts the scale"),
        ("cuda", 1, ["optimizer.kind=muon"], "not all optimizers are fused AdamW"),
        ("cuda", 1, ["run.recompute=true"], "run.recompute saves random states"),
    ],
)
def test_a_run_that_cannot_capture_is_refused_before_anything_is_written(
    device: str, world: int, changes: list[str], reason: str, tmp_path: Path
) -> None:
    recipe = small("lm-bpe", tmp_path, "run.capture=true", "run.precision=float32", *changes)
    process = Process(torch.device(device), world=world)
    with pytest.raises(ValueError, match=rf"run.capture=true is not possible: .*{reason}"):
        build._check(recipe, job_of(recipe), process)
    if device == "cpu":
        with pytest.raises(ValueError, match=r"run\.capture=true is not possible"):
            trained(recipe, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("precision", "is_late"), [("float32", False), ("float32", True), ("bfloat16", True), ("float16", False)]
)
def test_a_run_goes_on_after_a_step_that_was_not_finite(
    precision: Any, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_reasons_to_synchronise", lambda _: [] if is_late else ["it is slow"])
    model = small_model()
    run = late_trainer(model, steps=3, precision=precision)
    infinite_at(run, 1)
    with pytest.raises(FloatingPointError, match="at step 1; no weight was changed"):
        run.advance()
    before = [p.clone() for p in model.parameters()]
    assert [report.step for report in run] == [1, 2, 3]
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@later
@pytest.mark.parametrize("average", ["null", "0.9"])
def test_checkpoints_and_samples_have_the_weights_of_their_step(tmp_path: Path, average: str) -> None:
    changes = ["run.capture=false", "run.checkpoint_every=3", "evaluation.every=4", f"run.average={average}"]
    recipe = small("lm-bytes", tmp_path, *changes)
    trained(recipe, tmp_path / "late")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_reasons_to_synchronise", lambda _: ["it is slow"])
        trained(recipe, tmp_path / "now")
    late, now = losses(tmp_path / "late"), losses(tmp_path / "now")
    assert late == pytest.approx(now, rel=1e-5)
    for name in sorted(path.name for path in (tmp_path / "now" / "checkpoints").iterdir()):
        files = [next((tmp_path / run / "checkpoints" / name).rglob("*.safetensors")) for run in ("late", "now")]
        item, other = map(load_file, files)
        assert all(largest_difference(item[key], other[key]) < 1e-5 for key in other), name


@later
def test_a_step_that_fails_after_ctrl_c_is_told_and_no_checkpoint_is_written(tmp_path: Path) -> None:
    """Its batch has been taken, which a run that resumes from the step before would leave out."""

    class Interrupts(Monitor):
        def step(self, report: StepReport, epoch: int | None) -> dict[str, Any]:
            if report.step == 4:  # the fifth has begun
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(report, epoch)

    recipe = small("toy", tmp_path, "run.capture=false", "run.steps=9", "optimizer.warmup=1", "evaluation.every=9")
    session = Session(recipe, tmp_path / "out", HERE, Interrupts())
    objective, calls = session.run.objective, [0]
    plain = objective.loss

    def loss(model: Any, batch: Batch) -> Loss:
        calls[0] += 1
        if calls[0] == 6:
            raise OSError("the device is gone")
        return plain(model, batch)

    object.__setattr__(objective, "loss", loss)
    with pytest.raises(OSError, match="the device is gone"):
        session.train()
    assert session.checkpoints.all() == []
    assert losses(tmp_path / "out") != []


@later
def test_the_epoch_shown_is_that_of_the_step(tmp_path: Path) -> None:
    class Epochs(Monitor):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int | None] = []

        def step(self, report: StepReport, epoch: int | None) -> dict[str, Any]:
            self.seen.append(epoch)
            return super().step(report, epoch)

    recipe = small("toy", tmp_path, "run.capture=false", "run.steps=7", "optimizer.warmup=1", "batch.examples=1")
    late, now = Epochs(), Epochs()
    Session(recipe, tmp_path / "late", HERE, late).train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_reasons_to_synchronise", lambda _: ["it is slow"])
        Session(recipe, tmp_path / "now", HERE, now).train()
    assert late.seen == now.seen == [1, 1, 2, 2, 3, 3, 4]


# ---- batches for a device


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        ([IGNORE, 3, IGNORE, 4], {}, [1, 3]),
        ([1, 3, 2, 4], {}, None),  # all are counted
        ([IGNORE] * 4, {}, None),  # none is: the head still needs its gradients of 0
        ([IGNORE, 3, 2, 4], {"most": 0.5}, None),
        ([IGNORE, 3] * 8, {"steps": 4}, [*range(1, 16, 2)]),
        ([IGNORE, 3, IGNORE, IGNORE] * 4, {"steps": 4}, [1, 5, 9, 13]),
        ([IGNORE, 3, 3, IGNORE] + [IGNORE] * 12, {"steps": 4}, [1, 2, 0, 0]),
        ([5, IGNORE], {"steps": 16}, [0]),
    ],
)
def test_counted_positions(labels: list[int], options: Any, expected: list[int] | None) -> None:
    positions = counted_positions(torch.tensor(labels).view(-1, 2), **options)
    assert (None if positions is None else positions.tolist()) == expected


def test_sizes_are_rounded_up_in_small_steps() -> None:
    assert [round_up(n, 8) for n in (1, 9, 15, 17, 31, 64, 65, 129, 1000)] == [1, 9, 15, 18, 32, 64, 72, 144, 1024]
    assert all(n <= round_up(n, 8) < 1.125 * n for n in range(1, 5000))
    assert all(n <= round_up(n, 4) < 1.25 * n for n in range(1, 5000))
    assert len({round_up(n, 4) for n in range(1, 513)}) <= 32


@pytest.mark.parametrize("shape", [(1, 513), (2, 100), (4, 513), (9, 513), (17, 33), (300, 7), (455, 9)])
def test_enlarged_batches_have_at_most_two_fifths_more_tokens(shape: tuple[int, int]) -> None:
    ids = torch.zeros(shape, dtype=torch.long)
    batch = Batch(inputs={"ids": ids}, labels={"next": ids}, counts={"next": ids.numel()}, tokens=ids.numel())
    assert batch.enlarged().labels["next"].numel() < 1.41 * ids.numel()


def losses_of(module: TrainModule, batch: Batch) -> tuple[list[float], list[torch.Tensor]]:
    module.zero_grad()
    torch.manual_seed(3)
    share, loss = module(batch, batch.counts)
    share.backward()
    numbers = [term.total.item() for term in loss.terms.values()]
    numbers += [total.item() for total, _ in loss.metrics.values()]
    return [share.item(), *numbers], [p.grad.clone() for p in module.parameters() if p.grad is not None]


PER_TOKEN = [name for name, (objective, *_) in OBJECTIVES.items() if is_traceable(objective) and name != "classify"]


@pytest.mark.parametrize("name", PER_TOKEN)
def test_enlarged_batches_have_the_same_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "round_up", lambda size, _: -(-size // 8) * 8)  # the examples are few and short
    objective, examples, make, _ = OBJECTIVES[name]
    module = TrainModule(make().eval(), objective)  # dropout would fall on other values
    batch = objective.prepare(examples, seeded())
    large = batch.enlarged()
    assert all(size % 8 == 0 for tensor in large.tensors.values() for size in tensor.shape)
    (numbers, gradients), (others, other_gradients) = losses_of(module, batch), losses_of(module, large)
    assert others == pytest.approx(numbers, rel=1e-5)
    assert all(largest_difference(a, b) < 1e-5 for a, b in zip(gradients, other_gradients, strict=True))


def test_labels_of_whole_texts_are_not_enlarged() -> None:
    objective, examples, *_ = OBJECTIVES["classify"]
    batch = objective.prepare(examples, seeded())
    assert batch.enlarged() is batch
    # As many classes as tokens.
    several = Classification(kind="several").prepare([ClassificationExample([5, 6, 7], [1.0, 0.0, 1.0])], seeded())
    assert several.labels["label"].shape == several.inputs["ids"].shape
    assert several.enlarged() is several


def test_enlarged_batches_forget_positions_in_the_smaller_ones() -> None:
    objective, examples, *_ = OBJECTIVES["masked"]
    batch = objective.prepare(examples, seeded())
    found = counted_positions(batch.labels["masked"])
    assert found is not None
    assert replace(batch, counted={"masked": found}).enlarged().counted == {}
    images = replace(batch, inputs={**batch.inputs, "images": torch.zeros(len(examples), 3, 8, 8)})
    assert images.enlarged() is images


# ---- whole steps as one graph: in a process of its own, without run-time shape checks


def is_one_graph(name: str) -> None:
    objective, examples, make, _ = OBJECTIVES[name]
    model = make().train()
    plain, compiled = TrainModule(model, objective), TrainModule(model, objective)
    compiled.compile_whole(backend="aot_eager")
    batch = objective.prepare(examples, seeded())
    batch = batch.map(torch.clone)
    for _ in range(2):
        (numbers, gradients), (others, other_gradients) = losses_of(plain, batch), losses_of(compiled, batch)
        gap = max(abs(a - b) for a, b in zip(numbers, others, strict=True))
        assert gap < 1e-4, (numbers, others)
        wide = max(largest_difference(a, b) for a, b in zip(gradients, other_gradients, strict=True))
        assert wide < 1e-4, wide


def elsewhere(call: str) -> str:
    code = f"from tests.training import test_steps_on_device as t; t.{call}; print('fine')"
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    return result.stdout.strip() or result.stderr[-2000:]


TRACEABLE = [name for name, (objective, *_) in OBJECTIVES.items() if is_traceable(objective)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "next token" else pytest.mark.slow) for name in TRACEABLE]
)
def test_the_whole_step_is_one_graph(name: str) -> None:
    assert elsewhere(f"is_one_graph({name!r})") == "fine"


def test_a_loss_that_reads_values_is_not_compiled_whole() -> None:
    objective, _, make, _ = OBJECTIVES["replaced"]
    with pytest.raises(ValueError, match="the loss of ReplacedTokens reads values of tensors"):
        TrainModule(make(), objective).compile_whole()


def test_batches_of_many_shapes_do_not_reach_the_compiler_s_limit() -> None:
    objective, _, make, _ = OBJECTIVES["masked"]
    with torch._dynamo.config.patch(recompile_limit=8):  # monkeypatch would take the setting away in the end
        TrainModule(make(), objective).compile_whole(backend="eager")
        assert torch._dynamo.config.recompile_limit >= VERSIONS


def more_graphs_than_versions() -> None:
    """Runs with weights of different types compile the same code; PyTorch's limit holds for each alone."""
    objective, examples, make, _ = OBJECTIVES["next token"]
    batch = objective.prepare(examples, seeded())
    compiler.VERSIONS = torch._dynamo.config.recompile_limit = 1
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        module = TrainModule(make().train().to(dtype), objective)
        module.compile_whole(backend="eager")
        losses_of(module, batch)


@pytest.mark.slow
def test_a_process_compiles_any_number_of_runs() -> None:
    assert elsewhere("more_graphs_than_versions()") == "fine"
