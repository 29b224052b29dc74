"""What a run will cost on this machine, estimated before its first step: parameters, memory, time, disk.

Memory is counted: one training step on the largest of the first batches runs on fake tensors (``inspect.account``) with
the run's own model, objective and precision. On a CPU the estimate is of the whole process, on a GPU of torch's
tensors, as ``throughput.peak_memory`` measures them.

Time is measured: forward and backward passes on the run's first batches, whose gradients are discarded. No weight
changes and random states are restored, so the run's result stays the same bit for bit. Left out of the time: the
optimizer, the exchange of gradients between processes, compilation, checkpoints, and metrics besides the loss.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from glassformer.data.loader import Loader
from glassformer.inspect.account.counts import Workload
from glassformer.inspect.account.memory import memory_of
from glassformer.inspect.account.report import human
from glassformer.inspect.account.trace import Kernels, sizes_of, trace_module
from glassformer.objectives.base import Batch
from glassformer.objectives.job import HasLengths, Job
from glassformer.recipes.files import unused_sizes
from glassformer.training.block_calls import missing_compiler
from glassformer.training.build import Run, batch_plan
from glassformer.training.capture import recording
from glassformer.training.checkpoint_contents import random_state, restore_random
from glassformer.training.logging.progress import as_time
from glassformer.training.logging.throughput import current_memory, memory_limit, peak_memory
from glassformer.training.loop import DTYPES, Precision, TrainModule, evaluate
from glassformer.training.malloc import MALLOC_AHEAD
from glassformer.training.parallel import Process, all_gather
from glassformer.training.threads import MIN_STEPS, choose_threads

PLANNED_BATCHES = 200  # of the first epoch; memory is counted for the largest of them
TIMED_STEPS = 3  # after those that are not timed, because they also allocate or compile
THREAD_BATCHES = 2  # on which numbers of threads are compared
TIMED_SECONDS = 5.0  # no further step is timed after so many
LONG = 3600.0  # seconds from which on a run is long
COMPILE_GAIN = 0.25  # share of a step's time that compilation saves on a GPU (benchmarks/LOG.md has the figures)
COMPILE_SECONDS = 60.0  # that it takes
STATES = {"AdamW": 2, "Muon": 1}  # numbers that an optimizer keeps for each parameter


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What the rest of a run costs. Bytes are of one process; None: not known, and ``reasons`` say why."""

    name: str  # of the device
    parameters: int
    trained_parameters: int
    steps: int  # yet to be made
    tokens_per_step: int  # of all processes together, padding not counted
    memory: int | None  # the peak
    memory_limit: int | None  # of the process: what it uses now, and what is free
    step_seconds: float | None
    validation_seconds: float | None  # of all validations, the final ones included
    disk: int  # of the checkpoints that are kept, and of the model
    disk_limit: int
    has_other_metrics: bool = False  # besides the loss, whose time is not known
    sizes: tuple[str, ...] = ()  # values of run.size that make the run smaller
    reasons: tuple[str, ...] = ()
    precision: Precision = "float32"  # of the products
    captures: bool = False  # steps as CUDA graphs
    compiles: bool = False  # because the recipe says so
    compiles_whole: bool = False  # model and loss as one graph, which is then not what was timed
    can_compile: bool = False  # the recipe leaves it open, and the whole step can be one graph: batches have one shape
    no_compiler: str | None = None  # why nothing can be compiled on this machine

    @property
    def pays_to_compile(self) -> bool:
        """Whether compiling the whole step will save more time than it takes."""
        return self._gains_by_compiling and self.no_compiler is None

    @property
    def _gains_by_compiling(self) -> bool:
        return self.can_compile and (self.step_seconds or 0.0) * self.steps * COMPILE_GAIN > COMPILE_SECONDS

    @property
    def seconds(self) -> float | None:
        """Training and validation together."""
        if self.step_seconds is None:
            return None
        return self.steps * self.step_seconds + (self.validation_seconds or 0.0)

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, as far as it is known."""
        return self.memory is None or self.memory_limit is None or self.memory <= self.memory_limit

    def summary(self) -> str:
        """Return parameters, tokens and memory in one line."""
        trained = "" if self.trained_parameters == self.parameters else f" ({self.trained_parameters:,} trained)"
        parts = [f"{self.parameters:,} parameters{trained}"]
        if self.tokens_per_step:
            parts.append(f"{self.steps:,} steps of about {self.tokens_per_step:,} tokens")
        if self.memory is not None:
            limit = "" if self.memory_limit is None else f" of {_bytes(self.memory_limit)}"
            parts.append(f"about {_bytes(self.memory)}{limit} memory")
        return f"estimated cost on {self.name}: {'; '.join(parts)}"

    def time_summary(self) -> str | None:
        """Return the time in one line; None if it is not known."""
        if self.seconds is None or self.step_seconds is None:
            return None
        validation = self.validation_seconds or 0.0
        share = f", {as_time(validation)} of it for validation" if validation >= max(60, 0.05 * self.seconds) else ""
        others = "; metrics other than the loss are not included" if self.has_other_metrics else ""
        before = ", before compilation" if self.compiles_whole or self.pays_to_compile else ""
        pace = f"{_seconds(self.step_seconds)} per step"
        return f"estimated time: about {as_time(self.seconds)} at {pace}{before}{share}{others}"

    def warnings(self) -> list[str]:
        """Return what the user should know before a long wait, or before the memory or the disk is full."""
        warnings = list(self.reasons)
        if not self.fits:
            assert self.memory is not None
            assert self.memory_limit is not None
            warnings.append(
                f"the run needs about {_bytes(self.memory)} of memory, and {_bytes(self.memory_limit)} is available. "
                f"Lower batch.examples or batch.tokens (and raise batch.micro_batches for the same batch per step), "
                f"batch.length or the model's sizes, or set run.recompute=true."
            )
        if self.seconds is not None and self.seconds >= LONG:
            remedies = ["lower run.steps", "choose a smaller model", *(f"set run.size={size}" for size in self.sizes)]
            warnings.append(
                f"the run takes about {self.seconds / 3600:.1f} hours on this machine. To shorten it, "
                f"{', or '.join(remedies)}."
            )
        if self._gains_by_compiling and self.no_compiler is not None:
            warnings.append(f"model and loss are not compiled, which would make steps faster: {self.no_compiler}.")
        if self.disk > self.disk_limit:
            warnings.append(
                f"checkpoints and the model need about {_bytes(self.disk)} of disk, and {_bytes(self.disk_limit)} is "
                f"free. Lower run.keep, or choose a folder on another disk."
            )
        return warnings

    def record(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two mappings for the log: values that are equal on every machine, and those measured on this one."""
        fixed = {"parameters": self.parameters, "trained_parameters": self.trained_parameters}
        fixed |= {"tokens_per_step": self.tokens_per_step}
        measured: dict[str, Any] = {"memory": self.memory, "memory_limit": self.memory_limit, "seconds": self.seconds}
        measured |= {"step_seconds": self.step_seconds, "validation_seconds": self.validation_seconds}
        measured |= {"threads": torch.get_num_threads(), "precision": self.precision, "capture": self.captures}
        measured |= {"compile": self.compiles or self.pays_to_compile}
        return fixed, measured | {"disk": self.disk, "reasons": list(self.reasons)}


