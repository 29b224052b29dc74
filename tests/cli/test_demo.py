"""``glassformer demo``: its steps, its training run, and what they look like on a terminal."""

import getpass
import re
import sys
import tempfile
from html import unescape
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from glassformer.cli import demo
from glassformer.cli.console import WordWrap
from tests.cli.test_cli import run
from tests.contracts.rules import REPOSITORY
from tests.helpers import on_screen

DEMO = [sys.executable, "-m", "glassformer", "demo"]


@pytest.fixture(autouse=True)
def same_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that are asked for; torch keeps its own."""
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    return asked


# ---- steps


def test_the_steps_run_through_without_a_terminal(
    same_threads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = run("demo")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    parts = re.split(r"^── .*$", result.stdout, flags=re.MULTILINE)[1:-1]
    (page,) = tmp_path.glob("glassformer-*/demo.html")
    assert page.parent.stat().st_mode & 0o077 == 0, "a folder of this user alone"
    for step, part in zip(demo.STEPS, parts[:-1], strict=True):
        assert all(f"\n$ {command}\n" in part for command in step.commands)
    translated, story, tagged, filled, changed, view = parts
    assert "\n今天天气很好。\n" in translated
    assert "1  -0.07" in translated
    assert "\nMy sister works in the hospital.\n" in translated
    assert re.search(r"One day, a small fox \w+ \w+", story)
    assert re.search(
        r"^Marie Curie\[PER \d+ %\] was at the University of Paris\[ORG \d+ %\] in France\[LOC", tagged, re.M
    )
    assert "There was a little girl named Lily." in filled
    assert re.search(r"cache per token +5\.120 kB +1\.280 kB +× 0\.25", changed)
    assert f"--export {page}\nwrote {page} (" in view
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert same_threads[0] == 1  # the page of the last step sets and restores it too
    drawn = without_space(picture())
    stated = [line for line in result.stdout.splitlines() if not re.search(r"demo\.html|^── The first", line)]
    assert [line for line in stated if without_space(line) not in drawn] == [], "run python docs/pictures.py"


def picture() -> str:
    """The text of the picture in the README."""
    svg = (REPOSITORY / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    return unescape("".join(re.findall(r"<text [^>]*>([^<]*)</text>", svg)))


def without_space(text: str) -> str:
    """Text as it is in any width: without spaces, and without the backslashes at the ends of broken commands."""
    return re.sub(r"[\s\\]", "", text)


def test_the_last_step_opens_the_page_where_there_is_a_browser() -> None:
    assert demo._view_step(opens=True).commands == (demo.VIEW,)


def test_the_demo_ends_as_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [demo.Step(name, "", (f"glassformer {name}",)) for name in ("models", "info nowhere", "env")]
    monkeypatch.setattr(demo, "STEPS", steps)
    result = run("demo", "--threads", "2")
    assert result.exit_code == 2
    assert "2 of 4" in result.stdout
    assert "3 of 4" not in result.stdout
    assert "nowhere" in result.stderr


def test_ctrl_c_ends_the_steps_cleanly() -> None:
    status, text = on_screen(DEMO, b"log-prob")
    assert status == 130
    assert "Stopped." in text
    assert "Traceback" not in text


def test_headings_and_commands_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "on_terminal", lambda: True)
    for width in (60, 140):
        console = Console(width=width)
        with console.capture() as captured:
            for step in demo.STEPS:
                demo._heading(console, step.title)
                for command in step.commands:
                    console.print(demo.wrapped(command, width))
        lines = captured.get().splitlines()
        assert max(map(cell_len, lines)) <= width
        assert {len(line) for line in lines if line.startswith("──")} == {width}


def test_a_long_command_is_one_for_the_shell() -> None:
    command = 'glassformer account stories "two words" --decode --change decoder.layers=3'
    assert demo.wrapped(command, 80) == f"$ {command}"
    assert demo.wrapped(command, 50).splitlines() == [
        '$ glassformer account stories "two words" \\',
        "    --decode --change decoder.layers=3",
    ]


def test_a_path_with_spaces_stays_whole() -> None:
    command = "glassformer view en-zh --export '/tmp/a folder of mine/demo.html' --text 'two words'"
    assert demo.wrapped(command, 40).splitlines() == [
        "$ glassformer view en-zh \\",
        "    --export '/tmp/a folder of mine/demo.html' \\",
        "    --text 'two words'",
    ]


def test_a_quoted_argument_stays_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    command = 'glassformer tag ner-en "Marie Curie was at the University of Paris in France." --device cpu'
    monkeypatch.setattr(demo, "STEPS", [demo.Step("Tag", "", (command,))])
    monkeypatch.setattr(demo, "_run", print)
    monkeypatch.setattr(demo, "stdout_console", lambda: Console(width=50))
    shown = run("demo").stdout
    assert '\n$ glassformer tag ner-en \\\n    "Marie Curie was at the University of Paris in France." \\\n' in shown


def test_runs_share_a_folder_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = {demo._folder() for _ in range(2)}
    assert folders == set(tmp_path.iterdir())
    assert len(folders) == 1
    (shared,) = folders
    shared.chmod(0o755)  # others may read it: another is made
    other = demo._folder()
    assert other != shared
    assert other.stat().st_mode & 0o077 == 0


def test_a_user_without_a_name_gets_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(getpass, "getuser", unknown)
    assert demo._folder().stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_streamed_lines_break_between_words(size: int) -> None:
    text = "One day, a small\nfox  found 一块大石头 and pseudopseudohypoparathyroidism."
    wrap = WordWrap(10, column=4)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    printed = "".join(map(wrap.feed, pieces)) + wrap.flush()
    assert printed.splitlines() == [
        "One ",  # after four columns
        "day, a ",
        "small",
        "fox  found",
        "一块大石头",
        "and ",
        "pseudopseudohypoparathyroidism.",
    ]
    assert "".join(map(WordWrap(None).feed, pieces)) == text


# ---- training


def test_it_trains_and_writes_and_repeats_itself() -> None:
    first, again = (run("demo", "--train", "--steps", "8", "--length", "40", "--seed", "3") for _ in range(2))
    assert (first.exit_code, first.stderr) == (0, "")
    assert "705,408 parameters" in first.stdout
    before, after = map(float, re.search(r"held-out text: (\S+) → (\S+)", " ".join(first.stdout.split())).groups())
    assert after < before
    text = first.stdout.split("Generated text:")[1].strip()
    assert text.startswith("The ")
    assert text == again.stdout.split("Generated text:")[1].strip()


def test_output_that_is_not_a_terminal_has_no_control_codes() -> None:
    output = run("demo", "--train", "--steps", "2", "--length", "200", "--temperature", "9").stdout
    assert "Generated text:" in output
    assert "\x1b" not in output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", output)


def test_a_terminal_gets_a_live_bar_and_ctrl_c_ends_it_cleanly() -> None:
    status, text = on_screen([*DEMO, "--train", "--seconds", "600"], b"tokens/s")
    assert status == 130
    assert re.search(r"loss.*tokens/s.*s left", text)
    assert "Stopped." in text
    assert "Traceback" not in text
