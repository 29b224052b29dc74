"""``glassformer models``, ``info`` and ``convert`` as a user meets them."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from rich.text import Text
from typer.testing import CliRunner, Result

from glassformer import hub, pretrained
from glassformer.cli.main import app
from glassformer.families import presets
from tests.helpers import randomise
from tests.weights.test_single_file import llama, write_llama2c

SIZES = {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}
IDS = torch.arange(8).reshape(1, 8)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), color=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "gpt2"
    randomise(transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES))).save_pretrained(place)
    return place


def test_models_lists_the_shipped_models() -> None:
    rows = [json.loads(line) for line in run("models", "--json").stdout.splitlines()]
    assert [row["name"] for row in rows] == list(pretrained.names())
    assert [row["family"] for row in rows] == ["encoder-decoder", "decoder", "encoder", "encoder"]
    assert all(json.loads(run("info", row["name"], "--json").stdout)["parameters"] == row["parameters"] for row in rows)
    listed = run("models")
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert all(row["name"] in listed.stdout and row["example"] in listed.stdout for row in rows)
    assert not any(line.endswith(" ") for line in listed.stdout.splitlines())


@pytest.mark.parametrize("width", [40, 60, 80])
def test_models_cuts_no_word_on_a_narrow_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    app(["models"], standalone_mode=False)
    lines = Text.from_ansi(screen.getvalue()).plain.splitlines()
    assert max(map(len, lines)) <= width
    shown = {word for line in lines for word in line.split()}
    for row in pretrained.MODELS.values():
        assert {row.name, *row.task.split(), *row.score.split()} <= shown


def test_info_lists_every_published_model() -> None:
    listed = run("info")
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert "gpt2-xl" in listed.stdout
    assert "1,557,611,200" in listed.stdout
    assert "2,127,057,600" in listed.stdout  # cs336-xl
    rows = json.loads(run("info", "--json").stdout)
    assert {"name", "lineage", "parameters", "paper"} == set(rows[0])
    assert len(rows) > 100


def test_info_draws_one_model_as_a_tree(folder: Path) -> None:
    drawn = run("info", "gpt2-xl").stdout
    for words in (
        "30,740,800 × 48 = 1,475,558,400",
        "25 heads of 64",
        "1,600 → 6,400 → 1,600",
        "tied to the embedding",
    ):
        assert words in drawn
    output = json.loads(run("info", "gpt2-xl", "--json").stdout)
    assert output["parameters"] == 1_557_611_200
    assert output["model"]["decoder"]["layers"] == 48
    assert "2 layers" in run("info", str(folder)).stdout


def test_one_of_a_thing_is_not_many(tmp_path: Path) -> None:
    sizes = {**SIZES, "n_layer": 1, "n_head": 1, "num_labels": 1}
    transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    drawn = run("info", str(tmp_path)).stdout
    for words in ("1 layer,", "1 head of 12", "1 label,"):
        assert words in drawn


def test_tables_in_a_pipe_are_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = run("info").stdout
    for one in presets().values():
        assert any(line.startswith(one.name) and f"{one.parameters:,}" in line for line in listed.splitlines())
        assert one.paper.title in listed
    assert "…" not in listed
    assert all("│" not in line.rsplit("  ", 1)[-1] for line in run("info", str(folder)).stdout.splitlines())


def test_info_reads_the_facts_of_a_single_file(tmp_path: Path) -> None:
    path = write_llama2c(tmp_path / "model.bin", llama(tied=True))
    output = json.loads(run("info", str(path), "--json").stdout)
    assert output["parameters"] == sum(p.numel() for p in hub.load(path).model.parameters())
    assert "rotary" in run("info", str(path)).stdout
    (tmp_path / "words.txt").write_text("words")
    wrong = run("info", str(tmp_path / "words.txt"))
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("error: ")


def test_info_of_nonsense_names_the_nearest() -> None:
    wrong = run("info", "gpt2-xll")
    assert wrong.exit_code == 2
    assert "'gpt2-xl'" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_convert_there_and_back(folder: Path, tmp_path: Path) -> None:
    ours = str(tmp_path / "ours")
    there = run("convert", str(folder), ours, "--to", "glassformer", "--check-finite", "--strict")
    assert there.exit_code == 0, there.stderr
    assert "no tokenizer is written" in there.stderr
    back = run("convert", ours, str(tmp_path / "hf"), "--to", "hf")
    assert back.exit_code == 0, back.stderr
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        assert torch.allclose(theirs(IDS).logits, hub.load(folder).model(IDS), atol=1e-5)
    half = run("convert", str(folder), str(tmp_path / "half"), "--dtype", "bfloat16")
    assert half.exit_code == 0
    assert {p.dtype for p in hub.load(tmp_path / "half").model.parameters()} == {torch.bfloat16}


def test_convert_writes_over_nothing_unless_told(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    same = run("convert", str(folder), str(folder), "--force", "--dtype", "float16")
    assert same.exit_code == 2
    assert "is SOURCE itself" in same.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    there = str(tmp_path / "there")
    assert run("convert", str(folder), there).exit_code == 0
    again = run("convert", str(folder), there, "--dtype", "float16")
    assert again.exit_code == 2
    assert "--force" in again.stderr
    assert run("convert", str(folder), there, "--dtype", "float16", "--force").exit_code == 0
    assert {p.dtype for p in hub.load(there).model.parameters()} == {torch.float16}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere/at/all", "x"), "no such folder or file"),
        (("{folder}", "x", "--to", "onnx"), "glassformer, hf"),
        (("{folder}", "x", "--dtype", "float31"), "Did you mean 'float32'"),
        (("{folder}", "x", "--head", "clasify"), "Did you mean 'classify'"),
        (("{folder}", "x", "--head", "classify"), "Missing (1): score.weight"),
    ],
)
def test_convert_refuses_with_one_paragraph_and_code_2(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    given = [a.format(folder=folder) if a != "x" else str(tmp_path / "x") for a in arguments]
    refused = run("convert", *given)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "x").exists()
