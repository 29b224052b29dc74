"""Plain text: a document per line, per paragraph, between markers, or per file; and two files with aligned lines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from glassformer.config.checks import Setting, check_choice
from glassformer.data.readers.base import (
    Chunk,
    Files,
    OnBadRow,
    Parse,
    Paths,
    RowKey,
    RowSource,
    by_blank_line,
    by_line,
    decode,
    find_files,
    from_files,
    join_lines,
)
from glassformer.data.records import Origin, PairRecord, SourceError, TextRecord, checked_text

DocumentSplit = Literal["line", "blank line", "marker", "file"]


def read_text(
    paths: Paths, *, documents: DocumentSplit, marker: str | None = None, on_bad_row: OnBadRow = "stop"
) -> RowSource[TextRecord]:
    """Return plain text. ``documents`` says what ends a document: its line, a blank line, a ``marker``, or the file.

    Line ends around a marker belong to the marker, not to the documents.
    """
    check_choice("documents", documents, ("line", "blank line", "marker", "file"))
    if (documents == "marker") != bool(marker):
        raise SourceError(
            "{} goes with {}; got {} and {}.",
            Setting("marker", external_name="data.marker"),
            Setting("documents", "marker", external_name="data.documents"),
            Setting("documents", documents, external_name="data.documents"),
            Setting("marker", marker, external_name="data.marker"),
        )
    splits = {"line": by_line, "blank line": by_blank_line, "file": whole}
    split_lines = partial(by_marker, marker=marker.encode()) if marker else splits[documents]
    return from_files(paths, PlainText(split_lines), on_bad_row)


@dataclass(frozen=True)
class PlainText:
    """Documents, separated by ``split_lines``."""

    split_lines: Callable[[Iterable[Chunk]], Iterator[Chunk]]

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """Return the documents."""
        return self.split_lines(lines)

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[TextRecord]:  # noqa: ARG002
        """Return the function that makes a TextRecord of a document."""
        return lambda text, origin: TextRecord(checked_text(text, "the document", origin), origin)


def by_marker(lines: Iterable[Chunk], marker: bytes) -> Iterator[Chunk]:
    """Make a row of the text between two markers, without the line ends around it.

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
    """Make the file one row."""
    held = list(lines)
    yield join_lines(held) if held else Chunk(1, 0, b"")


def _trimmed(lines: Sequence[Chunk]) -> Chunk:
    """Return lines as one row, without line ends at its beginning and end."""
    data = b"".join(line.data for line in lines)
    kept = data.lstrip(b"\r\n")
    before = len(data) - len(kept)
    return Chunk(lines[0].line + data.count(b"\n", 0, before), lines[0].start + before, kept.rstrip(b"\r\n"))


def read_parallel(
    sources: Paths,
    targets: Paths,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    on_bad_row: OnBadRow = "stop",
) -> RowSource[PairRecord]:
    """Return aligned files: line n of a source file belongs to line n of its target file.

    Files of unequal length are an error whatever ``on_bad_row`` says: any of their lines may be misaligned.
    """
    source_files, target_files = find_files(sources), find_files(targets)
    if len(source_files) != len(target_files):
        raise SourceError(
            f"{len(source_files)} source files cannot pair with {len(target_files)} target files; name one target "
            f"file per source file."
        )
    languages = source_language, target_language
    return RowSource(lambda by_number: ParallelReader(source_files, target_files, languages, by_number), on_bad_row)


class ParallelReader:
    """Line n of one file belongs to line n of the other. Keys: file, line, then start and size in each."""

    key_typecodes = "IQQIQI"

    def __init__(
        self,
        sources: Sequence[Path],
        targets: Sequence[Path],
        languages: tuple[str | None, str | None],
        by_number: bool,
    ) -> None:
        self._files = Files(sources, by_number), Files(targets, by_number)
        self._languages = languages

    def rows(self) -> Iterator[tuple[RowKey, Callable[[], PairRecord]]]:
        """Yield each row's key, and a function that makes the pair; files of unequal length are an error."""
        for number in range(len(self._files[0].names)):
            sides = [by_line(files.lines(number)) for files in self._files]
            names = [str(files.names[number]) for files in self._files]
            line = 0
            while True:
                # The next line of each file; both must end together.
                chunks = [next(side, None) for side in sides]
                source, target = chunks
                if source is None and target is None:
                    break
                if source is None or target is None:
                    ended, longer = names if source is None else names[::-1]
                    raise SourceError(
                        f"{ended} ends after line {line} but {longer} goes on with line {line + 1}; the two must have "
                        f"the same number of lines, each the translation of the other's."
                    )
                line = source.line
                key = (number, line, source.start, len(source.data), target.start, len(target.data))
                yield key, partial(self._pair, names, source, target)

    def get(self, key: RowKey) -> PairRecord:
        """Return the row with this key."""
        number, line, *spans = key
        texts = [files.text(number, line, *spans[2 * n : 2 * n + 2]) for n, files in enumerate(self._files)]
        return self._checked(*texts)

    def _pair(self, names: Sequence[str], source: Chunk, target: Chunk) -> PairRecord:
        origins = [Origin(name, source.line) for name in names]
        texts = [decode(chunk.data, origin) for chunk, origin in zip((source, target), origins, strict=True)]
        return self._checked((texts[0], origins[0]), (texts[1], origins[1]))

    def _checked(self, source: tuple[str, Origin], target: tuple[str, Origin]) -> PairRecord:
        texts = checked_text(source[0], "the source", source[1]), checked_text(target[0], "the target", target[1])
        return PairRecord(*texts, *self._languages, source[1])
