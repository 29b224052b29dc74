"""All cases of all lineages: the modules ``cases_*`` of this folder."""

import re
from importlib import import_module
from pathlib import Path

from _pytest.mark import ParameterSet

from tests.helpers import some_at_once
from tests.parity.harness import Case

CASES: list[Case] = [
    case
    for path in sorted(Path(__file__).parent.glob("cases_*.py"))
    for case in import_module(f"tests.parity.{path.stem}").CASES
]


def _lineage(case: Case) -> str:
    return re.split("For|(With)?LMHead|(Encoder)?Model", case.architecture)[0]


def _answer(case: Case) -> str:
    return f"{case.architecture.removeprefix(_lineage(case))} {case.answer}"


# The first of each lineage and the first of each kind of answer. `make parity` measures all of them in every type.
FIRST: set[str] = {case.id for kind in (_lineage, _answer) for case in {kind(c): c for c in reversed(CASES)}.values()}


def one_of_each(cases: list[Case]) -> list[ParameterSet]:
    """The cases as parameters of a test: the first of each kind at once, the others with the long tests."""
    return some_at_once(cases, lambda case: case.id in FIRST)
