"""The README is true: its Python runs, its commands exist, the list of modules is complete."""

import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.contracts.rules import REPOSITORY, offenders, source
from tests.helpers import some_at_once

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


def test_make_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", source(REPOSITORY / "Makefile"), re.MULTILINE))
    assert {"demo", "test", "test-all", "check", "bench", "docs", "clean"} <= targets
    assert offenders(PAGES, lambda page: set(re.findall(r"`make ([a-z-]+)", source(page))) - targets) == {}


def test_links_and_pictures_exist() -> None:
    def broken(page: Path) -> list[str]:
        links = re.findall(r"\]\(([^)#:]+)\)", source(page))
        return [target for target in links if not (page.parent / target).exists()]

    assert offenders(PAGES, broken) == {}


def test_the_list_of_modules_is_that_of_the_package() -> None:
    spec = spec_from_file_location("modules", REPOSITORY / "docs" / "modules.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page() == source(REPOSITORY / "docs" / "architecture.md"), "run python docs/modules.py"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
