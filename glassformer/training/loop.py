"""The training loop: batches in, reports out. Printing, logging, saving and stopping are the caller's.

A step takes ``accumulate`` micro-batches. Its loss is divided by the number of targets in all of them, over all
processes, so k micro-batches of unequal size do what one large batch would do.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from glassformer.config.checks import check_choice, check_positive_integer, check_positive_number
from glassformer.nn.kernels.compiler import compile_alone
from glassformer.nn.modes import Evaluating
from glassformer.objectives.base import Batch, Count, Loss, LossTerm, Means, Objective, count_tensors
from glassformer.training.block_calls import calls_in
from glassformer.training.capture import (
    RECOMPUTE_OBSTACLE,
    CapturedSteps,
    check_capture,
    obstacles,
    reasons_to_synchronise,
)
from glassformer.training.loss_sums import LossAccumulator, as_float64
from glassformer.training.parallel import all_gather, full_tensor, gathered_weights, world_size
from glassformer.training.schedules import Schedule, warmup_cosine

Precision = Literal["float32", "bfloat16", "float16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@runtime_checkable
class Batches(Protocol):
    """An endless source of batches that can save its position and resume from it."""

    def __iter__(self) -> Iterator[Batch]:
        """Return itself."""

    def __next__(self) -> Batch:
        """Return the next batch."""

    def state(self) -> dict[str, Any]:
        """Return its position, as JSON can write it."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from a position."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Length and numerics of a run. A run limited by ``seconds`` instead of ``steps`` is not reproducible.

    ``precision`` is that of the matrix products, by autocast; weights keep their type. float16 scales the loss, so that
    small gradients do not underflow, and unscales gradients before they are clipped.
    """

    steps: int | None = None
    seconds: float | None = None
    accumulate: int = 1  # micro-batches per step, in this process
    clip: float | None = 1.0  # maximum gradient norm; None: no clipping
    precision: Precision = "float32"
    schedule: Schedule = warmup_cosine

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("set the length of the run: either steps or seconds.")
        check_positive_integer(steps=1 if self.steps is None else self.steps, accumulate=self.accumulate)
        check_positive_number(seconds=1.0 if self.seconds is None else self.seconds)
        check_choice("precision", self.precision, DTYPES)
        if self.clip is not None:
            check_positive_number(clip=self.clip)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step did."""

    step: int  # the first is 1
    loss: float
    terms: dict[str, float]  # the mean of each term of the loss
    metrics: dict[str, float]  # means that are logged but not trained on, such as accuracy
    lr: float
    grad_norm: float  # before clipping
    tokens: int  # of this step, over all processes
    tokens_seen: int  # since the start of the run
    seconds: float  # duration of this step
    fraction: float  # of the run that is done
    skipped: bool = False  # float16 overflowed: the scale was lowered and no weight changed


NamedSums = dict[str, tuple[Tensor, Count, float]]  # total, count and weight by name


