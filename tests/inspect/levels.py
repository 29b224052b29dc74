"""How high memory gets in small models, measured and accounted for, as JSON: ``python -m tests.inspect.levels CASE…``.

A case is the name of a preset, or ``name:vocabulary`` for one with that many tokens and few of them read; ``:untied``
and ``:tied`` may follow. What is measured are the blocks that PyTorch's own allocator hands out and takes back, so
nothing stands between the model and autograd, which would keep it from writing into gradients.

A program of its own, because functions whose types are checked, as they are in tests, hold arguments longer than the
model itself does.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from glassformer import account
from glassformer.config import Model, change
from glassformer.families import presets
from glassformer.models.transformer import Transformer
from tests.inspect.counting import inputs, loss, small

SHAPE = (3, 64, 45)  # rows, tokens, tokens of the source
FEW = (1, 8, 8)
KERNELS = {
    f"aten::{name}" for name in ("_scaled_dot_product_flash_attention_for_cpu", "_fused_rms_norm", "_safe_softmax")
}  # they take memory that they give back at their end, and of which an account knows nothing
Shape = tuple[int, int, int]


def case(name: str) -> tuple[Model, Shape]:
    """The facts and the sizes that are meant."""
    preset, *changes = name.split(":")
    facts = small(presets()[preset].facts)
    if not changes:
        return facts, SHAPE
    facts = replace(facts, vocab=int(changes[0]))
    for one in changes[1:]:
        facts = change(facts, "head.tied", one == "tied")
    return facts, FEW


def accounted(facts: Model, shape: Shape, kernel: str) -> list[int]:
    """The same two levels, besides what is held from pass to pass."""
    batch, context, source = shape
    levels = []
    for mode in ("forward", "train"):
        counted = account(facts, batch=batch, context=context, source=source, attention=kernel, mode=mode)
        levels.append(counted.memory.peak - counted.memory.weights - counted.memory.optimizer)
    return levels


def highest(facts: Model, shape: Shape, path: str) -> tuple[int, int]:
    """Bytes at a time in one pass without gradients, and in one with its backward pass."""
    made, given = Transformer(facts, dtype=torch.float32).train(), inputs(facts, *shape)
    made.fused = path == "sdpa"

    def forward() -> None:
        with torch.no_grad():
            made(**given, path=path)

    def train() -> None:
        loss(made(**given, path=path)).backward()

    return peak(forward), peak(train)


def peak(run: Callable[[], Any]) -> int:
    """The most bytes that are in use at a time, besides those before, but not inside those operators."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = found.profiler.kineto_results.events()
    kernels = [(one.start_ns(), one.end_ns()) for one in events if one.name() in KERNELS]
    level = highest = 0
    for one in sorted((one for one in events if one.name() == "[memory]"), key=lambda one: one.start_ns()):
        is_inside = any(start < one.start_ns() < end for start, end in kernels)
        highest = max(highest, 0 if is_inside else level)
        level += one.nbytes()
        highest = max(highest, 0 if is_inside else level)
    return highest


if __name__ == "__main__":
    paths = {"fused": "sdpa", "eager": "eager"}
    found = {
        name: {kernel: [highest(*case(name), path), accounted(*case(name), kernel)] for kernel, path in paths.items()}
        for name in sys.argv[1:]
    }
    print(json.dumps(found))
