"""The benchmark of the viewer runs and says what it measured. No figure is checked."""

import shutil
import sys

import pytest

from benchmarks import viewer


def test_every_query_gets_its_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(viewer, "keep_freed_memory", lambda: True)  # this process goes on
    monkeypatch.setattr(sys, "argv", ["viewer", "--quick", "--rounds", "1", "--only", "queries"])
    viewer.main()
    lines = capsys.readouterr().out.splitlines()
    assert "300 tokens, 2 layers, 2 heads, width 16" in lines
    names = ["one pass", *(name for name, _ in viewer.asked(viewer.QUICK)), "memory"]
    for name in names:
        (first, *_) = [line for line in lines if line.startswith(name)]
        assert any(character.isdigit() for character in first.removeprefix(name)), first


def test_the_text_has_as_many_tokens_as_were_asked_for() -> None:
    subject, text = viewer.make_subject(viewer.QUICK)
    assert len(subject.sequences(viewer.Input(text)).last) == viewer.QUICK.tokens


@pytest.mark.slow
def test_the_page_is_opened_and_reacts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("playwright", reason="Playwright is not installed (extra: dev)")
    if not any(map(shutil.which, viewer.CHROMIUM)):
        pytest.skip("there is no Chromium here")
    monkeypatch.setattr(viewer, "keep_freed_memory", lambda: True)
    monkeypatch.setattr(sys, "argv", ["viewer", "--quick", "--rounds", "1", "--only", "page"])
    viewer.main()
    lines = capsys.readouterr().out.splitlines()
    for name in ("server: interactive after", "server: hover", "server: all heads"):
        assert len([line for line in lines if line.startswith(name)]) == 1
    assert any(line.startswith("server: console") and line.endswith("no errors") for line in lines)
