"""The training loop: batches in, progress out. Printing, saving and stopping are the caller's.

Shapes: ``B`` rows, ``T`` tokens per row, ``V`` vocabulary.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.train.optim import warmup_cosine


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands after a step."""

    step: int
    loss: float  # mean cross-entropy per token of this step's batch, in nats
    tokens: int  # seen since the start
    seconds: float  # since the start
    fraction: float  # of the run that is done

    @property
    def tokens_per_second(self) -> float:
        """Speed since the start."""
        return self.tokens / self.seconds

    @property
    def seconds_left(self) -> float:
        """Estimate from the share that is done."""
        return self.seconds * (1 - self.fraction) / self.fraction


def next_token_loss(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats per token."""
    return F.cross_entropy(rearrange(logits, "b t v -> (b t) v"), rearrange(targets, "b t -> (b t)"))


def train(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    schedule: Callable[[float], float] = warmup_cosine,
    clip: float = 1.0,
) -> Iterator[Progress]:
    """Train ``model`` on (inputs, targets) for a number of steps or of seconds, and report after each step.

    The learning rates of ``optimizer`` are multiplied by ``schedule(fraction done)`` during the run and restored after
    it; gradients longer than ``clip`` are scaled down to it. A loss that is not finite stops the run before it can
    spoil the weights, and so does a data source that ends before the run.
    """
    if (steps is None) == (seconds is None):
        raise ValueError("say how long to train: either steps or seconds.")
    if (steps or seconds or 0) <= 0:
        raise ValueError(f"a run needs more than no time: got steps={steps}, seconds={seconds}.")
    rates = [group["lr"] for group in optimizer.param_groups]
    clock = _Clock(steps, seconds)
    source = iter(batches)
    model.train()
    try:
        while not clock.is_over():
            batch = next(source, None)
            if batch is None:
                raise ValueError(f"the batches ran out after {clock.step} steps; the run was to last {clock}.")
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(clock.fraction())
            loss = _step(model, batch, optimizer, clip, clock.step + 1)
            clock.tick(batch[0].numel())
            yield Progress(
                step=clock.step, loss=loss, tokens=clock.tokens, seconds=clock.elapsed(), fraction=clock.fraction()
            )
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _step(
    model: nn.Module, batch: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer, clip: float, number: int
) -> float:
    inputs, targets = batch
    loss = next_token_loss(model(inputs), targets)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss became {loss.item()} at step {number}; try a lower learning rate.")
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


class _Clock:
    """How much of a run is done, counted in steps or in seconds."""

    def __init__(self, steps: int | None, seconds: float | None) -> None:
        self.steps, self.seconds = steps, seconds
        self.step = self.tokens = 0
        self.start = time.perf_counter()

    def tick(self, tokens: int) -> None:
        self.step += 1
        self.tokens += tokens

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def fraction(self) -> float:
        done = self.step / self.steps if self.steps is not None else self.elapsed() / (self.seconds or 1.0)
        return min(1.0, done)

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps is not None else f"{self.seconds} seconds"

    def is_over(self) -> bool:
        return self.fraction() >= 1


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Mean loss per token over ``batches`` (all of one size), without training."""
    was_training = model.training
    model.eval()
    losses = [next_token_loss(model(inputs), targets).item() for inputs, targets in batches]
    model.train(was_training)
    if not losses:
        raise ValueError("there are no batches to evaluate on.")
    return sum(losses) / len(losses)
