"""The estimated cost of a run: its memory against the measured peak, its texts, and that it changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glassformer.objectives import base
from glassformer.objectives.causal_lm import NextToken
from glassformer.recipes.files import recipe_names
from glassformer.recipes.recipe import Recipe
from glassformer.training import cost as cost_module
from glassformer.training.build import Run, build_run
from glassformer.training.capture import CapturedSteps
from glassformer.training.cost import CostEstimate, add_times, estimate_memory
from glassformer.training.logging.progress import Monitor
from glassformer.training.logging.sinks import read_log
from glassformer.training.logging.throughput import current_memory, memory_limit
from glassformer.training.parallel import Process
from glassformer.training.session import Session
from tests.configs import built
from tests.helpers import some_at_once
from tests.inspect.levels import peak
from tests.training.several import together
from tests.training.small_sessions import HERE, TAUGHT, Listens, losses, small, trained

ESTIMATE = CostEstimate(
    name="cpu, 2 threads",
    parameters=10_800_000,
    trained_parameters=10_800_000,
    steps=5000,
    tokens_per_step=16_384,
    memory=3_480_000_000,
    memory_limit=19_200_000_000,
    step_seconds=3.25,
    validation_seconds=600.0,
    disk=520_000_000,
    disk_limit=10**12,
)


def estimate_cost(run: Run, process: Process, folder: Path) -> CostEstimate:
    """Memory and time, as a session estimates them."""
    return add_times(estimate_memory(run, process, folder), run, process)


def test_the_text_names_parameters_memory_and_time() -> None:
    short = replace(ESTIMATE, steps=500)
    assert short.summary() == (
        "estimated cost on cpu, 2 threads: 10,800,000 parameters; 500 steps of about 16,384 tokens; about 3.5 GB of "
        "19 GB memory"
    )
    assert short.time_summary() == "estimated time: about 37:05 at 3.2 s per step, 10:00 of it for validation"
    with_metrics = replace(short, validation_seconds=50.0, has_other_metrics=True)
    assert with_metrics.time_summary() == (
        "estimated time: about 27:55 at 3.2 s per step; metrics other than the loss are not included"
    )
    assert short.warnings() == []
    adapted = replace(ESTIMATE, trained_parameters=40_000, memory=None, step_seconds=None, reasons=("why not",))
    assert adapted.summary() == (
        "estimated cost on cpu, 2 threads: 10,800,000 parameters (40,000 trained); 5,000 steps of about 16,384 tokens"
    )
    assert adapted.time_summary() is None
    assert adapted.warnings() == ["why not"]


def test_warnings_name_what_is_too_small_and_what_to_change() -> None:
    (hours,) = ESTIMATE.warnings()
    assert (
        hours
        == "the run takes about 4.7 hours on this machine. To shorten it, lower run.steps, or choose a smaller model."
    )
    (sized,) = replace(ESTIMATE, sizes=("small",)).warnings()
    assert sized.endswith("lower run.steps, or choose a smaller model, or set run.size=small.")
    (memory,) = replace(ESTIMATE, steps=5, memory_limit=2 * 10**9).warnings()
    assert "needs about 3.5 GB of memory, and 2 GB is available" in memory
    assert "batch.micro_batches" in memory
    (disk,) = replace(ESTIMATE, steps=5, disk_limit=10**8).warnings()
    assert "520 MB of disk, and 100 MB is free" in disk


def test_a_run_is_compiled_where_that_saves_time_and_is_possible() -> None:
    long = replace(ESTIMATE, can_compile=True)
    assert long.pays_to_compile
    assert long.time_summary() == "estimated time: about 4:40:50 at 3.2 s per step, before compilation"
    assert not replace(long, steps=50).pays_to_compile
    without = replace(long, no_compiler="torch.compile needs the package triton: install it")
    assert not without.pays_to_compile
    assert "before compilation" not in str(without.time_summary())
    assert (
        "not compiled, which would make steps faster: torch.compile needs the package triton" in without.warnings()[-1]
    )
    assert replace(without, steps=5).warnings() == []
    stated = replace(ESTIMATE, steps=500, compiles=True, compiles_whole=True, precision="bfloat16", captures=True)
    assert "at 3.2 s per step, before compilation, 10:00 of it" in str(stated.time_summary())
    measured = stated.record()[1]
    assert [measured[name] for name in ("precision", "capture", "compile")] == ["bfloat16", True, True]


def test_the_device_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert cost_module._device_name(HERE) == "cpu, 1 thread"


@pytest.mark.parametrize(
    "name",
    some_at_once([name for name in recipe_names() if name not in TAUGHT], {"lm-bytes", "electra", "tag"}.__contains__),
)
def test_every_recipe_is_estimated(name: str, tmp_path: Path) -> None:
    run = build_run(small(name, tmp_path), tmp_path, HERE)
    estimate = estimate_cost(run, HERE, tmp_path)
    assert estimate.reasons == ()
    assert estimate.memory is not None
    assert estimate.seconds is not None
    assert estimate.parameters == sum(p.numel() for p in run.model.parameters())
    assert all(p.grad is None for p in run.model.parameters())


def test_an_estimate_changes_no_random_number_and_no_weight(tmp_path: Path) -> None:
    run = build_run(small("translate", tmp_path, "model.sizes.dropout=0.5"), tmp_path, HERE)
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    state, position = torch.get_rng_state(), run.trainer.batches.state()
    estimate_cost(run, HERE, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert run.trainer.batches.state() == position
    assert all(torch.equal(tensor, weights[name]) for name, tensor in run.model.state_dict().items())


def test_losses_are_the_same_with_and_without_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small("lm-bytes", tmp_path, "run.steps=6", "model.sizes.resid_pdrop=0.3")
    trained(recipe, tmp_path / "with")
    monkeypatch.setattr(Session, "_estimate_cost", lambda *_: None)
    trained(recipe, tmp_path / "without")
    assert losses(tmp_path / "with") == losses(tmp_path / "without")


SIZED = (
    "model.sizes={n_layer: 2, n_head: 4, n_embd: 128, n_positions: 256}",
    "batch.length=256",
)


@pytest.mark.parametrize(
    "more", some_at_once([[], ["model.sizes.attn_pdrop=0.0"], ["batch.micro_batches=2"]], lambda more: not more)
)
def test_estimated_memory_is_the_measured_peak(more: list[str], tmp_path: Path) -> None:
    """What a step adds, measured as the highest sum of live tensors during real steps; 0.1 % off at most."""
    estimated, measured = memory_of_steps(small("lm-bytes", tmp_path, *SIZED, "batch.examples=16", *more), tmp_path)
    assert measured == pytest.approx(estimated, rel=0.01)


def test_estimated_memory_with_recomputed_blocks(tmp_path: Path) -> None:
    """5 % off: the estimate takes the block with the largest activations as the last one."""
    recipe = small("lm-bytes", tmp_path, *SIZED, "batch.examples=16", "run.recompute=true")
    estimated, measured = memory_of_steps(recipe, tmp_path)
    assert measured == pytest.approx(estimated, rel=0.1)


@pytest.mark.parametrize("chunk", ["null", "64"])
def test_estimated_memory_of_a_head_on_counted_positions_only(chunk: str, tmp_path: Path) -> None:
    sizes = "{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}"
    changes = (f"model.sizes={sizes}", "tokenizer.size=4000", "batch.examples=32", f"objective.chunk={chunk}")
    estimated, measured = memory_of_steps(small("roberta", tmp_path, *changes), tmp_path)
    assert measured == pytest.approx(estimated, rel=0.02)


def memory_of_steps(recipe: Recipe, folder: Path) -> tuple[int, int]:
    """Bytes that steps add at their highest: estimated, and measured."""
    run = build_run(recipe, folder, HERE)
    return cost_module._added_bytes(run, HERE), peak_of_steps(lambda: run.trainer.advance())


def peak_of_steps(step: Callable[[], object]) -> int:
    """Bytes that two steps allocate at their highest, without what kernels need for themselves."""
    return peak(lambda: (step(), step()))


def test_a_run_that_does_not_fit_warns_and_times_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "memory_limit", lambda *_: 10**6)
    monitor = Listens()
    session = Session(small("lm-bytes", tmp_path, "run.steps=6"), tmp_path / "out", HERE, monitor)
    session.train()
    text = "\n".join(monitor.notes)
    assert "of memory, and 1 MB is available" in text
    assert "no step is timed" in text
    (record,) = [line for line in read_log(tmp_path / "out" / "log.jsonl") if line["kind"] == "cost"]
    assert record["measured"]["seconds"] is None
    assert record["parameters"] == sum(p.numel() for p in session.run.model.parameters())


def test_what_cannot_be_counted_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("no rule for the operator x.")

    monkeypatch.setattr(cost_module, "trace_module", fails)
    run = build_run(small("lm-bytes", tmp_path), tmp_path, HERE)
    estimate = estimate_cost(run, HERE, tmp_path)
    assert estimate.warnings() == ["memory is not estimated: no rule for the operator x."]
    assert estimate.seconds is not None


def test_the_limit_is_at_least_what_the_process_has() -> None:
    assert (memory_limit("cpu") or 0) > (current_memory("cpu") or 0) > 0
    assert memory_limit("meta") is None


def test_only_warnings_are_printed_without_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    monitor = Monitor(Console(stderr=True, width=300), only_warnings=True)
    monitor.start(steps=4, done=0, device=torch.device("cpu"), utilisation=None)
    with monitor:
        monitor.note("estimated cost: 4 parameters")
        monitor.warning("the memory is small")
    assert capsys.readouterr().err == "warning     the memory is small\n"


def test_a_step_that_cannot_be_timed_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory\nmore")

    run = build_run(small("lm-bytes", tmp_path), tmp_path, HERE)
    run.model.eval()
    monkeypatch.setattr(cost_module, "TrainModule", fails)
    estimate = estimate_cost(run, HERE, tmp_path)
    assert estimate.warnings() == ["time is not estimated: out of memory"]
    assert not run.model.training


def timed(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[float]:
    """Let the clock advance by these seconds, one for each measured pass; the list of those that are left."""
    left, now = list(seconds), [0.0, True]

    def tick(_: torch.device) -> float:
        now[1] = not now[1]
        if now[1]:
            now[0] += left.pop(0)
        return now[0]

    monkeypatch.setattr(cost_module, "_now", tick)
    return left


def captured(run: Run) -> CapturedSteps:
    return CapturedSteps(lambda *_: (None, torch.zeros(1)), run.model, run.trainer.optimizers, HERE.device)


def test_a_step_that_the_run_does_not_capture_is_timed_as_an_ordinary_one(tmp_path: Path) -> None:
    run = build_run(small("lm-bytes", tmp_path), tmp_path, HERE)
    (full,) = cost_module._first_batches(run, HERE, 1)
    run.trainer.captured = captured(run)
    handle = run.model.register_forward_hook(lambda *_: None)
    assert cost_module._pass_seconds(run, HERE, full) > 0
    handle.remove()
    windowed = replace(run, model=built("gpt_neo", torch.float32), objective=NextToken())
    windowed.trainer.captured = captured(windowed)
    padded = NextToken().prepare([[1, 2, 3, 4], [5, 6]], torch.Generator())
    assert cost_module._pass_seconds(windowed, HERE, padded) > 0


def test_memory_is_that_of_batches_as_steps_compute_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "round_up", lambda size, _: -(-size // 8) * 8)  # the rows are few and short
    run = build_run(small("translate", tmp_path), tmp_path, HERE)
    before, run.trainer.captured = cost_module._added_bytes(run, HERE), captured(run)
    batches = cost_module._first_batches(run, HERE, 4)
    assert all("mask" in batch.inputs for batch in cost_module._as_computed(run, batches))
    assert cost_module._as_computed(run, batches[:1])[0] is batches[0]  # nothing is added to batches of one shape
    assert cost_module._added_bytes(run, HERE) > before


@pytest.mark.parametrize(
    ("compiles", "passes", "expected", "left"),
    [
        ("false", [1.0, 0.1, 0.2, 0.3, 9.0], 0.2, 1),  # the first pass allocates
        ("true", [60.0, 30.0, 0.1, 0.2, 0.3], 0.2, 0),  # two passes compile, and at least one is timed after them
        ("false", [6.0, 0.1], 6.0, 1),  # long without compilation: no other is made
        ("false", [1.0, 7.0, 0.1], 7.0, 1),
    ],
)
def test_time_is_of_passes_that_neither_allocate_nor_compile(
    compiles: str, passes: list[float], expected: float, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build_run(small("lm-bytes", tmp_path), tmp_path, HERE)
    run = replace(run, recipe=replace(run.recipe, run=replace(run.recipe.run, compile=compiles == "true")))
    remaining = timed(monkeypatch, passes)
    assert cost_module._step_seconds(run, HERE, 1000) == pytest.approx(expected)
    assert len(remaining) == left
    remaining[:] = [3.0, 0.5]
    assert cost_module._forward_seconds(run, HERE.device) == pytest.approx(0.5)  # of the second pass


@pytest.mark.parametrize(
    "name", some_at_once(["lm-bytes", "lm-bytes average", "electra", "adapters"], {"lm-bytes average"}.__contains__)
)
def test_disk_is_that_of_the_written_checkpoints_and_the_model(name: str, tmp_path: Path) -> None:
    few = ("run.steps=2", "optimizer.warmup=1", "run.checkpoint_every=1", "evaluation.every=2", "run.keep=1")
    if name == "adapters":
        start = trained(small("classify", tmp_path, *few), tmp_path / "start").folder
        model = f"model={{start: {start}, adapters: {{rank: 4}}}}"
        recipe = small("classify", tmp_path, *few, model, f"tokenizer.load={start}", "objective={}")
    else:
        recipe = small(name.split()[0], tmp_path, *few, *(["run.average=0.9"] if "average" in name else []))
    session = Session(recipe, tmp_path / "out", HERE, Monitor())
    session.train()
    written = session.checkpoints.latest()
    assert written is not None
    bound = 0.1 if name == "electra" else 0.02  # the weights that its two models share are saved twice
    random_states = weights_in(written / "run" / "random.safetensors")
    assert cost_module._checkpoint_bytes(session.run) == pytest.approx(weights_in(written) - random_states, rel=bound)
    estimate = estimate_memory(session.run, HERE, tmp_path)
    model_bytes = weights_in(tmp_path / "out" / "model")
    assert estimate.disk == pytest.approx(2 * (weights_in(written) - random_states) + model_bytes, rel=bound)


def weights_in(path: Path) -> int:
    """Bytes of the tensors in safetensors files, without their headers."""
    files = [path] if path.is_file() else [*path.rglob("*.safetensors")]
    return sum(file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little") for file in files)


def test_processes_of_a_machine_share_its_memory() -> None:
    alone, shared = memory_limit("cpu"), memory_limit("cpu", 4)
    assert alone is not None
    assert shared is not None
    assert alone / 8 < shared < alone / 2


def estimated_together(process: Process, folder: Path) -> tuple[list[str], bool, int]:
    """Only the second of the processes has too little memory."""
    if not process.is_first:
        cost_module.memory_limit = lambda *_: 1  # type: ignore[assignment]
    recipe = small("lm-bytes", folder, "batch.micro_batches=2")
    estimate = estimate_cost(build_run(recipe, folder / str(process.rank), process), process, folder)
    return list(estimate.reasons), estimate.seconds is None, process.local_world


def test_processes_agree_that_no_step_is_timed(tmp_path: Path) -> None:
    reason = "no step is timed, because the memory may not suffice"
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    assert together(2, estimated_together, tmp_path) == 2 * [([reason], True, 2)]
