"""All cases of all lineages: the modules ``cases_*`` of this folder."""

from importlib import import_module
from pathlib import Path

from tests.parity.harness import Case

CASES: list[Case] = [
    case
    for path in sorted(Path(__file__).parent.glob("cases_*.py"))
    for case in import_module(f"tests.parity.{path.stem}").CASES
]
# One of each class name's beginning: where narrower types are tried too, which `make parity` does for all of them.
FIRST: set[str] = {case.id for case in {case.architecture.split("For")[0]: case for case in reversed(CASES)}.values()}
