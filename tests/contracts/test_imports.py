"""The walls of the house: who may import whom, what an import costs, what the root offers."""

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import glassformer
from tests.conftest import TENSORS, TYPED
from tests.contracts.rules import PACKAGE, REPOSITORY, offenders, source

# Each package imports only from those to its left (and from itself).
ORDER = [
    "config", "pretrained", "nn", "models", "weights", "families", "text", "task_methods", "loaded", "hub",
    "data", "generation", "tasks", "inspect", "metrics", "recipes", "objectives", "training", "viewer", "cli",
]  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))
COURSE_NAMES = """
    Linear Embedding RMSNorm LayerNorm SwiGLU FeedForward RotaryPositionalEmbedding SinusoidalPositionalEncoding
    softmax silu gelu scaled_dot_product_attention MultiHeadAttention CausalMultiHeadSelfAttention AttentionHead
    EncoderLayer DecoderLayer TransformerBlock TransformerLM Embeddings TransformerEncoder
    TransformerForSequenceClassification
"""


def imported(path: Path) -> set[str]:
    """Dotted names of glassformer modules that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source(path))):
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


def imports_to_the_right(path: Path) -> list[str]:
    """What a file imports of packages to the right of its own."""
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    of_packages = {name for name in imported(path) if package_of(name) not in ("", "__version__")}
    return sorted(name for name in of_packages if ORDER.index(package_of(name)) > ORDER.index(own))


def test_imports_go_one_way() -> None:
    assert offenders([path for path in MODULES if path.parent != PACKAGE], imports_to_the_right) == {}


def test_what_load_returns_imports_what_is_built_on_it_when_it_is_used() -> None:
    """``loaded`` calls packages to its right inside its methods; of these, it needs only settings when imported."""
    tree = ast.parse(source(PACKAGE / "loaded.py"))
    own = {package_of(str(n.module)) for n in tree.body if isinstance(n, ast.ImportFrom) and n.module != "typing"}
    right = {name for name in own if name in ORDER and ORDER.index(name) > ORDER.index("loaded")}
    assert right == {"generation"}
    used = {str(n.module) for n in tree.body if isinstance(n, ast.ImportFrom) and "generation" in str(n.module)}
    assert used == {"glassformer.generation.settings"}
    settings = run("import glassformer.generation.settings, sys; print('torch' in sys.modules)")
    assert settings.strip() == "False"


def imports_beyond_data(path: Path) -> list[str]:
    """What a lineage file imports beyond facts, rules and what its parents say: a tensor library, a model, others."""
    allowed = ("glassformer.config.", "glassformer.families.")
    allowed += tuple(f"glassformer.weights.{name}." for name in ("lineage", "reader", "rules"))
    others = [n for n in ast.walk(ast.parse(source(path))) if isinstance(n, ast.Import)]
    names = imported(path) | {alias.name for node in others for alias in node.names if alias.name != "math"}
    return sorted(name for name in names if not f"{name}.".startswith(allowed))


def test_lineage_files_are_data() -> None:
    files = [path for path in sorted((PACKAGE / "families").glob("*.py")) if path.stem != "__init__"]
    assert offenders(files, imports_beyond_data) == {}


def test_the_order_test_sees_a_wrong_import(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from glassformer.training.loop import train\n")
    assert {package_of(name) for name in imported(wrong)} == {"training"}
    wrong.write_text(
        "import torch, math\nfrom glassformer.weights.files import read\nfrom glassformer.nn import Linear\n"
    )
    assert imports_beyond_data(wrong) == ["glassformer.nn.Linear", "glassformer.weights.files.read", "torch"]


def imports_from_outside(path: Path) -> list[str]:
    """What a file of config imports beyond its own package and the standard library."""
    tree = ast.parse(source(path))
    modules = {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    modules = {name for name in modules if not name.startswith("glassformer.config.")}
    return sorted(name for name in modules if name.split(".")[0] not in sys.stdlib_module_names)


def test_config_needs_the_standard_library_alone() -> None:
    assert offenders((PACKAGE / "config").glob("*.py"), imports_from_outside) == {}


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
    tree = ast.parse(source(PACKAGE / "__init__.py"))
    imports = [
        (str(alias.asname), str(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("glassformer.")
        for alias in node.names
    ]
    typed = {shown: module for shown, module, _ in imports if not shown.startswith("_")}
    modules = {shown: f"{module}.{name}" for shown, module, name in imports if shown.startswith("_")}
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    for node in block.body:
        if isinstance(node, ast.Assign):  # shown under another name than its own: generate = _text.generate_text
            (target,), (module, function) = node.targets, ast.unparse(node.value).split(".")
            typed[ast.unparse(target)] = modules[module]
            assert getattr(glassformer, ast.unparse(target)).__name__ == function
    assert set(typed) == set(glassformer.__all__) - {"__version__"}
    assert set(COURSE_NAMES.split()) <= set(typed)
    for name, module in typed.items():
        assert getattr(glassformer, name).__module__ == module
    assert set(dir(glassformer)) == set(glassformer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Liner'"):
        _ = glassformer.Liner


def test_everything_imports_in_a_fresh_interpreter() -> None:
    names = [
        ".".join(("glassformer", *m.relative_to(PACKAGE).with_suffix("").parts))
        for m in MODULES
        if m.stem != "__main__" and (m.stem != "triton_programs" or find_spec("triton") is not None)
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
    stated = [path for path in MODULES if "from jaxtyping import" in source(path)]
    names = [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in stated]
    assert len(names) > 40
    assert [name for name in names if not any(f"{name}.".startswith(f"{part}.") for part in TENSORS)] == []
    assert [place for place in TYPED if not (REPOSITORY / place).exists()] == []
    folders = [f"tests/{part.replace('.', '/test_')}" for part in TENSORS]  # in `make test`, too
    assert [folder for folder in folders if not any(place.startswith(folder) for place in TYPED)] == []
