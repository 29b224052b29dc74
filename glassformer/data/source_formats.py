"""Kinds of files: how the bytes of a row become a record. ``source_readers`` walks through them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from glassformer.data.records import Origin, Tagged, Text
from glassformer.data.source_fields import Field, Make, checked_text
from glassformer.data.source_files import (
    Chunk,
    Split,
    by_blank_line,
    by_line,
    by_quoted_row,
    decode,
    quoted_cell,
    without_blank_end,
)
from glassformer.data.source_rows import BadRowError, SourceError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Parse: TypeAlias = Callable[[str, Origin], R]


@runtime_checkable
class Format(Protocol[R_co]):
    """How a file is cut into rows and what a row becomes."""

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """The rows of a file, a header included."""

    def begin(self, rows: Iterator[Chunk], file: str) -> Callable[[str, Origin], R_co]:
        """What turns the rows of this file into records; takes a header off ``rows`` if there is one."""


@dataclass(frozen=True)
class Plain:
    """Documents, cut by ``cut``."""

    cut: Split

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """The documents."""
        return self.cut(lines)

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[Text]:  # noqa: ARG002
        """Each is a text."""
        return lambda text, origin: Text(checked_text(text, "the document", origin), origin)


@dataclass(frozen=True)
class JsonLines(Generic[R]):
    """A JSON object per line."""

    make: Make[R]

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """The lines; blank ones at the end of a file do not count."""
        return without_blank_end(by_line(lines))

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[R]:  # noqa: ARG002
        """Each is an object with fields."""
        return lambda text, origin: self.make(_json_object(text, origin), origin)


@dataclass(frozen=True)
class Columns(Generic[R]):
    """Columns between separators; quoted fields may hold separators, line ends and doubled quotes."""

    make: Make[R]
    separator: str
    header: bool
    quoted: bool

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """Lines, or several where a quoted field goes on; blank ones at the end of a file do not count."""
        rows = by_quoted_row(lines, self.separator) if self.quoted else by_line(lines)
        return without_blank_end(rows, self.separator)

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[R]:
        """Columns are found by the header; all rows of a file have as many as its first."""
        names = self._header(rows, file) if self.header else None
        places = {} if names is None else {field: self._place(field, names, file) for field in self.make.fields}
        width = 0 if names is None else len(names)

        def parse(text: str, origin: Origin) -> R:
            nonlocal width
            cells = self._cells(text, origin)
            width = width or len(cells)
            if len(cells) != width:
                found = f"{len(cells)} where the first row has {width}, in {text[:60]!r}"
                way = "put quotes around" if self.quoted else "say quoted=True for"
                remedy = f"Correct the row, or {way} columns that hold the separator"
                raise BadRowError(origin, "wrong number of columns", found, remedy)
            if names is None:
                return self.make(dict(enumerate(cells)), origin)
            return self.make({field: cells[place] for field, place in places.items()}, origin)

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

    def _place(self, field: Field, names: Sequence[str], file: str) -> int:
        """The number of a column; a header that lacks it is an error, for then every row would."""
        if isinstance(field, int) and 0 <= field < len(names):
            return field
        if isinstance(field, str) and field in names:
            return names.index(field)
        columns = f"its columns, with {self.separator!r} between them, are {', '.join(names)}"
        raise SourceError(f"{file} has no column {field!r}; {columns}.")

    def _cells(self, text: str, origin: Origin) -> list[str]:
        return _quoted_cells(text, self.separator, origin) if self.quoted else text.split(self.separator)


@dataclass(frozen=True)
class Conll:
    """A word and its tag per line, a blank line after each sentence; lines that begin with ``ignored`` do not count."""

    words: int
    tags: int
    separator: str | None
    prefix: str
    ignored: tuple[str, ...]

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """The sentences."""
        return by_blank_line(lines, tuple(mark.encode() for mark in self.ignored))

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[Tagged]:  # noqa: ARG002
        """Each is a tagged sentence."""
        return self._sentence

    def _sentence(self, text: str, origin: Origin) -> Tagged:
        words, tags = [], []
        for number, line in enumerate(text.split("\n"), start=origin.line):
            if line.startswith(self.ignored):
                continue
            cells = line.split(self.separator)
            try:
                word, tag = cells[self.words], cells[self.tags]
            except IndexError:
                word = tag = ""
            if self.words % len(cells) == self.tags % len(cells):
                tag = ""  # a word is not its own tag
            if not word.startswith(self.prefix) or len(word) == len(self.prefix) or not tag:
                raise self._fault(line, cells, Origin(origin.file, number))
            words.append(word.removeprefix(self.prefix))
            tags.append(tag)
        return Tagged(tuple(words), tuple(tags), origin)

    def _fault(self, line: str, cells: list[str], origin: Origin) -> BadRowError:
        found = f"{len(cells)} columns in {line[:60]!r}; the word is column {self.words}, the tag {self.tags}"
        is_one = self.words % len(cells) == self.tags % len(cells)
        if is_one or not all(-len(cells) <= column < len(cells) for column in (self.words, self.tags)):
            remedy = "Correct the line, or the separator and the numbers of the columns"
            return BadRowError(origin, "wrong number of columns", found, remedy)
        if not cells[self.words].startswith(self.prefix):
            remedy = f"Correct the word, or the prefix {self.prefix!r} that is to be taken off"
            return BadRowError(origin, "missing prefix", f"{cells[self.words]!r}", remedy)
        return BadRowError(origin, "empty text", found, "Fill in the word and its tag")


def _quoted_cells(text: str, separator: str, origin: Origin) -> list[str]:
    """The columns of a row. Python's csv would refuse long documents and take a stray quote for a letter."""
    cells, place = [], 0
    cell = re.compile(quoted_cell(separator)).match
    while (found := cell(text, place)) and text[found.end() : found.end() + 1] in ("", separator):
        cells.append(found[0][1:-1].replace('""', '"') if found[0].startswith('"') else found[0])
        if found.end() == len(text):
            return cells
        place = found.end() + 1
    remedy = "Double quotes inside quotes and close them, or say quoted=False"
    raise BadRowError(origin, "bad quotes", f"at {text[place:][:40]!r} in {text[:60]!r}", remedy)


def _json_object(text: str, origin: Origin) -> dict[str, object]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        found = f"{text[:60]!r} ({error})"
        raise BadRowError(origin, "invalid JSON", found, "Write one JSON object per line") from error
    if not isinstance(row, dict):
        raise BadRowError(origin, "invalid JSON", f"{text[:60]!r} is no object", "Write one JSON object per line")
    return row
