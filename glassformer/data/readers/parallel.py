"""Parallel text: two files whose lines are translations of each other."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from glassformer.data.readers.base import Chunk, Files, Key, OnBadRow, Paths, Source, by_line, decode, find_files
from glassformer.data.records import Origin, Pair, SourceError, checked_text


def read_parallel(
    sources: Paths,
    targets: Paths,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    on_bad_row: OnBadRow = "stop",
) -> Source[Pair]:
    """Aligned files: line n of a source file belongs to line n of its target file.

    Files of unequal length are an error whatever ``on_bad_row`` says: any of their lines may be misaligned.
    """
    ours, theirs = find_files(sources), find_files(targets)
    if len(ours) != len(theirs):
        raise SourceError(
            f"{len(ours)} source files cannot pair with {len(theirs)} target files; name as many of each."
        )
    languages = source_language, target_language
    return Source(lambda by_number: ParallelReader(ours, theirs, languages, by_number), on_bad_row)


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
        """Each row's key, and a function that makes the pair; files of unequal length are an error."""
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
        number, line, *spans = key
        texts = [files.text(number, line, *spans[2 * n : 2 * n + 2]) for n, files in enumerate(self._files)]
        return self._checked(*texts)

    def _pair(self, names: Sequence[str], source: Chunk, target: Chunk) -> Pair:
        origins = [Origin(name, source.line) for name in names]
        texts = [decode(chunk.data, origin) for chunk, origin in zip((source, target), origins, strict=True)]
        return self._checked((texts[0], origins[0]), (texts[1], origins[1]))

    def _checked(self, source: tuple[str, Origin], target: tuple[str, Origin]) -> Pair:
        texts = checked_text(source[0], "the source", source[1]), checked_text(target[0], "the target", target[1])
        return Pair(*texts, *self._languages, source[1])
