"""JSON files: JSON lines, with one object per line, and SQuAD's format, with questions about paragraphs."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from glassformer.data.readers.base import (
    Chunk,
    OnBadRow,
    Parse,
    Paths,
    RowKey,
    RowSource,
    by_line,
    find_files,
    from_files,
    read_lines,
    without_blank_end,
)
from glassformer.data.records import AsQuestion, BadRowError, Origin, QuestionRecord, RecordMaker, SourceError

R = TypeVar("R")


def read_jsonl(paths: Paths, make: RecordMaker[R], *, on_bad_row: OnBadRow = "stop") -> RowSource[R]:
    """Return the rows of JSON lines files; ``make`` (AsText, AsPair …) turns the fields of a row into a record."""
    return from_files(paths, JsonLines(make), on_bad_row)


@dataclass(frozen=True)
class JsonLines(Generic[R]):
    """The format with one JSON object per line."""

    make: RecordMaker[R]

    def split(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """Return the lines, without blank ones at the end of a file."""
        return without_blank_end(by_line(lines))

    def begin(self, rows: Iterator[Chunk], file: str) -> Parse[R]:  # noqa: ARG002
        """Return the function that parses a line, an object with fields."""
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


def read_squad(paths: Paths, *, on_bad_row: OnBadRow = "stop") -> RowSource[QuestionRecord]:
    """Return questions in SQuAD's JSON format, 1.1 or 2.0.

    Each answer must be the text at its offset in the context.
    """
    files = find_files(paths)
    return RowSource(lambda by_number: SquadReader(files, by_number), on_bad_row)


class SquadReader:
    """Questions of JSON files in SQuAD's format. A file is in memory as a whole while it is read.

    The key of a row is the number of the question, counted over all files. With ``by_number`` all questions are kept in
    memory, for ``get``.
    """

    key_typecodes = "Q"

    def __init__(self, files: Sequence[Path], by_number: bool) -> None:
        self._files = files
        self._kept: list[QuestionRecord | None] | None = [] if by_number else None

    def rows(self) -> Iterator[tuple[RowKey, Callable[[], QuestionRecord]]]:
        """Yield each question's key, and a function that checks it.

        ``Origin.line`` is the question's number in the file.
        """
        number = 0
        seen: dict[str, Origin] = {}
        for file in self._files:
            for count, row in enumerate(_squad_rows(file), start=1):
                if self._kept is not None:
                    self._kept.append(None)
                yield (number,), partial(self._question, number, row, Origin(str(file), count), seen)
                number += 1

    def get(self, key: RowKey) -> QuestionRecord:
        """Return the question with this number."""
        assert self._kept is not None
        question = self._kept[key[0]]
        assert question is not None
        return question

    def _question(self, number: int, row: dict[str, Any], origin: Origin, seen: dict[str, Origin]) -> QuestionRecord:
        question = AsQuestion()(row, origin)
        impossible = row.get("is_impossible", False)
        if bool(question.answers) == bool(impossible):
            problem = f"{question.id!r} has {len(question.answers)} answers and is_impossible {json.dumps(impossible)}"
            raise BadRowError(
                origin, "answers contradict is_impossible", problem, "Add the answers or correct is_impossible"
            )
        first = seen.setdefault(question.id, origin)
        if first != origin:
            problem = f"{question.id!r} is also that of {first}"
            raise BadRowError(origin, "repeated id", problem, "Give each question its own")
        if self._kept is not None:
            self._kept[number] = question
        return question


def _squad_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the questions of a file, each with its context."""
    try:
        page = json.loads(b"".join(line.data for line in read_lines(file, file)).decode("utf-8"))
        for article in page["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {**question, "context": paragraph["context"]}
    except UnicodeDecodeError as error:
        raise SourceError(f"{file} is not UTF-8 at byte {error.start}; convert it.") from error
    except json.JSONDecodeError as error:
        raise SourceError(f"{file}:{error.lineno}: invalid JSON ({error.msg}); download the file again.") from error
    except RecursionError as error:
        raise SourceError(f"{file}: its JSON is nested too deeply to be read; download the file again.") from error
    except (KeyError, TypeError) as error:
        form = "data → paragraphs → context and qas"
        raise SourceError(f"{file} is not in SQuAD's form, {form} ({type(error).__name__}: {error}).") from error
