"""The rows of a recipe's data: from the files it names to records by number, in parts for training and judging."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from jaxtyping import Int64

from glassformer.config.checks import check_choice
from glassformer.data import readers
from glassformer.data.loader import Dataset
from glassformer.data.order import Order
from glassformer.data.readers.base import RowStats, Source
from glassformer.data.readers.datasets import load_folder
from glassformer.data.records import Labelled, Origin, Pair, Question, Record, Tagged, Text
from glassformer.text.corpora import python_topics
from glassformer.training.recipe import Aligned, Data, Files

R = TypeVar("R")
PARTS = ("train", "valid", "test")
_MAKE = {Text: readers.AsText, Pair: readers.AsPair, Labelled: readers.AsLabelled, Tagged: readers.AsTagged,
         Question: readers.AsQuestion}  # fmt: skip
_FORMATS = {
    "text": (Text,),
    "documentation": (Text,),
    "parallel": (Pair,),
    "conll": (Tagged,),
    "squad": (Question,),
    "toy": (Pair,),
    "csv": (Text, Pair, Labelled),  # a cell is a text, not a list of words or answers
    "tsv": (Text, Pair, Labelled),
}  # the others hold any kind of row
# Words of a small world, as the books have it: thanks, and who one is.
TOY = (("merci", "thanks"), ("je suis étudiant", "i am a student"))


class Records(Generic[R]):
    """Some of the rows of a source, by number; ``fingerprint`` is a SHA-256 of what they say."""

    def __init__(self, rows: Dataset[R], numbers: Int64[np.ndarray, "n"], tally: RowStats | None = None) -> None:
        self._rows, self._numbers, self.tally = rows, numbers, tally
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
    """The parts that a recipe names: ``train``, and ``valid`` and ``test`` where there are any.

    Without files for ``valid`` a random ``held_out`` of the training rows is set apart for it, unless ``hold_out`` is
    False because the caller does that in its own way.
    """
    check_format(data, kind)
    found = {part: rows for part in PARTS if (rows := _read(data, part, kind)) is not None}
    if "train" not in found:
        raise ValueError(f"there is nothing to train on: say {_wanted(data)}.")
    if "valid" not in found and hold_out and data.held_out:
        found |= _split(found["train"], data.held_out)
    return found


def read_part(data: Data, part: str, kind: type[R]) -> Records[R]:
    """One part alone, which has to be there."""
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
            f"rows of the kind {kind.__name__} are wanted, and data.format={data.format} has none; use one of "
            f"{', '.join(able)}."
        )


def holds(format_: str, kind: type[Any]) -> bool:
    """Whether files of a format can hold rows of a kind."""
    return format_ not in _FORMATS or kind in _FORMATS[format_]


def _wanted(data: Data) -> str:
    if data.format == "parallel":
        return "data.train.source=FILE data.train.target=FILE"
    return "data.train=FILE"


def _read(data: Data, part: str, kind: type[R]) -> Records[R] | None:
    files: Files = getattr(data, part)
    if data.format in ("toy", "documentation"):
        if files is not None:
            raise ValueError(
                f"data.format={data.format} reads no files, and data.{part} names {files}; say the format of your "
                f"files, as data.format=text."
            )
        if part != "train":
            return None
        memory = _memory(data.format)[: data.limit]
        return cast(Records[R], Records(memory, np.arange(len(memory), dtype=np.int64)))
    if files is None:
        return None
    indexed = _open(data, files, part, kind).index(data.limit)
    if not len(indexed):
        raise ValueError(
            f"data.{part} has no good rows: {files}: {indexed.tally}"
            if indexed.tally.bad
            else f"data.{part} has no rows: {files}."
        )
    return Records(indexed, np.arange(len(indexed), dtype=np.int64), indexed.tally)


def _memory(name: str) -> list[Record]:
    """Rows that need no file."""
    if name == "toy":
        return [Pair(source, target, origin=Origin("toy", n)) for n, (source, target) in enumerate(TOY, start=1)]
    return [Text(text, Origin("documentation", number)) for number, text in enumerate(python_topics(), start=1)]


def _open(data: Data, files: Files, part: str, kind: type[Any]) -> Source[Any]:
    if (data.format == "parallel") != isinstance(files, Aligned):
        raise ValueError(
            f"data.{part} of format {data.format} is {'two files' if data.format == 'parallel' else 'files'}: say "
            f"data.{part}{'.source=FILE and data.' + part + '.target' if data.format == 'parallel' else ''}=FILE."
        )
    skip = data.on_bad_row
    if isinstance(files, Aligned):
        ours, theirs = (*data.languages, None, None)[:2]
        return readers.read_parallel(
            files.source, files.target, source_language=ours, target_language=theirs, on_bad_row=skip
        )
    assert files is not None
    if data.format == "text":
        return readers.read_text(files, documents=data.documents, marker=data.marker, on_bad_row=skip)
    if data.format == "squad":
        return readers.read_squad(files, on_bad_row=skip)
    if data.format == "conll":
        separator = "\t" if data.separator is None else data.separator
        _check_columns(data, ("words", "tags"))
        places = {"words": data.columns.get("words", 0), "tags": data.columns.get("tags", -1)}
        return readers.read_conll(
            files,
            separator=separator.strip(" ") or None,  # a space, or nothing, is any white space
            prefix=data.prefix,
            ignored=data.ignored,
            on_bad_row=skip,
            **places,
        )
    return _table(data, files, part, kind)


def _table(data: Data, files: str | tuple[str, ...], part: str, kind: type[Any]) -> Source[Any]:
    """Rows with named columns."""
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


def _dataset(data: Data, files: str | tuple[str, ...], part: str, make: Any) -> Source[Any]:
    """Rows of a folder of ``datasets``: those of the part's split, or all where there are no splits."""
    if not isinstance(files, str):
        raise ValueError(f"data.{part} of the format dataset is one folder; got {files}.")
    found, split = load_folder(Path(files)), None
    if isinstance(found, Mapping):
        split = dict(zip(PARTS, data.split, strict=False)).get(part)
    elif same := [f"data.{other}" for other in PARTS if other != part and getattr(data, other) == files]:
        raise ValueError(f"{files} has no splits, so it cannot be both data.{part} and {same[0]}; name another folder.")
    return readers.read_dataset(found, make, split=split, name=files, on_bad_row=data.on_bad_row)


