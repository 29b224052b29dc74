"""Input and output: texts from arguments, files or standard input; tables for people, JSON lines for programs."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from glassformer.cli.errors import InputError
from glassformer.cli.options import InputOptions
from glassformer.config.facts import for_json
from glassformer.text.plain_text import visible as visible

WIDE = 1000  # columns for tables of numbers, which wrap on a narrow terminal and are never cut
UNLIMITED = 2**20  # columns of a pipe, for a library that needs a number
_PADDING = re.compile(r" ++(?=(?: |\x1b\[[\d;]*m)*+$)")  # blanks at the end of a line, with or without codes of colours


def on_terminal() -> bool:
    """Whether standard output is a terminal, not a pipe or a file."""
    return sys.stdout.isatty()


def stderr_on_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def percent(share: float) -> str:
    """Return a share in per cent, with a significant digit for small ones."""
    value = 100 * share
    return f"{value:.1f} %" if value >= 0.05 or value == 0 else f"{value:.1g} %"


def stdout_console() -> Console:
    """Return a console on standard output; in a pipe, nothing is cut or wrapped."""
    if on_terminal():
        return Console(highlight=False)
    return Console(highlight=False, soft_wrap=True, width=UNLIMITED)


def print_table(table: Table) -> None:
    """Print a table whose text wraps at the terminal's width; lines have no trailing blanks."""
    _print(table, stdout_console())


def _print(table: Table, console: Console) -> None:
    # Rich pads every line to the width of the widest cell; a terminal that is narrower would wrap the padding.
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().removesuffix("\n").split("\n")
    console.file.writelines(f"{_PADDING.sub('', line)}\n" for line in lines)


def print_json(row: Any) -> None:
    """Print one line of JSON and flush; NaN and infinities become null."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(for_json(row), ensure_ascii=encoding != "utf8", allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_rounded_json(row: Any) -> None:
    """Print one line of JSON with computed values: ``print_json`` of ``rounded``."""
    print_json(rounded(row))


def rounded(value: Any) -> Any:
    """Return data with floats rounded to 6 significant digits, the precision of float32; integers stay exact.

    Further digits depend on the machine and on the batch.
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def print_truncated(table: Table) -> None:
    """Print a table whose last column is text, the only column that is cut on a narrow terminal."""
    console = stdout_console()
    # The text column gets what the other columns leave of the terminal's width.
    *numbers, text = table.columns
    widths = [max(map(_width, (column.header, *column.cells)), default=0) + 2 for column in numbers]
    available = max(12, console.width - sum(widths))
    for cell in text.cells:
        if isinstance(cell, Text):  # other cells wrap
            cell.truncate(available, overflow="ellipsis")
    _print(table, Console(highlight=False, width=max(console.width, sum(widths) + available)))


def _width(cell: RenderableType) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(str(cell))


def grid(*columns: str, first: str = "left") -> Table:
    """Return a borderless table; the first column is aligned as ``first`` says, the others right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        side = first if number == 0 else "right"
        table.add_column(name, justify="left" if side == "left" else "right", no_wrap=True)
    return table


def heading(text: str) -> None:
    """Print a heading between two tables."""
    print_line("")
    print_line(text, style="bold")


def print_line(text: str, style: str = "") -> None:
    """Print a line of text."""
    stdout_console().print(Text(text, style=style))


def print_wide(table: Table) -> None:
    """Print a table without cutting any column."""
    _print(table, Console(highlight=False, width=max(WIDE, stdout_console().width)))


def note(text: str) -> None:
    """Print a note on standard error."""
    Console(stderr=True, highlight=False).print(f"note: {text}", style="dim", markup=False, soft_wrap=True)


class WordWrap:
    """Breaks the lines of streamed text between words, where a terminal would break them anywhere.

    A width of None, for a pipe, breaks nothing.
    """

    def __init__(self, width: int | None, column: int = 0) -> None:
        self.width = width
        self.column = column  # of the cursor
        self._word = ""  # it may go on in the next piece

    def feed(self, piece: str) -> str:
        """Return what to print of a piece and of the word before it: all but its last word."""
        if self.width is None:
            return piece
        printed = ""
        for character in piece:
            if not character.isspace() and cell_len(character) < 2:
                self._word += character
                continue
            printed += self.flush()
            if character == "\n":
                printed, self.column = printed + "\n", 0
            elif character.isspace():
                printed += character if self.column < self.width else ""
                self.column += 1
            else:  # wide characters, as those of Chinese, are words of their own
                self._word = character
                printed += self.flush()
        return printed

    def flush(self) -> str:
        """Return the last word, on a line of its own where it does not fit the current one."""
        word, size = self._word, cell_len(self._word)
        self._word = ""
        if not word or self.width is None:
            return word
        starts_line = self.column > 0 and self.column + size > self.width
        self.column = size if starts_line else self.column + size
        return "\n" + word if starts_line else word


@contextmanager
def bar(what: str, total: int, before: int | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error, to be called with (done, total); None where standard error is no terminal.

    ``before``: items done already, where the work comes in parts.
    """
    if not stderr_on_terminal() or total < 2:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, completed=before or 0)
        yield lambda done, items: progress.update(
            task, completed=done + (before or 0), total=items if before is None else total
        )


