"""The log of a run: one line of JSON per event, flushed as it is written, and cut back when a run goes on.

A line has ``kind`` (step, validation, checkpoint) and ``step``. Times and memory are under ``measured``: in nothing
else may two runs of the same thing differ.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from glassformer.config.facts import for_json
from glassformer.weights.saving import naming_file, write_text


class RunLog:
    """Appends to a file.

    Args:
        path: the file; made with its folder if it is not there.
        after: keep the lines of steps up to this one and drop the rest, which a run that was killed wrote after its
            last checkpoint; the run will write them again.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= after] if after else []
        write_text(path, "".join(f"{line}\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, facts: dict[str, Any], measured: dict[str, Any] | None = None) -> None:
        """One line."""
        said = {"kind": kind, "step": step, **facts} | ({"measured": measured} if measured else {})
        with naming_file(self.path):
            self._file.write(json.dumps(for_json(said), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Nothing more will come. A log without a line is taken away."""
        try:
            with naming_file(self.path):
                self._file.close()
        finally:
            if self.path.is_file() and not self.path.stat().st_size:
                self.path.unlink()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """All lines of a log; the last one may be half, if the run was killed, and is left out then."""
    return [json.loads(line) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")  # after the last newline stands nothing, or half a line
    return whole
