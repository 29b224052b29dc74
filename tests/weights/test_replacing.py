"""Files are replaced as a whole, through a temporary file that nobody else can choose."""

import os
import secrets
import time
from pathlib import Path

import pytest

from glassformer.weights.saving import LEFTOVER, replacing, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_that_others_planted_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".a.html.new").symlink_to(victim)  # a name that does not change could be guessed
    write_text(tmp_path / "a.html", "page")
    assert (victim.read_text(), (tmp_path / "a.html").read_text()) == ("mine", "page")
    assert not (tmp_path / "a.html").is_symlink()
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    planted = tmp_path / f".a.html.{'0' * 16}.new"
    planted.symlink_to(victim)
    with pytest.raises(FileExistsError, match=r"a\.html"):
        write_text(tmp_path / "a.html", "other")
    assert (victim.read_text(), (tmp_path / "a.html").read_text()) == ("mine", "page")


def test_the_old_file_stays_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")

    def fail(new: Path) -> None:
        new.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError), replacing(path) as new:
        fail(new)
    assert (path.read_text(), names(tmp_path)) == ("old", ["a.json"])


def test_a_new_file_has_the_permissions_of_a_plain_one(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    old, fresh = (tmp_path / f".a.json.{digit * 16}.new" for digit in "01")
    others = [tmp_path / ".a.json.new", tmp_path / f".b.json.{'0' * 16}.new"]
    for path in (old, fresh, *others):
        path.touch()
    for path in (old, *others):
        os.utime(path, (time.time() - LEFTOVER - 10,) * 2)
    write_text(tmp_path / "a.json", "new")
    assert names(tmp_path) == sorted(["a.json", fresh.name, *(path.name for path in others)])
