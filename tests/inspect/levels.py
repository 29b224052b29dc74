"""Peak memory of small models, measured and accounted for, as JSON: ``python -m tests.inspect.levels CASE…``.

A case is the name of a preset, or ``name:vocabulary`` for one with that many tokens and few of them read; ``:untied``
and ``:tied`` may follow. The measurement reads the blocks of PyTorch's allocator, so
nothing between the model and autograd keeps it from accumulating gradients in place.

It is a separate program because functions with checked types, as in the tests, keep arguments longer than the model
itself does.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from glassformer import account
from glassformer.config import ModelConfig, change
from glassformer.families import presets
from glassformer.models.transformer import Transformer
from glassformer.nn.kernels import operators
from tests.inspect.counting import inputs, loss, small

SHAPE = (3, 64, 45)  # rows, tokens, tokens of the source
FEW = (1, 8, 8)
KERNELS = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_fused_rms_norm",
    "aten::_safe_softmax",
    "mkldnn::_linear_pointwise",  # on AMD processors
}  # they allocate temporary memory that an account does not include
Shape = tuple[int, int, int]


def case(name: str) -> tuple[ModelConfig, Shape]:
    """The facts and sizes of a case."""
    preset, *changes = name.split(":")
    facts = small(presets()[preset].facts)
    if not changes:
        return facts, SHAPE
    facts = replace(facts, vocab=int(changes[0]))
    for head in changes[1:]:
        facts = change(facts, "head.tied", head == "tied")
    return facts, FEW


def accounted(facts: ModelConfig, shape: Shape, kernel: str) -> list[int]:
    """The same two peaks of an account, without what is resident between passes."""
    batch, context, source = shape
    levels = []
    for mode in ("forward", "train"):
        counted = account(facts, batch=batch, context=context, source=source, attention=kernel, mode=mode)
        levels.append(counted.memory.peak - counted.memory.weights - counted.memory.optimizer)
    return levels


def highest(facts: ModelConfig, shape: Shape, path: str) -> tuple[int, int]:
    """Measured peak bytes of a forward pass without gradients, and of a forward and backward pass."""
    transformer, model_inputs = Transformer(facts, dtype=torch.float32).train(), inputs(facts, *shape)
    transformer.fused = path == "sdpa"

    def forward() -> None:
        with torch.no_grad():
            transformer(**model_inputs, path=path)

    def train() -> None:
        loss(transformer(**model_inputs, path=path)).backward()

    return peak(forward), peak(train)


def peak(run: Callable[[], Any]) -> int:
    """The most bytes allocated at any time, without those before and those inside ``KERNELS``."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    kernels = [(event.start_ns(), event.end_ns()) for event in events if event.name() in KERNELS]
    level = highest = 0
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        is_inside = any(start < event.start_ns() < end for start, end in kernels)
        highest = max(highest, 0 if is_inside else level)
        level += event.nbytes()
        highest = max(highest, 0 if is_inside else level)
    return highest


if __name__ == "__main__":
    operators.PREFERS_ONEDNN = False  # accounts are of the operators that every processor has
    paths = ("sdpa", "eager")
    peaks = {
        name: {path: [highest(*case(name), path), accounted(*case(name), path)] for path in paths}
        for name in sys.argv[1:]
    }
    print(json.dumps(peaks))
