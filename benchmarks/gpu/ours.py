"""Ours: a training step by the library's own Trainer, as a recipe on a GPU makes it.

``our_training_step`` is the one place that knows how; every row calls it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.inspect.account import account
from glassformer.objectives.base import Batch, Objective
from glassformer.training.loop import Settings, Trainer
from glassformer.training.optim import adamw

LR, BETAS, WEIGHT_DECAY, CLIP = 1e-4, (0.9, 0.95), 0.1, 1.0  # of both sides
ADAMW_BYTES = 28  # per parameter: weight, gradient and two states are read, all but the gradient written, in float32


@dataclass
class Repeated:
    """The same batch again and again, as ``training.loop.Batches``."""

    batch: Batch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.batch

    def state(self) -> dict[str, Any]:
        return {}

    def resume(self, state: Mapping[str, Any]) -> None:
        del state


def our_training_step(
    model: nn.Module,
    objective: Objective[Any],
    batch: Batch,
    *,
    compiled: bool = True,
    precision: Any = "bfloat16",
) -> Callable[[], object]:
    """Return a function that makes one step of the Trainer, as a recipe does on one GPU.

    It gives the GPU a step (forward, backward, clipping, fused AdamW) and reads the report of the step before.
    """
    batch = batch.map(Tensor.cpu)  # where a loader leaves it
    batch = batch.pin_memory() if torch.cuda.is_available() else batch
    settings = Settings(steps=10**9, clip=CLIP, precision=precision, schedule=lambda _: 1.0)
    optimizers = [adamw(model, LR, weight_decay=WEIGHT_DECAY, betas=BETAS)]
    trainer = Trainer(model, objective, Repeated(batch), optimizers, settings)
    if compiled:
        trainer.train_module.compile_whole()
    trainer.must_fetch = lambda _: False
    steps = iter(trainer)
    return lambda: next(steps)


def without_dropout(facts: Any) -> Any:
    """Return facts with every dropout at 0."""
    changes: dict[str, Any] = {}
    for each in fields(facts):
        value = getattr(facts, each.name)
        if "dropout" in each.name and isinstance(value, float):
            changes[each.name] = 0.0
        elif is_dataclass(value):
            changes[each.name] = without_dropout(value)
    return replace(facts, **changes)


def training_flops(facts: Any, *, batch: int, context: int, source: int | None = None, counted: float = 1.0) -> int:
    """Return the FLOPs of a step's products: of the unmasked pairs, and of the head at the counted positions."""
    total = account(facts, batch=batch, context=context, source=source, mode="train", causal="exact")
    head = total.shares().get("head", 0)
    return round(total.flops - (1 - counted) * 3 * head)


def floor_of_step(flops: int, parameters: int, product: float, copy: float) -> float:
    """Return the least seconds of a step: all products at the ceiling, then AdamW at that of copies."""
    return flops / product + ADAMW_BYTES * parameters / copy
