"""The program as a user meets it: in this process where its start and its end are not at stake."""

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

import glassformer
from glassformer.cli.main import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), color=False)


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "glassformer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_help_and_version() -> None:
    assert run_alone("--version").stdout.strip() == f"glassformer {glassformer.__version__}"
    assert "demo" in run("--help").stdout
    assert "demo" in run().stdout  # no command: the help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--train", "--prompt", ""), "prompt is empty"),
        (("demo", "--train", "--steps", "0"), "--steps"),
        (("demo", "--train", "--temperature", "-1"), "--temperature"),
        (("demo", "--train", "--steps", "1", "--seconds", "1"), "--steps and --seconds both limit the training"),
        (("demo", "--length", "3"), "--length is for training; add --train."),
        (("dmeo",), "No such command 'dmeo'"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr


def test_threads_are_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    assert run("account", "bert-tiny", "--threads", "2").exit_code == 0
    assert run("account", "bert-tiny").exit_code == 0
    assert asked == [2]
    assert run("demo", "--threads", "0").exit_code == 2


def test_every_verb_that_computes_has_threads() -> None:
    without = {"info", "models", "download", "compare", "env", "tokenizer"}
    commands = get_command(app).commands  # type: ignore[attr-defined]
    having = {name for name, command in commands.items() if any(one.name == "threads" for one in command.params)}
    assert having == set(commands) - without


def options(command: str) -> dict[str, Any]:
    """The options of a command by name, as ``--help`` shows them."""
    return {one.name: one for one in get_command(app).commands[command].params}  # type: ignore[attr-defined]


def test_help_texts_begin_with_words_not_with_values() -> None:
    words = {"account": ("attention", "causal", "optimizer"), "generate": ("quantize", "length_rule", "path")}
    for command, names in words.items():
        for name in names:
            first = options(command)[name].help.split()[0]
            assert first.isalpha(), (command, name)
            assert first.lower() not in ("int8", "sdpa", "eager", "dense", "exact", "power", "gnmt", "adamw")


def test_help_states_the_defaults_of_each_command() -> None:
    assert "default float32" in options("view")["dtype"].help
    assert "the default is the stored type" in options("generate")["dtype"].help
    assert options("view")["device"].help == options("generate")["device"].help  # of the base class
    assert options("train")["fresh"].rich_help_panel == "Model (with --init-from)"
    assert options("generate")["fresh"].rich_help_panel == "Model"


def test_the_shell_completes_verbs_and_recipes() -> None:
    def completed(words: str, last: int) -> str:
        environment = {"_GLASSFORMER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(last)}
        return CliRunner().invoke(app, [], prog_name="glassformer", env=environment, color=False).stdout

    assert completed("glassformer comp", 1).split() == ["compare"]
    assert "lm-bytes" in completed("glassformer train lm", 2).split()
