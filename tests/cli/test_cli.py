"""The program as a user meets it: in this process where its start and its end are not at stake."""

import re
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

import glassformer
from glassformer.cli.main import app
from tests.helpers import on_screen


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), color=False)


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "glassformer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_help_and_version() -> None:
    assert run_alone("--version").stdout.strip() == f"glassformer {glassformer.__version__}"
    assert "demo" in run("--help").stdout
    assert "demo" in run().stdout  # no verb: the help


def test_demo_trains_and_writes_and_repeats_itself() -> None:
    first, again = (run("demo", "--steps", "8", "--length", "40", "--seed", "3") for _ in range(2))
    assert (first.exit_code, first.stderr) == (0, "")
    assert "705,408 parameters" in first.stdout
    before, after = map(float, re.search(r"seen: (\S+) → (\S+)", " ".join(first.stdout.split())).groups())
    assert after < before
    text = first.stdout.split("It writes:")[1].strip()
    assert text.startswith("The ")
    assert text == again.stdout.split("It writes:")[1].strip()


def test_output_that_is_not_a_terminal_has_no_control_codes() -> None:
    output = run("demo", "--steps", "2", "--length", "200", "--temperature", "9").stdout
    assert "It writes:" in output
    assert "\x1b" not in output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--prompt", ""), "prompt is empty"),
        (("demo", "--steps", "0"), "--steps"),
        (("demo", "--temperature", "-1"), "--temperature"),
        (("dmeo",), "No such command 'dmeo'"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr


def test_a_terminal_gets_a_live_bar_and_ctrl_c_ends_it_cleanly() -> None:
    command = [sys.executable, "-m", "glassformer", "demo", "--seconds", "600"]
    status, text = on_screen(command, b"tokens/s")
    assert status == 130
    assert re.search(r"loss.*tokens/s.*s left", text)
    assert "Stopped." in text
    assert "Traceback" not in text


def test_threads_are_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    assert run("demo", "--steps", "1", "--length", "1", "--threads", "3").exit_code == 0
    assert run("account", "gpt2", "--threads", "2").exit_code == 0
    assert run("account", "gpt2").exit_code == 0
    assert asked == [3, 2]
    assert run("demo", "--threads", "0").exit_code == 2


def test_every_verb_that_computes_has_threads() -> None:
    without = {"info", "download", "compare", "env", "tokenizer"}
    verbs = get_command(app).commands  # type: ignore[attr-defined]
    having = {name for name, verb in verbs.items() if any(one.name == "threads" for one in verb.params)}
    assert having == set(verbs) - without


def test_the_shell_completes_verbs_and_recipes() -> None:
    def completed(words: str, last: int) -> str:
        environment = {"_GLASSFORMER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(last)}
        return CliRunner().invoke(app, [], prog_name="glassformer", env=environment, color=False).stdout

    assert completed("glassformer comp", 1).split() == ["compare"]
    assert "lm-bytes" in completed("glassformer train lm", 2).split()
