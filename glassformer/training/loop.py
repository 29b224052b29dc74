"""The training loop: batches in, reports out. Printing, logging, saving and stopping are the caller's.

A step reads ``accumulate`` micro-batches. Its loss is divided by the number of targets in all of them, over all
processes, so k micro-batches of unequal size do what one large batch would do.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from glassformer.config.checks import check_choice, check_number, check_positive, check_probability
from glassformer.nn.modes import Evaluating
from glassformer.training.objectives.base import Batch, Loss, Objective
from glassformer.training.parallel import all_gather, full_tensor, gathered_weights, world_size

Schedule = Callable[[float], float]  # from the fraction of a run that is done to a factor on the learning rate
Precision = Literal["float32", "bfloat16", "float16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# Learning-rate schedules: a linear warm-up from ``start`` to 1 over the fraction ``warmup`` of the run, then a decay.


def warmup_cosine(progress: float, *, warmup: float = 0.05, start: float = 0.05, floor: float = 0.05) -> float:
    """Return half a cosine wave down to ``floor`` (Loshchilov and Hutter, 2017)."""
    if progress < warmup:
        return start + (1 - start) * progress / warmup
    decay = min(1.0, (progress - warmup) / (1 - warmup))  # 0 at the end of the warm-up, 1 at the end of the run
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * decay))


def warmup_linear(progress: float, *, warmup: float = 0.05, start: float = 0.05, floor: float = 0.0) -> float:
    """Return a straight line down to ``floor`` (Devlin et al., 2019)."""
    if progress < warmup:
        return start + (1 - start) * progress / warmup
    return 1 - (1 - floor) * min(1.0, (progress - warmup) / (1 - warmup))


def warmup_constant(progress: float, *, warmup: float = 0.05, start: float = 0.05) -> float:
    """No change after the warm-up."""
    return start + (1 - start) * progress / warmup if progress < warmup else 1.0


def warmup_inverse_sqrt(progress: float, *, warmup: float = 0.05, start: float = 0.0) -> float:
    """√(warm-up steps / steps): the schedule of Vaswani et al. (2017), section 5.3, with its peak as 1.

    Theirs is d_model^−0.5 · min(step^−0.5, step · warmup^−1.5); its peak, the learning rate to set here, is
    (d_model · warm-up steps)^−0.5.
    """
    if warmup == 0:
        raise ValueError("this schedule decays from the end of its warm-up; warmup must be more than 0.")
    return start + (1 - start) * progress / warmup if progress < warmup else math.sqrt(warmup / progress)


SCHEDULES: dict[str, Callable[..., float]] = {
    "cosine": warmup_cosine,
    "linear": warmup_linear,
    "inverse-sqrt": warmup_inverse_sqrt,
    "constant": warmup_constant,
}


def schedule(name: str, **options: float) -> Schedule:
    """Return a schedule by its name, with its options filled in."""
    check_choice("schedule", name, SCHEDULES)
    check_probability(**{key: options[key] for key in ("warmup", "start") if key in options})
    scheduler = partial(SCHEDULES[name], **options)
    scheduler(0.0)  # a wrong option is an error now, not at the first step
    return scheduler


# Batches in, reports out.


@runtime_checkable
class Batches(Protocol):
    """An endless source of batches that can save its position and resume from it."""

    def __iter__(self) -> Iterator[Batch]:
        """Itself."""

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
        check_positive(steps=1 if self.steps is None else self.steps, accumulate=self.accumulate)
        check_number(seconds=1.0 if self.seconds is None else self.seconds)
        check_choice("precision", self.precision, DTYPES)
        if self.clip is not None:
            check_number(clip=self.clip)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step did."""

    step: int  # the first is 1
    loss: float
    terms: dict[str, float]  # the mean of each term of the loss
    metrics: dict[str, float]  # means that are logged but not trained on, such as accuracy
    lr: float
    grad_norm: float  # before clipping
    tokens: int  # read in this step, by all processes
    tokens_seen: int  # since the start of the run
    seconds: float  # duration of this step
    fraction: float  # of the run that is done
    skipped: bool = False  # float16 overflowed: the scale was lowered and no weight changed


class Means(NamedTuple):
    """Mean loss over some batches, with its terms and metrics such as accuracy."""

    loss: float
    terms: dict[str, float]
    metrics: dict[str, float]


