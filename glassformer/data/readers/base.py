"""What all readers share: files and their lines, rows one after the other or by number, and what happens to bad rows.

``read_lines`` yields the lines of a file as bytes; a ``Format`` (a class in one of the modules beside this one) groups
them into rows and parses each row into a record of ``data.records``. ``RowSource`` iterates over the rows and keeps
nothing. ``RowSource.index`` reads all files once and returns an ``Indexed``, which stores where each good row is and
reads any of them again by its number.

Files are split into rows as bytes, and each row is decoded by itself, so that a row that is not UTF-8 does not affect
the others.
"""

import glob
import gzip
import hashlib
import shutil
import tempfile
import weakref
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from glassformer.config.checks import check_choice
from glassformer.data.records import BadRowError, Origin, SourceError

OnBadRow = Literal["stop", "skip"]
RowKey = tuple[int, ...]  # where its reader finds a row again, such as (file, line, first byte, size)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
PathLike: TypeAlias = str | Path
Paths: TypeAlias = PathLike | Sequence[PathLike]
Parse: TypeAlias = Callable[[str, Origin], R]
_BOM = b"\xef\xbb\xbf"
_KEPT_MESSAGES = 5  # of bad rows, in ``RowStats``


@dataclass
class RowStats:
    """How many rows were read, how many were skipped by reason, and the messages of the first skipped rows."""

    good: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def count(self, error: BadRowError) -> None:
        """Count a row that is skipped."""
        self.bad[error.reason] += 1
        if len(self.first) < _KEPT_MESSAGES:
            self.first.append(f"{error.detail}.")

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in self.bad.most_common())
        skipped = f"; left out {self.bad.total():,}: {reasons}" if self.bad else ""
        return "\n  ".join([f"{self.good:,} rows{skipped}", *self.first])


@runtime_checkable
class Reader(Protocol[R_co]):
    """Reads files once from start to end, and afterwards any row of them again."""

    key_typecodes: str  # the type code (see ``array.array``) of each number of a key

    def rows(self) -> Iterator[tuple[RowKey, Callable[[], R_co]]]:
        """Return each row's key, and a function that returns the record or raises BadRowError."""

    def get(self, key: RowKey) -> R_co:
        """Return the row with this key; several threads may call this at once."""


class RowSource(Generic[R]):
    """An iterable over rows in the order of the files; each iteration reads the files again.

    ``open_reader(by_number)`` starts a pass over the files; ``stats`` counts the rows of the latest pass. A bad row
    raises BadRowError, or is counted and skipped with ``on_bad_row="skip"``.
    """

    def __init__(self, open_reader: Callable[[bool], Reader[R]], on_bad_row: OnBadRow = "stop") -> None:
        check_choice("on_bad_row", on_bad_row, ("stop", "skip"))
        self._open = open_reader
        self._skips = on_bad_row == "skip"
        self.stats = RowStats()

    def __iter__(self) -> Iterator[R]:
        for _, row in self._read(self._open(False)):
            yield row

    def index(self, limit: int | None = None) -> "Indexed[R]":
        """Read all rows once and remember the position of each valid one: about 24 bytes per row, however long it is.

        Reading stops after ``limit`` valid rows, if it is set; later rows are not checked.
        """
        reader = self._open(True)
        columns = [array(code) for code in reader.key_typecodes]
        digest = hashlib.sha256()
        for key, row in islice(self._read(reader), limit):
            digest.update(ascii(row).encode())  # repr depends on Python's table of printable characters
            for column, value in zip(columns, key, strict=True):
                column.append(value)
        return Indexed(reader, columns, digest.hexdigest(), self.stats)

    def _read(self, reader: Reader[R]) -> Iterator[tuple[RowKey, R]]:
        stats = self.stats = RowStats()
        for key, make in reader.rows():
            try:
                row = make()
            except BadRowError as error:
                if not self._skips:
                    raise
                stats.count(error)
                continue
            stats.good += 1
            yield key, row


class Indexed(Generic[R]):
    """Rows by number, read from their files on access.

    ``fingerprint`` is a SHA-256 of the records, independent of file names; ``stats`` counts the skipped rows.
    """

    def __init__(self, reader: Reader[R], columns: "list[array[int]]", fingerprint: str, stats: RowStats) -> None:
        self._reader = reader
        self._columns = columns
        self.fingerprint = fingerprint
        self.stats = stats

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, number: int) -> R:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self):,} rows, numbered from 0; got {number}.")
        return self._reader.get(tuple(column[number] for column in self._columns))

    def __iter__(self) -> Iterator[R]:
        return (self[number] for number in range(len(self)))


class Chunk(NamedTuple):
    """Consecutive bytes of a file, from byte ``start`` on; ``line`` is the number of their first line, from 1."""

    line: int
    start: int
    data: bytes


def find_files(paths: Paths) -> list[Path]:
    """Return all files that ``paths`` names, each once: a file, a folder (its files), a glob pattern, or several."""
    files: list[Path] = []
    for name in [paths] if isinstance(paths, str | Path) else paths:
        # A folder, a file or a glob pattern.
        path = Path(name)
        if path.is_dir():
            matches = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
        elif path.is_file():
            matches = [path]
        else:
            matches = [Path(file) for file in glob.glob(str(name), recursive=True) if Path(file).is_file()]
        if not matches:
            raise SourceError(f"{name}: no such file, and no folder or pattern with files (relative to {Path.cwd()}).")
        files += sorted(matches)
    if not files:
        raise SourceError("no file is named; give a file, a folder, a pattern such as data/*.txt, or a list of these.")
    # A file that is named twice would count twice.
    twice = [path for path, count in Counter(path.resolve() for path in files).items() if count > 1]
    if twice:
        raise SourceError(f"{twice[0]} is named twice, so its rows would count twice; name each file once.")
    return files


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed, by its first bytes; raise if a file named .gz is not."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    if path.suffix == ".gz" and not compressed:
        raise SourceError(f"{path} is named .gz but is not a gzip file; rename it, or download it again.")
    return compressed