def _make(data: Data, kind: type[Any]) -> Any:
    columns: dict[str, Any] = dict(data.columns)
    made: Any = _MAKE[kind]
    _check_columns(data, [one.name for one in fields(made) if not one.name.endswith("_language")])
    if kind is Pair and data.languages:
        columns |= dict(zip(("source_language", "target_language"), data.languages, strict=False))
    return made(**columns)


def _check_columns(data: Data, known: Collection[str]) -> None:
    """Raise unless these fields exist, and are told by names or numbers: to Python, false is the number 0."""
    for name, column in data.columns.items():
        check_choice("a column", name, known)
        is_none = column is None and name == "second"
        if name != "labels" and not is_none and (isinstance(column, bool) or not isinstance(column, str | int)):
            raise ValueError(
                f"data.columns.{name} must be the name or the number of a column, got {column!r}. A name that is also "
                f"something else in YAML stands in quotes, within those of the shell: 'data.columns.{name}=\"true\"'."
            )


def _split(rows: Records[R], share: float) -> dict[str, Records[R]]:
    """A random share of rows apart, the same for the same rows, both in their own order."""
    if len(rows) < 2:
        raise ValueError(
            "one row cannot be both trained on and judged by; say data.valid=FILE, or data.held_out=0 for no judging."
        )
    count = min(len(rows) - 1, max(1, round(share * len(rows))))
    order = Order(len(rows), seed=0).span(0, 0, len(rows))
    apart, rest = np.sort(order[:count]), np.sort(order[count:])
    return {"train": Records(rows, rest, rows.tally), "valid": Records(rows, apart)}
