"""The count of functions that an operation calls is printed for every operation."""

import re
import sys

import pytest

from benchmarks import walk


@pytest.mark.parametrize("operation", walk.WALKS)
def test_functions_and_files_are_counted(
    operation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["walk", operation, "--list"])
    walk.main()
    first, *rest = capsys.readouterr().out.splitlines()
    lines = [line for line in rest if not line.startswith("  ")]
    counts = re.fullmatch(rf"{operation}: (\d+) functions in (\d+) files", first)
    assert counts is not None
    assert sum(len(line.partition(": ")[2].split(", ")) for line in lines) == int(counts[1]) > 10
    assert len(lines) == int(counts[2])


def test_nothing_is_recorded_outside() -> None:
    with walk.recorded() as functions:
        pass
    assert not functions
