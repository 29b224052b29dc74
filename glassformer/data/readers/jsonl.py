"""JSON lines: one object per line."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from glassformer.data.readers.base import Chunk, OnBadRow, Parse, Paths, Source, by_line, from_files, without_blank_end
from glassformer.data.records import BadRowError, Origin, RecordMaker

R = TypeVar("R")


def read_jsonl(paths: Paths, make: RecordMaker[R], *, on_bad_row: OnBadRow = "stop") -> Source[R]:
    """One JSON object per line; ``make`` (AsText, AsPair, …) says which fields the record is made of."""
    return from_files(paths, JsonLines(make), on_bad_row)


@dataclass(frozen=True)
class JsonLines(Generic[R]):
    """A JSON object per line."""

    make: RecordMaker[R]

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """The lines, without blank ones at the end of a file."""
        return without_blank_end(by_line(lines))

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[R]:  # noqa: ARG002
        """Each line is an object with fields."""
        return lambda text, origin: self.make(_json_object(text, origin), origin)


def _json_object(text: str, origin: Origin) -> dict[str, object]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{text[:60]!r} ({error})"
        raise BadRowError(origin, "invalid JSON", problem, "Write one JSON object per line") from error
    if not isinstance(row, dict):
        raise BadRowError(origin, "invalid JSON", f"{text[:60]!r} is no object", "Write one JSON object per line")
    return row
