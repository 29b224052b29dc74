"""What the source may not contain: ready-made layers in the mathematics, names of models in general code."""

import ast
import re
from pathlib import Path

import pytest

import glassformer

ROOT = Path(glassformer.__file__).parent
KERNELS = ROOT / "nn" / "kernels.py"  # PyTorch's, for whoever asks for them; without being asked nn computes formulas
MATHEMATICS = sorted({*(ROOT / "nn").glob("*.py")} - {KERNELS})
GENERAL = [p for package in ("nn", "models", "generate", "train") for p in sorted((ROOT / package).rglob("*.py"))]
READY_MADE = {
    "Linear", "Embedding", "LayerNorm", "RMSNorm", "MultiheadAttention", "Softmax", "GELU", "SiLU", "Transformer",
    "linear", "embedding", "softmax", "layer_norm", "rms_norm", "gelu", "silu", "multi_head_attention_forward",
}  # fmt: skip
MODEL_NAMES = re.compile(
    r"(?<![a-z])(gpt|bert|roberta|distilbert|albert|electra|deberta|xlm|bigbird|ctrl|t5|bart|m2m|pegasus|llama|mistral|qwen"
    r"|palm|gemma|mixtral)(?![a-z])",
    re.IGNORECASE,
)


def ready_made_parts(source: str) -> list[str]:
    """Uses of torch's own layers: attributes of torch, torch.nn and torch.nn.functional, and tensor.softmax."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in READY_MADE:
            owner = ast.unparse(node.value)
            if (
                owner in {"F", "nn", "torch", "torch.nn", "torch.nn.functional", "nn.functional"}
                or node.attr == "softmax"
            ):
                found.append(f"{owner}.{node.attr}")
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name in READY_MADE]
    return found


@pytest.mark.parametrize("path", MATHEMATICS, ids=lambda p: p.stem)
def test_blocks_are_written_from_scratch(path: Path) -> None:
    assert ready_made_parts(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("line", ["nn.Linear(2, 3)", "F.softmax(x, -1)", "x.softmax(-1)", "from torch.nn import GELU"])
def test_a_ready_made_part_would_be_seen(line: str) -> None:
    assert ready_made_parts(line)


@pytest.mark.parametrize("path", GENERAL, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_no_model_names_in_general_code(path: Path) -> None:
    assert MODEL_NAMES.findall(path.read_text(encoding="utf-8")) == []


def test_a_model_name_would_be_seen() -> None:
    assert MODEL_NAMES.findall('if name == "gpt2" or config.is_llama') == ["gpt", "llama"]


def test_modules_and_functions_stay_small() -> None:
    for path in ROOT.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 350, f"{path} is too long for one job"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path}: {node.name} is too long"
                assert len(node.args.args) + len(node.args.kwonlyargs) <= 10, (
                    f"{path}: {node.name} has too many arguments"
                )
