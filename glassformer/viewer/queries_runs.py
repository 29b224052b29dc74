"""Queries about runs of ``glassformer train``: a summary of each, and the lines of its log as they come.

Folders come from the command line (``Contents.runs``); a request names a run by its number. The page asks for the lines
after those it has, so a long log is read once.
"""

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from glassformer.training.checkpoint_folders import Checkpoints, step_of
from glassformer.training.compare import RunSummary, differing_keys, read_run_summary
from glassformer.training.logging.curve import Point, thin
from glassformer.viewer.contents import Contents
from glassformer.viewer.encode import array
from glassformer.viewer.subject import QueryError

BYTES = 2**23  # of a log, read for one answer
POINTS = 2000  # intervals of steps for which an answer has the lowest and the highest loss
COLUMNS = ("loss", "lr", "grad_norm", "tokens_seen")


@dataclass(frozen=True)
class RunsParams:
    """``poll`` counts the questions of a page, which keeps the answers to equal ones."""

    poll: int = 0


def runs(contents: Contents, params: RunsParams) -> dict[str, Any]:  # noqa: ARG001
    """Return a summary of each run, and the recipe keys in which they differ."""
    entries, summaries = [], []
    for folder, name in zip(contents.runs, run_names(contents.runs), strict=True):
        try:
            summary = _summary(folder, name, *_state(folder))
        except ValueError as error:  # no step yet, or files that cannot be read
            entries.append({"name": name, "error": str(error), "steps": 0})
            continue
        summaries.append(summary)
        entries.append(_entry(summary))
    return {"runs": entries, "differs": differing_keys(summaries) if len(summaries) > 1 else []}


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or all of it where two would be named alike."""
    short = [folder.resolve().name for folder in folders]
    return [str(path) if short.count(name) > 1 else name for path, name in zip(folders, short, strict=True)]


def _state(folder: Path) -> tuple[int, int, bool]:
    """Return what changes when a run goes on: a summary is read again only then."""
    log = folder / "log.jsonl"
    if not log.is_file():
        raise ValueError(f"{folder} has no log yet.")
    stat = log.stat()
    return stat.st_mtime_ns, stat.st_size, (folder / "results.json").is_file()


@lru_cache(maxsize=64)
def _summary(folder: Path, name: str, changed: int, size: int, finished: bool) -> RunSummary:  # noqa: ARG001
    return read_run_summary(folder, name)


def _entry(run: RunSummary) -> dict[str, Any]:
    best = run.curves.best
    return {
        "name": run.name,
        "error": None,
        "steps": run.steps,
        "planned": run.recipe.get("run.steps"),
        "finished": (run.folder / "results.json").is_file(),
        "age": max(0.0, time.time() - (run.folder / "log.jsonl").stat().st_mtime),  # seconds since the last line
        "tokens": run.tokens,
        "seconds": run.seconds,
        "tokens_per_second": run.tokens_per_second,
        "memory": run.memory,
        "parameters": run.parameters,
        "estimated_seconds": run.estimated_seconds,
        "best": None if best is None else {"step": best.step, "loss": best.value},
        "results": run.results,
        "recipe": {key: _shown(value) for key, value in run.recipe.items()},
        "checkpoints": [step_of(path) for path in Checkpoints(run.folder / "checkpoints").all()],
    }


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class LogParams:
    """Which lines: of this run, after this byte of this file; another file is read from its beginning."""

    run: int = 0
    after: int = 0
    file: int | None = None
    poll: int = 0  # see RunsParams


def run_log(contents: Contents, params: LogParams) -> dict[str, Any]:
    """Return the lines of a log that the page does not have yet.

    ``again`` says that the page must drop what it has: the log was written anew, as a resumed run does. ``more``: there
    are more lines; ask at once.
    """
    if not 0 <= params.run < len(contents.runs):
        raise QueryError(f"there is no run {params.run}; this page shows {len(contents.runs)}.")
    tail = _tail(contents.runs[params.run] / "log.jsonl", params.after, params.file)
    by_kind: dict[str, list[dict[str, Any]]] = {"step": [], "validation": [], "sample": [], "checkpoint": []}
    for line in tail.lines:
        by_kind.get(str(line.get("kind")), []).append(line)
    steps = _thinned(by_kind["step"])
    values = {name: array([_number(line.get(name)) for line in steps]) for name in COLUMNS}
    return {
        "file": tail.file,
        "next": tail.cursor,
        "again": tail.again,
        "more": tail.more,
        "steps": array([line["step"] for line in steps], "i4"),
        "values": values | {"tokens_per_second": array([_speed(line) for line in steps])},
        "thinned": len(steps) < len(by_kind["step"]),
        "validation": [
            {key: value for key, value in line.items() if key not in ("kind", "measured")}
            for line in by_kind["validation"]
        ],
        "samples": [
            {"step": line["step"], "number": line.get("number", 1), "text": str(line.get("text", ""))}
            for line in by_kind["sample"]
        ],
        "checkpoints": [{"step": line["step"], "best": bool(line.get("best"))} for line in by_kind["checkpoint"]],
    }


@dataclass(frozen=True)
class Tail:
    """The new lines of a file, its number, the byte to go on from, whether it is another file, whether it has more."""

    lines: list[dict[str, Any]]
    file: int | None
    cursor: int
    again: bool
    more: bool


def _tail(path: Path, after: int, file: int | None) -> Tail:
    """Return the complete lines after a byte."""
    if not path.is_file():
        return Tail([], None, 0, file is not None, False)
    with path.open("rb") as log:
        stat = os.fstat(log.fileno())
        again = file is not None and (file != stat.st_ino or after > stat.st_size)
        start = 0 if again or file is None else max(0, after)
        log.seek(start)
        data = log.read(BYTES)
    end = data.rfind(b"\n") + 1  # after it comes nothing, or half a line
    if not end and len(data) == BYTES:
        raise QueryError(f"{path.name} is not the log of a run: a line has more than {BYTES:,} bytes.")
    lines = [_line(row, path) for row in data[:end].split(b"\n")[:-1]]
    return Tail(lines, stat.st_ino, start + end, again, len(data) == BYTES)


def _line(row: bytes, path: Path) -> dict[str, Any]:
    try:
        line: dict[str, Any] = json.loads(row)
        return line | {"step": int(line["step"])}
    except (ValueError, KeyError, TypeError) as error:
        raise QueryError(f"{path.name} is not the log of a run: a line is not a JSON object with a step.") from error


def _thinned(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most two steps of each interval, those with the lowest and the highest loss."""
    if len(steps) <= 2 * POINTS:
        return steps
    points = [Point(number, _number(line.get("loss"))) for number, line in enumerate(steps)]
    kept = {point.step for point in thin([point for point in points if math.isfinite(point.value)], POINTS)}
    return [line for number, line in enumerate(steps) if number in kept or number == len(steps) - 1]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _speed(line: dict[str, Any]) -> float:
    seconds = (line.get("measured") or {}).get("seconds")
    return float(line["tokens"]) / seconds if seconds and line.get("tokens") else math.nan


QUERIES = {"runs": (runs, RunsParams), "run_log": (run_log, LogParams)}