# ---- input


def read_texts(texts: Sequence[str] | None, reading: InputOptions) -> list[str]:
    """Return the texts: the arguments, or the lines of a file or of standard input."""
    if texts and reading.file is not None:
        raise ValueError("texts come both from arguments and from --file; use one of them.")
    if texts:
        return list(texts)
    _check_input(reading)
    where = "standard input" if reading.file is None else str(reading.file)
    lines = _lines(_bytes(reading.file), where, reading.skip_empty)
    if not lines:
        raise ValueError(f"{where} holds no text.")
    return lines


def read_whole(texts: Sequence[str] | None, reading: InputOptions) -> str:
    """Return all of a file or of standard input as one text; or the only argument."""
    if texts:
        if reading.file is not None or len(texts) > 1:
            raise ValueError("exactly one text is needed: one argument, --file or standard input.")
        return texts[0]
    _check_input(reading)
    where = "standard input" if reading.file is None else str(reading.file)
    return _decoded(_bytes(reading.file), where)


def pairs(texts: Sequence[str], seconds: Sequence[str] | None, *, tsv: bool) -> list[str] | list[tuple[str, str]]:
    """Return pairs of texts, with the second from ``--pair`` or after a TAB in each text.

    Single texts without either.
    """
    if seconds and tsv:
        raise ValueError("pairs come both from --pair and from --tsv; use one of them.")
    if seconds:
        if len(seconds) != len(texts):
            raise ValueError(f"{len(texts)} texts need {len(texts)} --pair options, got {len(seconds)}.")
        return list(zip(texts, seconds, strict=True))
    if not tsv:
        return list(texts)
    split = []
    for number, text in enumerate(texts, start=1):
        first, tab, second = text.partition("\t")
        if not tab or "\t" in second or not first or not second:
            raise ValueError(f"--tsv: line {number} must be two texts with one TAB between them, got {text!r:.60}.")
        split.append((first, second))
    return split


def check_writable(path: Path, name: str) -> None:
    """Raise unless a file can be written to ``path``, before a model is loaded and run."""
    folder = path.parent
    if path.is_dir():
        raise InputError(f"{name} {path}: this is a folder; name a file in it.")
    if not folder.is_dir():
        raise InputError(f"{name} {path}: there is no folder {folder}.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{name} {path}: permission to write is denied.")


def _check_input(reading: InputOptions) -> None:
    if reading.file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InputError("no text: pass it after the model's name, name a --file, or pipe it in.")


def _bytes(path: Path | None) -> bytes:
    return sys.stdin.buffer.read() if path is None else path.read_bytes()


def _lines(data: bytes, where: str, skip_empty: bool) -> list[str]:
    texts = []
    lines = _decoded(data, where).split("\n")
    if lines[-1] == "":  # nothing follows the last line break
        lines.pop()
    for number, line in enumerate((line.removesuffix("\r") for line in lines), start=1):
        if line.strip():
            texts.append(line)
        elif not skip_empty:
            raise ValueError(f"line {number} of {where} is empty; fill it, or skip such lines with --skip-empty.")
    return texts


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} of {where} is not UTF-8 text; convert it, for instance with iconv.") from error
