"""What the source may not contain: ready-made layers in the mathematics, names of models in general code."""

import ast
import re

import pytest

from tests.contracts.rules import PACKAGE, offenders, source

MATHEMATICS = sorted((PACKAGE / "nn").glob("*.py"))  # not nn/kernels: without being asked, nn computes formulas
GENERAL = [
    p
    for package in ("nn", "models", "generation", "objectives", "training")
    for p in sorted((PACKAGE / package).rglob("*.py"))
]
READY_MADE = {
    "Linear", "Embedding", "LayerNorm", "RMSNorm", "MultiheadAttention", "Softmax", "GELU", "SiLU", "Transformer",
    "linear", "embedding", "softmax", "layer_norm", "rms_norm", "gelu", "silu", "multi_head_attention_forward",
}  # fmt: skip
MODEL_NAMES = re.compile(
    r"(?<![a-z])(gpt|bert|roberta|distilbert|albert|electra|deberta|xlm|bigbird|ctrl(?!-c)|t5|bart|m2m|pegasus|llama"
    r"|mistral|qwen|palm|gemma|mixtral|bloom|neox|pythia|mpnet)(?![a-z])",
    re.IGNORECASE,
)


def ready_made_parts(code: str) -> list[str]:
    """Uses of torch's own layers: attributes of torch, torch.nn and torch.nn.functional, and tensor.softmax."""
    found = []
    for node in ast.walk(ast.parse(code)):
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


def test_blocks_are_written_from_scratch() -> None:
    assert offenders(MATHEMATICS, lambda path: ready_made_parts(source(path))) == {}


@pytest.mark.parametrize("line", ["nn.Linear(2, 3)", "F.softmax(x, -1)", "x.softmax(-1)", "from torch.nn import GELU"])
def test_a_ready_made_part_would_be_seen(line: str) -> None:
    assert ready_made_parts(line)


def test_no_model_names_in_general_code() -> None:
    assert offenders(GENERAL, lambda path: MODEL_NAMES.findall(source(path))) == {}


def test_a_model_name_would_be_seen() -> None:
    assert MODEL_NAMES.findall('if name == "gpt2" or config.is_llama') == ["gpt", "llama"]


def too_large(code: str) -> list[str]:
    """What of a file is larger than one job needs: the file itself, functions, lists of arguments."""
    lines = len(code.splitlines())
    found = [f"{lines} lines"] if lines > 500 else []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef):
            lines, arguments = (node.end_lineno or 0) - node.lineno + 1, len(node.args.args) + len(node.args.kwonlyargs)
            found += [f"{node.name} has {lines} lines"] if lines > 60 else []
            # Programs for a GPU get pointers, sizes and strides one by one.
            is_program = any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list)
            found += [f"{node.name} has {arguments} arguments"] if arguments > 10 and not is_program else []
    return found


def test_modules_and_functions_stay_small() -> None:
    assert offenders(sorted(PACKAGE.rglob("*.py")), lambda path: too_large(source(path))) == {}


def test_what_is_too_large_would_be_seen() -> None:
    arguments = ", ".join(f"a{number}" for number in range(11))
    code = f"def f({arguments}):\n" + "    pass\n" * 500
    assert too_large(code) == ["501 lines", "f has 501 lines", "f has 11 arguments"]
