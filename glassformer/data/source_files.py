"""Files as bytes: which files, their lines, and how lines make up rows. Every piece knows its line and its place.

Nothing is decoded here: a row that is not UTF-8 must not spoil its neighbours.
"""

import glob
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from glassformer.data.records import Origin
from glassformer.data.source_rows import BadRowError, SourceError

PathLike: TypeAlias = str | Path
Paths: TypeAlias = PathLike | Sequence[PathLike]
_BOM = b"\xef\xbb\xbf"
_LONGEST_QUOTED_ROW = 2**20  # a quote that is not closed within so many bytes is taken for a slip


class Chunk(NamedTuple):
    """Bytes of a file: ``data`` is what stands from byte ``start`` on; ``line`` is its first line, from 1."""

    line: int
    start: int
    data: bytes


Split: TypeAlias = Callable[[Iterable[Chunk]], Iterator[Chunk]]


def find_files(paths: Paths) -> list[Path]:
    """The files that are meant, each once: a file, a folder (the files in it), a pattern with ``*``, or several."""
    found: list[Path] = []
    for one in [paths] if isinstance(paths, str | Path) else paths:
        place = Path(one)
        if place.is_dir():
            these = [path for path in place.iterdir() if path.is_file() and not path.name.startswith(".")]
        elif place.is_file():
            these = [place]
        else:
            these = [Path(name) for name in glob.glob(str(one), recursive=True) if Path(name).is_file()]
        if not these:
            raise SourceError(f"{one} is no file, and no folder or pattern with files, seen from {Path.cwd()}.")
        found += sorted(these)
    if not found:
        raise SourceError("no file is named; give a file, a folder, a pattern such as data/*.txt, or a list of these.")
    twice = [path for path, count in Counter(path.resolve() for path in found).items() if count > 1]
    if twice:
        raise SourceError(f"{twice[0]} is named twice, so its rows would count twice; name each file once.")
    return found


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed; its first bytes say so, and a name that says otherwise is an error."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    if path.suffix == ".gz" and not compressed:
        raise SourceError(f"{path} is named .gz but is not a gzip file; rename it, or fetch it again.")
    return compressed


def read_lines(path: Path, name: Path) -> Iterator[Chunk]:
    """The lines of a file, compressed or not, each with its line end; errors call the file ``name``."""
    number = start = 0
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                bom = len(_BOM) if number == 1 and data.startswith(_BOM) else 0
                if len(data) > bom:
                    yield Chunk(number, start + bom, data[bom:])
                start += len(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SourceError(
            f"{name}: the compressed file is damaged after line {number} ({error}); fetch it again."
        ) from error


def decode(data: bytes, origin: Origin) -> str:
    """Bytes of a row as text with ``\\n`` at line ends; what is not UTF-8 is a bad row."""
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        place = Origin(origin.file, origin.line + data.count(b"\n", 0, error.start))
        found = f"byte 0x{data[error.start]:02x} after {data[: error.start][-20:]!r}"
        raise BadRowError(place, "invalid UTF-8", found, "Convert the file to UTF-8") from error


def by_line(lines: Iterable[Chunk]) -> Iterator[Chunk]:
    """Each line is a row."""
    for line in lines:
        yield Chunk(line.line, line.start, _without_end(line.data))


def without_blank_end(rows: Iterable[Chunk], separator: str = "") -> Iterator[Chunk]:
    """The rows of a file but for blank ones behind the last that is not; one with a separator has empty cells."""
    blank = b" \t\r\n".replace(separator.encode(), b"")
    held: list[Chunk] = []
    for row in rows:
        held.append(row)
        if row.data.strip(blank):
            yield from held
            held = []


def by_blank_line(lines: Iterable[Chunk], ignored: tuple[bytes, ...] = ()) -> Iterator[Chunk]:
    """Lines up to a blank one are a row; several blank lines are as good as one.

    A row needs at least one line that does not begin with one of ``ignored``; its bytes hold them all.
    """
    held: list[Chunk] = []
    worth = False
    for line in lines:
        if line.data.strip():
            held.append(line)
            worth = worth or not line.data.startswith(ignored)
            continue
        if worth:
            yield _joined(held)
        held, worth = [], False
    if worth:
        yield _joined(held)


def by_marker(lines: Iterable[Chunk], marker: bytes) -> Iterator[Chunk]:
    """What stands between two markers is a row, without the line ends around it.

    A marker at the very beginning or end of a file has no row before or after it.
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
    yield _joined(held) if held else Chunk(1, 0, b"")


def quoted_cell(separator: str) -> str:
    """A pattern for one column: in quotes, with each quote inside doubled, or without any quote."""
    return rf'(?:"(?:[^"]|"")*+"|[^"{re.escape(separator)}]*+)'


def by_quoted_row(lines: Iterable[Chunk], separator: str) -> Iterator[Chunk]:
    """A row ends with its line unless a quoted column is still open there.

    Lines that make no row together, for a quote that was a slip, are not taken together: the first is a (bad) row by
    itself, and reading goes on after it.
    """
    cell, mark = quoted_cell(separator), re.escape(separator)
    is_row = re.compile(rf"(?:{cell}{mark})*+{cell}").fullmatch
    is_open = re.compile(rf'(?:{cell}{mark})*+"(?:[^"]|"")*+').fullmatch
    stream, waiting = iter(lines), list[Chunk]()
    while (line := waiting.pop() if waiting else next(stream, None)) is not None:
        held = [line]
        text = _without_end(line.data).decode("utf-8", "replace")
        while is_open(text) and line.start - held[0].start < _LONGEST_QUOTED_ROW:
            line = waiting.pop() if waiting else next(stream, None)
            if line is None:
                break
            held.append(line)
            text = '"' + _without_end(line.data).decode("utf-8", "replace")  # what was open still is
        if len(held) > 1 and not is_row(_joined(held).data.decode("utf-8", "replace")):
            waiting += held[:0:-1]  # the last of the list is the next to come
            del held[1:]
        yield _joined(held)


def _joined(lines: Sequence[Chunk]) -> Chunk:
    return Chunk(lines[0].line, lines[0].start, _without_end(b"".join(line.data for line in lines)))


def _trimmed(lines: Sequence[Chunk]) -> Chunk:
    data = b"".join(line.data for line in lines)
    kept = data.lstrip(b"\r\n")
    before = len(data) - len(kept)
    return Chunk(lines[0].line + data.count(b"\n", 0, before), lines[0].start + before, kept.rstrip(b"\r\n"))


def _without_end(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")
