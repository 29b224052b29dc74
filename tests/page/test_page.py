"""Runs the unit tests of the viewer's scripts with Node's own test runner."""

import re
import subprocess

import pytest

from tests.page.tools import HERE, NO_NODE, node


def test_scripts() -> None:
    program = node()
    if program is None:
        pytest.skip(NO_NODE)
    files = sorted(str(path) for path in HERE.glob("*.test.js"))
    command = [program, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", "--test", "--test-reporter=spec", *files]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=HERE)
    assert result.returncode == 0, result.stdout.partition("failing tests:")[2][:6000] + result.stderr[-2000:]
    passed = re.search(r"pass (\d+)$", result.stdout, re.MULTILINE)
    assert passed is not None
    assert int(passed[1]) >= len(files)
