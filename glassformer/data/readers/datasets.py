"""Data sets of Hugging Face's ``datasets``."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from glassformer.config.checks import Setting
from glassformer.data.readers.base import OnBadRow, RowKey, RowSource
from glassformer.data.records import AsLabelled, AsTagged, Field, Origin, RecordMaker, SourceError, no_column

R = TypeVar("R")


def read_dataset(
    dataset: object | str | Path,
    make: RecordMaker[R],
    *,
    split: str | None = None,
    name: str = "dataset",
    on_bad_row: OnBadRow = "stop",
) -> RowSource[R]:
    """Return a ``Dataset`` of Hugging Face's ``datasets``, one ``split`` of a ``DatasetDict``, or a folder of either.

    ``make`` (AsText, AsPair, …) names the columns; numbered classes get the names that the data set has for them.
    ``name`` is the file name in the origins of rows if the data set is not a folder.
    """
    if isinstance(dataset, str | Path):
        dataset, name = load_folder(Path(dataset)), str(dataset)
    table, name = find_table(dataset, split, name)
    check_columns(table, make, name)
    named_make = with_class_names(make, table)

    def open_reader(by_number: bool) -> TableReader[R]:  # noqa: ARG001
        return TableReader(table, named_make, name)

    return RowSource(open_reader, on_bad_row)


@runtime_checkable
class Table(Protocol):
    """The interface of ``datasets.Dataset`` that is used here."""

    column_names: Any

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, number: int, /) -> Any:
        """Return one row, as a mapping."""


class TableReader(Generic[R]):
    """Rows of a ``datasets.Dataset``; the line of an origin is the number of the row, from 1. Keys: row."""

    key_typecodes = "Q"

    def __init__(self, table: Table, make: RecordMaker[R], name: str) -> None:
        self._table = table
        self._make = make
        self._name = name

    def rows(self) -> Iterator[tuple[RowKey, Callable[[], R]]]:
        """Yield each row's key, and a function that makes the record."""
        for number in range(len(self._table)):
            yield (number,), partial(self.get, (number,))

    def get(self, key: RowKey) -> R:
        """Return the row with this key."""
        return self._make(self._table[key[0]], Origin(self._name, key[0] + 1))


def find_table(dataset: object, split: str | None, name: str) -> tuple[Table, str]:
    """Return a data set, or one split of several, and its name for messages."""
    if isinstance(dataset, Mapping):
        if split not in dataset:
            splits = ", ".join(map(str, dataset))
            setting = Setting("split", external_name="data.split")
            raise SourceError(
                "{} has the splits {}; set {} to one of them, got {}.", name, splits, setting, repr(split)
            )
        dataset, name = dataset[split], f"{name}[{split}]"
    elif split is not None:
        setting = Setting("split", split, external_name="data.split")
        raise SourceError("{} has no splits, so {} names none; leave it out.", name, setting)
    if not isinstance(dataset, Table):
        raise SourceError(
            f"{name} is a {type(dataset).__name__}; expected a datasets.Dataset or DatasetDict, or the folder of one. "
            f"A stream has no row numbers: save it first."
        )
    return dataset, name


def check_columns(table: Table, make: RecordMaker[Any], name: str) -> None:
    """Raise unless the data set has the columns that ``make`` needs."""
    columns = [str(column) for column in table.column_names]
    for field in make.fields:
        if field not in columns and str(field).split(".")[0] not in columns:
            raise no_column(name, make, field, f"its columns are {', '.join(columns)}", columns)


def with_class_names(make: RecordMaker[R], table: Table) -> RecordMaker[R]:
    """``make`` with the data set's names of classes, unless it has labels already."""
    if not isinstance(make, AsLabelled | AsTagged) or make.labels is not None:
        return make
    named = replace(make, labels=_class_names(table, make.label if isinstance(make, AsLabelled) else make.tags))
    return cast(RecordMaker[R], named)


def _class_names(table: Table, field: Field) -> tuple[str, ...] | None:
    """Return the class names of a column of numbers, or of lists of numbers; None if it has none."""
    kind: Any = getattr(table, "features", None) or {}
    for part in [field] if field in kind else str(field).split("."):
        kind = kind.get(part) if isinstance(kind, Mapping) else None
    kind = kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)  # the items of a list
    names = getattr(kind, "names", None)
    return None if names is None else tuple(names)


def load_folder(folder: Path) -> object:
    """Return the data set, or the data sets by split, that a folder contains."""
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
