"""A disk that is full: the error names the file, and nothing half-written stays."""

from pathlib import Path

import pytest

from glassformer.data.token_files import write_tokens
from glassformer.recipes.recipe import Recipe
from glassformer.training.checkpoint_folders import CheckpointError, Checkpoints
from glassformer.training.logging.curve import draw_curve
from glassformer.training.logging.sinks import RunLog
from glassformer.weights.saving import write_text
from tests.helpers import file_size_limit
from tests.training.small_sessions import content, small, trained

FEW = ("run.steps=8", "run.checkpoint_every=3", "evaluation.every=4", "optimizer.warmup=0")


def left(folder: Path) -> list[str]:
    """Files without content, or on their way to another name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    hidden = [path for path in folder.rglob(".*") if path.name.endswith((".new", ".old"))]
    return [path.name for path in (*hidden, *files) if path in hidden or not path.stat().st_size]


def test_a_text_names_its_file_and_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with file_size_limit(100), pytest.raises(OSError, match=rf"too large: '{path}'"):
        write_text(path, "x" * 1000)
    assert list(tmp_path.iterdir()) == []
    write_text(path, "before")
    with file_size_limit(100), pytest.raises(OSError, match=rf"too large: '{path}'"):
        write_text(path, "x" * 1000)
    assert content(tmp_path) == {"a.json": b"before"}


def test_a_log_names_its_file_and_keeps_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with file_size_limit(20), pytest.raises(OSError, match=rf"too large: '{path}'"), RunLog(path) as log:
        log.write("step", 1, {"loss": 1.0, "text": "x" * 100})
    with RunLog(path) as log:
        pass
    assert not path.exists()  # no empty file
    with RunLog(path) as log:
        log.write("step", 1, {"loss": 1.0})
    with file_size_limit(40), pytest.raises(OSError, match=rf"too large: '{path}'"), RunLog(path, after=1) as log:
        log.write("step", 2, {"loss": 1.0, "text": "x" * 100})
    with RunLog(path, after=2) as log:
        log.write("step", 2, {"loss": 0.5})
    with file_size_limit(100), pytest.raises(OSError, match=r"too large: '.*loss\.svg'"):
        draw_curve(path, tmp_path / "loss.svg")
    assert {*content(tmp_path)} == {"log.jsonl"}


def test_tokens_name_their_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with file_size_limit(100), pytest.raises(OSError, match=rf"too large: '{path}'"):
        write_tokens(path, [[1] * 300], vocab_size=9, tokenizer="")
    ends = tmp_path / "a.ends.bin"
    with file_size_limit(100), pytest.raises(OSError, match=rf"too large: '{ends}'"):
        write_tokens(path, [[1]] * 40, vocab_size=9, tokenizer="")
    assert list(tmp_path.iterdir()) == []


def failure(recipe: Recipe, out: Path, most: int) -> str:
    """What a run says that it could not write."""
    with file_size_limit(most), pytest.raises((CheckpointError, OSError)) as caught:
        trained(recipe, out, resume=True)
    if isinstance(caught.value, CheckpointError):
        assert "could not be written: " in str(caught.value)
        return "checkpoint"
    assert caught.value.filename is not None
    assert Path(caught.value.filename).parent == out
    return Path(caught.value.filename).name


@pytest.mark.parametrize("adapters", [False, True])
def test_a_run_names_the_file_leaves_no_half_and_goes_on(tmp_path: Path, adapters: bool) -> None:
    """With ever more room each try fails at a later file, and goes on from what the one before has left."""
    (tmp_path / "start").mkdir()
    start = trained(small("classify", tmp_path / "start", *FEW), tmp_path / "start" / "out").folder
    adapting = ["model.adapters.rank=2"] if adapters else []
    recipe = small("finetune", tmp_path, *FEW, f"model.start={start}", *adapting)
    trained(recipe, tmp_path / "whole")
    largest = max(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    out = tmp_path / "out"
    for most, what in ((100, ".begun"), (5_000, "checkpoint"), (largest - 1, "model" if adapters else "checkpoint")):
        assert failure(recipe, out, most) == what
        assert left(out) == []
    trained(recipe, out, resume=True)
    files = ("model/model.safetensors", "results.json")
    assert [(out / file).read_bytes() for file in files] == [(tmp_path / "whole" / file).read_bytes() for file in files]
    assert len(Checkpoints(out / "checkpoints").all()) == len(Checkpoints(tmp_path / "whole" / "checkpoints").all())
