"""The training loop: batches in, reports out. Printing, logging, saving and stopping are the caller's.

A step reads ``accumulate`` batches. Its loss is normalised by what is judged in all of them and, with several
processes, in theirs: k batches of unequal size do what one great batch would.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from glassformer.config.checks import check_choice, check_number, check_positive
from glassformer.nn.modes import Evaluating
from glassformer.training.objectives.base import Batch, Loss, Objective, add_counts
from glassformer.training.processes import world
from glassformer.training.schedules import Schedule, warmup_cosine
from glassformer.training.shards import gathered_weights, whole
from glassformer.training.sums import LossAccumulator, Means, all_reduce_counts

Precision = Literal["float32", "bfloat16", "float16"]
WIDTHS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@runtime_checkable
class Batches(Protocol):
    """An endless source of batches that can say where it stands and go on from there."""

    def __iter__(self) -> Iterator[Batch]:
        """Itself."""

    def __next__(self) -> Batch:
        """The next batch."""

    def state(self) -> dict[str, Any]:
        """Where it stands, as JSON can write it."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run goes: for so many steps, or for so many seconds, in which case no two runs are the same.

    ``precision``: of the products, by autocast; weights stay as they are. float16 scales the loss, so that small
    gradients are not lost, and takes the scale off again before gradients are clipped.
    """

    steps: int | None = None
    seconds: float | None = None
    accumulate: int = 1
    clip: float | None = 1.0  # longest gradient; None: any
    precision: Precision = "float32"
    schedule: Schedule = warmup_cosine

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("say how long to train: either steps or seconds.")
        check_positive(steps=1 if self.steps is None else self.steps, accumulate=self.accumulate)
        check_number(seconds=1.0 if self.seconds is None else self.seconds)
        check_choice("precision", self.precision, WIDTHS)
        if self.clip is not None:
            check_number(clip=self.clip)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one step did."""

    step: int  # the first is 1
    loss: float
    terms: dict[str, float]  # the mean of each term of the loss
    parts: dict[str, float]  # means of what is only told, such as the share of right guesses
    lr: float
    grad_norm: float  # before clipping
    tokens: int  # read in this step, by all processes
    tokens_seen: int  # since the start of the run
    seconds: float  # this step took
    fraction: float  # of the run that is done
    skipped: bool = False  # float16 overflowed: the scale was lowered and no weight changed


class TrainModule(nn.Module):
    """A model and its objective as one module, so that a wrapper for many processes sees every call."""

    def __init__(self, model: nn.Module, objective: Objective[Any]) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch, counts: Mapping[str, int]) -> tuple[Tensor, Loss]:
        """This batch's share of the step's loss, and all that the objective says."""
        loss = self.objective.loss(self.model, batch)
        return loss.mean(counts), loss


