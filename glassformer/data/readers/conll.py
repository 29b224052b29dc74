"""CoNLL files: a word and its tag per line, a blank line after each sentence."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from glassformer.data.readers.base import Chunk, OnBadRow, Parse, Paths, RowSource, by_blank_line, from_files
from glassformer.data.records import BadRowError, Origin, SourceError, TaggedRecord


def read_conll(
    paths: Paths,
    *,
    words: int = 0,
    tags: int = -1,
    separator: str | None = "\t",
    prefix: str = "",
    ignored: tuple[str, ...] = (),
    on_bad_row: OnBadRow = "stop",
) -> RowSource[TaggedRecord]:
    """Return tagged words, one per line, a blank line after each sentence.

    ``words`` and ``tags`` are column numbers from 0 (−1: the last), ``separator=None`` is any white space. ``prefix``
    (``en:``) is removed from each word; lines that begin with one of ``ignored`` (``#``, ``-DOCSTART-``) are skipped.
    """
    if separator == "":
        raise SourceError("separator must be a text between columns, or None for any white space; got ''.")
    return from_files(paths, Conll(words, tags, separator, prefix, tuple(ignored)), on_bad_row)


@dataclass(frozen=True)
class Conll:
    """A word and its tag per line, a blank line after each sentence; lines that begin with ``ignored`` are skipped."""

    words: int
    tags: int
    separator: str | None
    prefix: str
    ignored: tuple[str, ...]

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """Return the sentences."""
        return by_blank_line(lines, tuple(mark.encode() for mark in self.ignored))

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[TaggedRecord]:  # noqa: ARG002
        """Return the function that parses a row into a tagged sentence."""
        return self._sentence

    def _sentence(self, text: str, origin: Origin) -> TaggedRecord:
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
                tag = ""  # both are the same column: an error
            if not word.startswith(self.prefix) or len(word) == len(self.prefix) or not tag:
                raise self._error(line, cells, Origin(origin.file, number))
            words.append(word.removeprefix(self.prefix))
            tags.append(tag)
        return TaggedRecord(tuple(words), tuple(tags), origin)

    def _error(self, line: str, cells: list[str], origin: Origin) -> BadRowError:
        problem = f"{len(cells)} columns in {line[:60]!r}; the word is column {self.words}, the tag {self.tags}"
        is_same = self.words % len(cells) == self.tags % len(cells)
        if is_same or not all(-len(cells) <= column < len(cells) for column in (self.words, self.tags)):
            remedy = "Correct the line, or the separator and the numbers of the columns"
            return BadRowError(origin, "wrong number of columns", problem, remedy)
        if not cells[self.words].startswith(self.prefix):
            remedy = f"Correct the word, or the prefix {self.prefix!r} that is to be taken off"
            return BadRowError(origin, "missing prefix", f"{cells[self.words]!r}", remedy)
        return BadRowError(origin, "empty text", problem, "Fill in the word and its tag")
