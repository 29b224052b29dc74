"""All cases of all lineages: the modules ``cases_*`` of this folder."""

from importlib import import_module
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.parity.harness import Case

CASES: list[Case] = [
    case
    for path in sorted(Path(__file__).parent.glob("cases_*.py"))
    for case in import_module(f"tests.parity.{path.stem}").CASES
]
# One of each class name's beginning: where narrower types are tried too, which `make parity` does for all of them.
FIRST: set[str] = {case.id for case in {case.architecture.split("For")[0]: case for case in reversed(CASES)}.values()}


def one_of_each(cases: list[Case]) -> list[ParameterSet]:
    """The cases as parameters of a test: the first of each class at once, the others with the long tests."""
    return [pytest.param(case, id=case.id, marks=() if case.id in FIRST else pytest.mark.slow) for case in cases]
