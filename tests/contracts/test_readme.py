"""The README is true: its Python runs, its commands exist, its tree is the tree."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
SNIPPETS = {
    page.name: re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) for page in PAGES
}
# One process for a page, so that torch is imported once; each snippet knows nothing of those before it.
RUN = """
import json, sys
page, snippets = json.load(sys.stdin)
for number, code in enumerate(snippets, 1):
    exec(compile(code, f"{page}, snippet {number}", "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("page", [name for name, snippets in SNIPPETS.items() if snippets])
def test_python_in_the_documentation_runs(page: str) -> None:
    command, given = [sys.executable, "-W", "error", "-c", RUN], json.dumps((page, SNIPPETS[page]))
    result = subprocess.run(command, input=given, text=True, capture_output=True, check=False, cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr[-2000:]


def test_the_readme_has_snippets_to_run() -> None:
    assert len(SNIPPETS["README.md"]) >= 4


def test_five_lines_of_python_come_early() -> None:
    lines = README.splitlines()
    start = lines.index("```python")
    assert lines[start + 6] == "```"
    assert start + 6 < 30


def test_make_commands_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert {"demo", "test", "test-all", "check", "bench", "docs", "clean"} <= targets
    for page in PAGES:
        for command in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")):
            assert command in targets, f"{page.name} speaks of make {command}"


def test_links_and_pictures_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_file_tree_is_complete() -> None:
    tree = README.split("```text\n")[1].split("```")[0]
    named = set(re.findall(r"[\w/]+\.py", tree))
    package = REPOSITORY / "glassformer"
    for path in package.rglob("*.py"):
        inside = path.relative_to(package)
        if path.stem in {"__init__", "__main__"} or inside.parts[0] == "cli":
            continue
        assert path.name in named or str(inside) in named, f"the README's tree leaves out {inside}"
    for name in named:
        assert list(package.rglob(Path(name).name)), f"the README's tree names {name}, which does not exist"
