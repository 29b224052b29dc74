"""Documents packed into rows of one length, with little padding.

* ``StreamPlan``: one document after the other, cut where a row is full. Only the last row has padding.
* ``BestFitPlan``: each document in one piece, the longest first, each in the row that it fills best.

Packing neither loses nor doubles tokens. A packed row has the number of each token's document within the row (1, 2, …;
0 is padding), which is the mask that ``Transformer`` takes, and its position in the document. The rest of a document
that was cut counts as a document of its own, for it does not attend to the beginning.

Shapes: ``T`` tokens per row, ``M`` documents, ``P`` pieces of them.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from glassformer.config.checks import check_choice, check_positive_integer
from glassformer.data.batching import Lengths, checked_lengths
from glassformer.data.token_files import TokenFile

TooLongDocument: TypeAlias = Literal["refuse", "split"]


class Piece(NamedTuple):
    """The tokens ``[start, stop)`` of a document."""

    document: int
    start: int
    stop: int


class Packed(NamedTuple):
    """A row: its ids, the number of each token's document (0 is padding) and its position there (0 in padding)."""

    ids: Int[Tensor, "T"]
    documents: Int[Tensor, "T"]
    positions: Int[Tensor, "T"]

    def pieces(self) -> list[Int[Tensor, "_"]]:
        """Return the ids of each document of the row, without the padding."""
        sizes = self.documents.bincount()[1:].tolist()
        return list(torch.split(self.ids[: sum(sizes)], sizes))


@runtime_checkable
class Documents(Protocol):
    """The ids of documents by number: a ``TokenFile``, or a list of lists."""

    def __len__(self) -> int:
        """Return the number of documents."""

    def __getitem__(self, number: int, /) -> Any:
        """Return the ids of one document."""


class StreamPlan:
    """Which pieces are in each row: documents follow each other and are cut where a row is full."""

    def __init__(self, lengths: Lengths, length: int) -> None:
        check_positive_integer(length=length)
        self.length = length
        self.lengths = checked_lengths(lengths, "document", "to pack")
        self._ends = self.lengths.cumsum()

    def __len__(self) -> int:
        return (int(self._ends[-1]) + self.length - 1) // self.length

    def __getitem__(self, row: int) -> list[Piece]:
        _check_row(row, len(self))
        first, last = row * self.length, min((row + 1) * self.length, int(self._ends[-1]))
        document = int(self._ends.searchsorted(first, side="right"))
        pieces = []
        while first < last:
            end = int(self._ends[document])
            start = end - int(self.lengths[document])
            pieces.append(Piece(document, first - start, min(end, last) - start))
            first, document = end, document + 1
        return pieces


class BestFitPlan:
    """Which documents are in each row: each stays whole and goes into the row that it fills best.

    ``too_long``: a document longer than a row is refused, or split into full rows and a rest.
    """

    def __init__(self, lengths: Lengths, length: int, *, too_long: TooLongDocument = "refuse") -> None:
        check_positive_integer(length=length)
        check_choice("too_long", too_long, ("refuse", "split"))
        self.length = length
        self.lengths = checked_lengths(lengths, "document", "to pack")
        if too_long == "refuse" and self.lengths.max() > length:
            first = int(np.flatnonzero(self.lengths > length)[0])
            raise ValueError(
                f"document {first} has {self.lengths[first]} tokens, more than a row of {length}; take longer rows, or "
                f'cut such documents with too_long="split".'
            )
        # Assign pieces to rows, then sort them by row.
        self._pieces = _cut(self.lengths, length)  # P 3
        rows = _best_fit(self._pieces[:, 2] - self._pieces[:, 1], length)
        order = np.argsort(rows, kind="stable")  # within a row, in the order of the documents
        self._pieces = self._pieces[order]
        self._starts = np.searchsorted(rows[order], np.arange(rows.max() + 2))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> list[Piece]:
        _check_row(row, len(self))
        return [Piece(*piece) for piece in self._pieces[self._starts[row] : self._starts[row + 1]].tolist()]


class PackedRows:
    """Packed rows by number; documents are read on access.

    ``pad`` is the id in padding; its value has no effect, because ``documents`` is 0 there. ``fingerprint`` is a
    SHA-256 of the rows if the documents have one, else None.
    """

    def __init__(self, documents: Documents, plan: StreamPlan | BestFitPlan, *, pad: int = 0) -> None:
        if len(documents) != len(plan.lengths):
            raise ValueError(f"the plan is for {len(plan.lengths)} documents; there are {len(documents)}.")
        self._documents = documents
        self._pad = pad
        self.plan = plan
        data = getattr(documents, "fingerprint", None)
        facts = f"{data} {type(plan).__name__} {plan.length}"
        self.fingerprint = None if data is None else hashlib.sha256(facts.encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, row: int) -> Packed:
        return fill_row(self._documents, self.plan[row], self.plan.length, pad=self._pad)


def fill_row(documents: Documents, pieces: Sequence[Piece], length: int, *, pad: int = 0) -> Packed:
    """Return pieces of documents, one after the other and padded at the end."""
    ids = np.full(length, pad, dtype=np.int64)
    numbers, positions = np.zeros_like(ids), np.zeros_like(ids)
    offset = 0
    for number, piece in enumerate(pieces, start=1):
        here = slice(offset, offset + piece.stop - piece.start)
        ids[here] = _ids_of(documents, piece)
        numbers[here] = number
        positions[here] = np.arange(piece.stop - piece.start)
        offset = here.stop
    return Packed(torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(positions))


def _ids_of(documents: Documents, piece: Piece) -> Any:
    if isinstance(documents, TokenFile):
        return documents.part(*piece)  # reads only this piece from disk
    return documents[piece.document][piece.start : piece.stop]


def _check_row(row: int, rows: int) -> None:
    if not 0 <= row < rows:
        raise IndexError(f"there are {rows:,} rows, numbered from 0; got {row}.")


def _cut(lengths: Int64[np.ndarray, "M"], length: int) -> Int64[np.ndarray, "P 3"]:
    """Return documents as pieces (document, start, stop) of at most ``length``."""
    counts = -(-lengths // length)
    document = np.repeat(np.arange(len(lengths)), counts)
    first = np.repeat(counts.cumsum() - counts, counts)
    start = (np.arange(len(document)) - first) * length
    return np.stack([document, start, np.minimum(start + length, lengths[document])], axis=1)


def _best_fit(sizes: Int64[np.ndarray, "P"], length: int) -> Int64[np.ndarray, "P"]:
    """Return the row of each piece: the longest first, each into the fullest row that still has space for it."""
    rows = np.empty(len(sizes), dtype=np.int64)
    by_space: list[list[int]] = [[] for _ in range(length + 1)]  # rows by the space left in them
    spaces = 0  # bit s is set if some row has space s
    count = 0
    for piece in np.argsort(-sizes, kind="stable").tolist():
        # The fullest row with enough space: the lowest set bit from ``size`` on.
        size = int(sizes[piece])
        enough = spaces >> size
        if enough:
            space = size + (enough & -enough).bit_length() - 1
            row = by_space[space].pop()
            spaces ^= 0 if by_space[space] else 1 << space
        else:
            space, row = length, count
            count += 1
        rows[piece] = row
        # Put the row back under the space that is left in it.
        left = space - size
        if left:
            by_space[left].append(row)
            spaces |= 1 << left
    return rows
