"""The rows of a recipe's data: from the files it names to records by index, for training, validation and test."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from jaxtyping import Int64

from glassformer.config.checks import check_choice
from glassformer.data import readers
from glassformer.data.batching import Order
from glassformer.data.loader import Dataset
from glassformer.data.readers.base import RowSource, RowStats
from glassformer.data.readers.datasets import load_folder
from glassformer.data.records import (
    AnyRecord,
    LabelledRecord,
    Origin,
    PairRecord,
    QuestionRecord,
    TaggedRecord,
    TextRecord,
)
from glassformer.recipes.recipe import Aligned, Data, DataFiles
from glassformer.text.plain_text import python_topics

R = TypeVar("R")
PARTS = ("train", "valid", "test")
_MAKE = {
    TextRecord: readers.AsText,
    PairRecord: readers.AsPair,
    LabelledRecord: readers.AsLabelled,
    TaggedRecord: readers.AsTagged,
    QuestionRecord: readers.AsQuestion,
}
_FORMATS = {
    "text": (TextRecord,),
    "documentation": (TextRecord,),
    "parallel": (PairRecord,),
    "conll": (TaggedRecord,),
    "squad": (QuestionRecord,),
    "toy": (PairRecord,),
    "csv": (TextRecord, PairRecord, LabelledRecord),  # a cell is a text, not a list of words or answers
    "tsv": (TextRecord, PairRecord, LabelledRecord),
}  # the others hold any kind of row
# The sentence pairs of the toy recipe.
TOY = (("merci", "thanks"), ("je suis étudiant", "i am a student"))


class Records(Generic[R]):
    """Some of the rows of a source, by number; ``fingerprint`` is a SHA-256 of their contents."""

    def __init__(self, rows: Dataset[R], numbers: Int64[np.ndarray, "n"], stats: RowStats | None = None) -> None:
        self._rows, self._numbers, self.stats = rows, numbers, stats
        whole = str(getattr(rows, "fingerprint", None) or _digest(rows))
        self.fingerprint = hashlib.sha256(whole.encode() + numbers.astype("<i8").tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> R:
        return self._rows[int(self._numbers[number])]

    def __iter__(self) -> Iterator[R]:
        return (self[number] for number in range(len(self)))


def _digest(rows: Dataset[Any]) -> str:
    digest = hashlib.sha256()
    for number in range(len(rows)):
        digest.update(ascii(rows[number]).encode())
    return digest.hexdigest()


def read_parts(data: Data, kind: type[R], *, hold_out: bool = True) -> dict[str, Records[R]]:
    """Return the parts that a recipe names: ``train``, and ``valid`` and ``test`` where there are any.

    Without files for ``valid`` a random ``held_out`` of the training rows is set apart for it, unless ``hold_out`` is
    False because the caller does that in its own way.
    """
    check_format(data, kind)
    parts = {part: rows for part in PARTS if (rows := _read(data, part, kind)) is not None}
    if "train" not in parts:
        raise ValueError(f"there is nothing to train on: set {_train_files(data)}.")
    if "valid" not in parts and hold_out and data.held_out:
        parts |= _split(parts["train"], data.held_out)
    return parts


def read_part(data: Data, part: str, kind: type[R]) -> Records[R]:
    """Return the rows of one part; raise if it names no files."""
    check_choice("the part of the data", part, PARTS)
    check_format(data, kind)
    rows = _read(data, part, kind)
    if rows is None:
        raise ValueError(f"data.{part} names no files.")
    return rows


def check_format(data: Data, kind: type[Any]) -> None:
    """Raise unless files of this format hold rows of this kind."""
    if not holds(data.format, kind):
        able = sorted({"jsonl", "dataset"} | {name for name in _FORMATS if holds(name, kind)})
        raise ValueError(
            f"data.format={data.format} has no rows of the kind {kind.__name__}, which the job needs; use one of "
            f"{', '.join(able)}."
        )


def holds(format_: str, kind: type[Any]) -> bool:
    """Whether files of a format can hold rows of a kind."""
    return format_ not in _FORMATS or kind in _FORMATS[format_]


def _train_files(data: Data) -> str:
    if data.format == "parallel":
        return "data.train.source=FILE data.train.target=FILE"
    return "data.train=FILE"


def _read(data: Data, part: str, kind: type[R]) -> Records[R] | None:
    files: DataFiles = getattr(data, part)
    # Formats without files.
    if data.format in ("toy", "documentation"):
        if files is not None:
            raise ValueError(
                f"data.format={data.format} reads no files, and data.{part} names {files}; set the format of your "
                f"files, as data.format=text."
            )
        if part != "train":
            return None
        memory = _memory(data.format)[: data.limit]
        return cast(Records[R], Records(memory, np.arange(len(memory), dtype=np.int64)))
    if files is None:
        return None
    # Read all files once, and index the valid rows.
    indexed = _open(data, files, part, kind).index(data.limit)
    if not len(indexed):
        raise ValueError(
            f"data.{part} has no valid rows: {files}: {indexed.stats}"
            if indexed.stats.bad
            else f"data.{part} has no rows: {files}."
        )
    return Records(indexed, np.arange(len(indexed), dtype=np.int64), indexed.stats)


def _memory(name: str) -> list[AnyRecord]:
    """Return rows that need no file."""
    if name == "toy":
        return [PairRecord(source, target, origin=Origin("toy", n)) for n, (source, target) in enumerate(TOY, start=1)]
    return [TextRecord(text, Origin("documentation", number)) for number, text in enumerate(python_topics(), start=1)]


def _open(data: Data, files: DataFiles, part: str, kind: type[Any]) -> RowSource[Any]:
    if (data.format == "parallel") != isinstance(files, Aligned):
        raise ValueError(
            f"data.{part} of format {data.format} is {'two files' if data.format == 'parallel' else 'files'}: set "
            f"data.{part}{'.source=FILE and data.' + part + '.target' if data.format == 'parallel' else ''}=FILE."
        )
    on_bad_row = data.on_bad_row
    # Files with aligned lines.
    if isinstance(files, Aligned):
        source, target = (*data.languages, None, None)[:2]
        return readers.read_parallel(
            files.source, files.target, source_language=source, target_language=target, on_bad_row=on_bad_row
        )
    # Formats that hold one kind of row.
    assert files is not None
    if data.format == "text":
        return readers.read_text(files, documents=data.documents, marker=data.marker, on_bad_row=on_bad_row)
    if data.format == "squad":
        return readers.read_squad(files, on_bad_row=on_bad_row)
    if data.format == "conll":
        separator = "\t" if data.separator is None else data.separator
        _check_columns(data, ("words", "tags"))
        columns = {"words": data.columns.get("words", 0), "tags": data.columns.get("tags", -1)}
        return readers.read_conll(
            files,
            separator=separator.strip(" ") or None,  # a space, or nothing, is any white space
            prefix=data.prefix,
            ignored=data.ignored,
            on_bad_row=on_bad_row,
            **columns,
        )
    return _table(data, files, part, kind)


def _table(data: Data, files: str | tuple[str, ...], part: str, kind: type[Any]) -> RowSource[Any]:
    """Return rows with named columns."""
    make = _make(data, kind)
    if data.format == "jsonl":
        return readers.read_jsonl(files, make, on_bad_row=data.on_bad_row)
    if data.format == "dataset":
        return _dataset(data, files, part, make)
    usual = {"csv": (",", True), "tsv": ("\t", False)}[data.format]
    return readers.read_columns(
        files,
        make,
        separator=usual[0] if data.separator is None else data.separator,
        quoted=usual[1] if data.quoted is None else data.quoted,
        header=data.header,
        on_bad_row=data.on_bad_row,
    )


def _dataset(data: Data, files: str | tuple[str, ...], part: str, make: Any) -> RowSource[Any]:
    """Return rows of a folder of ``datasets``: those of the part's split, or all where there are no splits."""
    if not isinstance(files, str):
        raise ValueError(f"data.{part} of the format dataset is one folder; got {files}.")
    dataset, split = load_folder(Path(files)), None
    if isinstance(dataset, Mapping):
        split = dict(zip(PARTS, data.split, strict=False)).get(part)
    elif same := [f"data.{other}" for other in PARTS if other != part and getattr(data, other) == files]:
        raise ValueError(f"{files} has no splits, so it cannot be both data.{part} and {same[0]}; name another folder.")
    return readers.read_dataset(dataset, make, split=split, name=files, on_bad_row=data.on_bad_row)


