"""Pipes, Ctrl-C and start-up: what only a process of its own can show."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import Forked, program
from tests.generation.scripted import scripted
from tests.tasks.models import make

PROGRAM = [sys.executable, "-m", "glassformer"]
FOR_EVER = ["--max-new-tokens", "150000", "--eos", "0", "--suppress", "0"]
SAYS = "日本 語😀, the end"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted(tmp_path_factory.mktemp("scripted"), SAYS, after=1).path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that writes for minutes."""
    length = {"max_position_embeddings": 200_000, "eos_token_id": None}
    return make(tmp_path_factory.mktemp("endless"), "LlamaForCausalLM", "bytes", **length)[0].path


def test_lines_through_a_pipe_where_the_terminal_knows_ascii_alone(folder: Path) -> None:
    command, plain = [*PROGRAM, "generate", folder, "--json"], {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = subprocess.run(command, input=b"a\nb\n", capture_output=True, check=False, env=os.environ | plain)
    assert (result.returncode, result.stderr) == (0, b"")
    assert [json.loads(line)["text"] for line in result.stdout.decode("ascii").splitlines()] == [SAYS, SAYS]


def test_ctrl_c_ends_a_stream_cleanly_and_keeps_what_was_shown(endless: Path) -> None:
    with Forked(program, "generate", str(endless), "The", "--stream", *FOR_EVER) as process:
        shown = process.stdout.read(40)  # waits until something was written
        process.send_signal(signal.SIGINT)
        shown += process.stdout.read()
        errors = process.stderr.read()
    assert process.returncode == 130
    assert shown.startswith(b"The")
    assert shown.endswith(b"\n")
    assert errors == b""


def test_a_reader_that_leaves_ends_the_program_quietly(endless: Path) -> None:
    with Forked(program, "generate", str(endless), "The", "--stream", *FOR_EVER) as process:
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()  # until the program ends
    assert (process.returncode, errors) == (1, b"")


def test_bytes_that_are_not_utf8_and_a_closed_input_are_refused(folder: Path) -> None:
    for command, message in (
        ([*PROGRAM, "generate", folder, b"caf\xe9"], b"error: text 1 is not UTF-8"),
        (["sh", "-c", '"$@" <&-', "sh", *PROGRAM, "generate", folder], b"error: no text: pass it"),
        (["sh", "-c", '"$@" <&-', "sh", *PROGRAM, "chat", folder], b"error: standard input is closed"),
    ):
        result = subprocess.run(command, capture_output=True, check=False)
        assert result.returncode == 2
        assert result.stderr.startswith(message)


def test_help_of_a_verb_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom glassformer.cli.main import app\n"
        "try: app(['generate', '--help'])\nexcept SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "0 False"
    assert "--temperature" in shown


def test_the_end_of_the_program_does_not_collect_all_of_torch() -> None:
    code = "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count()))"
    run = "from glassformer.cli.main import app; sys.argv[1:] = ['info', 'gpt2']; app()"
    result = subprocess.run([sys.executable, "-c", f"{code}; {run}"], capture_output=True, text=True, check=True)
    assert int(result.stdout.splitlines()[-1]) > 10_000  # without the call none
