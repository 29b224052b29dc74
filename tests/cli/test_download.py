"""``glassformer download``, against a server on this machine in place of the hub."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glassformer import hub
from glassformer.cli.main import app
from glassformer.families.cs336 import CS336
from glassformer.models.transformer import Transformer
from tests import forked

SIZES = {"vocab_size": 16, "context_length": 8, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 16}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickled", "README.md": b"words"}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("model")
    hub.save(Transformer(CS336.facts(SIZES, "lm")), folder, to="glassformer")
    model = {path.name: path.read_bytes() for path in folder.iterdir()}
    pickled = {name: content for name, content in model.items() if not name.endswith(".safetensors")}
    return {"someone/model": {**model, **CODE}, "someone/pickled": {**pickled, **CODE}}


@pytest.fixture(scope="module")
def endpoint(repositories: dict[str, dict[str, bytes]]) -> Iterator[str]:
    """The requests of huggingface_hub: a revision, the tree of its commit, and files."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            is_api = parts[:2] == ["api", "models"]
            name, *rest = "/".join(parts[2:4] if is_api else parts[:2]), *(parts[4:] if is_api else parts[2:])
            files = repositories.get(name)
            if files is None:
                self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif rest[0] == "revision" and rest[1] != "main":
                self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif rest[0] == "revision":
                self.send_json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]})
            elif rest[0] == "tree":
                tree = [{"type": "file", "path": file, "size": len(files[file]), "oid": file} for file in files]
                self.send_json(tree)
            else:
                self.send(200, files[rest[2]], {"ETag": f'"{rest[2]}"', "X-Repo-Commit": COMMIT})

        def send_json(self, content: Any) -> None:
            self.send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(endpoint: str, home: Path, *commands: list[str]) -> list[list[Any]]:
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    done = forked.run(in_turn, *commands, environment=environment)
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def in_turn(*commands: list[str]) -> None:
    """Several commands in one process, which asks for the hub's address once."""
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        os.environ.pop(name, None)
    results = [CliRunner().invoke(app, arguments, color=False) for arguments in commands]
    print(json.dumps([(result.exit_code, result.stdout, result.stderr) for result in results]))


def test_a_model_is_fetched_without_code_and_can_be_loaded(
    endpoint: str, repositories: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    copy = ["convert", "someone/model", str(tmp_path / "copy"), "--to", "glassformer"]
    before, fetched, after, pickled, allowed, unknown, revision = run(
        endpoint,
        tmp_path,
        copy,
        ["download", "someone/model"],
        copy,
        ["download", "someone/pickled"],
        ["download", "someone/pickled", "--allow-pickle"],
        ["download", "someone/none"],
        ["download", "someone/model", "--revision", "v9"],
    )
    assert before[0] == 2
    assert "Download it with: glassformer download someone/model " in before[2]
    assert fetched[0] == 0, fetched[2]
    folder = Path(fetched[1].strip())
    assert folder.is_relative_to(tmp_path)
    safe = repositories["someone/model"].keys() - CODE.keys()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: repositories["someone/model"][name] for name in safe
    }
    assert after[0] == 0, after[2]
    assert (pickled[0], "no safetensors" in pickled[2], "--allow-pickle" in pickled[2]) == (2, True, True)
    assert allowed[0] == 0, allowed[2]
    assert {"modeling.py", "README.md"}.isdisjoint(path.name for path in Path(allowed[1].strip()).iterdir())
    assert (Path(allowed[1].strip()) / "pytorch_model.bin").read_bytes() == b"pickled"
    assert (unknown[0], "someone/none: the hub has no such model" in unknown[2]) == (2, True)
    assert (revision[0], "someone/model has no revision 'v9'" in revision[2]) == (2, True)


def test_without_a_connection_or_the_extra_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline, malformed = run(
        "http://127.0.0.1:9", tmp_path, ["download", "someone/model"], ["download", "some one/model"]
    )
    assert (offline[0], "the hub cannot be reached" in offline[2]) == (2, True)
    assert (malformed[0], "is not a name of the hub" in malformed[2]) == (2, True)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    missing = CliRunner().invoke(app, ["download", "someone/model"], color=False)
    assert missing.exit_code == 2
    assert "pip install 'glassformer[hub]'" in missing.stderr
