"""Checkpoint folders: written atomically, verified when read, old ones kept until the new one is complete.

What they contain is written and read by ``checkpoint_contents``.

A checkpoint is a folder ``step-00000100``. Its files are written to a hidden folder beside it first; then comes
``manifest.json`` with the size and SHA-256 of every file and whether it is the best so far, everything is flushed to
the disk, and only then is the folder renamed. So a folder without a manifest is never read, and a run that is killed at
any moment leaves the previous checkpoint as it was.

``FolderLock`` keeps a second process from training in the same folder.
"""

import hashlib
import json
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.config.checks import Setting, SettingError, check_positive_integer
from glassformer.training.parallel import on_rank_zero, rank
from glassformer.weights.saving import sync, write_text

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(SettingError):
    """A checkpoint that cannot be read or written."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: that holds them.
        keep: how many of the newest are kept; the best one is kept as well.
    """

    folder: Path
    keep: int = 3

    def __post_init__(self) -> None:
        check_positive_integer(keep=self.keep)

    def write(self, step: int, fill: Callable[[Path], None], *, is_best: bool = False) -> Path:
        """Write one: ``fill`` writes the files into the folder it receives. Then older ones than ``keep`` are removed.

        With several processes all call it, and ``fill`` is called in all, because the first needs the shards of the
        others; only the first writes to the disk.
        """
        path = self.folder / f"step-{step:08}"
        hidden = self.folder / f".{path.name}.new"
        with _explained(path):
            try:
                on_rank_zero(partial(_make_empty, hidden))
                fill(hidden)
                on_rank_zero(partial(self._finish, hidden, path, is_best))
            finally:
                if rank() == 0:
                    shutil.rmtree(hidden, ignore_errors=True)
        return path

    def _finish(self, hidden: Path, path: Path, is_best: bool) -> None:
        _write_manifest(hidden, is_best)
        _rename(hidden, path)
        self._remove_old()

    def tidy(self) -> None:
        """Clean up after a run that was killed: rename a checkpoint that is complete, remove the others."""
        on_rank_zero(self._tidy)

    def _tidy(self) -> None:
        for path in self._named():
            if not (path / MANIFEST).is_file():  # its removal was interrupted
                shutil.rmtree(path)
        for hidden in sorted(self.folder.glob(".step-*")):  # of one step, the new one before the old one
            path = hidden.with_name(hidden.name[1:].partition(".")[0])
            if not path.exists() and _is_complete(hidden):
                os.replace(hidden, path)
                sync(self.folder)
            else:
                shutil.rmtree(hidden)

    def all(self) -> list[Path]:
        """Return all complete checkpoints, the newest last."""
        return [path for path in self._named() if (path / MANIFEST).is_file()]

    def _named(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if NAME.fullmatch(path.name)), key=step_of)

    def latest(self) -> Path | None:
        """Return the newest complete checkpoint."""
        return next(reversed(self.all()), None)

    def best(self) -> Path | None:
        """Return the newest checkpoint that was the best so far when it was written."""
        return next((path for path in reversed(self.all()) if _is_best(path)), None)

    def _remove_old(self) -> None:
        kept = {*self.all()[-self.keep :], self.best()}
        for path in self.all():
            if path not in kept:
                (path / MANIFEST).unlink()  # first, so that half a folder never counts as complete
                shutil.rmtree(path)


def step_of(path: Path) -> int:
    """Return the step after which a checkpoint was written."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(
            f"{path}: a checkpoint's folder is called step-N, with the number of its step; this one is not."
        )
    return int(match.group(1))


def check(path: Path) -> dict[str, Any]:
    """Raise unless every file of a checkpoint is there and unchanged; return its manifest."""
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise CheckpointError(f"{path}: there is no {MANIFEST}, so it was not written to the end.{_remedy(path)}")
    try:
        # Read the manifest.
        contents: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
        files = {str(name): (int(file["bytes"]), str(file["sha256"])) for name, file in contents["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest} is damaged: {error}.{_remedy(path)}") from error
    # Compare size and SHA-256 of every file with the manifest.
    for name, (size, digest) in files.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing; the manifest lists it.{_remedy(path)}")
        if file.stat().st_size != size:
            sizes = f"{file} has {file.stat().st_size:,} bytes, and {size:,} were written"
            raise CheckpointError(f"{sizes}.{_remedy(path)}")
        if _digest(file) != digest:
            raise CheckpointError(f"{file} has changed since it was written: its checksum differs.{_remedy(path)}")
    return contents


def _is_complete(path: Path) -> bool:
    try:
        check(path)
    except CheckpointError:
        return False
    return True


def _is_best(path: Path) -> bool:
    """Whether the manifest marks a checkpoint as the best; damage is reported when the checkpoint is read."""
    try:
        contents = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(contents, dict) and contents.get("best") is True


def _remedy(path: Path) -> str:
    """Return what to do about a damaged checkpoint: resume from the one before."""
    if NAME.fullmatch(path.name) is None:
        return ""
    before = [other for other in Checkpoints(path.parent).all() if other != path and step_of(other) < step_of(path)]
    if not before:
        return " There is none before it; start a new run."
    return f" Remove {path}, and the run resumes from {before[-1]}."


def _make_empty(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _write_manifest(folder: Path, is_best: bool) -> None:
    """Flush all files, then write and flush the manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files
    }
    for path in files:
        sync(path)
    sync(folder)
    write_text(folder / MANIFEST, json.dumps({"format": 1, "best": is_best, "files": entries}, indent=2) + "\n")


def _rename(hidden: Path, path: Path) -> None:
    """Rename a finished folder; an old folder of that name is moved aside first, and removed afterwards."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        os.replace(path, old)
    os.replace(hidden, path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Explain an error of the disk (full, read-only) and name the last good checkpoint."""
    try:
        yield
    except OSError as error:
        last = Checkpoints(path.parent).latest()
        earlier = "No earlier one exists" if last is None else f"The one before is complete: {last}"
        file = "" if error.filename is None else f"{Path(error.filename).name}: "
        raise CheckpointError(f"{path} could not be written: {file}{error.strerror or error}. {earlier}.") from error


try:
    import fcntl
except ImportError:  # Windows has no such locks: a second process is not kept out
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """A lock on a folder among the processes of a machine; the system releases it when the process ends.

    No file is written for it. On a file system without locks it has no effect.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._release: weakref.finalize[[int], FolderLock] | None = None

    def take(self) -> None:
        """Acquire the lock; raise if another process holds it. Taking it twice is the same as once."""
        if fcntl is None or self._release is not None:
            return
        try:
            handle = os.open(self.folder, os.O_RDONLY)
        except OSError:
            return  # a folder that cannot be read is reported where it is read
        self._release = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise CheckpointError(
                "another process trains in {} now; wait for it, stop it, or choose another folder with {}.",
                str(self.folder),
                Setting("out"),
            ) from error
        except OSError:
            self.release()

    def release(self) -> None:
        """Release the lock."""
        if self._release is not None:
            self._release()
            self._release = None
