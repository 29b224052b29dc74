"""A rule for files is one test, whose failure names every file that breaks it."""

from collections.abc import Callable, Iterable
from pathlib import Path

import glassformer

PACKAGE = Path(glassformer.__file__).parent
REPOSITORY = Path(__file__).parents[2]


def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def offenders(paths: Iterable[Path], rule: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """What the rule finds wrong, by file; files in which it finds nothing are left out."""
    paths = list(paths)
    assert paths, "a rule for no file at all proves nothing"
    found = {str(path): list(rule(path)) for path in paths}
    return {name: wrong for name, wrong in found.items() if wrong}
