"""torch.compile takes the language model in one graph.

In a process of its own: the run-time shape checks of the other tests are Python that no compiler can trace.
"""

import shutil
import subprocess
import sys

import pytest

START = """
import sys, warnings
warnings.filterwarnings("error", message=".*complex operators.*")  # what the compiler says of code it cannot make
import torch
from glassformer import TransformerLM, DecoderLayer
from glassformer.nn import masks

torch.manual_seed(0)
backend, layers = sys.argv[1], int(sys.argv[2])
"""
MODEL = """
model = TransformerLM(50, 16, 32, layers, 4, 64, dtype=torch.float64)
ids = torch.randint(50, (2, 12))
compiled = torch.compile(model, fullgraph=True, backend=backend)
ours, theirs = model(ids, path=path), compiled(ids, path=path)
gradient, = torch.autograd.grad(ours.square().sum(), model.lm_head.weight)
compiled_gradient, = torch.autograd.grad(theirs.square().sum(), model.lm_head.weight)
assert (ours - theirs).abs().max() < 1e-10
assert (gradient - compiled_gradient).abs().max() < 1e-8
compiled(ids[:, :7], torch.arange(3, 10), path=path)  # another length, explicit positions
"""
LAYER = """
layer = DecoderLayer(32, 4, 64, dtype=torch.float64)
x, memory = torch.randn(2, 5, 32, dtype=torch.float64), torch.randn(2, 7, 32, dtype=torch.float64)
real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
compiled = torch.compile(lambda x, m, r: layer(x, m, memory_mask=masks.padding(r)), fullgraph=True, backend=backend)
expected = layer(x, memory, memory_mask=masks.padding(real))
assert (compiled(x, memory, real) - expected).abs().max() < 1e-10
"""
SCRIPTS = {"sdpa": 'path = "sdpa"' + MODEL, "eager": 'path = "eager"' + MODEL, "layer": LAYER}


def compile_with(backend: str, what: str, layers: int) -> str:
    code = f"{START}{SCRIPTS[what]}print('one graph')"
    command = [sys.executable, "-c", code, backend, str(layers)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or result.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("what", SCRIPTS)
def test_no_graph_breaks(what: str) -> None:
    """One layer, for the time that tracing takes: a second one is the same code. Cross-attention is also compiled
    by a long test of tests/promises/test_half_precision.py, in an encoder-decoder."""
    assert compile_with("aot_eager", what, layers=1) == "one graph"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
@pytest.mark.parametrize("what", SCRIPTS)
def test_compiled_by_the_default_backend(what: str) -> None:
    assert compile_with("inductor", what, layers=2) == "one graph"
