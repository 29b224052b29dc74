"""The folder of a run: what lies there already is not written over, and a start that failed is not in the way."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glassformer.recipes.files import read_recipe
from glassformer.training.checkpoint_folders import CheckpointError, FolderLock
from glassformer.training.logging.progress import Monitor
from glassformer.training.session import Session
from tests.training.small_sessions import HERE, assert_refused, content, small, trained

FEW = ("run.steps=2", "evaluation.every=2", "optimizer.warmup=0", "tokenizer.size=300")


@pytest.mark.parametrize(
    "name", ["model/notes.txt", "tokenizer/tokenizer.json", "tokens/train.bin", "checkpoints/step-00000100/weights",
             "log.jsonl", "results.json", "loss.svg"]
)  # fmt: skip
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_not_of_the_run_is_not_written_over(name: str, resume: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("somebody's work")
    match = rf"holds {name.partition('/')[0]}, .*another folder for the run"
    assert_refused(small("lm-bpe", tmp_path, *FEW), out, match, resume=resume)


def test_other_files_are_none_of_its_business(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("of mine")
    assert trained(small("lm-bpe", tmp_path, *FEW), out).step == 2
    assert (out / "notes.txt").read_text() == "of mine"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return trained(small("lm-bpe", folder, *FEW), folder / "out").folder


@pytest.mark.parametrize(("key", "path"), [("model.start", "model"), ("tokenizer.load", "tokenizer")])
def test_what_a_run_begins_from_does_not_lie_where_it_writes(key: str, path: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(model, out / path)
    plain = ("model.lineage=null", "model.sizes={}") if key == "model.start" else ()
    recipe = small("lm-bpe", tmp_path, *FEW, *plain, f"{key}={out / path}")
    assert_refused(recipe, out, rf"{key}=.*{path} is where the run writes; choose another folder", error=ValueError)


@pytest.mark.parametrize("out", ["file", "file/within"])
def test_a_file_is_no_folder(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("somebody's work")
    with pytest.raises(ValueError, match=r"file is a file, and a run needs a folder: choose another"):
        trained(small("lm-bpe", tmp_path, *FEW), tmp_path / out)


def test_a_start_that_was_cut_short_is_not_in_the_way(tmp_path: Path) -> None:
    """Killed while tokens were written: no note says yet what they were made of."""
    out = tmp_path / "out"
    Session(small("lm-bpe", tmp_path, *FEW), out, HERE, Monitor())
    shutil.rmtree(out / "tokens")
    (out / "tokens" / ".writing-1").mkdir(parents=True)
    (out / "tokenizer" / "source.json").unlink()
    assert trained(small("lm-bpe", tmp_path, *FEW), out).step == 2
    with pytest.raises(CheckpointError, match="holds a run"):
        trained(small("lm-bpe", tmp_path, *FEW), out)


def test_a_start_that_failed_does_not_cover_what_came_later(tmp_path: Path) -> None:
    out = tmp_path / "out"
    Session(small("lm-bpe", tmp_path, *FEW), out, HERE, Monitor())
    (out / "model").mkdir()
    with pytest.raises(CheckpointError, match="holds model, "):
        trained(small("lm-bpe", tmp_path, *FEW), out)


def test_what_another_start_has_left_is_not_taken_for_ones_own(model: Path, tmp_path: Path) -> None:
    """A vocabulary that the run does not use, in its folder."""
    out, same = tmp_path / "out", tmp_path / "same"
    for folder in (out, same):
        Session(small("lm-bpe", tmp_path, *FEW), folder, HERE, Monitor())
    kept = (same / "tokenizer" / "tokenizer.json").stat().st_mtime_ns
    starts = ("model.lineage=null", "model.sizes={}", f"model.start={model}")
    trained(small("lm-bpe", tmp_path, *FEW, *starts), out)
    assert not (out / "tokenizer").exists()
    trained(small("lm-bpe", tmp_path, *FEW), same)
    assert (same / "tokenizer" / "tokenizer.json").stat().st_mtime_ns == kept  # made once


HOLDS = """
import sys
from pathlib import Path
from glassformer.training.checkpoint_folders import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
@pytest.mark.parametrize("resume", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_processes_do_not_train_in_one_folder(resume: bool, tmp_path: Path) -> None:
    out, recipe = tmp_path / "out", small("lm-bpe", tmp_path, *FEW)
    if resume:
        trained(recipe, out)
    out.mkdir(exist_ok=True)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    assert_refused(recipe, out, "another process trains in .*out now; .* another folder with out", resume=resume)
    other.kill()  # the system takes the lock back
    other.communicate()
    assert trained(recipe, out, resume=resume).step == 2
    assert trained(recipe, out, resume=True).step == 2  # and so does the end of a run


def test_whoever_comes_second_to_a_folder_that_is_not_there_yet_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe = tmp_path / "out", small("lm-bpe", tmp_path, *FEW)
    begin = Session._begin
    others: list[Session] = []

    def later(self: Session, *inputs: Any) -> None:
        if not others:
            others.append(self)  # another one comes while this one reads its data
            others.append(Session(recipe, out, HERE, Monitor()))
        begin(self, *inputs)

    monkeypatch.setattr(Session, "_begin", later)
    with pytest.raises(CheckpointError, match="another process trains in"):
        Session(recipe, out, HERE, Monitor())
    assert others[1].train().step == 2


def test_whoever_is_refused_leaves_the_mark_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one has marked the folder, and not yet made a vocabulary."""
    out, begin, other = tmp_path / "out", Session._begin, FolderLock(tmp_path / "out")

    def later(*inputs: Any) -> None:
        out.mkdir()
        other.take()
        (out / ".begun").write_text("of the first")
        begin(*inputs)

    monkeypatch.setattr(Session, "_begin", later)
    with pytest.raises(CheckpointError, match="another process trains in"):
        Session(small("lm-bpe", tmp_path, *FEW), out, HERE, Monitor())
    assert content(out) == {".begun": b"of the first"}


def test_what_changed_in_between_is_written_down(tmp_path: Path) -> None:
    """The command that a stopped run names goes on with it, wherever the data lies by now."""
    out, recipe = tmp_path / "out", small("lm-bpe", tmp_path, *FEW)
    trained(recipe, out)
    assert isinstance(recipe.data.train, str)
    moved = shutil.copy(recipe.data.train, tmp_path / "moved.txt")
    shutil.rmtree(out / "model")
    trained(small("lm-bpe", tmp_path, *FEW, f"data.train={moved}"), out, resume=True)
    assert read_recipe(out / "recipe.yaml").data.train == str(moved)


@pytest.mark.parametrize("page", ["{}", "[]", "7", '{"identity": 7}'])
def test_a_damaged_state_is_told(page: str, tmp_path: Path) -> None:
    out, recipe = tmp_path / "out", small("lm-bpe", tmp_path, *FEW)
    trained(recipe, out)
    (out / "checkpoints" / "step-00000002" / "run" / "state.json").write_text(page)
    assert_refused(recipe, out, r"state\.json.*(bytes|SHA)", resume=True)


def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"nowhere\.txt"):
        trained(small("lm-bpe", tmp_path, *FEW, "data.train=nowhere.txt"), out)
    assert not out.exists()
    with pytest.raises(ValueError, match=r"got 'hidden_sizes'\. Did you mean 'hidden_size'"):
        trained(small("lm-bpe", tmp_path, *FEW, "model.sizes.hidden_sizes=2"), out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["model/notes.txt", "results.json", "checkpoints/step-00000100/weights", "log.jsonl"])
def test_without_a_checkpoint_nothing_goes_on_over_what_is_finished(name: str, tmp_path: Path) -> None:
    """Of a run whose checkpoints were taken away, or of somebody who calls a file of their own recipe.yaml."""
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("somebody's work")
    (out / "recipe.yaml").write_text("somebody's work")
    match = rf"holds recipe.yaml, {name.partition('/')[0]}, but no checkpoint"
    assert_refused(small("lm-bpe", tmp_path, *FEW), out, match, resume=True)


def test_what_is_added_to_a_finished_model_stays(tmp_path: Path) -> None:
    recipe = small("lm-bpe", tmp_path, *FEW)
    path = trained(recipe, tmp_path / "out").folder
    (path / "README.md").write_text("of mine")
    before = content(path)
    trained(recipe, tmp_path / "out", resume=True)
    assert content(path) == before


def test_a_start_that_came_to_nothing_covers_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"tokenizer\.style"):
        trained(small("lm-bpe", tmp_path, *FEW, "tokenizer.style=null"), out)
    (out / "tokenizer").mkdir()
    with pytest.raises(CheckpointError, match="holds tokenizer, "):
        trained(small("lm-bpe", tmp_path, *FEW), out)


def test_a_recipe_that_is_gone_is_written_again(tmp_path: Path) -> None:
    recipe = small("lm-bpe", tmp_path, *FEW)
    trained(recipe, tmp_path / "out")
    whole = content(tmp_path / "out")
    (tmp_path / "out" / "recipe.yaml").unlink()
    trained(recipe, tmp_path / "out", resume=True)
    assert content(tmp_path / "out") == whole


def test_somebody_to_be_told_who_cannot_be_reached_leaves_no_run(tmp_path: Path) -> None:
    def fails(done: int) -> None:
        raise ConnectionError(f"no network, after {done} steps")

    recipe = small("lm-bpe", tmp_path, *FEW)
    with pytest.raises(ConnectionError):
        Session(recipe, tmp_path / "out", HERE, Monitor(sinks=[fails])).train()  # type: ignore[list-item]
    assert trained(recipe, tmp_path / "out").step == 2
