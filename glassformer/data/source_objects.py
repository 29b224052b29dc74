"""Rows of what is read as a whole: SQuAD's JSON files, and data sets of Hugging Face's ``datasets``."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from glassformer.data.records import Origin, Question
from glassformer.data.source_fields import AsLabelled, AsQuestion, AsTagged, Field, Make
from glassformer.data.source_files import read_lines
from glassformer.data.source_rows import BadRowError, Key, SourceError

R = TypeVar("R")


class SquadReader:
    """Questions of JSON files in SQuAD's form, 1.1 or 2.0. A file is held as a whole while it is read."""

    codes = "Q"

    def __init__(self, files: Sequence[Path], by_number: bool) -> None:
        self._files = files
        self._kept: list[Question | None] | None = [] if by_number else None

    def rows(self) -> Iterator[tuple[Key, Callable[[], Question]]]:
        """Each question's number and its making; the line of its origin is its number within the file, from 1."""
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
            found = f"{question.id!r} has {len(question.answers)} answers and is_impossible {json.dumps(impossible)}"
            raise BadRowError(origin, "answers contradict is_impossible", found, "Add the answers or correct the mark")
        first = seen.setdefault(question.id, origin)
        if first != origin:
            found = f"{question.id!r} is also that of {first}"
            raise BadRowError(origin, "repeated id", found, "Give each question its own")
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


@runtime_checkable
class Table(Protocol):
    """What is used of a ``datasets.Dataset``."""

    column_names: Any

    def __len__(self) -> int:
        """How many rows there are."""

    def __getitem__(self, number: int, /) -> Any:
        """One of them, as a mapping."""


class TableReader(Generic[R]):
    """Rows of a ``datasets.Dataset``; the line of an origin is the number of the row, from 1. Keys: row."""

    codes = "Q"

    def __init__(self, table: Table, make: Make[R], name: str) -> None:
        self._table = table
        self._make = make
        self._name = name

    def rows(self) -> Iterator[tuple[Key, Callable[[], R]]]:
        """Each row's key and its making."""
        for number in range(len(self._table)):
            yield (number,), partial(self.get, (number,))

    def get(self, key: Key) -> R:
        """The row with this key."""
        return self._make(self._table[key[0]], Origin(self._name, key[0] + 1))


def find_table(dataset: object, split: str | None, name: str) -> tuple[Table, str]:
    """A data set and its name, from itself or from several by split; ``name`` is that of all of them."""
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise SourceError(f"{name} has the splits {', '.join(map(str, dataset))}; say split=, got {split!r}.")
        dataset, name = dataset[split], f"{name}[{split}]"
    elif split is not None:
        raise SourceError(f"{name} has no splits, so split={split!r} names none; leave it out.")
    if not isinstance(dataset, Table):
        raise SourceError(
            f"{name} is a {type(dataset).__name__}; expected a datasets.Dataset or DatasetDict, or the folder of one. "
            f"A stream has no row numbers: save it first."
        )
    return dataset, name


def check_columns(table: Table, make: Make[Any], name: str) -> None:
    """Raise unless the data set has the columns that are asked for."""
    columns = [str(column) for column in table.column_names]
    for field in make.fields:
        if field not in columns and str(field).split(".")[0] not in columns:
            raise SourceError(f"{name} has no column {field!r}; its columns are {', '.join(columns)}.")


def with_class_names(make: Make[R], table: Table) -> Make[R]:
    """The same with the names of the classes that the data set knows, unless it has some of its own."""
    if not isinstance(make, AsLabelled | AsTagged) or make.labels is not None:
        return make
    named = replace(make, labels=_class_names(table, make.label if isinstance(make, AsLabelled) else make.tags))
    return cast(Make[R], named)


def _class_names(table: Table, field: Field) -> tuple[str, ...] | None:
    """The names that a column's numbers stand for, or those in its lists; None where they stand for nothing."""
    kind: Any = getattr(table, "features", None) or {}
    for part in [field] if field in kind else str(field).split("."):
        kind = kind.get(part) if isinstance(kind, Mapping) else None
    kind = kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)  # what a list holds
    names = getattr(kind, "names", None)
    return None if names is None else tuple(names)


def load_folder(folder: Path) -> object:
    """The data set, or the several by split, that a folder holds."""
    if not folder.is_dir():
        raise SourceError(f"{folder} is no folder; expected one that a data set was saved to with save_to_disk.")
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise SourceError(
            f"reading {folder} needs the package datasets, which is not installed: pip install datasets."
        ) from error
    try:
        return datasets.load_from_disk(str(folder))
    except FileNotFoundError as error:
        raise SourceError(f"{folder} holds no data set saved with save_to_disk ({error}).") from error
