"""SQuAD files: questions on paragraphs, with the answers' offsets."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.data.readers.base import Key, OnBadRow, Paths, Source, find_files, read_lines
from glassformer.data.records import AsQuestion, BadRowError, Origin, Question, SourceError


def read_squad(paths: Paths, *, on_bad_row: OnBadRow = "stop") -> Source[Question]:
    """Questions in SQuAD's JSON format, 1.1 or 2.0; each answer must be the text at its offset in the context."""
    files = find_files(paths)
    return Source(lambda by_number: SquadReader(files, by_number), on_bad_row)


class SquadReader:
    """Questions of JSON files in SQuAD's format. A file is in memory as a whole while it is read. Keys: question."""

    codes = "Q"

    def __init__(self, files: Sequence[Path], by_number: bool) -> None:
        self._files = files
        self._kept: list[Question | None] | None = [] if by_number else None

    def rows(self) -> Iterator[tuple[Key, Callable[[], Question]]]:
        """Each question's key, and a function that checks it; the line of an origin is its number in the file."""
        number = 0
        seen: dict[str, Origin] = {}
        for file in self._files:
            for count, row in enumerate(_squad_rows(file), start=1):
                if self._kept is not None:
                    self._kept.append(None)
                yield (number,), partial(self._question, number, row, Origin(str(file), count), seen)
                number += 1

    def get(self, key: Key) -> Question:
        """The question with this number."""
        assert self._kept is not None
        question = self._kept[key[0]]
        assert question is not None
        return question

    def _question(self, number: int, row: dict[str, Any], origin: Origin, seen: dict[str, Origin]) -> Question:
        question = AsQuestion()(row, origin)
        impossible = row.get("is_impossible", False)
        if bool(question.answers) == bool(impossible):
            problem = f"{question.id!r} has {len(question.answers)} answers and is_impossible {json.dumps(impossible)}"
            raise BadRowError(
                origin, "answers contradict is_impossible", problem, "Add the answers or correct the mark"
            )
        first = seen.setdefault(question.id, origin)
        if first != origin:
            problem = f"{question.id!r} is also that of {first}"
            raise BadRowError(origin, "repeated id", problem, "Give each question its own")
        if self._kept is not None:
            self._kept[number] = question
        return question


def _squad_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The questions of a file, each with its context."""
    try:
        page = json.loads(b"".join(line.data for line in read_lines(file, file)).decode("utf-8"))
        for article in page["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {**question, "context": paragraph["context"]}
    except UnicodeDecodeError as error:
        raise SourceError(f"{file} is not UTF-8 at byte {error.start}; convert it.") from error
    except json.JSONDecodeError as error:
        raise SourceError(f"{file}:{error.lineno}: invalid JSON ({error.msg}); fetch the file again.") from error
    except (KeyError, TypeError) as error:
        form = "data → paragraphs → context and qas"
        raise SourceError(f"{file} is not in SQuAD's form, {form} ({type(error).__name__}: {error}).") from error