def estimate_memory(run: Run, process: Process, folder: Path) -> CostEstimate:
    """Estimate what the remaining steps of a run cost, except for their time. With several processes all call it."""
    # What is known without running anything.
    recipe, trainer = run.recipe, run.trainer
    parameters = list({id(p): p for p in run.model.parameters()}.values())
    estimate = CostEstimate(
        name=_device_name(process),
        parameters=sum(p.numel() for p in parameters),
        trained_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        steps=max(0, recipe.run.steps - trainer.step),
        tokens_per_step=0,
        memory=None,
        memory_limit=memory_limit(process.device, process.local_world),
        step_seconds=None,
        validation_seconds=None,
        disk=(recipe.run.keep + 1) * _checkpoint_bytes(run) + _weight_bytes(run.job.saved_model(run.model)),
        disk_limit=shutil.disk_usage(folder).free,
        has_other_metrics=type(run.job).metrics is not Job.metrics and not {"valid", "test"}.isdisjoint(run.parts),
        sizes=tuple(unused_sizes(recipe)),
        precision=trainer.settings.precision,
        captures=trainer.captured is not None,
        compiles=bool(recipe.run.compile),
        compiles_whole=getattr(trainer.train_module, "is_compiled", False),  # a wrapper has no such attribute
    )
    # Peak memory of one step, on fake tensors of the size of the first batches.
    with _unchanged(run, process):
        try:
            batches = _first_batches(run, process, 1 + TIMED_STEPS)
            tokens = sum(batch.tokens for batch in batches) * recipe.batch.micro_batches // len(batches)
            estimate = replace(estimate, tokens_per_step=tokens)
            return replace(estimate, memory=_peak_bytes(run, process))
        except Exception as error:  # an estimate must never end a run
            return replace(estimate, reasons=(f"memory is not estimated: {_first_line(error)}",))


