"""``glassformer.train``: a recipe run from Python."""

from pathlib import Path

import pytest

import glassformer
from tests.training.tiny_recipes import write_text

SIZES = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 64}


def trained(out: Path, steps: int, **more: object) -> "glassformer.training.api.TrainedRun":
    write_text(out.parent)
    return glassformer.train(
        "lm-bytes",
        data={"format": "text", "train": str(out.parent / "text.txt")},
        model={"sizes": SIZES, "facts": {"norm": {"kind": "rms"}}},
        batch={"examples": 4, "tokens": None, "length": 32, "workers": 0},
        run={"steps": steps, "checkpoint_every": 2, "device": "cpu"},
        evaluation={"every": 2},
        out=out,
        **more,
    )


def test_a_recipe_runs_from_python(tmp_path: Path) -> None:
    run = trained(tmp_path / "out", 4)
    assert (run.folder, run.steps) == (tmp_path / "out", 4)
    assert run.model.config.norm.kind == "rms"
    assert [step for step, _ in run.curves["train"]] == [1, 2, 3, 4]
    assert [step for step, _ in run.curves["valid"]] == [2, 4]
    assert run.metrics["valid"]["loss"] == pytest.approx(min(loss for _, loss in run.curves["valid"]), abs=1e-6)


def test_wrong_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'steps'"):
        glassformer.train("lm-bytes", run={"step": 4}, out=tmp_path)
    trained(tmp_path / "out", 2)
    with pytest.raises(ValueError, match="holds a run"):
        trained(tmp_path / "out", 2)
