"""How high memory gets in models of these sizes, as JSON: ``python -m tests.inspect.levels NAME…``.

A program of its own, because functions whose types are checked, as they are in tests, hold arguments longer than the
model itself does.
"""

import json
import sys

import torch

from glassformer.families import presets
from glassformer.models.transformer import Transformer
from tests.helpers import PATHS
from tests.inspect.counting import Live, inputs, loss, small

SHAPE = (3, 64, 45)  # rows, tokens, tokens of the source


def highest(name: str, path: str) -> tuple[int, int]:
    """Bytes at a time in one pass without gradients, and in one with its way back."""
    facts = small(presets()[name].facts)
    made, given = Transformer(facts, dtype=torch.float32).train(), inputs(facts, *SHAPE)
    there = [*made.parameters(), *given.values()]
    with Live(there) as forward, torch.no_grad():
        made(**given, path=path)
    with Live(there) as train:
        loss(made(**given, path=path)).backward()
    return forward.peak, train.peak


if __name__ == "__main__":
    print(json.dumps({name: {path: highest(name, path) for path in PATHS} for name in sys.argv[1:]}))