class TrainModule(nn.Module):
    """A model and its objective as one module, so that a wrapper for several processes sees every call."""

    def __init__(self, model: nn.Module, objective: Objective[Any]) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self._compiled: Callable[..., tuple[Tensor, NamedSums, NamedSums]] | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether model and loss are compiled as one graph."""
        return self._compiled is not None

    def compile_whole(self, **options: Any) -> None:
        """Compile model and loss as one graph, with the options of ``torch.compile``; at the first call."""
        if reasons := obstacles(self.model, self.objective):
            raise ValueError(f"model and loss are not one graph: {'; '.join(reasons)}. Compile the blocks alone.")

        def sums(*args: Any) -> tuple[Tensor, NamedSums, NamedSums]:
            return self._sums(*args)

        self._compiled = compile_alone(sums, **options)

    def forward(self, batch: Batch, counts: Mapping[str, Count]) -> tuple[Tensor, Loss]:
        """Return this batch's share of the step's loss, a scalar to differentiate, and the loss with its terms."""
        if self._compiled is None:
            loss = self.objective.loss(self.model, batch)
            return loss.mean(counts), loss
        device = next(iter(batch.inputs.values())).device
        counters = count_tensors(batch.counts, device), count_tensors(counts, device)
        share, terms, metrics = self._compiled(batch.inputs, batch.labels, batch.counted, *counters)
        return share, Loss({n: LossTerm(*term) for n, term in terms.items()}, {n: m[:2] for n, m in metrics.items()})

    def _sums(
        self,
        inputs: dict[str, Tensor],
        labels: dict[str, Tensor],
        counted: dict[str, Tensor],
        batch_counts: dict[str, Tensor],
        counts: dict[str, Tensor],
    ) -> tuple[Tensor, NamedSums, NamedSums]:
        """Return what ``forward`` does, from and as tensors: each term of the loss as its total, count and weight."""
        batch = Batch(inputs=inputs, labels=labels, counted=counted, counts=batch_counts, tokens=0)
        loss = self.objective.loss(self.model, batch)
        terms = {name: (term.total, term.count, term.weight) for name, term in loss.terms.items()}
        return loss.mean(counts), terms, {name: (total, count, 1.0) for name, (total, count) in loss.metrics.items()}


@dataclass(frozen=True, kw_only=True)
class QueuedStep:
    """A step whose work was given to the device, and which may not be finished yet."""

    step: int
    began: float  # when its batches were requested
    lr: float
    tokens: int
    tokens_seen: int
    losses: LossAccumulator
    numbers: Tensor  # the gradient norm, then ``losses.stacked()``; copied to the CPU once ``ready``
    ready: torch.cuda.Event | None = None
    skipped: bool = False


class Trainer:
    """A run: iterating over it makes steps and yields their reports.

    On a GPU the CPU queues the next step before it waits for the results of the last one, so that the device never
    waits for the CPU. The exceptions are the steps that ``must_fetch`` names: those whose result is needed before the
    next one begins (validation, checkpoint). Steps of one shape run as one CUDA graph (``capture.CapturedSteps``)
    unless ``capture`` is off.

    Args:
        model: in training mode while steps are made.
        objective: computes the loss.
        batches: the micro-batches of this process.
        optimizers: they step together; ``settings.schedule`` scales their initial learning rates.
        settings: length and numerics of the run.
        wrap: wraps ``TrainModule`` for several processes; see ``training.parallel``.
        capture: run steps as CUDA graphs; None: where that is possible.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective[Any],
        batches: Batches,
        optimizers: Sequence[Optimizer],
        settings: Settings,
        *,
        wrap: Any = None,
        capture: bool | None = None,
    ) -> None:
        self.model, self.batches, self.optimizers, self.settings = model, batches, list(optimizers), settings
        train_module = TrainModule(model, objective)
        self.train_module = train_module if wrap is None else wrap(train_module)
        self.device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision == "float16")
        self.step = self.tokens_seen = 0
        self.begun = 0  # the last step that was begun, whether or not it was made
        # Whether the result of a step is needed before the next one begins (validation, checkpoint).
        self.must_fetch: Callable[[int], bool] = lambda _: True
        self.after_update: list[Callable[[], None]] = []  # called after each step, also a skipped one
        self._processes = world_size()
        self._start = self._last_report = time.perf_counter()
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self._parameters = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        self._unfetched: list[QueuedStep] = []  # at most two
        self._check_processes(wrap)
        # On the device: whether a queued step failed, which skips all updates after it; None: the CPU checks each step.
        reasons = self._reasons_to_synchronise()
        self._failed = None if reasons else torch.zeros((), dtype=torch.bool, device=self.device)
        reasons += obstacles(model, objective)
        reasons += [RECOMPUTE_OBSTACLE] if any(call.recomputes for call in calls_in(model)) else []
        if capture:
            check_capture(reasons)
        captures = not reasons and capture is not False
        self.captured = CapturedSteps(self._step_on_device, model, self.optimizers, self.device) if captures else None

    def _reasons_to_synchronise(self) -> list[str]:
        """Return why each step must be read by the CPU before the weights change; empty: the device can decide."""
        is_fused = all(type(o) is AdamW and all(group["fused"] for group in o.param_groups) for o in self.optimizers)
        return reasons_to_synchronise(self.device, self._processes, self.settings.precision, is_fused)

    def _check_processes(self, wrap: Any) -> None:
        if self._processes > 1 and wrap is None:
            raise ValueError("several processes train, but nothing exchanges their gradients: pass wrap.")
        if self._processes > 1 and self.settings.seconds is not None:
            raise ValueError("several processes must stop at the same step: set steps, not seconds.")
        of_model = {id(p) for p in self.train_module.parameters()}
        if any(id(p) not in of_model for p in self._parameters):
            raise ValueError("an optimizer holds parameters that are not the model's: make it after parallel.wrap.")

    def __iter__(self) -> Iterator[StepReport]:
        """Make all remaining steps. When it ends, the optimizers have their initial learning rates again."""
        self._start = time.perf_counter()
        try:
            while self._fraction(self.step) < 1:
                try:
                    self._queue()
                except Exception:  # the step before may have failed, too, and its error comes first
                    while self._unfetched:
                        yield self._fetch()
                    raise
                in_flight = 0 if self._failed is None or self.must_fetch(self.step) else 1
                while len(self._unfetched) > in_flight:
                    yield self._fetch()
            while self._unfetched:
                yield self._fetch()
        finally:
            with suppress(FloatingPointError):  # the caller stopped before this step failed, which changed no weight
                while self._unfetched:
                    self._fetch()
            self._scale_lr(1.0)

    def _fraction(self, step: int) -> float:
        """Return the fraction of the run that is done after ``step`` steps, or by now if it is limited by time."""
        if self.settings.steps is not None:
            return min(1.0, step / self.settings.steps)
        return min(1.0, (time.perf_counter() - self._start) / (self.settings.seconds or 1.0))

    def _scale_lr(self, factor: float) -> None:
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def advance(self) -> StepReport:
        """Make one step. A loss or gradient that is not finite raises before any weight changes."""
        self._queue()
        return self._fetch()

    def _queue(self) -> None:
        """Queue the next step on the device."""
        began, settings = time.perf_counter(), self.settings
        self.begun = self.step + 1
        self.model.train()
        self._scale_lr(settings.schedule(self._fraction(self.step + 1)))

        # The micro-batches of this step, and the number of targets in all of them, over all processes.
        try:
            batches = [next(self.batches) for _ in range(settings.accumulate)]
        except StopIteration:
            done = f"after {self.step} steps, with {self._fraction(self.step):.0%} done"
            raise ValueError(f"the batches ran out {done}.") from None
        counts, tokens = _total_counts(batches), sum(batch.tokens for batch in batches)
        if self._processes > 1:
            counts, tokens = _all_reduce_counts(counts, tokens)

        make_step = self._step_synchronously if self._failed is None else self._step_asynchronously
        result = make_step(batches, counts)
        for call in self.after_update:
            call()
        self.step += 1
        self.tokens_seen += tokens
        lr = self.optimizers[0].param_groups[0]["lr"]
        queued = QueuedStep(step=self.step, began=began, lr=lr, tokens=tokens, tokens_seen=self.tokens_seen, **result)
        self._unfetched.append(queued)

    def _gradients(self, batches: Sequence[Batch], counts: Mapping[str, Count]) -> tuple[LossAccumulator, Tensor]:
        """Make the forward and backward passes, then clip; return losses, and the norm before clipping."""
        settings, processes = self.settings, self._processes
        for optimizer in self.optimizers:
            optimizer.zero_grad()  # what a step that failed has left
        losses = LossAccumulator(processes)
        for number, batch in enumerate(batches, start=1):
            # Gradients add up in p.grad; processes exchange them in the last backward pass.
            with self._no_sync() if processes > 1 and number < len(batches) else nullcontext():
                # Forward.
                with self._autocast() if settings.precision != "float32" else nullcontext():
                    share, loss = self.train_module(batch, counts)  # share: ()
                # Backward. Gradients are averaged over processes, but counts are summed.
                self.scaler.scale(share * processes).backward()
            losses.add(loss)

        # Clip: scale all gradients down together if their norm exceeds the limit.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self._parameters, math.inf if settings.clip is None else settings.clip)
        return losses, full_tensor(norm) if processes > 1 else norm

    def _step_synchronously(self, batches: Sequence[Batch], counts: Mapping[str, Count]) -> dict[str, Any]:
        """Make a step: fetch and check the gradient norm and the loss before the weights change."""
        on_device = [batch.to(self.device, non_blocking=True) for batch in batches]
        losses, norm = self._gradients(on_device, counts)
        grad_norm, means = float(norm), losses.means()

        # Step, unless float16 overflowed. The scaler alone would skip only the optimizers whose own gradients did.
        overflowed = self.scaler.is_enabled() and not math.isfinite(grad_norm)
        failed = not math.isfinite(means.loss) or not (overflowed or math.isfinite(grad_norm))
        for optimizer in self.optimizers:
            if not (overflowed or failed):
                self.scaler.step(optimizer)
            optimizer.zero_grad()
        self.scaler.update()
        if failed:
            raise _not_finite(means.loss, grad_norm, self.step + 1)
        numbers = torch.cat((as_float64(norm).reshape(1).cpu(), losses.stacked().cpu()))
        return {"losses": losses, "numbers": numbers, "skipped": overflowed}

    def _step_asynchronously(self, batches: Sequence[Batch], counts: Mapping[str, Count]) -> dict[str, Any]:
        """Make a step whose update the device applies or skips; start to copy its numbers to the CPU, not waiting."""
        if self.captured is not None:
            losses, values = self.captured(batches, counts)
        else:
            on_device = [batch.to(self.device, non_blocking=True) for batch in batches]
            losses, values = self._step_on_device(on_device, counts)
        return {"losses": losses, **_copying(values)}

    def _step_on_device(self, batches: Sequence[Batch], counts: Mapping[str, Count]) -> tuple[LossAccumulator, Tensor]:
        """Make a step without copying to the CPU: return losses, and the gradient norm followed by their numbers.

        A norm or loss that is not finite changes no weight, neither in this step nor in those queued after it.
        """
        losses, norm = self._gradients(batches, counts)
        values = torch.cat((as_float64(norm).reshape(1), losses.stacked()))
        assert self._failed is not None
        self._failed.logical_or_(~(norm.isfinite() & losses.is_finite()))
        for optimizer in self.optimizers:
            optimizer.found_inf = self._failed.float()  # type: ignore[attr-defined]  # as GradScaler sets it
            optimizer.step()
            del optimizer.found_inf  # type: ignore[attr-defined]
            optimizer.zero_grad()
        return losses, values

    def _fetch(self) -> StepReport:
        """Wait for the oldest unfetched step and report on it; raise if its loss or gradients were not finite."""
        queued = self._unfetched[0]
        if queued.ready is not None:
            queued.ready.synchronize()
        grad_norm, *stacked = queued.numbers.tolist()
        means = queued.losses.means(stacked)
        if not queued.skipped and not (math.isfinite(grad_norm) and math.isfinite(means.loss)):
            self._forget(queued)
            raise _not_finite(means.loss, grad_norm, queued.step)
        # Steps overlap: one lasts from the end of the step before, or from its own beginning if that was later.
        began, self._last_report = max(queued.began, self._last_report), time.perf_counter()
        del self._unfetched[0]
        return StepReport(
            step=queued.step,
            **means._asdict(),
            lr=queued.lr,
            grad_norm=grad_norm,
            tokens=queued.tokens,
            tokens_seen=queued.tokens_seen,
            seconds=self._last_report - began,
            fraction=self._fraction(queued.step),
            skipped=queued.skipped,
        )

    def _forget(self, failed: QueuedStep) -> None:
        """Count neither a step that failed nor one that was queued after it, and let later ones change weights."""
        self.step, self.tokens_seen = failed.step - 1, failed.tokens_seen - failed.tokens
        self._unfetched.clear()
        if self._failed is not None:
            self._failed.zero_()

    def _no_sync(self) -> AbstractContextManager[Any]:
        """Within this context, backward passes do not exchange gradients."""
        context: AbstractContextManager[Any] = getattr(self.train_module, "no_sync", nullcontext)()
        return context

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, DTYPES[self.settings.precision])


