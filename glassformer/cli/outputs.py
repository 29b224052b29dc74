"""What the program prints: for people through rich, for machines one JSON object per line and nothing else."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from glassformer.config.facts import for_json
from glassformer.text.visible import visible as visible

WIDE = 1000  # columns for tables of numbers, which wrap on a narrow terminal and are never cut
WITHOUT_LIMIT = 2**20  # columns of a pipe, for a library that wants a number


def on_terminal() -> bool:
    """Whether a person reads standard output; else it is a pipe or a file."""
    return sys.stdout.isatty()


def somebody_sees_notes() -> bool:
    """Whether a person reads standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def percent(chance: float) -> str:
    """A chance in per cent, with as many digits as a small one needs to be seen."""
    value = 100 * chance
    return f"{value:.1f} %" if value >= 0.05 or value == 0 else f"{value:.1g} %"


def people() -> Console:
    """Standard output for people; a pipe has no width, so nothing is cut or wrapped there."""
    if on_terminal():
        return Console(highlight=False)
    return Console(highlight=False, soft_wrap=True, width=WITHOUT_LIMIT)


def print_json(row: Any) -> None:
    """One line of JSON, at once; numbers that JSON cannot write become null."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(for_json(row), ensure_ascii=encoding != "utf8", allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_computed(row: Any) -> None:
    """One line of JSON with what a model computed: ``print_json`` of ``rounded``."""
    print_json(rounded(row))


def rounded(value: Any) -> Any:
    """Data for JSON with 6 significant digits of every float, as many as float32 gives; integers stay exact.

    Further digits differ between machines, and with the texts that are computed together.
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def print_table(table: Table) -> None:
    """A table for people whose last column is text: that alone is cut on a narrow terminal, never a number."""
    console = people()
    *numbers, text = table.columns
    widths = [max(map(_width, (column.header, *column.cells)), default=0) + 2 for column in numbers]
    room = max(12, console.width - sum(widths))
    for cell in text.cells:
        if isinstance(cell, Text):  # others are folded
            cell.truncate(room, overflow="ellipsis")
    Console(highlight=False, width=max(console.width, sum(widths) + room)).print(table)


def _width(cell: RenderableType) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(str(cell))


def grid(*columns: str, first: str = "left") -> Table:
    """A plain table: names on the left, numbers on the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        side = first if number == 0 else "right"
        table.add_column(name, justify="left" if side == "left" else "right", no_wrap=True)
    return table


def heading(text: str) -> None:
    """A line between two tables."""
    say("")
    say(text, style="bold")


def say(text: str, style: str = "") -> None:
    """A line of text."""
    people().print(Text(text, style=style))


def print_wide(table: Table) -> None:
    """A table none of whose numbers is cut."""
    console = people()
    Console(highlight=False, width=max(WIDE, console.width)).print(table)


def note(text: str) -> None:
    """A remark beside the output, on standard error."""
    Console(stderr=True, highlight=False).print(f"note: {text}", style="dim", markup=False, soft_wrap=True)


@contextmanager
def bar(what: str, total: int, before: int | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while something takes long, to be called with (done, all); None where nobody sees it.

    ``before``: how many were done already, where the work is handed on in parts.
    """
    if not somebody_sees_notes() or total < 2:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, completed=before or 0)
        yield lambda done, every: progress.update(
            task, completed=done + (before or 0), total=every if before is None else total
        )