@dataclass
class LossAccumulator:
    """Losses of several batches, summed. Means are over targets, not over batches."""

    processes: int = 1  # that each add their own batches
    totals: dict[tuple[str, str], Tensor] = field(default_factory=dict)  # by ("term" or "metric", name)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    weights: dict[str, float] = field(default_factory=dict)  # of the terms

    def add(self, loss: Loss) -> None:
        """Add the loss of one batch."""
        sums = {("term", name): (term.total, term.count) for name, term in loss.terms.items()}
        sums |= {("metric", name): total_and_count for name, total_and_count in loss.metrics.items()}
        for key, (total, count) in sums.items():
            total = total.detach().double()
            self.totals[key] = total if key not in self.totals else self.totals[key] + total
            self.counts[key] += count
        self.weights |= {name: term.weight for name, term in loss.terms.items()}

    def means(self) -> Means:
        """Return means over all batches of all processes, each of which must call this; one may have added no batch."""
        if self.processes > 1:
            self._all_reduce()
        values = {key: float(total) / max(1, self.counts[key]) for key, total in self.totals.items()}
        terms = {name: value for (kind, name), value in values.items() if kind == "term"}
        metrics = {name: value for (kind, name), value in values.items() if kind == "metric"}
        return Means(sum(self.weights[name] * mean for name, mean in terms.items()), terms, metrics)

    def _all_reduce(self) -> None:
        own = {key: float(total) for key, total in self.totals.items()}
        self.totals, every = {}, all_gather((own, self.weights, self.counts))
        self.counts = Counter()
        for totals, weights, counts in every:  # in the order of ranks, so that all get the same to the bit
            self.weights |= weights
            self.counts.update(counts)
            for key, value in totals.items():
                self.totals[key] = self.totals.get(key, torch.zeros((), dtype=torch.float64)) + value


class TrainModule(nn.Module):
    """A model and its objective as one module, so that a wrapper for several processes sees every call."""

    def __init__(self, model: nn.Module, objective: Objective[Any]) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch, counts: Mapping[str, int]) -> tuple[Tensor, Loss]:
        """This batch's part of the step's loss, a scalar to differentiate; and the loss with its terms."""
        loss = self.objective.loss(self.model, batch)
        return loss.mean(counts), loss


class Trainer:
    """A run: iterating over it makes steps and yields their reports.

    Args:
        model: in training mode while steps are made.
        objective: computes the loss.
        batches: the micro-batches of this process.
        optimizers: they step together; ``settings.schedule`` scales their initial learning rates.
        settings: length and numerics of the run.
        wrap: wraps ``TrainModule`` for several processes; see ``training.parallel``.
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
    ) -> None:
        self.model, self.batches, self.optimizers, self.settings = model, batches, list(optimizers), settings
        train_module = TrainModule(model, objective)
        self.train_module = train_module if wrap is None else wrap(train_module)
        self.device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision == "float16")
        self.step = self.tokens_seen = 0
        self._processes = world_size()
        self._start = time.perf_counter()
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self._parameters = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        self._check_processes(wrap)

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
                yield self.advance()
        finally:
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
        start, settings, processes = time.perf_counter(), self.settings, self._processes
        self.model.train()
        self._scale_lr(settings.schedule(self._fraction(self.step + 1)))

        # The micro-batches of this step, and the number of targets in all of them, over all processes.
        try:
            batches = [next(self.batches) for _ in range(settings.accumulate)]
        except StopIteration:
            done = f"after {self.step} steps, with {self._fraction(self.step):.0%} done"
            raise ValueError(f"the batches ran out {done}.") from None
        total = Counter[str]()
        for batch in batches:
            total.update(batch.counts)
        counts, tokens = dict(total), sum(batch.tokens for batch in batches)
        if processes > 1:
            counts, tokens = _all_reduce_counts(counts, tokens)

        # Forward and backward; gradients add up in p.grad, and are exchanged in the last backward pass.
        losses = LossAccumulator(processes)
        for number, batch in enumerate(batches, start=1):
            with self._no_sync() if processes > 1 and number < len(batches) else nullcontext():
                with self._autocast() if settings.precision != "float32" else nullcontext():
                    share, loss = self.train_module(batch.to(self.device, non_blocking=True), counts)  # share: ()
                self.scaler.scale(share * processes).backward()  # gradients are averaged over processes, counts summed
            losses.add(loss)

        # Clip: scale all gradients down together if their norm exceeds the limit.
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self._parameters, math.inf if settings.clip is None else settings.clip)
        grad_norm, means = float(full_tensor(norm) if processes > 1 else norm), losses.means()

        # Step, unless float16 overflowed. The scaler alone would skip only the optimizers whose own gradients did.
        overflowed = not math.isfinite(grad_norm)
        if overflowed and not (self.scaler.is_enabled() and math.isfinite(means.loss)):
            raise self._not_finite(means.loss, grad_norm)
        for optimizer in self.optimizers:
            if not overflowed:
                self.scaler.step(optimizer)
            optimizer.zero_grad()
        self.scaler.update()

        self.step += 1
        self.tokens_seen += tokens
        return StepReport(
            step=self.step,
            **means._asdict(),
            lr=self.optimizers[0].param_groups[0]["lr"],
            grad_norm=grad_norm,
            tokens=tokens,
            tokens_seen=self.tokens_seen,
            seconds=time.perf_counter() - start,
            fraction=self._fraction(self.step),
            skipped=overflowed,
        )

    def _no_sync(self) -> AbstractContextManager[Any]:
        """Backward passes inside keep their gradients to this process."""
        context: AbstractContextManager[Any] = getattr(self.train_module, "no_sync", nullcontext)()
        return context

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, DTYPES[self.settings.precision])

    def _not_finite(self, loss: float, grad_norm: float) -> FloatingPointError:
        value = f"the loss became {loss}" if not math.isfinite(loss) else f"the gradient norm became {grad_norm}"
        return FloatingPointError(f"{value} at step {self.step + 1}; no weight was changed. Try a lower lr.")


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
