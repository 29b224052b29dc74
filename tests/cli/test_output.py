"""Output that cannot be written: the error names the file or standard output, and no part of a file is left."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from glassformer.cli.console import grid, print_wide
from glassformer.weights.saving import write_text
from tests.cli.test_train import ALONE, call

STORY = ("stories", "Once upon a time")


@pytest.mark.skipif(sys.platform != "linux", reason="limits processes as Linux does")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("embed", *STORY, "--out"), "vectors.npy"),
        (("embed", *STORY, "--out"), "vectors.safetensors"),
        (("generate", *STORY, "--max-new-tokens", "3", "--record"), "record.json"),
        (("account", "gpt2", "--plot"), "plot.svg"),
    ],
)
def test_a_file_for_which_there_is_no_room_is_named_and_not_left(
    arguments: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    done = call(*arguments, str(tmp_path / name), most=100)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"error: {tmp_path / name}: file too large."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="limits processes as Linux does")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_with_room_for_a_part_is_told_too(unbuffered: str, tmp_path: Path) -> None:
    program = f"ulimit -f 2; exec {sys.executable} -m glassformer info --json > {tmp_path / 'page'}"
    environment = {**os.environ, **ALONE, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (2, "error: standard output: file too large.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_without_room_is_told_in_one_line(unbuffered: str) -> None:
    environment = {**os.environ, **ALONE, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "glassformer", "models"],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "error: standard output: no space left on device.\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have a name")
def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "a text")
        assert os.read(reader, 100) == b"a text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_terminal_narrower_than_a_table_wraps_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.delenv("NO_COLOR", raising=False)
    table = grid("", "before", "")
    table.add_row("parameters", "1,000", Text("-5 %", "bold"))
    table.add_row("attention", "20 %", Text("", "bold"))
    print_wide(table)
    first, parameters, attention = (Text.from_ansi(line).plain for line in screen.getvalue().splitlines())
    assert (first, attention) == ("            before", "attention     20 %")
    assert parameters == "parameters   1,000  -5 %"
    assert "\x1b[1m-5 %" in screen.getvalue()
