"""Plain text for jobs that learn from it: token files of all documents, and examples made or chosen from them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Int64

from glassformer.data.loader import Dataset
from glassformer.data.records import Text
from glassformer.data.token_files import TokenFile, encoded, open_tokens, tokenizer_fingerprint, write_tokens
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.jobs.base import Job
from glassformer.training.reading import Records
from glassformer.weights.saving import write_text

T = TypeVar("T")


class PlainText(Job[Text]):
    """What all jobs that learn from plain text have in common."""

    record = Text

    def texts(self, row: Text) -> Iterable[str]:
        """The text."""
        return (row.text,)


def token_file(
    folder: Path,
    part: str,
    texts: Iterable[str],
    source: str,
    tokenizer: Tokenizer,
    *,
    start: int | None = None,
    end: int | None = None,
) -> TokenFile:
    """All texts as ids on disk, each a document between ``start`` and ``end``; written once for the same rows.

    ``source`` is the fingerprint of the rows that the texts are of.
    """
    path, note = folder / f"{part}.bin", folder / f"{part}.source.json"
    made_of = {"rows": source, "tokenizer": tokenizer_fingerprint(tokenizer), "start": start, "end": end}
    if path.is_file() and read_note(note) == made_of:
        return open_tokens(path, tokenizer=str(made_of["tokenizer"]))
    folder.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    before = [] if start is None else [start]
    found = encoded(texts, tokenizer, end=end)
    documents = ([*before, *ids] for ids in found if ids)  # a text of white space may be no token at all
    written = write_tokens(path, documents, vocab_size=tokenizer.vocab_size, tokenizer=str(made_of["tokenizer"]))
    write_text(note, json.dumps(made_of) + "\n")
    return written


def read_note(note: Path) -> Any:
    """What something was made of, as a file of JSON says; None where there is none, or a damaged one."""
    try:
        return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else None
    except ValueError:
        return None


def texts_of(rows: Records[Any]) -> Iterable[str]:
    """The text of each row."""
    return (row.text for row in rows)


class Part(Generic[T]):
    """The rows of a data set from number ``first`` up to ``last``, which is not among them."""

    def __init__(self, rows: Dataset[T], first: int, last: int, fingerprint: str | None) -> None:
        self._rows, self._first, self._last, self.fingerprint = rows, first, last, fingerprint

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, number: int) -> T:
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self):,} rows, numbered from 0; got {number}.")
        return self._rows[self._first + number]


class Mapped(Generic[T]):
    """Examples that are made from those of another data set when they are asked for.

    ``cut`` says how many of those were too long and lose tokens.
    """

    def __init__(
        self, inner: Dataset[Any], make: Any, lengths: Sequence[int] | Int64[np.ndarray, "N"], *, cut: int = 0
    ) -> None:
        self._inner, self._make = inner, make
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.fingerprint = getattr(inner, "fingerprint", None)
        self.cut = cut

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, number: int) -> T:
        made: T = self._make(self._inner[number])
        return made
