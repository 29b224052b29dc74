"""Checkpoints: whole or not at all, whatever happens while they are written, and no damaged one is ever read."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.training import checkpoint_folders
from glassformer.training.checkpoint_folders import MANIFEST, CheckpointError, Checkpoints, check, step_of


def filled(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "model.txt").write_text(text * 1000)
        (folder / "inside").mkdir()
        (folder / "inside" / "state.json").write_text(json.dumps({"text": text}))

    return fill


def contents(path: Path) -> str:
    check(path)
    text: str = json.loads((path / "inside" / "state.json").read_text())["text"]
    assert (path / "model.txt").read_text() == text * 1000
    return text


def test_what_is_written_is_read_and_the_oldest_go(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "run", keep=2)
    assert kept.latest() is None
    for step in range(1, 6):
        path = kept.write(step, filled(f"{step}"), is_best=step == 2)
        assert path == kept.latest()
    assert [step_of(path) for path in kept.all()] == [2, 4, 5]
    best = kept.best()
    assert best is not None
    assert (contents(best), contents(kept.all()[-1])) == ("2", "5")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "step-00000002", "step-00000004", "step-00000005",
    ]  # fmt: skip


def test_the_best_is_the_newest_that_was_called_so(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, keep=1)
    kept.write(1, filled("no"))
    assert kept.best() is None
    for step in (2, 3):
        best = kept.write(step, filled("yes"), is_best=True)
        last = kept.write(step + 10, filled("no"))
        assert (kept.best(), kept.all()) == (best, [best, last])
        shutil.rmtree(last)
    (best / MANIFEST).write_text("{")
    assert kept.best() is None  # a damaged one says nothing; whoever reads it is told


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.write(7, filled("old"))
    assert contents(kept.write(7, filled("new"))) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000007"]


def dies_at(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that is gone at its n-th touch of the disk; whether it lived long enough to finish."""
    child = os.fork()
    if child == 0:
        left = number

        def mortal(real: Callable[..., object]) -> Callable[..., object]:
            def touch(*inputs: object, **named: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return real(*inputs, **named)

            return touch

        checkpoint_folders.sync = mortal(checkpoint_folders.sync)  # type: ignore[assignment]
        checkpoint_folders.os.replace = mortal(os.replace)  # type: ignore[assignment]
        checkpoint_folders.shutil.rmtree = mortal(shutil.rmtree)  # type: ignore[assignment]
        Path.write_text = mortal(Path.write_text)  # type: ignore[assignment, method-assign]
        Path.unlink = mortal(Path.unlink)  # type: ignore[assignment, method-assign]
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("step", [2, 1], ids=["the next step", "the same step"])
def test_row_35_killed_at_any_touch_of_the_disk_one_checkpoint_is_whole(tmp_path: Path, step: int) -> None:
    seen = set()
    for number in range(1, 60):
        kept = Checkpoints(tmp_path / str(number), keep=1)
        kept.write(1, filled("old"), is_best=True)
        finished = dies_at(number, lambda kept=kept: kept.write(step, filled("new"), is_best=True))
        kept.tidy()
        latest = kept.latest()
        assert latest is not None
        seen.add(contents(latest))
        assert kept.best() == latest
        assert sorted(kept.folder.iterdir()) == kept.all()  # nothing else is left, hidden or half removed
        if finished:
            assert contents(latest) == "new"
            break
    else:
        pytest.fail("the child never finished")
    assert seen == {"old", "new"}
    assert number > 8


@pytest.mark.parametrize(
    "harm",
    [
        lambda hidden: (hidden / MANIFEST).write_text(""),
        lambda hidden: (hidden / MANIFEST).write_text((hidden / MANIFEST).read_text()[:50]),
        lambda hidden: (hidden / "model.txt").write_text("half"),
    ],
    ids=["empty manifest", "half a manifest", "half a file"],
)
def test_what_is_not_whole_and_has_no_name_yet_goes(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    kept = Checkpoints(tmp_path)
    before, hidden = kept.write(1, filled("old")), tmp_path / ".step-00000002.new"
    shutil.copytree(before, hidden)
    harm(hidden)
    kept.tidy()
    assert [*tmp_path.iterdir()] == [before]


def test_the_one_that_had_the_name_gets_it_back_where_the_new_one_is_not_whole(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    location = kept.write(1, filled("old"))
    hidden = tmp_path / ".step-00000001.new"
    shutil.copytree(location, hidden)
    (hidden / "model.txt").unlink()
    location.rename(tmp_path / ".step-00000001.old")
    kept.tidy()
    assert [*tmp_path.iterdir()] == [location]
    assert contents(location) == "old"


def test_half_removed_checkpoints_go_and_strange_files_stay(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.tidy()
    before, half = kept.write(1, filled("old")), kept.write(2, filled("new"))
    (half / MANIFEST).unlink()
    (tmp_path / "mine").mkdir()
    kept.tidy()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "mine", before]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: (path / "model.txt").write_text("short"), "has 5 bytes, and 3,000 were written"),
        (lambda path: _flip(path), "has changed"),
        (lambda path: (path / "inside" / "state.json").unlink(), "is missing"),
        (lambda path: (path / MANIFEST).write_text("{"), "is damaged"),
        (lambda path: (path / MANIFEST).write_text("{}"), "is damaged"),
        (lambda path: (path / MANIFEST).unlink(), "was not written to the end"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_named(
    tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    kept = Checkpoints(tmp_path)
    before, last = kept.write(1, filled("old")), kept.write(2, filled("new"))
    damage(last)
    with pytest.raises(CheckpointError, match=says) as refused:
        check(last)
    assert f"Remove {last}, and the run resumes from {before}." in str(refused.value)
    assert contents(before) == "old"
    shutil.rmtree(last)
    assert kept.latest() == before


def _flip(path: Path) -> None:
    """One bit of one byte."""
    raw = bytearray((path / "model.txt").read_bytes())
    raw[1234] ^= 1
    (path / "model.txt").write_bytes(raw)


def test_a_folder_without_manifest_is_never_the_latest(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    before, last = kept.write(1, filled("old")), kept.write(2, filled("new"))
    (last / MANIFEST).unlink()
    assert kept.latest() == before


def test_a_full_disk_leaves_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    before = kept.write(1, filled("old"))

    def fill(folder: Path) -> None:
        (folder / "model.txt").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match="No space left on device") as refused:
        kept.write(2, fill)
    assert str(before) in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == [before.name]
    assert contents(before) == "old"


def test_a_place_that_is_no_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match=r"could not be written: .* No earlier one exists"):
        Checkpoints(tmp_path / "run").write(1, filled("x"))


def test_what_fill_raises_comes_out_and_nothing_stays(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "x").write_text("x")
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        Checkpoints(tmp_path).write(1, fill)
    assert list(tmp_path.iterdir()) == []


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(CheckpointError, match="is called step-"):
        step_of(tmp_path)
