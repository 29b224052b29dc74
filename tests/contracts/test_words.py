"""Names that were replaced by the field's own words stay out of the package."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.rules import PACKAGE, offenders, source

RETIRED = {
    "Turns", "rotary_turns", "quieten_padding", "Resolved", "bias_hides", "look_around", "look_across", "_think",
    "at_least_float32", "finite_in_half", "write_stream", "Written", "Steps", "Dice", "chances", "Wishes", "Shelf",
    "room_in", "judge_tokens", "Judged", "Judge", "Needs", "Together", "Sums", "everywhere", "Kit", "rehearse", "Tally",
    "of_letters", "Walk", "Leaf", "Looking", "memory_real",
}  # fmt: skip


def names(code: str) -> Iterator[str]:
    """Every name that a module defines or uses."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


def retired(path: Path) -> set[str]:
    return RETIRED.intersection(names(source(path)))


def test_retired_names_stay_out() -> None:
    assert offenders(sorted(PACKAGE.rglob("*.py")), retired) == {}


def test_a_retired_name_would_be_seen() -> None:
    code = "class Kit:\n    def rehearse(self, chances): return self.turned.everywhere(Dice)\n"
    assert RETIRED.intersection(names(code)) == {"Kit", "rehearse", "chances", "everywhere", "Dice"}
