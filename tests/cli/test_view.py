"""``glassformer view`` as a user meets it."""

import json
import re
import signal
import subprocess
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from typer.testing import CliRunner, Result

from glassformer import hub
from glassformer.cli.main import app
from glassformer.viewer import server
from glassformer.viewer.export import Answers
from tests.viewer.test_export import bootstrap_of


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), color=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The applications that would be served."""
    found: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda application, listener: found.append((application, listener)))
    return found


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run that has just begun: a recipe and the first lines of a log."""
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: first\njob: language\n")
    (folder / "log.jsonl").write_text(json.dumps({"kind": "step", "step": 1, "loss": 2.5, "lr": 0.1}) + "\n")
    return folder


def test_the_address_has_a_random_token(served: list[Any]) -> None:
    first, second = (run("view", "stories", "--text", "a b") for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    addresses = [re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w~-]{32})/\n", shown.stdout) for shown in (first, second)]
    assert all(addresses)
    assert len({address[2] for address in addresses if address}) == 2
    (guard, listeners), _ = served
    assert guard.token.decode() in first.stdout
    assert {listener.fileno() for listener in listeners} == {-1}, "closed at the end"


def test_two_models_and_a_run(served: list[Any], run_folder: Path) -> None:
    shown = run("view", "stories", "--compare", "mlm-en", "--compare", str(run_folder), "--token", "abc", "--port", "0")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.endswith("/abc/\n")
    assert len(served) == 1


def test_a_run_without_a_model_is_shown(served: list[Any], run_folder: Path) -> None:
    for folder in (run_folder, run_folder.parent):
        assert run("view", str(folder)).exit_code == 0
    assert len(served) == 2


def test_the_model_of_a_run_is_shown(run_folder: Path, tmp_path: Path) -> None:
    hub.save(hub.load("stories"), run_folder / "model")
    done = run("view", str(run_folder), "--export", str(tmp_path / "page.html"), "--text", "a b")
    assert done.exit_code == 0, done.stderr
    bootstrap = bootstrap_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert (bootstrap["models"], bootstrap["runs"]) == (["first"], ["first"])
    assert 'runs {"poll":0}' in bootstrap["answers"]


@pytest.fixture(autouse=True)
def _few_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with few answers: what is in them is tested elsewhere."""
    whole = Answers.ask

    def ask(self: Answers, name: str, body: dict[str, Any], *, always: bool = False) -> None:
        if name in ("model", "tokens", "runs", "run_log", "costs"):
            whole(self, name, body, always=always)

    monkeypatch.setattr(Answers, "ask", ask)


def test_export_writes_one_file(tmp_path: Path) -> None:
    done = run(
        "view", "stories", "--text", "Once upon", "--export", str(tmp_path / "page.html"), "--full-head", "decoder.1.2"
    )
    assert done.exit_code == 0, done.stderr
    size = (tmp_path / "page.html").stat().st_size
    assert done.stdout == f"wrote {tmp_path / 'page.html'} ({size / 1e6:.1f} MB)\n"
    assert bootstrap_of((tmp_path / "page.html").read_text(encoding="utf-8"))["state"] == {"text": "Once upon"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines reach this page; choose a secret with --token"),
        (["--host", "::"], "choose a secret with --token"),
        (["--host", "192.168.0.7", "--token", "short"], "--token needs at least 16 characters"),
        (["--token", "a/b"], "a token is part of an address"),
        (["--full-head", "decoder.0.0"], "--full-head is for an exported file"),
        (["--export", "page.html", "--full-head", "0.0"], "KIND.LAYER.HEAD"),
        (["--compare", "no-such-model"], "no-such-model"),
        (["--port", "99999"], "less than or equal to 65535"),
    ],
)
def test_wrong_options_say_what_to_do(
    arguments: list[str], message: str, served: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("view", "stories", *arguments)
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split())
    assert served == []
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    done = run("view", "stories")
    assert done.exit_code != 0
    assert "pip install 'glassformer[viewer]'" in done.stderr
    assert "--export" in done.stderr


def test_a_browser_is_opened_on_a_terminal_only(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run("view", "stories")
    assert opened == [], "this is no terminal"
    address = run("view", "stories", "--open").stdout.strip()
    assert opened == [address]
    run("view", "stories", "--no-open")
    assert len(opened) == 1
    assert len(served) == 3


@pytest.mark.slow
def test_a_real_process_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "glassformer", "view", "stories", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            answer = httpx.post(f"{address}api/tokens", json={"input": {"text": "a"}}, timeout=60)
            assert answer.json()["decoder"][-1]["text"].strip() == "a"
            assert httpx.get(address.rsplit("/", 2)[0] + "/").status_code == 403
            process.send_signal(signal.SIGINT)
            end = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            assert process.returncode == 0
            assert process.stderr is not None
            assert process.stderr.read() == "Ctrl-C ends it.\n"
        finally:
            process.kill()
