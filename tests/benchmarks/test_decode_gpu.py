"""What the benchmark of decoding compares before it measures; a difference is an exit status."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import decode_gpu, decode_kernels
from glassformer.generation import GenerationOutput
from glassformer.models.transformer import Transformer
from glassformer.nn.kernels import step_kernels
from tests.configs import built

CPU = torch.device("cpu")


def test_every_kernel_is_compared() -> None:
    source = Path(step_kernels.__file__).with_name("triton_programs.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert set(decode_kernels.KERNELS) == {node.name for node in functions if not node.name.startswith("_")}


@pytest.mark.slow
@pytest.mark.skipif(not step_kernels.HAS_TRITON, reason="Triton is not installed")
def test_kernels_equal_formulas() -> None:
    """In a process of its own: the interpreter is chosen when Triton is imported."""
    code = (
        "import torch; from benchmarks.decode_kernels import check_kernels; "
        "assert not check_kernels(torch.device('cpu'), (torch.float32,))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})


def kernels_that_are(factor: float) -> dict[str, Callable[..., Iterator[Any]]]:
    def cases(normal: Callable[..., torch.Tensor]) -> Iterator[Any]:
        x = normal(4)
        yield "case", x * factor, x.double()

    return {"matvec": cases, "reorder": cases}


@pytest.mark.parametrize(("factor", "count"), [(1.0, 0), (1.0 + 1e-6, 1), (1.001, 2), (torch.nan, 2)])
def test_a_gap_beyond_the_bound_is_reported(factor: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only moves numbers must move them exactly."""
    monkeypatch.setattr(decode_kernels, "KERNELS", kernels_that_are(factor))
    assert len(decode_kernels.check_kernels(CPU, (torch.float32,))) == count


def test_a_kernel_that_fails_is_reported_and_the_others_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Any) -> Iterator[Any]:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(decode_kernels, "KERNELS", {"attend": fails, **kernels_that_are(1.0)})
    assert decode_kernels.check_kernels(CPU, (torch.float32,)) == ["attend torch.float32: RuntimeError"]
    assert capsys.readouterr().out.count("check case") == 2


@pytest.mark.parametrize("wrong", ["nothing", "text", "score", "error"])
def test_texts_that_differ_are_reported(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def generate(_: Transformer, ids: list[Any], *_rest: Any, decoding: str, **_more: Any) -> list[Any]:
        is_wrong = decoding == "graph"
        if is_wrong and wrong == "error":
            raise RuntimeError("not captured")
        text = [1, 2] if is_wrong and wrong == "text" else [1, 1]
        score = torch.nan if is_wrong and wrong == "score" else -1.0
        return [[GenerationOutput(text, [-1.0, -1.0], score, "length", [])] for _ in ids]

    monkeypatch.setattr(decode_gpu, "generate", generate)
    monkeypatch.setattr(decode_gpu, "tiny", lambda: {"gpt2": built("gpt2")})
    found = decode_gpu.check(["static", "graph"])
    assert len(found) == (0 if wrong == "nothing" else 5)
    assert all(" graph: " in line for line in found)


@pytest.mark.parametrize("which", ["check_kernels", "check"])
def test_nothing_is_timed_where_something_is_wrong(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_kernels", "check"):
        monkeypatch.setattr(decode_gpu, name, lambda _, is_wrong=name == which: ["a kernel"] if is_wrong else [])
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr(sys, "argv", ["decode_gpu", "--only", "none"])
    with pytest.raises(SystemExit, match="a kernel"):
        decode_gpu.main()
    monkeypatch.setattr(sys, "argv", ["decode_gpu", "--only", "none", "--no-check"])
    decode_gpu.main()
