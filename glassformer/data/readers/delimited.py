"""Delimited files: CSV, TSV and the like."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from glassformer.config.checks import Setting
from glassformer.data.readers.base import (
    Chunk,
    OnBadRow,
    Parse,
    Paths,
    RowSource,
    by_line,
    decode,
    from_files,
    join_lines,
    strip_line_end,
    without_blank_end,
)
from glassformer.data.records import BadRowError, Field, Origin, RecordMaker, SourceError, no_column

R = TypeVar("R")
_SEPARATORS = (",", ";", "\t", "|")  # that a file may have in place of the one that is set
_LONGEST_QUOTED_ROW = 2**20  # bytes; a quote that stays open for longer is taken for a stray quote


def read_columns(
    paths: Paths,
    make: RecordMaker[R],
    *,
    separator: str,
    quoted: bool,
    header: bool = True,
    on_bad_row: OnBadRow = "stop",
) -> RowSource[R]:
    """Return CSV with ``separator=","`` and ``quoted=True``, TSV with ``separator="\\t"``, usually without quotes.

    ``make`` (AsText, AsPair, …) names columns as in the ``header``, the first line of each file, or by number from 0.
    ``quoted``: a column that begins with ``"`` ends at the next ``"``, may contain separators and line ends, and ``""``
    in it stands for one quote; otherwise quotes are ordinary characters.
    """
    if not separator or separator in '"\r\n' or (quoted and len(separator) > 1):
        length = "one character" if quoted else "one character or more"
        raise SourceError(
            f"{{}} must be {length}, not a quote or line end; got {{}}.",
            Setting("separator", external_name="data.separator"),
            repr(separator),
        )
    named = [field for field in make.fields if isinstance(field, str)]
    if named and not header:
        raise SourceError(f"without a header columns have numbers, from 0, not names such as {named[0]!r}.")
    return from_files(paths, Columns(make, separator, header, quoted), on_bad_row)


@dataclass(frozen=True)
class Columns(Generic[R]):
    """Columns between separators; quoted columns may contain separators, line ends and doubled quotes."""

    make: RecordMaker[R]
    separator: str
    header: bool
    quoted: bool

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """Return one row per line, or per several lines that a quoted column spans.

        Blank rows at the end are dropped.
        """
        rows = by_quoted_row(lines, self.separator) if self.quoted else by_line(lines)
        return without_blank_end(rows, self.separator)

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[R]:
        """Return the function that parses a row; every row must have as many columns as the first one of its file."""
        names = self._header(rows, file) if self.header else None
        numbers = {} if names is None else {field: self._column(field, names, file) for field in self.make.fields}
        width = 0 if names is None else len(names)

        def parse(text: str, origin: Origin) -> R:
            nonlocal width
            cells = self._cells(text, origin)
            # All rows have as many columns as the first.
            width = width or len(cells)
            if len(cells) != width:
                problem = f"{len(cells)} where the first row has {width}, in {text[:60]!r}"
                advice = "put quotes around" if self.quoted else "set {} for"
                remedy = f"Correct the row, or {advice} columns that hold the separator"
                settings = [] if self.quoted else [Setting("quoted", True, external_name="data.quoted")]
                raise BadRowError(origin, "wrong number of columns", problem, remedy, *settings)
            # Columns by number without a header, else by name.
            if names is None:
                return self.make(dict(enumerate(cells)), origin)
            return self.make({field: cells[number] for field, number in numbers.items()}, origin)

        return parse

    def _header(self, rows: Iterator[Chunk], file: str) -> list[str]:
        first = next(rows, None)
        if first is None:
            raise SourceError(f"{file} is empty, where a first line with the names of the columns was expected.")
        origin = Origin(file, first.line)
        names = self._cells(decode(first.data, origin), origin)
        if len(set(names)) < len(names):
            raise SourceError(f"{file}: two columns have the same name, in {names}; rename one.")
        return names

    def _column(self, field: Field, names: Sequence[str], file: str) -> int:
        """Return the number of a column; raise SourceError, not BadRowError, if the header lacks it."""
        if isinstance(field, int) and 0 <= field < len(names):
            return field
        if isinstance(field, str) and field in names:
            return names.index(field)
        columns = f"its columns, with {self.separator!r} between them, are {', '.join(names)}"
        for other in _SEPARATORS:
            if len(names) == 1 and field in [name.strip('"') for name in names[0].split(other)]:
                setting = Setting("separator", other, external_name="data.separator")
                raise SourceError("{} has no column {}; {}. Set {}.", file, repr(field), columns, setting)
        raise no_column(file, self.make, field, columns, names)

    def _cells(self, text: str, origin: Origin) -> list[str]:
        return _quoted_cells(text, self.separator, origin) if self.quoted else text.split(self.separator)


def quoted_cell(separator: str) -> str:
    """Return a regular expression for one column: in quotes, with each quote inside doubled, or without any quote."""
    return rf'(?:"(?:[^"]|"")*+"|[^"{re.escape(separator)}]*+)'


def by_quoted_row(lines: Iterable[Chunk], separator: str) -> Iterator[Chunk]:
    """End a row with its line, unless a quoted column is still open there.

    If the lines up to the closing quote do not form a valid row (the quote is a stray one), the first line is a
    (bad) row by itself, and reading goes on with the second.
    """
    cell, mark = quoted_cell(separator), re.escape(separator)
    is_row = re.compile(rf"(?:{cell}{mark})*+{cell}").fullmatch
    is_open = re.compile(rf'(?:{cell}{mark})*+"(?:[^"]|"")*+').fullmatch
    stream, waiting = iter(lines), list[Chunk]()
    while (line := waiting.pop() if waiting else next(stream, None)) is not None:
        # Read on while a quoted column is open.
        held = [line]
        text = strip_line_end(line.data).decode("utf-8", "replace")
        while is_open(text) and line.start - held[0].start < _LONGEST_QUOTED_ROW:
            line = waiting.pop() if waiting else next(stream, None)
            if line is None:
                break
            held.append(line)
            # The open column alone decides whether the row goes on; the columns before it are complete.
            text = '"' + strip_line_end(line.data).decode("utf-8", "replace")
        # A stray quote: the first line is a row by itself, and the others are read again.
        if len(held) > 1 and not is_row(join_lines(held).data.decode("utf-8", "replace")):
            waiting += held[:0:-1]  # a stack: the last of the list is read next
            del held[1:]
        yield join_lines(held)


def _quoted_cells(text: str, separator: str, origin: Origin) -> list[str]:
    """Return the columns of a row. Python's csv refuses long documents and accepts a stray quote as a character."""
    cells, start = [], 0
    cell = re.compile(quoted_cell(separator)).match
    while (match := cell(text, start)) and text[match.end() : match.end() + 1] in ("", separator):
        cells.append(match[0][1:-1].replace('""', '"') if match[0].startswith('"') else match[0])
        if match.end() == len(text):
            return cells
        start = match.end() + 1
    remedy = "Double quotes inside quotes and close them, or set {}"
    problem = f"at {text[start:][:40]!r} in {text[:60]!r}"
    raise BadRowError(origin, "bad quotes", problem, remedy, Setting("quoted", False, external_name="data.quoted"))