def add_times(estimate: CostEstimate, run: Run, process: Process) -> CostEstimate:
    """Return the estimate with the time of a step and of the validations, measured only if the memory suffices.

    With several processes all call it.
    """
    if not all(all_gather(estimate.fits)):  # in every process, as they compute together
        return replace(estimate, reasons=(*estimate.reasons, "no step is timed, because the memory may not suffice"))
    try:
        with _unchanged(run, process):
            seconds = _step_seconds(run, process, estimate.steps) * run.trainer.settings.accumulate
            passes = _validation_batches(run)
            validation = passes * _forward_seconds(run, process.device) / process.world if passes else 0.0
            can_compile = run.recipe.run.compile is None and run.trainer.captured is not None
            if can_compile:
                can_compile = _have_one_shape(_first_batches(run, process, 1 + TIMED_STEPS), process.device)
    except Exception as error:
        if process.world > 1:  # the others wait for this process
            raise
        return replace(estimate, reasons=(*estimate.reasons, f"time is not estimated: {_first_line(error)}"))
    estimate = replace(estimate, step_seconds=seconds, validation_seconds=validation)
    no_compiler = missing_compiler(process.device) if can_compile else None
    return replace(estimate, can_compile=can_compile, no_compiler=no_compiler)


def fastest_threads(estimate: CostEstimate, run: Run, process: Process) -> str | None:
    """Choose the number of threads by timing passes on the first batches; return why it is chosen.

    None: nothing was measured, because the run is short, its memory may not suffice or it is compiled for one number.
    """
    if estimate.steps < MIN_STEPS or not estimate.fits or run.recipe.run.compile:
        return None
    threads = torch.get_num_threads()
    try:
        with _unchanged(run, process):
            batches = _first_batches(run, process, THREAD_BATCHES)
            return choose_threads(lambda: sum(_pass_seconds(run, process, batch) for batch in batches) / len(batches))
    except Exception as error:  # the run itself will fail, and say why
        torch.set_num_threads(threads)
        return f"the number of threads stays {threads}: {_first_line(error)}"


@contextmanager
def _unchanged(run: Run, process: Process) -> Iterator[None]:
    """Restore the random state and the training mode of a run afterwards, and drop its gradients."""
    before, was_training = random_state(process.device), run.model.training
    try:
        yield
    finally:
        run.model.train(was_training)
        run.model.zero_grad(set_to_none=True)
        restore_random(before, process.device)


# Disk.


def _checkpoint_bytes(run: Run) -> int:
    """Return the bytes of a checkpoint: model, optimizer states and, if not in the model, the trained weights."""
    states = sum(_state_bytes(optimizer) for optimizer in run.trainer.optimizers)
    trained = [p for p in {id(p): p for p in run.model.parameters()}.values() if p.requires_grad]
    average = 0 if run.recipe.run.average is None else sum(4 * p.numel() for p in trained)
    if run.base is not None:  # adapters, twice: as the model and as the trained weights
        return 2 * sum(p.nbytes for p in trained) + states + average
    saved = run.job.saved_model(run.model)
    trained_weights = 0 if saved is run.model and not average else _weight_bytes(run.model)
    return _weight_bytes(saved) + trained_weights + states + average


def _weight_bytes(model: nn.Module) -> int:
    """Return the bytes of the parameters, shared ones once."""
    return sum(p.nbytes for p in {id(p): p for p in model.parameters()}.values())


# Memory.


class _TrainingStep(nn.Module):
    """The loss of a batch as a module of tensors, for ``account``."""

    def __init__(self, run: Run, batch: Batch) -> None:
        super().__init__()
        self.model, self.objective, self.batch = run.model, run.objective, batch
        self.precision = run.trainer.settings.precision

    def forward(self, inputs: dict[str, Tensor], labels: dict[str, Tensor]) -> Tensor:
        """Return a scalar to differentiate; fake tensors are on the CPU."""
        with _autocast("cpu", self.precision):
            batch = replace(self.batch, inputs=inputs, labels=labels)
            return self.objective.loss(self.model, batch).mean()


