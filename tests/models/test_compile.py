"""torch.compile takes the language model in one graph.

In a process of its own: the run-time shape checks of the other tests are Python that no compiler can trace.
"""

import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import sys, warnings
warnings.filterwarnings("error", message=".*complex operators.*")  # what the compiler says of code it cannot make
import torch
from glassformer import TransformerLM, DecoderLayer
from glassformer.nn import masks

torch.manual_seed(0)
model = TransformerLM(50, 16, 32, 2, 4, 64, dtype=torch.float64)
ids = torch.randint(50, (2, 12))
for path in ("sdpa", "eager"):
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=sys.argv[1])
    ours, theirs = model(ids, path=path), compiled(ids, path=path)
    gradient, = torch.autograd.grad(ours.square().sum(), model.lm_head.weight)
    compiled_gradient, = torch.autograd.grad(theirs.square().sum(), model.lm_head.weight)
    assert (ours - theirs).abs().max() < 1e-10, path
    assert (gradient - compiled_gradient).abs().max() < 1e-8, path
    compiled(ids[:, :7], torch.arange(3, 10), path=path)  # another length, explicit positions

layer = DecoderLayer(32, 4, 64, dtype=torch.float64)
x, memory = torch.randn(2, 5, 32, dtype=torch.float64), torch.randn(2, 7, 32, dtype=torch.float64)
real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
compiled = torch.compile(lambda x, m, r: layer(x, m, memory_mask=masks.padding(r)), fullgraph=True, backend=sys.argv[1])
expected = layer(x, memory, memory_mask=masks.padding(real))
assert (compiled(x, memory, real) - expected).abs().max() < 1e-10
print("one graph")
"""


def compile_with(backend: str) -> str:
    result = subprocess.run([sys.executable, "-c", SCRIPT, backend], capture_output=True, text=True, check=False)
    return result.stdout.strip() or result.stderr[-2000:]


def test_no_graph_breaks() -> None:
    assert compile_with("aot_eager") == "one graph"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
def test_compiled_by_the_default_backend() -> None:
    assert compile_with("inductor") == "one graph"
