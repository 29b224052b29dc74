"""The embedded corpus."""

import sys

import pytest

from glassformer.text.corpora import python_documentation


def test_it_is_half_a_megabyte_of_readable_text() -> None:
    text = python_documentation().decode()
    assert 300_000 < len(text) < 1_000_000
    assert 'The "assert" statement' in text
    assert not any(line.startswith(("+-", "|", "==")) for line in text.splitlines())
    assert python_documentation() == python_documentation()


def test_a_python_without_it_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(RuntimeError, match="comes without pydoc_data"):
        python_documentation()
