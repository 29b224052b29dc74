"""Plain text: a document per line, per paragraph, between markers, or per file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from glassformer.config.checks import check_choice
from glassformer.data.readers.base import (
    Chunk,
    OnBadRow,
    Parse,
    Paths,
    Source,
    by_blank_line,
    by_line,
    from_files,
    join_lines,
)
from glassformer.data.records import SourceError, Text, checked_text

Documents = Literal["line", "blank line", "marker", "file"]


def read_text(
    paths: Paths, *, documents: Documents, marker: str | None = None, on_bad_row: OnBadRow = "stop"
) -> Source[Text]:
    """Plain text. ``documents`` says what ends a document: its line, a blank line, a ``marker``, or the file.

    Line ends around a marker belong to the marker, not to the documents.
    """
    check_choice("documents", documents, ("line", "blank line", "marker", "file"))
    if (documents == "marker") != bool(marker):
        raise SourceError(f'marker= goes with documents="marker"; got documents={documents!r}, marker={marker!r}.')
    splits = {"line": by_line, "blank line": by_blank_line, "file": whole}
    split_lines = partial(by_marker, marker=marker.encode()) if marker else splits[documents]
    return from_files(paths, PlainText(split_lines), on_bad_row)


@dataclass(frozen=True)
class PlainText:
    """Documents, separated by ``split_lines``."""

    split_lines: Callable[[Iterable[Chunk]], Iterator[Chunk]]

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """The documents."""
        return self.split_lines(lines)

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[Text]:  # noqa: ARG002
        """Each document is a Text."""
        return lambda text, origin: Text(checked_text(text, "the document", origin), origin)


def by_marker(lines: Iterable[Chunk], marker: bytes) -> Iterator[Chunk]:
    """The text between two markers is a row, without the line ends around it.

    A marker at the beginning or end of a file has no row before or after it.
    """
    held: list[Chunk] = []
    first = True
    for line in lines:
        rest = line
        while (cut := rest.data.find(marker)) >= 0:
            row = _trimmed([*held, Chunk(rest.line, rest.start, rest.data[:cut])])
            if row.data or not first:
                yield row
            held, first = [], False
            after = cut + len(marker)
            rest = Chunk(rest.line, rest.start + after, rest.data[after:])
        held.append(rest)
    if held and (row := _trimmed(held)).data:
        yield row


def whole(lines: Iterable[Chunk]) -> Iterator[Chunk]:
    """The file is one row."""
    held = list(lines)
    yield join_lines(held) if held else Chunk(1, 0, b"")


def _trimmed(lines: Sequence[Chunk]) -> Chunk:
    """Lines as one row, without line ends at its beginning and end."""
    data = b"".join(line.data for line in lines)
    kept = data.lstrip(b"\r\n")
    before = len(data) - len(kept)
    return Chunk(lines[0].line + data.count(b"\n", 0, before), lines[0].start + before, kept.rstrip(b"\r\n"))
