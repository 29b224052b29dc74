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

    The learning rates of ``optimizer`` are multiplied by ``schedule(fraction done)``; gradients longer than ``clip``
    are scaled down to it. A loss that is not finite stops the run before it can spoil the weights.
    """
    if (steps is None) == (seconds is None):
        raise ValueError("say how long to train: either steps or seconds.")
    peaks = [group["lr"] for group in optimizer.param_groups]
    model.train()
    start = time.perf_counter()
    tokens = 0
    for step, (inputs, targets) in enumerate(batches):
        fraction = step / steps if steps else (time.perf_counter() - start) / (seconds or 1.0)
        if fraction >= 1:
            return
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * schedule(fraction)
        loss = next_token_loss(model(inputs), targets)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss became {loss.item()} at step {step + 1}; try a lower learning rate.")
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        tokens += inputs.numel()
        elapsed = time.perf_counter() - start
        done = (step + 1) / steps if steps else elapsed / (seconds or 1.0)
        yield Progress(step=step + 1, loss=loss.item(), tokens=tokens, seconds=elapsed, fraction=min(1.0, done))


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Mean loss per token over ``batches`` (all of one size), without training."""
    was_training = model.training
    model.eval()
    losses = [next_token_loss(model(inputs), targets).item() for inputs, targets in batches]
    model.train(was_training)
    return sum(losses) / len(losses)