class Trainer:
    """A run: iterate over it, and every step is a report.

    Args:
        model: in training mode while steps are made.
        objective: what it is trained for.
        batches: the micro-batches of this process.
        optimizers: they step together; ``settings.schedule`` moves the learning rates they come with.
        settings: how the run goes.
        wrap: puts ``TrainModule`` into what many processes need; see ``train.parallel``.
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
        together = TrainModule(model, objective)
        self.together = together if wrap is None else wrap(together)
        self.device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision == "float16")
        self.step = self.tokens_seen = 0
        self._start = time.perf_counter()
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self._parameters = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        self._check_processes(wrap)

    def _check_processes(self, wrap: Any) -> None:
        if world() > 1 and wrap is None:
            raise ValueError("several processes train, and nothing exchanges their gradients: hand in wrap.")
        if world() > 1 and self.settings.seconds is not None:
            raise ValueError("processes have clocks of their own, and must stop together: say steps, not seconds.")
        theirs = {id(p) for p in self.together.parameters()}
        if any(id(p) not in theirs for p in self._parameters):
            raise ValueError("an optimizer holds parameters that are not the model's: make it after parallel.wrap.")

    def __iter__(self) -> Iterator[Report]:
        """All steps that are left. The optimizers have the learning rates they came with when it ends."""
        self._start = time.perf_counter()
        try:
            while self._fraction(self.step) < 1:
                yield self.advance()
        finally:
            self._set_rates(1.0)

    def _fraction(self, step: int) -> float:
        """The share of the run that is done after so many steps, or by now."""
        if self.settings.steps is not None:
            return min(1.0, step / self.settings.steps)
        return min(1.0, (time.perf_counter() - self._start) / (self.settings.seconds or 1.0))

    def advance(self) -> Report:
        """Make one step. A loss or gradient that is not finite raises before it can spoil a weight."""
        start = time.perf_counter()
        self.model.train()
        batches = list(islice(self.batches, self.settings.accumulate))
        if len(batches) < self.settings.accumulate:
            raise ValueError(f"the batches ran out after {self.step} steps, with {self._fraction(self.step):.0%} done.")
        counts, tokens = all_reduce_counts(add_counts(batches), sum(batch.tokens for batch in batches))
        self._set_rates(self.settings.schedule(self._fraction(self.step + 1)))
        sums = LossAccumulator()
        for number, batch in enumerate(batches):
            self._add_gradients(batch.to(self.device, non_blocking=True), counts, sums, number == len(batches) - 1)
        sums.share()
        norm = self._clipped()
        loss = sums.loss()
        skipped = self._change_weights(norm, loss)
        self.step += 1
        self.tokens_seen += tokens
        return Report(
            step=self.step,
            loss=loss,
            terms=sums.means("term"),
            parts=sums.means("part"),
            lr=self.optimizers[0].param_groups[0]["lr"],
            grad_norm=norm,
            tokens=tokens,
            tokens_seen=self.tokens_seen,
            seconds=time.perf_counter() - start,
            fraction=self._fraction(self.step),
            skipped=skipped,
        )

    def _set_rates(self, factor: float) -> None:
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def _add_gradients(self, batch: Batch, counts: Mapping[str, int], sums: LossAccumulator, is_last: bool) -> None:
        waiting = getattr(self.together, "no_sync", nullcontext)  # gradients are exchanged once a step
        with nullcontext() if is_last else waiting():
            with self._autocast():
                share, loss = self.together(batch, counts)
            self.scaler.scale(share * world()).backward()  # processes are averaged over, and counts are of all
        sums.add(loss)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, WIDTHS[self.settings.precision])

    def _clipped(self) -> float:
        """The length of the gradient, which is cut to what is allowed."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        longest = math.inf if self.settings.clip is None else self.settings.clip
        norm = nn.utils.clip_grad_norm_(self._parameters, longest)
        return float(whole(norm))

    def _change_weights(self, norm: float, loss: float) -> bool:
        """Step, unless float16 overflowed; whether it did."""
        overflowed = not math.isfinite(norm)
        if overflowed and not (self.scaler.is_enabled() and math.isfinite(loss)):
            what = f"the loss became {loss}" if not math.isfinite(loss) else f"the gradient's length became {norm}"
            raise FloatingPointError(f"{what} at step {self.step + 1}; no weight was changed. Try a lower lr.")
        for optimizer in self.optimizers:
            if not overflowed:  # the scaler itself would hold back only those whose own gradients overflowed
                self.scaler.step(optimizer)
            optimizer.zero_grad()
        self.scaler.update()
        return overflowed


@torch.no_grad()
def evaluate(model: nn.Module, objective: Objective[Any], batches: Iterable[Batch]) -> Means:
    """The loss over all batches, as if they were one; without training, and without a trace in the model.

    With several processes all call it, each with its own share of the batches, which may be none.
    """
    device, sums = next(model.parameters()).device, LossAccumulator()
    with Evaluating(model), gathered_weights(model):
        for batch in batches:
            sums.add(objective.loss(model, batch.to(device)))
    sums.share()
    if not sums.values:
        raise ValueError("there are no batches to evaluate on.")
    return Means(sums.loss(), sums.means("term"), sums.means("part"))
