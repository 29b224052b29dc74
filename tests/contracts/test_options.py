"""The options of tests/conftest.py do what they say."""

import subprocess
import sys

import jaxtyping
import pytest

from tests.contracts.rules import REPOSITORY


def test_types_are_checked_here_only_if_all_are_asked_for(request: pytest.FixtureRequest) -> None:
    """tests/nn/test_types.py has a wrong type seen in every run."""
    assert jaxtyping.config.jaxtyping_disable == (request.config.getoption("types") == "some")


@pytest.mark.slow
def test_when_the_time_is_up_what_was_not_run_is_counted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--minutes=0", "tests/nn/test_types.py", "tests/config"]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    left_out, skipped = (shown.split(after)[0].split()[-1] for after in (" tests were NOT RUN", " skipped in"))
    assert left_out == skipped
    assert int(skipped) > 100
    assert "passed" not in shown
