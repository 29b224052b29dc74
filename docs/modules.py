"""Writes the list of modules in docs/architecture.md: the first sentence of every module's docstring, by package."""

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "glassformer"
PAGE = DOCS / "architecture.md"
START, END = "<!-- modules -->\n", "<!-- end -->"


def summary(path: Path) -> str:
    """The first sentence of a module's docstring; the full stop of "et al." does not end it."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<!et al)\. ", paragraph)[0].rstrip(".").replace("``", "`") + "."


def modules() -> str:
    """A table for each package, in alphabetical order."""
    folders = sorted({path.parent for path in PACKAGE.rglob("*.py")})
    parts = []
    for folder in folders:
        rows = [
            f"| `{path.name}` | {summary(path).replace('|', '/')} |"
            for path in sorted(folder.glob("*.py"))
            if path.name not in ("__init__.py", "__main__.py")
        ]
        if rows:
            name = folder.relative_to(PACKAGE.parent)
            parts.append("\n".join([f"### `{name}/`", "", "| module | contents |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """The page with its list as it should be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    return f"{before}{START}\n{modules()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
