"""What the program prints: for people through rich, for machines one JSON object per line and nothing else."""

import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def people() -> Console:
    """Standard output for people; text is not cut to the width of a pipe."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def print_json(row: Any) -> None:
    """One line of JSON, at once; numbers that JSON cannot write become null."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(_plain(row), ensure_ascii=encoding != "utf8", allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark beside the output, on standard error."""
    Console(stderr=True, highlight=False).print(f"note: {text}", style="dim", markup=False)


def visible(text: str, keep: str = "\n\t") -> str:
    """Text that is safe on a terminal: control characters, but for those to keep, show as a dot."""
    return "".join(c if c in keep or unicodedata.category(c) not in ("Cc", "Cs") else "·" for c in text)


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while something takes long, to be called with (done, all); None where nobody sees it."""
    if not sys.stderr.isatty() or total < 2:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, every: progress.update(task, completed=done, total=every)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
