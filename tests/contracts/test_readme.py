"""The README is true: its Python runs, its commands exist, its tree is the tree."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.contracts.rules import PACKAGE, REPOSITORY, offenders, source

README = source(REPOSITORY / "README.md")
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


def test_python_in_the_documentation_runs() -> None:
    command, given = [sys.executable, "-W", "error", "-c", RUN], json.dumps(SNIPPETS)
    result = subprocess.run(command, input=given, text=True, capture_output=True, check=False, cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr


def test_the_readme_has_snippets_to_run() -> None:
    assert len(SNIPPETS["README.md"]) >= 4


def test_five_lines_of_python_come_early() -> None:
    lines = README.splitlines()
    start = lines.index("```python")
    assert lines[start + 6] == "```"
    assert start + 6 < 30


def test_make_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", source(REPOSITORY / "Makefile"), re.MULTILINE))
    assert {"demo", "test", "test-all", "check", "bench", "docs", "clean"} <= targets
    assert offenders(PAGES, lambda page: set(re.findall(r"`make ([a-z-]+)", source(page))) - targets) == {}


def test_links_and_pictures_exist() -> None:
    def broken(page: Path) -> list[str]:
        links = re.findall(r"\]\(([^)#:]+)\)", source(page))
        return [target for target in links if not (page.parent / target).exists()]

    assert offenders(PAGES, broken) == {}


def test_the_file_tree_is_complete() -> None:
    tree = README.split("```text\n")[1].split("```")[0]
    named = set(re.findall(r"[\w/]+\.py", tree))
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    shown = [path for path in files if path.stem not in {"__init__", "__main__"} and path.parts[0] != "cli"]
    assert [str(path) for path in shown if not {path.name, str(path)} & named] == [], (
        "the README's tree leaves these out"
    )
    assert named - {path.name for path in files} - {str(path) for path in files} == set(), "these do not exist"