def read_lines(path: Path, name: Path) -> Iterator[Chunk]:
    """Yield the lines of a file, compressed or not, each with its line end; errors name the file ``name``."""
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
            f"{name}: the compressed file is damaged after line {number} ({error}); download it again."
        ) from error


def decode(data: bytes, origin: Origin) -> str:
    """Return the bytes of a row as text with ``\\n`` as line end; a row that is not UTF-8 is a bad row."""
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = Origin(origin.file, origin.line + data.count(b"\n", 0, error.start))
        problem = f"byte 0x{data[error.start]:02x} after {data[: error.start][-20:]!r}"
        raise BadRowError(line, "invalid UTF-8", problem, "Convert the file to UTF-8") from error


def by_line(lines: Iterable[Chunk]) -> Iterator[Chunk]:
    """Make each line a row."""
    for line in lines:
        yield Chunk(line.line, line.start, strip_line_end(line.data))


def without_blank_end(rows: Iterable[Chunk], separator: str = "") -> Iterator[Chunk]:
    """Yield the rows of a file without blank rows at its end.

    A row of separators has empty columns and is not blank.
    """
    blank = b" \t\r\n".replace(separator.encode(), b"")
    held: list[Chunk] = []
    for row in rows:
        held.append(row)
        if row.data.strip(blank):
            yield from held
            held = []


def by_blank_line(lines: Iterable[Chunk], ignored: tuple[bytes, ...] = ()) -> Iterator[Chunk]:
    """Make a row of the lines up to a blank line; several blank lines count as one.

    Lines that begin with one of ``ignored`` stay in the row, but a row needs at least one other line.
    """
    held: list[Chunk] = []
    has_content = False
    for line in lines:
        if line.data.strip():
            held.append(line)
            has_content = has_content or not line.data.startswith(ignored)
            continue
        if has_content:
            yield join_lines(held)
        held, has_content = [], False
    if has_content:
        yield join_lines(held)


def join_lines(lines: Sequence[Chunk]) -> Chunk:
    """Return lines as one row, without the last line end."""
    return Chunk(lines[0].line, lines[0].start, strip_line_end(b"".join(line.data for line in lines)))


def strip_line_end(data: bytes) -> bytes:
    """Return a line without its line end."""
    return data.removesuffix(b"\n").removesuffix(b"\r")


@runtime_checkable
class Format(Protocol[R_co]):
    """How a file is split into rows, and how a row is parsed."""

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """Return the rows of a file, a header included."""

    def begin(self, rows: Iterator[Chunk], file: str) -> Callable[[str, Origin], R_co]:
        """Return the function that parses the rows of this file; consumes the header from ``rows`` if there is one."""


class Files:
    """Files that can be read from any byte; with ``by_number`` compressed files are unpacked to a temporary folder."""

    def __init__(self, files: Sequence[Path], by_number: bool) -> None:
        self.names = files
        self.paths = list(files)
        if by_number and any(map(is_gzip, files)):
            folder = tempfile.mkdtemp(prefix="glassformer-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # removed with this object
            for number, path in enumerate(files):
                if is_gzip(path):
                    self.paths[number] = _unpacked(path, Path(folder, str(number)))
        self._stamps = [_stamp(path) for path in self.paths]

    def lines(self, number: int) -> Iterator[Chunk]:
        """Return the lines of one file."""
        return read_lines(self.paths[number], self.names[number])

    def text(self, number: int, line: int, start: int, size: int) -> tuple[str, Origin]:
        """Return the text of a row and its origin; raise if the file has changed since it was opened."""
        with self.paths[number].open("rb") as file:  # opened each time: threads share no file position
            file.seek(start)
            data = file.read(size)
        if _stamp(self.paths[number]) != self._stamps[number]:
            raise SourceError(f"{self.names[number]} has changed since it was indexed; index it again.")
        origin = Origin(str(self.names[number]), line)
        return decode(data, origin), origin


class FileReader(Generic[R]):
    """Rows of files, one file after the other. Keys: file, line, start, size."""

    key_typecodes = "IQQI"

    def __init__(self, files: Sequence[Path], file_format: Format[R], by_number: bool) -> None:
        self._files = Files(files, by_number)
        self._format = file_format
        self._parse: list[Parse[R]] = []

    def rows(self) -> Iterator[tuple[RowKey, Callable[[], R]]]:
        """Yield each row's key, and a function that parses it."""
        for number, name in enumerate(self._files.names):
            chunks = self._format.split(self._files.lines(number))
            parse = self._format.begin(chunks, str(name))
            self._parse.append(parse)
            for chunk in chunks:
                yield (number, chunk.line, chunk.start, len(chunk.data)), partial(_parse_chunk, parse, chunk, str(name))

    def get(self, key: RowKey) -> R:
        """Return the row with this key."""
        number, line, start, size = key
        return self._parse[number](*self._files.text(number, line, start, size))


def _parse_chunk(parse: Parse[R], chunk: Chunk, file: str) -> R:
    origin = Origin(file, chunk.line)
    return parse(decode(chunk.data, origin), origin)


def _unpacked(path: Path, target: Path) -> Path:
    with target.open("wb") as plain:
        plain.writelines(line.data for line in read_lines(path, path))
    return target


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def from_files(paths: Paths, file_format: Format[R], on_bad_row: OnBadRow) -> RowSource[R]:
    """Return a source of the rows of files of one format."""
    files = find_files(paths)
    return RowSource(lambda by_number: FileReader(files, file_format, by_number), on_bad_row)