def _peak_bytes(run: Run, process: Process) -> int:
    """Return the peak of the process, or of its GPU's tensors: what it holds by now, and what a step adds to it."""
    if _is_sharded(run, process):
        raise ValueError("the weights are sharded over processes")
    added = _added_bytes(run, process)
    if process.device.type == "cpu" and run.recipe.run.keep_memory:
        added += added // 4 + MALLOC_AHEAD  # freed blocks that are kept; see ``training.malloc``
    return max(peak_memory(process.device) or 0, (current_memory(process.device) or 0) + added)


def _added_bytes(run: Run, process: Process) -> int:
    """Return the peak bytes that the first steps add: activations, gradients and optimizer states."""
    batch = _as_computed(run, [_largest_batch(run), *_first_batches(run, process, 1 + TIMED_STEPS)])[0]
    inputs = [batch.inputs, batch.labels]
    kernels: Kernels = "cpu" if process.device.type == "cpu" else "gpu"
    trace = trace_module(_TrainingStep(run, batch), inputs, "train", kernels=kernels)
    memory = memory_of(trace, Workload(*sizes_of(inputs), "train", "sdpa"), "none")
    # Activations, with the gradients that exist by then.
    added = memory.peak - memory.weights
    if run.trainer.settings.accumulate > 1:  # all gradients exist while the second micro-batch is computed
        added = memory.working + memory.gradients
    if run.recipe.run.recompute:  # blocks keep their inputs alone
        added -= memory.activations - memory.checkpointed
    added = max(added, memory.gradients)  # after the backward pass
    if process.world > 1:
        added += memory.gradients  # the buckets in which DDP exchanges them
    # Optimizer states that do not exist yet; those of a resumed run do.
    states = sum(_state_bytes(optimizer) - _held_bytes(optimizer) for optimizer in run.trainer.optimizers)
    return added + max(0, states)


