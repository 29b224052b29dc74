"""The README is true: its Python runs, its commands exist, the lists of modules are complete and true."""

import ast
import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.contracts.rules import PACKAGE, REPOSITORY, offenders, source
from tests.helpers import some_at_once

README = source(REPOSITORY / "README.md")
TWIN = REPOSITORY / "README.zh-CN.md"  # the same in Chinese
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
SNIPPETS = {page.name: re.findall(r"```python\n(.*?)```", source(page), re.DOTALL) for page in PAGES}
# One process for all, so that torch is imported once; each snippet knows nothing of those before it.
RUN = """
import json, sys, traceback
failed = []
for page, snippets in json.load(sys.stdin).items():
    for number, code in enumerate(snippets, 1):
        try:
            exec(compile(code, f"{page}, snippet {number}", "exec"), {"__name__": "__main__"})
        except Exception:
            failed.append(f"{page}, snippet {number}:\\n{traceback.format_exc(limit=-3)}")
sys.exit("\\n".join(failed) or 0)
"""


@pytest.mark.parametrize("pages", some_at_once(("README.md", "docs"), {"README.md"}.__contains__))
def test_python_in_the_documentation_runs(pages: str) -> None:
    snippets = {name: code for name, code in SNIPPETS.items() if (name == "README.md") == (pages == "README.md")}
    command, given = [sys.executable, "-W", "error", "-c", RUN], json.dumps(snippets)
    result = subprocess.run(command, input=given, text=True, capture_output=True, check=False, cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr


def test_the_readme_has_snippets_to_run() -> None:
    assert len(SNIPPETS["README.md"]) >= 4


def test_five_lines_of_python_come_early() -> None:
    lines = README.splitlines()
    start = lines.index("```python")
    assert lines[start + 6] == "```"
    assert start + 6 < 30


def test_the_quick_start_shows_the_attention_map_that_the_readme_describes(capsys: pytest.CaptureFixture[str]) -> None:
    exec(SNIPPETS["README.md"][0], {})
    translation, _, shown = capsys.readouterr().out.partition("\n")
    rows = [[float(number) for number in row.split(",")] for row in re.findall(r"\[([\d., ]+)\]", shown)]
    assert translation == "车站在哪里？"
    assert {len(row) for row in rows} == {7}  # the source: its language, Where, is, the, station, ? and its end
    stated = [float(number) for number in re.findall(r"0\.\d\d", README.partition("Each row of the map")[2])[:2]]
    assert [rows[1][4], rows[2][1]] == pytest.approx(stated, abs=0.02)  # 车站 to station, 在哪里 to Where


def outline(page: str) -> tuple[list[int], list[str], list[str]]:
    """The levels of the headings of a page, its code without comments, and the targets of its links."""
    blocks = re.findall(r"^```(.*?)^```", page, re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    return levels, [re.sub(r" +# .*", "", block) for block in blocks], sorted(re.findall(r"\]\(([^)]+)\)", text))


def test_the_chinese_readme_is_in_step() -> None:
    levels, blocks, links = outline(README)
    theirs = outline(source(TWIN))
    assert len(levels) >= 6
    assert len(blocks) >= 7
    assert theirs[:2] == (levels, blocks)
    assert [link.replace("README.md", TWIN.name).replace("-zh.png", ".png") for link in theirs[2]] == links
    rows = [len(re.findall(r"^\|", page, re.MULTILINE)) for page in (README, source(TWIN))]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    "edit", [("## Training", "### Training"), ("train toy ", "train toys "), ("docs/tasks", "docs/x")]
)
def test_a_readme_out_of_step_would_be_seen(edit: tuple[str, str]) -> None:
    assert outline(README.replace(*edit)) != outline(README)
    assert outline(README.replace("  # runs the tests", "  # other words")) == outline(README)


def test_make_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", source(REPOSITORY / "Makefile"), re.MULTILINE))
    assert {"demo", "test", "test-all", "check", "bench", "docs", "clean"} <= targets
    assert offenders([*PAGES, TWIN], lambda page: set(re.findall(r"`make ([a-z-]+)", source(page))) - targets) == {}


def test_links_and_pictures_exist() -> None:
    def broken(page: Path) -> list[str]:
        links = re.findall(r"\]\(([^)#:]+)\)", source(page))
        return [target for target in links if not (page.parent / target).exists()]

    assert offenders([*PAGES, TWIN], broken) == {}


def test_the_list_of_modules_is_that_of_the_package() -> None:
    spec = spec_from_file_location("modules", REPOSITORY / "docs" / "modules.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page() == source(REPOSITORY / "docs" / "architecture.md"), "run python docs/modules.py"


def defined(module: Path) -> set[str]:
    """The names that a module or a script defines; methods and fields also alone."""
    if module.suffix == ".js":
        return set(re.findall(r"^(?:export )?(?:const|class|(?:async )?function) (\w+)", source(module), re.MULTILINE))
    names: set[str] = set()
    for outer in ast.parse(source(module)).body:
        names |= targets(outer)
        if isinstance(outer, ast.ClassDef):
            inner = {name for node in outer.body for name in targets(node)}
            names |= inner | {f"{outer.name}.{name}" for name in inner}
    return names


def targets(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    assigned = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    )
    return {name.id for name in assigned if isinstance(name, ast.Name)}


def modules_named(text: str) -> dict[str, list[Path]]:
    """Paths in code marks, relative to the package or the repository; ``<name>`` stands for any."""
    paths = re.findall(r"`([\w/<>]+(?:\.py|\.js|/))`", text)
    patterns = {path: re.sub(r"<\w+>", "*", path) for path in paths}
    return {path: [*PACKAGE.glob(each), *REPOSITORY.glob(each)] for path, each in patterns.items()}


def unresolved(row: str) -> list[str]:
    """What a row names that does not exist: a module, a name in a module, or a name in none of the row's modules."""
    modules = modules_named(row)
    missing = [path for path, files in modules.items() if not files]
    for names, path in re.findall(r"((?:`[\w.]+`(?:, | and )?)+) (?:in|of) `([\w/]+\.(?:py|js))`", row):
        known = set[str]().union(*(defined(file) for file in modules[path]))
        missing += [f"{name} in {path}" for name in re.findall(r"`([\w.]+)`", names) if name not in known]
    files = [file for found in modules.values() for file in found]
    known = set[str]().union(*(defined(file) for file in files if file.suffix in (".py", ".js")))
    return missing + [name for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", row) if is_unknown(name, known)]


def is_unknown(name: str, known: set[str]) -> bool:
    return not name.endswith((".py", ".json")) and name not in known


def rows(page: str) -> list[str]:
    table = page.partition("## Where to change what\n")[2].partition("\n## ")[0]
    return [row for row in table.splitlines()[3:] if row.startswith("|")]


def test_what_the_table_of_changes_names_exists() -> None:
    wrong = {row[:40]: unresolved(row) for row in rows(source(REPOSITORY / "docs" / "architecture.md"))}
    assert len(wrong) > 15
    assert {row: names for row, names in wrong.items() if names} == {}


def test_a_stale_name_in_the_table_would_be_seen() -> None:
    row = "| a rule | `nn/gone.py`, `Stack._gone` and `Stack` in `models/stack.py` | `Vanished`, `families/<name>.py` |"
    assert unresolved(row) == ["nn/gone.py", "Stack._gone in models/stack.py", "Stack._gone", "Vanished"]
    script = "viewer/static/js/mechanisms.js"
    assert unresolved(f"| `NORMS` and `GONE` in `{script}` | `viewer/static/js/gone.js` |") == [
        "viewer/static/js/gone.js",
        f"GONE in {script}",
        "GONE",
    ]


def test_the_readme_is_short() -> None:
    assert max(len(README.splitlines()), len(source(TWIN).splitlines())) <= 150
