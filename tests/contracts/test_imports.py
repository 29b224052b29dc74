"""The walls of the house: who may import whom, what an import costs, what the root offers."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import glassformer
from tests.conftest import TENSORS

ROOT = Path(glassformer.__file__).parent
# Each package imports only from those to its left (and from itself).
ORDER = [
    "config", "nn", "models", "weights", "families", "text", "hub",
    "data", "generate", "tasks", "inspect", "train", "viewer", "cli",
]  # fmt: skip
MODULES = sorted(ROOT.rglob("*.py"))
COURSE_NAMES = """
    Linear Embedding RMSNorm LayerNorm SwiGLU FeedForward RotaryPositionalEmbedding SinusoidalPositionalEncoding
    softmax silu gelu scaled_dot_product_attention MultiHeadAttention CausalMultiHeadSelfAttention AttentionHead
    EncoderLayer DecoderLayer TransformerBlock TransformerLM Embeddings TransformerEncoder
    TransformerForSequenceClassification
"""


def imported(path: Path) -> set[str]:
    """Dotted names of glassformer modules that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full, not relative"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "glassformer"}


def package_of(dotted: str) -> str:
    return [*dotted.split("."), ""][1]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", [m for m in MODULES if m.parent != ROOT], ids=lambda p: p.stem)
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imported(path):
        target = package_of(name)
        if target == "__version__" or name == "glassformer":
            continue
        assert ORDER.index(target) <= ORDER.index(own), f"{own} imports {name}, which lies to its right"


LINEAGES = [path for path in sorted((ROOT / "families").glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("path", LINEAGES, ids=lambda p: p.stem)
def test_lineage_files_are_data(path: Path) -> None:
    """They import facts, rules and what their parents say; no tensor library, no model, nothing from outside."""
    allowed = ("glassformer.config", "glassformer.families", "glassformer.weights.")
    for name in imported(path):
        assert name.startswith(allowed), f"{path.stem} imports {name}"
        if name.startswith("glassformer.weights."):
            assert name.split(".")[2] in ("lineage", "reader", "rope", "rules"), f"{path.stem} imports {name}"
    others = {n.names[0].name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import)}
    assert {name.split(".")[0] for name in others} <= {"math"}


def test_the_order_test_sees_a_wrong_import(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from glassformer.train.loop import train\n")
    assert {package_of(name) for name in imported(wrong)} == {"train"}


def test_config_needs_the_standard_library_alone() -> None:
    for path in (ROOT / "config").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        own = {str(m) for m in modules if str(m).startswith("glassformer.config.")}
        assert {str(m).split(".")[0] for m in modules - own} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "code",
    [
        "import glassformer",
        "import glassformer.cli.main",
        "import glassformer.config",
        "import glassformer; [one.parameters for one in glassformer.presets().values()]",
        "import glassformer; from glassformer.inspect.parts import part_tree; part_tree(glassformer.preset('gpt2'))",
    ],
)
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    assert run(f"import sys; {code}; print('torch' in sys.modules)").strip() == "False"


def test_every_root_name_loads_and_is_where_the_types_say() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("glassformer.")
        for alias in node.names
    }
    assert set(typed) == set(glassformer.__all__) - {"__version__"}
    assert set(COURSE_NAMES.split()) <= set(typed)
    for name, module in typed.items():
        assert getattr(glassformer, name).__module__ == module
    assert set(dir(glassformer)) == set(glassformer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Liner'"):
        _ = glassformer.Liner


def test_everything_imports_in_a_fresh_interpreter() -> None:
    names = [
        ".".join(("glassformer", *m.relative_to(ROOT).with_suffix("").parts)) for m in MODULES if m.stem != "__main__"
    ]
    names = [name.removesuffix(".__init__") for name in names]
    run(f"import importlib\nfor name in {json.dumps(names)}: importlib.import_module(name)")


def test_nothing_heavy_comes_along() -> None:
    """The core needs no optional package, and using it does not drag in torch's compiler or distributed parts."""
    heavy = ("datasets", "matplotlib", "sacrebleu", "starlette", "tensorboard", "transformers", "uvicorn", "yaml")
    code = "import sys, torch; before = set(sys.modules)\nimport glassformer\n"
    code += "for name in glassformer.__all__: getattr(glassformer, name)\n"
    code += f"new = set(sys.modules) - before\nprint([m for m in {heavy} if m in new], 'torch._dynamo' in new)"
    assert run(code).strip() == "[] False"


def test_every_module_that_states_shapes_is_checked_at_run_time() -> None:
    stated = [path for path in MODULES if "from jaxtyping import" in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in stated]
    assert len(names) > 40
    assert [name for name in names if not any(f"{name}.".startswith(f"{part}.") for part in TENSORS)] == []