def _state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of an optimizer's states after its first step."""
    trained = sum(p.nbytes for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
    return STATES[type(optimizer).__name__] * trained


def _held_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of an optimizer's current states."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _largest_batch(run: Run) -> Batch:
    """Return the batch with the most tokens, padding included, of the first ones."""
    examples = run.examples["train"]
    plan = batch_plan(run.recipe, examples)
    largest = 0
    if isinstance(examples, HasLengths):
        numbers = range(min(PLANNED_BATCHES, plan.batches(0)))
        largest = max(numbers, key=lambda n: _padded_tokens(examples.lengths, plan.at(0, n)))
    rows = [examples[index] for index in plan.at(0, largest)]
    return run.objective.prepare(rows, torch.Generator().manual_seed(run.recipe.run.seed))


def _padded_tokens(lengths: Any, rows: Sequence[int]) -> int:
    return len(rows) * max(int(lengths[index]) for index in rows)


# Time.


def _first_batches(run: Run, process: Process, count: int) -> list[Batch]:
    """Return the first batches of the run in this process, from a loader of their own."""
    plan = batch_plan(run.recipe, run.examples["train"])
    options: dict[str, int] = {"seed": run.recipe.run.seed, "rank": process.rank, "world": process.world}
    with Loader(run.examples["train"], run.objective.prepare, plan, **options) as loader:
        return list(islice(loader, count))


def _step_seconds(run: Run, process: Process, steps: int) -> float:
    """Return the seconds of a forward and a backward pass on a batch, after warm-up passes."""
    # A compiled model compiles at the first pass and, if the second batch has another shape, once more.
    captures = run.trainer.captured is not None
    is_compiled = bool(run.recipe.run.compile) and not captures
    untimed = 2 if is_compiled else 1
    count = untimed + max(1, min(TIMED_STEPS, steps // 10))
    batches = _as_computed(run, _first_batches(run, process, count))
    timed: list[float] = []
    for batch in batches:
        timed.append(_pass_seconds(run, process, batch))
        is_slow = not is_compiled and timed[0] > TIMED_SECONDS
        if _of_first_process(is_slow or sum(timed[untimed:]) > TIMED_SECONDS):  # all make equally many steps
            break
    steady = timed[untimed:] or timed[-1:]
    return sum(steady) / len(steady)


def _pass_seconds(run: Run, process: Process, batch: Batch) -> float:
    """Return the seconds of a forward and a backward pass; no weight changes.

    Where the run will make such a step as a CUDA graph, the passes are timed as one.
    """
    module = run.trainer.train_module if _is_sharded(run, process) else TrainModule(run.model, run.objective)
    run.model.train()
    start = _now(process.device)
    on_device = batch.to(process.device)
    _backward(run, module, on_device)
    seconds = _now(process.device) - start
    if run.trainer.captured is not None and run.trainer.captured.can_capture([batch]):
        graph = torch.cuda.CUDAGraph()
        with recording(graph, process.device):
            _backward(run, module, on_device)
        start = _now(process.device)
        graph.replay()
        seconds = _now(process.device) - start
    run.model.zero_grad(set_to_none=True)
    return seconds


def _backward(run: Run, module: nn.Module, batch: Batch) -> None:
    """Make one forward and one backward pass."""
    with _autocast(next(iter(batch.inputs.values())).device.type, run.trainer.settings.precision):
        share, _ = module(batch, batch.counts)
    run.model.zero_grad(set_to_none=True)
    share.backward()


def _as_computed(run: Run, batches: list[Batch]) -> list[Batch]:
    """Return batches as steps compute them: with more padding, if they have several shapes and become CUDA graphs."""
    captured = run.trainer.captured
    return batches if captured is None or _have_one_shape(batches, run.trainer.device) else captured.enlarged(batches)


def _have_one_shape(batches: Sequence[Batch], device: torch.device) -> bool:
    """Whether batches have the same shapes, so that a step is compiled only once."""
    on_device = (batch.to(device) for batch in batches)  # with the positions that are counted in the loss
    return len({tuple((name, x.shape) for name, x in batch.tensors.items()) for batch in on_device}) == 1


def _validation_batches(run: Run) -> int:
    """Return how many batches the validations of the remaining steps and the final evaluation have."""
    recipe, done = run.recipe, run.trainer.step
    total = 0
    for part in ("valid", "test"):
        if part in run.examples:
            whole = batch_plan(recipe, run.examples[part], shuffle=False).batches(0)
            total += whole  # of the saved model, in the end
            if part == "valid":
                every, steps = recipe.evaluation.every, recipe.run.steps
                times = steps // every - done // every + (steps % every > 0)
                total += times * min(whole, recipe.evaluation.batches or whole)
    return total


def _forward_seconds(run: Run, device: torch.device) -> float:
    """Return the seconds that the loss of one validation batch takes, without a backward pass, after a warm-up pass."""
    batches = list(islice(run.batches("valid" if "valid" in run.examples else "test"), 1))
    seconds = 0.0
    for _ in range(2):
        start = _now(device)
        evaluate(run.model, run.eval_objective, batches)
        seconds = _now(device) - start
        if _of_first_process(not run.recipe.run.compile and seconds > TIMED_SECONDS):
            break
    return seconds


def _of_first_process(decision: bool) -> bool:
    """Return the first process's decision in every process."""
    return all_gather(decision)[0]


def _now(device: torch.device) -> float:
    """Wait until the device has finished its work, then return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _autocast(device: str, precision: Precision) -> AbstractContextManager[Any]:
    return nullcontext() if precision == "float32" else torch.autocast(device, DTYPES[precision])


# Formatting.


def _device_name(process: Process) -> str:
    """Return the name of the device, and the number of devices or threads."""
    several = f"{process.world} × " if process.world > 1 else ""
    if process.device.type == "cuda":
        return f"{several}{torch.cuda.get_device_name(process.device)}"
    threads = torch.get_num_threads()
    return f"{several}{process.device.type}, {threads} thread{'' if threads == 1 else 's'}"


def _bytes(number: int) -> str:
    """Format bytes with two digits and a prefix, the precision of an estimate."""
    value, unit = human(number, "B").split()
    return f"{_two_digits(float(value.replace(',', '')))} {unit}"


def _seconds(seconds: float) -> str:
    return f"{_two_digits(seconds)} s" if seconds >= 1 else f"{_two_digits(1000 * seconds)} ms"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _is_sharded(run: Run, process: Process) -> bool:
    return process.world > 1 and run.recipe.run.parallel == "fsdp"