def _make(data: Data, kind: type[Any]) -> Any:
    columns: dict[str, Any] = dict(data.columns)
    maker: Any = _MAKE[kind]
    _check_columns(data, [entry.name for entry in fields(maker) if not entry.name.endswith("_language")])
    if kind is PairRecord and data.languages:
        columns |= dict(zip(("source_language", "target_language"), data.languages, strict=False))
    return maker(**columns)


def _check_columns(data: Data, known: Collection[str]) -> None:
    """Raise unless each column is known and set to a name or a number; a YAML boolean is neither."""
    for name, column in data.columns.items():
        check_choice("a column", name, known)
        is_none = column is None and name == "second"
        if name != "labels" and not is_none and (isinstance(column, bool) or not isinstance(column, str | int)):
            raise ValueError(
                f"data.columns.{name} must be the name or the number of a column, got {column!r}. Quote a name "
                f"that YAML reads as something else, inside the quotes of the shell: 'data.columns.{name}=\"true\"'."
            )


def _split(rows: Records[R], share: float) -> dict[str, Records[R]]:
    """Return a random share of the rows for validation, the others for training; the same split for the same rows."""
    if len(rows) < 2:
        raise ValueError(
            "a single row cannot be both training and validation data; set data.valid=FILE, or data.held_out=0 for "
            "no validation."
        )
    count = min(len(rows) - 1, max(1, round(share * len(rows))))
    order = Order(len(rows), seed=0).span(0, 0, len(rows))
    held_out, rest = np.sort(order[:count]), np.sort(order[count:])
    return {"train": Records(rows, rest, rows.stats), "valid": Records(rows, held_out)}
