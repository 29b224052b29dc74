"""One process at a time trains in a folder: a lock that the system takes back when a process ends, however it ends."""

import os
import weakref
from pathlib import Path

from glassformer.training.checkpoint import CheckpointError

try:
    import fcntl
except ImportError:  # Windows has no such locks, and nothing keeps a second process out there
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """A lock on a folder, which nothing is written for.

    It holds among the processes of a machine. A file system that knows no locks keeps nobody out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._let_go: weakref.finalize[[int], FolderLock] | None = None

    def take(self) -> None:
        """Keep others out; raise if somebody else is in. To take it twice is to take it once."""
        if fcntl is None or self._let_go is not None:
            return
        try:
            handle = os.open(self.folder, os.O_RDONLY)
        except OSError:
            return  # whoever cannot read a folder will be told when it is read
        self._let_go = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise CheckpointError(
                f"another process trains in {self.folder} now; wait for it, stop it, or say another --out."
            ) from error
        except OSError:
            self.release()

    def release(self) -> None:
        """Let others in again."""
        if self._let_go is not None:
            self._let_go()
            self._let_go = None