def _copying(values: Tensor) -> dict[str, Any]:
    """Begin to copy numbers from a GPU; return their copy, and the event after which it is complete."""
    numbers = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    numbers.copy_(values, non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record(torch.cuda.current_stream(values.device))
    return {"numbers": numbers, "ready": ready}


def _not_finite(loss: float, grad_norm: float, step: int) -> FloatingPointError:
    value = f"the loss became {loss}" if not math.isfinite(loss) else f"the gradient norm became {grad_norm}"
    return FloatingPointError(f"{value} at step {step}; no weight was changed. Try a lower lr.")


def _total_counts(batches: Sequence[Batch]) -> dict[str, int]:
    """Return the number of targets in all of these batches."""
    names = dict.fromkeys(name for batch in batches for name in batch.counts)
    return {name: sum(int(batch.counts.get(name, 0)) for batch in batches) for name in names}


def _all_reduce_counts(counts: dict[str, int], tokens: int) -> tuple[dict[str, int], int]:
    """Return counts and tokens of all processes together."""
    total, every = Counter[str](), all_gather((counts, tokens))
    for own, _ in every:
        total.update(own)  # unlike +, this keeps a count of 0
    return dict(total), sum(tokens for _, tokens in every)


@torch.no_grad()
def evaluate(model: nn.Module, objective: Objective[Any], batches: Iterable[Batch]) -> Means:
    """Return the mean loss over all batches, as if they were one, in evaluation mode; the model is left as it was.

    With several processes all call it, each with its own batches, of which there may be none.
    """
    device, losses = next(model.parameters()).device, LossAccumulator(world_size())
    with Evaluating(model), gathered_weights(model):
        for batch in batches:
            losses.add(objective.loss(model, batch.to(device)))
    means = losses.means()
    if not means.terms:
        raise ValueError("there are no batches to evaluate on.")
    return means
