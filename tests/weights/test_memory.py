"""Loading a whole model needs little more memory than its weights: measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glassformer import hub
from glassformer.config import change, count
from glassformer.families import preset
from glassformer.models.transformer import Transformer

PROGRAM = """
import sys, torch
from glassformer import hub
def high_water():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
hub.load(sys.argv[1])  # a small one first: whatever the first call imports is not the weights
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts again from here
before = high_water()
dtype = getattr(torch, sys.argv[3]) if len(sys.argv) > 3 else None
loaded = hub.load(sys.argv[2], dtype=dtype)
print(high_water() - before, sum(p.nbytes for p in loaded.model.parameters()))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the high-water mark of memory is read from /proc")
@pytest.mark.parametrize(
    ("to", "dtype"),
    [
        ("hf", None),
        pytest.param("glassformer", None, marks=pytest.mark.slow),
        pytest.param("hf", "bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_loading_holds_the_weights_about_once(tmp_path: Path, to: str, dtype: str | None) -> None:
    facts = change(change(preset("gpt2"), "decoder.layers", 8), "vocab", 12_000)
    for name, page in (("large", facts), ("small", change(change(facts, "decoder.layers", 1), "vocab", 300))):
        hub.save(Transformer(page), tmp_path / name, to=to, lineage="gpt2")
    assert count(facts) > 30e6
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(tmp_path / "small"),
        str(tmp_path / "large"),
        *([dtype] if dtype else []),
    ]
    grown, weights = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert grown <= 1.1 * weights, f"{grown / weights:.2f} times the weights"
    assert weights == count(facts) * (2 if dtype else 4)
    assert torch.get_default_dtype() == torch.float32
