"""How high memory gets in small models, measured and accounted for, as JSON: ``python -m tests.inspect.levels NAME…``.

A program of its own, because functions whose types are checked, as they are in tests, hold arguments longer than the
model itself does.
"""

import json
import sys

import torch

from glassformer import account
from glassformer.families import presets
from glassformer.models.transformer import Transformer
from tests.inspect.counting import Live, inputs, loss, small

SHAPE = (3, 64, 45)  # rows, tokens, tokens of the source


def accounted(name: str, kernel: str) -> list[int]:
    """The same two levels, besides what is held from pass to pass."""
    facts, (batch, context, source) = small(presets()[name].facts), SHAPE
    levels = []
    for mode in ("forward", "train"):
        counted = account(facts, batch=batch, context=context, source=source, attention=kernel, mode=mode)
        levels.append(counted.memory.peak - counted.memory.weights - counted.memory.optimizer)
    return levels


def highest(name: str, path: str) -> tuple[int, int]:
    """Bytes at a time in one pass without gradients, and in one with its backward pass."""
    facts = small(presets()[name].facts)
    made, given = Transformer(facts, dtype=torch.float32).train(), inputs(facts, *SHAPE)
    made.fused = path == "sdpa"
    there = [*made.parameters(), *given.values()]
    with Live(there) as forward, torch.no_grad():
        made(**given, path=path)
    with Live(there) as train:
        loss(made(**given, path=path)).backward()
    return forward.peak, train.peak


if __name__ == "__main__":
    paths = {"fused": "sdpa", "eager": "eager"}
    found = {
        name: {kernel: [highest(name, path), accounted(name, kernel)] for kernel, path in paths.items()}
        for name in sys.argv[1:]
    }
    print(json.dumps(found))
