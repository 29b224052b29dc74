"""Rows one after the other or by number, and what happens to bad ones.

A reader (``Reader``) knows a kind of file; ``Source`` walks through it in order and holds nothing, ``Indexed`` has read
everything once, knows where each good row lies and fetches any of them.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

from glassformer.config.checks import check_choice
from glassformer.data.records import Origin

OnBadRow = Literal["stop", "skip"]
Key = tuple[int, ...]  # where a row lies, in its reader's own terms
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
KEPT = 5  # bad rows that a tally keeps word for word


class SourceError(ValueError):
    """A file or a setting is wrong, for which no single row can be blamed; nothing skips it."""


class BadRowError(SourceError):
    """One row is wrong: where it stands, the kind of fault (``reason``), what was found and what to do about it."""

    def __init__(self, origin: Origin, reason: str, found: str, remedy: str) -> None:
        self.told = f"{origin}: {reason}: {found}. {remedy}"
        super().__init__(f'{self.told}, or leave such rows out with on_bad_row="skip".')
        self.origin = origin
        self.reason = reason


@dataclass
class RowStats:
    """How many rows a pass gave and how many it left out, by reason; the first few of these word for word."""

    good: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    def count(self, error: BadRowError) -> None:
        """Take note of a row that is left out."""
        self.bad[error.reason] += 1
        if len(self.first) < KEPT:
            self.first.append(f"{error.told}.")

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in self.bad.most_common())
        left_out = f"; left out {self.bad.total():,}: {reasons}" if self.bad else ""
        return "\n  ".join([f"{self.good:,} rows{left_out}", *self.first])


@runtime_checkable
class Reader(Protocol[R_co]):
    """One pass over files, and afterwards any row of them again."""

    codes: str  # the type of each number of a key, as ``array.array`` writes it

    def rows(self) -> Iterator[tuple[Key, Callable[[], R_co]]]:
        """Each row's key, and a call that makes the row or raises BadRowError."""

    def get(self, key: Key) -> R_co:
        """The row with this key; several threads may ask at once."""


class Source(Generic[R]):
    """Rows in the order of the files, made while walking; every walk starts anew.

    ``open_reader(by_number)`` begins a pass; ``tally`` counts the rows of the latest. A bad row stops the walk with a
    BadRowError, or is counted and left out with ``on_bad_row="skip"``.
    """

    def __init__(self, open_reader: Callable[[bool], Reader[R]], on_bad_row: OnBadRow = "stop") -> None:
        check_choice("on_bad_row", on_bad_row, ("stop", "skip"))
        self._open = open_reader
        self._skips = on_bad_row == "skip"
        self.tally = RowStats()

    def __iter__(self) -> Iterator[R]:
        for _, row in self._walk(self._open(False)):
            yield row

    def index(self, limit: int | None = None) -> "Indexed[R]":
        """Read all rows once and remember where the good ones lie: about 24 bytes for each, whatever its length.

        With a ``limit`` reading ends after so many good rows; what comes behind them is not looked at.
        """
        reader = self._open(True)
        columns = [array(code) for code in reader.codes]
        digest = hashlib.sha256()
        for key, row in islice(self._walk(reader), limit):
            digest.update(ascii(row).encode())  # repr would change with each version's table of printable letters
            for column, value in zip(columns, key, strict=True):
                column.append(value)
        return Indexed(reader, columns, digest.hexdigest(), self.tally)

    def _walk(self, reader: Reader[R]) -> Iterator[tuple[Key, R]]:
        tally = self.tally = RowStats()
        for key, make in reader.rows():
            try:
                row = make()
            except BadRowError as error:
                if not self._skips:
                    raise
                tally.count(error)
                continue
            tally.good += 1
            yield key, row


class Indexed(Generic[R]):
    """Rows by number, read from their files when asked for.

    ``fingerprint`` is a SHA-256 of what the rows say, wherever their files lie; ``tally`` counts what was left out.
    """

    def __init__(self, reader: Reader[R], columns: "list[array[int]]", fingerprint: str, tally: RowStats) -> None:
        self._reader = reader
        self._columns = columns
        self.fingerprint = fingerprint
        self.tally = tally

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, number: int) -> R:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self):,} rows, numbered from 0; got {number}.")
        return self._reader.get(tuple(column[number] for column in self._columns))

    def __iter__(self) -> Iterator[R]:
        return (self[number] for number in range(len(self)))
