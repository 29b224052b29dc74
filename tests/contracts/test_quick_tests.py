"""What `make test` runs without the long tests: every row of the known bugs, every lineage, every command is in it."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import typer

from glassformer.cli.main import app
from glassformer.families import lineages
from tests.contracts.rules import REPOSITORY
from tests.parity.cases import CASES, FIRST

BY_THEMSELVES = {"transformer2017", "cs336"}  # no class of Hugging Face's; each has a file of its own in tests/parity


def functions(folder: str) -> Iterator[Callable[..., object]]:
    """The test functions of every file below a folder."""
    for path in sorted((REPOSITORY / folder).rglob("test_*.py")):
        module = import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))
        yield from (f for f in vars(module).values() if inspect.isfunction(f) and f.__name__.startswith("test_"))


def is_quick(function: Callable[..., object]) -> bool:
    """At least one case of a test runs without the long tests."""
    marks = getattr(function, "pytestmark", [])
    given = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    return "slow" not in {mark.name for mark in marks} and all(any(map(_is_quick_case, cases)) for cases in given)


def _is_quick_case(case: object) -> bool:
    return "slow" not in {mark.name for mark in getattr(case, "marks", ())}


def commands() -> set[str]:
    command = typer.main.get_command(app)
    return set(command.commands)  # type: ignore[attr-defined]


def verbs_called(function: Callable[..., object]) -> set[str]:
    """First arguments and first items of what a test writes: ``run("fill", …)``, ``["train", …]``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    written = [node.args for node in ast.walk(tree) if isinstance(node, ast.Call)]
    written += [node.elts for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    return {items[0].value for items in written if items and isinstance(items[0], ast.Constant)}  # type: ignore[misc]


def test_every_row_of_the_known_bugs_is_tested_at_once() -> None:
    rows = {True: set(), False: set()}
    for function in functions("tests"):
        rows[is_quick(function)] |= set(re.findall(r"test_row_(\d+)", function.__name__))
    assert len(rows[True]) > 40
    assert rows[False] - rows[True] == set(), "these rows are tested by long tests alone"


def test_every_lineage_is_compared_at_once() -> None:
    first = {case.architecture for case in CASES if case.id in FIRST}
    classes = {name: {form.architecture for form in lineage.heads.values()} for name, lineage in lineages().items()}
    compared = {name for name in classes if classes[name] & first}
    for name in BY_THEMSELVES:
        module = import_module(f"tests.parity.test_{name}")
        compared |= {name} if any(is_quick(f) for n, f in vars(module).items() if n.startswith("test_")) else set()
    assert set(classes) - compared == set()


def test_every_verb_is_called_at_once() -> None:
    called = set().union(*(verbs_called(function) for function in functions("tests/cli") if is_quick(function)))
    assert len(commands()) > 15
    assert commands() - called == set()


@pytest.mark.parametrize("case", [pytest.param(1), pytest.param(2, marks=pytest.mark.slow)])
def some(case: int) -> None:
    raise NotImplementedError(case)


@pytest.mark.slow
def none() -> None:
    raise NotImplementedError


@pytest.mark.parametrize("case", [pytest.param(2, marks=pytest.mark.slow)])
def none_of_its_cases(case: int) -> None:
    raise NotImplementedError(case)


def test_long_tests_would_be_seen() -> None:
    assert [is_quick(function) for function in (some, none, none_of_its_cases)] == [True, False, False]
