"""Walking through files of a format, and fetching any row of them again."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from glassformer.data.records import Origin, Pair
from glassformer.data.source_fields import checked_text
from glassformer.data.source_files import Chunk, by_line, decode, is_gzip, read_lines
from glassformer.data.source_formats import Format, Parse
from glassformer.data.source_rows import Key, SourceError

R = TypeVar("R")


class Files:
    """Bytes at any place of files; ``by_number`` unpacks compressed ones into a temporary folder first."""

    def __init__(self, files: Sequence[Path], by_number: bool) -> None:
        self.names = files
        self.places = list(files)
        if by_number and any(map(is_gzip, files)):
            folder = tempfile.mkdtemp(prefix="glassformer-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # it goes when this object does
            for number, path in enumerate(files):
                if is_gzip(path):
                    self.places[number] = _unpacked(path, Path(folder, str(number)))
        self._stamps = [_stamp(path) for path in self.places]

    def lines(self, number: int) -> Iterator[Chunk]:
        """The lines of one file."""
        return read_lines(self.places[number], self.names[number])

    def text(self, number: int, line: int, start: int, size: int) -> tuple[str, Origin]:
        """The text of a row, and where it stands; a file that has changed since is an error."""
        with self.places[number].open("rb") as file:  # opened anew each time: nothing is shared between threads
            file.seek(start)
            data = file.read(size)
        if _stamp(self.places[number]) != self._stamps[number]:
            raise SourceError(f"{self.names[number]} has changed since it was indexed; index it again.")
        origin = Origin(str(self.names[number]), line)
        return decode(data, origin), origin


class FileReader(Generic[R]):
    """Rows of files, one file after the other. Keys: file, line, start, size."""

    codes = "IQQI"

    def __init__(self, files: Sequence[Path], kind: Format[R], by_number: bool) -> None:
        self._files = Files(files, by_number)
        self._kind = kind
        self._parse: list[Parse[R]] = []

    def rows(self) -> Iterator[tuple[Key, Callable[[], R]]]:
        """Each row's key and its making."""
        for number, name in enumerate(self._files.names):
            chunks = self._kind.split(self._files.lines(number))
            parse = self._kind.begin(chunks, str(name))
            self._parse.append(parse)
            for chunk in chunks:
                yield (number, chunk.line, chunk.start, len(chunk.data)), partial(_make, parse, chunk, str(name))

    def get(self, key: Key) -> R:
        """The row with this key."""
        number, line, start, size = key
        return self._parse[number](*self._files.text(number, line, start, size))


class ParallelReader:
    """Line n of one file belongs to line n of the other. Keys: file, line, then start and size in each."""

    codes = "IQQIQI"

    def __init__(
        self,
        sources: Sequence[Path],
        targets: Sequence[Path],
        languages: tuple[str | None, str | None],
        by_number: bool,
    ) -> None:
        self._files = Files(sources, by_number), Files(targets, by_number)
        self._languages = languages

    def rows(self) -> Iterator[tuple[Key, Callable[[], Pair]]]:
        """Each row's key and its making; files of unequal length are an error: any line may be displaced."""
        for number in range(len(self._files[0].names)):
            sides = [by_line(files.lines(number)) for files in self._files]
            names = [str(files.names[number]) for files in self._files]
            line = 0
            while True:
                chunks = [next(side, None) for side in sides]
                source, target = chunks
                if source is None and target is None:
                    break
                if source is None or target is None:
                    ended, longer = names if source is None else names[::-1]
                    raise SourceError(
                        f"{ended} ends after line {line} but {longer} goes on with line {line + 1}; the two must have "
                        f"as many lines, each the translation of the other's."
                    )
                line = source.line
                key = (number, line, source.start, len(source.data), target.start, len(target.data))
                yield key, partial(self._pair, names, source, target)

    def get(self, key: Key) -> Pair:
        """The row with this key."""
        number, line, *places = key
        texts = [files.text(number, line, *places[2 * n : 2 * n + 2]) for n, files in enumerate(self._files)]
        return self._checked(*texts)

    def _pair(self, names: Sequence[str], source: Chunk, target: Chunk) -> Pair:
        origins = [Origin(name, source.line) for name in names]
        texts = [decode(chunk.data, origin) for chunk, origin in zip((source, target), origins, strict=True)]
        return self._checked((texts[0], origins[0]), (texts[1], origins[1]))

    def _checked(self, source: tuple[str, Origin], target: tuple[str, Origin]) -> Pair:
        texts = checked_text(source[0], "the source", source[1]), checked_text(target[0], "the target", target[1])
        return Pair(*texts, *self._languages, source[1])


def _make(parse: Parse[R], chunk: Chunk, file: str) -> R:
    origin = Origin(file, chunk.line)
    return parse(decode(chunk.data, origin), origin)


def _unpacked(path: Path, target: Path) -> Path:
    with target.open("wb") as plain:
        plain.writelines(line.data for line in read_lines(path, path))
    return target


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
