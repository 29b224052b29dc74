"""``glassformer compare``: a table and a chart of several runs."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glassformer.cli.main import app
from glassformer.training.compare import read_runs
from tests.training.small_sessions import small, trained

SHORT = ("run.steps=6", "run.checkpoint_every=6", "evaluation.every=3")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)], color=False)


def make_runs(folder: Path) -> None:
    trained(small("lm-bytes", folder, *SHORT), folder / "plain")
    trained(small("lm-bytes", folder, *SHORT, "optimizer.lr=1e-3", "run.average=0.9"), folder / "slow")


@pytest.fixture(scope="module")
def runs(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return made_once("compared-runs", make_runs)


def test_the_table_has_metrics_costs_and_the_recipe_values_that_differ(runs: Path) -> None:
    result = run(runs / "plain", runs / "slow")
    assert result.exit_code == 0, result.stderr
    rows = {line.split("  ")[0]: line.split() for line in result.stdout.splitlines() if line}
    assert rows["steps"][-2:] == ["6", "6"]
    assert rows["optimizer.lr"][-2:] == ["0.005", "0.001"]
    assert rows["run.average"][-2:] == ["null", "0.9"]
    for name in ("parameters", "tokens", "tokens/s", "training time", "best validation loss", "valid.loss"):
        assert name in rows
    assert "optimizer.eps" not in result.stdout  # the same in both
    assert "about" not in rows


def test_json_says_the_same_in_one_line_per_run(runs: Path) -> None:
    result = run(runs / "plain", runs / "slow", "--json")
    plain, slow = map(json.loads, result.stdout.splitlines())
    assert plain["differs"] == {"optimizer.lr": 0.005, "run.average": None}
    assert slow["differs"] == {"optimizer.lr": 0.001, "run.average": 0.9}
    measured = json.loads((runs / "plain" / "results.json").read_text())["valid"]
    assert plain["results"]["valid.loss"] == pytest.approx(measured["loss"], rel=1e-5)
    log = [json.loads(line) for line in (runs / "plain" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in log if line["kind"] == "step"]
    assert plain["seconds"] == pytest.approx(sum(line["measured"]["seconds"] for line in steps), rel=1e-5)
    assert plain["tokens"] == steps[-1]["tokens_seen"]
    assert plain["tokens_per_second"] == pytest.approx(plain["tokens"] / plain["seconds"], rel=1e-5)
    assert plain["best_validation_loss"] == pytest.approx(
        min(line["loss"] for line in log if line["kind"] == "validation"), rel=1e-5
    )


def test_the_chart_is_an_svg_that_names_the_runs_and_what_differs(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.svg"
    assert run(runs / "plain", runs / "slow", "--plot", path).exit_code == 0
    drawn = path.read_text()
    assert drawn.startswith("<?xml")
    for text in ("plain: optimizer.lr=0.005", "slow: optimizer.lr=0.001", "best validation loss", "tokens/s"):
        assert text in drawn


def test_without_matplotlib_the_table_is_printed_and_the_chart_refused(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(runs / "plain", runs / "slow", "--plot", tmp_path / "runs.svg")
    assert result.exit_code == 2
    assert "glassformer[plot]" in result.stderr
    assert "best validation loss" in result.stdout


def test_a_run_that_has_not_ended_has_no_results(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "plain", tmp_path / "plain")
    (tmp_path / "plain" / "results.json").unlink()
    shutil.rmtree(tmp_path / "plain" / "model")
    first, second = read_runs([runs / "plain", tmp_path / "plain"])
    assert (first.name, second.name) == (str(runs / "plain"), str(tmp_path / "plain"))  # two folders of one name
    assert second.results == {}
    assert second.parameters is None
    result = run(runs / "plain", tmp_path / "plain")
    assert "The recipes are the same." in result.stdout
    assert result.exit_code == 0


def test_folders_that_are_no_run_are_refused(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    for name in ("recipe.yaml", "log.jsonl"):
        shutil.copy(runs / "plain" / name, tmp_path / "bad")
    (tmp_path / "bad" / "results.json").write_text("[")
    broken = tmp_path / "broken"
    shutil.copytree(tmp_path / "bad", broken)
    (broken / "recipe.yaml").write_text("a: [")
    cases = [
        (tmp_path / "none", "there is no such folder"),
        (tmp_path, "not a run of glassformer train: it has no recipe.yaml"),
        (tmp_path / "bad", "results.json holds no results of a run"),
        (broken, "recipe.yaml is not a recipe"),
    ]
    for folder, message in cases:
        result = run(runs / "plain", folder)
        assert result.exit_code == 2
        assert message in result.stderr
    assert "ending" in run(runs / "plain", "--plot", tmp_path / "runs.txt").stderr
