"""Checkpoints of a run: written all or nothing, checked when read, the old ones kept until the new one is whole.

A checkpoint is a folder ``step-00000100``. What is in it is written to a hidden folder beside it first; then comes
``manifest.json`` with the size and SHA-256 of every file and whether it is the best so far, everything is flushed to
the disk, and only then does the folder get its name. So a folder without a manifest is never read, and a run that is
killed at any moment leaves the checkpoint before as it was.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.config.checks import check_positive
from glassformer.training.processes import by_first, rank
from glassformer.weights.saving import sync, write_text

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they lie.
        keep: how many of the newest stay; the best one stays besides.
    """

    folder: Path
    keep: int = 3

    def __post_init__(self) -> None:
        check_positive(keep=self.keep)

    def write(self, step: int, fill: Callable[[Path], None], *, is_best: bool = False) -> Path:
        """Write one: ``fill`` puts the files into the folder it is handed. Older ones than ``keep`` are removed.

        With several processes all call it, and ``fill`` is called in all, for the first needs what the others hold;
        the first alone touches the disk.
        """
        place = self.folder / f"step-{step:08}"
        hidden = self.folder / f".{place.name}.new"
        with _explained(place):
            try:
                by_first(partial(_make_anew, hidden))
                fill(hidden)
                by_first(partial(self._finish, hidden, place, is_best))
            finally:
                if rank() == 0:
                    shutil.rmtree(hidden, ignore_errors=True)
        return place

    def _finish(self, hidden: Path, place: Path, is_best: bool) -> None:
        _seal(hidden, is_best)
        _rename(hidden, place)
        self._thin()

    def tidy(self) -> None:
        """Finish what a run that was killed left behind: a checkpoint that is whole gets its name, the rest goes."""
        by_first(self._tidy)

    def _tidy(self) -> None:
        for path in self._named():
            if not (path / MANIFEST).is_file():  # it was being removed
                shutil.rmtree(path)
        for left in sorted(self.folder.glob(".step-*")):  # of one step, the new one before the old one
            place = left.with_name(left.name[1:].partition(".")[0])
            if not place.exists() and _is_whole(left):
                os.replace(left, place)
                sync(self.folder)
            else:
                shutil.rmtree(left)

    def all(self) -> list[Path]:
        """Those that were written to the end, the newest last."""
        return [path for path in self._named() if (path / MANIFEST).is_file()]

    def _named(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if NAME.fullmatch(path.name)), key=step_of)

    def latest(self) -> Path | None:
        """The newest one."""
        return next(reversed(self.all()), None)

    def best(self) -> Path | None:
        """The newest one that was called the best when it was written."""
        return next((path for path in reversed(self.all()) if _is_best(path)), None)

    def _thin(self) -> None:
        kept = {*self.all()[-self.keep :], self.best()}
        for path in self.all():
            if path not in kept:
                (path / MANIFEST).unlink()  # first, so that half a folder is never taken for a whole one
                shutil.rmtree(path)


def step_of(path: Path) -> int:
    """The step after which a checkpoint was written."""
    found = NAME.fullmatch(path.name)
    if found is None:
        raise CheckpointError(f"{path}: a checkpoint's folder is called step- and a number; this one is not.")
    return int(found.group(1))


def check(path: Path) -> dict[str, Any]:
    """Raise unless every file of a checkpoint is there and unchanged; return its manifest."""
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise CheckpointError(f"{path}: there is no {MANIFEST}, so it was not written to the end.{_others(path)}")
    try:
        said = json.loads(manifest.read_text(encoding="utf-8"))
        files = {str(name): (int(facts["bytes"]), str(facts["sha256"])) for name, facts in said["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest} is damaged: {error}.{_others(path)}") from error
    for name, (size, digest) in files.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; the manifest lists it.{_others(path)}")
        if file.stat().st_size != size:
            what = f"{file} has {file.stat().st_size:,} bytes, and {size:,} were written"
            raise CheckpointError(f"{what}.{_others(path)}")
        if _digest(file) != digest:
            raise CheckpointError(f"{file} has changed since it was written: its checksum differs.{_others(path)}")
    result: dict[str, Any] = said
    return result


def _is_whole(path: Path) -> bool:
    try:
        check(path)
    except CheckpointError:
        return False
    return True


def _is_best(path: Path) -> bool:
    """What the manifest says; a damaged one says nothing here, and is told of where the checkpoint is read."""
    try:
        said = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("best") is True


def _others(path: Path) -> str:
    """What to do with a damaged checkpoint: go on from the one before."""
    if NAME.fullmatch(path.name) is None:
        return ""
    before = [other for other in Checkpoints(path.parent).all() if other != path and step_of(other) < step_of(path)]
    if not before:
        return " There is none before it; start anew."
    return f" Remove {path}, and --resume goes on from {before[-1]}."


def _make_anew(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _seal(folder: Path, is_best: bool) -> None:
    """Flush all files, then write and flush the manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    said = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files
    }
    for path in files:
        sync(path)
    sync(folder)
    write_text(folder / MANIFEST, json.dumps({"format": 1, "best": is_best, "files": said}, indent=2) + "\n")


def _rename(hidden: Path, place: Path) -> None:
    """Give a finished folder its name; one that has it already goes out of the way, and away when it is not needed."""
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        os.replace(place, old)
    os.replace(hidden, place)
    sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    """A disk that is full or read-only, in words that say what still stands."""
    try:
        yield
    except OSError as error:
        last = Checkpoints(place.parent).latest()
        stands = "No earlier one exists" if last is None else f"The one before stands: {last}"
        file = "" if error.filename is None else f"{Path(error.filename).name}: "
        raise CheckpointError(f"{place} could not be written: {file}{error.strerror or error}. {stands}.") from error
