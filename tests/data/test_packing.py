"""Documents in rows of one length: no token lost or doubled, each document by itself (row 12 of the silent bugs)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.packing import BestFitPlan, Packed, PackedRows, Piece, StreamPlan
from glassformer.data.token_files import write_tokens
from tests.configs import built, tokens
from tests.helpers import largest_difference

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=30)


def numbered(lengths: list[int]) -> list[list[int]]:
    """Documents in which every token is another one; 0 is none of them."""
    starts = np.cumsum([1, *lengths])
    return [list(range(start, start + length)) for start, length in zip(starts, lengths, strict=False)]


def check_rows(rows: list[Packed], documents: list[list[int]], length: int) -> list[list[int]]:
    """Every token once, padding at the end, positions and numbers as promised; gives the pieces, row by row."""
    pieces = []
    for row in rows:
        assert len(row.ids) == len(row.documents) == len(row.positions) == length
        real = row.documents > 0
        assert real[0]
        assert not (real.int().diff() > 0).any()  # no token after padding
        assert (row.ids[~real] == 0).all()
        assert (row.positions[~real] == 0).all()
        numbers = row.documents[real]
        assert numbers[0] == 1
        assert set(numbers.diff().tolist()) <= {0, 1}
        for number in range(1, numbers[-1] + 1):
            here = row.documents == number
            assert row.positions[here].tolist() == list(range(int(here.sum())))
            pieces.append(row.ids[here].tolist())
        assert [piece.tolist() for piece in row.pieces()] == pieces[-int(numbers[-1]) :]
    assert sorted(token for piece in pieces for token in piece) == sorted(
        token for document in documents for token in document
    )
    return pieces


@given(lengths=LENGTHS, length=st.integers(1, 12))
def test_a_stream_keeps_every_token_in_order(lengths: list[int], length: int) -> None:
    documents = numbered(lengths)
    rows = PackedRows(documents, StreamPlan(lengths, length))
    result = [rows[number] for number in range(len(rows))]
    pieces = check_rows(result, documents, length)
    assert [token for piece in pieces for token in piece] == list(range(1, sum(lengths) + 1))
    assert all((row.documents > 0).all() for row in result[:-1])
    for piece in pieces:  # never two documents in one
        assert sum(set(piece) <= set(document) for document in documents) == 1


@given(lengths=LENGTHS, length=st.integers(1, 12))
def test_best_fit_keeps_documents_whole(lengths: list[int], length: int) -> None:
    documents = numbered(lengths)
    rows = PackedRows(documents, BestFitPlan(lengths, length, too_long="split"))
    pieces = check_rows([rows[number] for number in range(len(rows))], documents, length)
    expected = [document[start : start + length] for document in documents for start in range(0, len(document), length)]
    assert sorted(pieces) == sorted(expected)
    # Any two rows hold more than one row's worth: else the smaller would have gone where there was room for it.
    filled = sorted(int((rows[number].documents > 0).sum()) for number in range(len(rows)))
    assert len(filled) < 2 or filled[0] + filled[1] > length


def test_best_fit_takes_the_fullest_row_that_has_room() -> None:
    plan = BestFitPlan([6, 5, 4, 3, 2], 10)
    assert [[piece.document for piece in plan[row]] for row in range(len(plan))] == [[0, 2], [1, 3, 4]]
    # First fit would put the 2 beside the 7; the row of the 8 is the one it fills.
    plan = BestFitPlan([7, 8, 2, 3], 10)
    assert sorted(sorted(piece.document for piece in plan[row]) for row in range(len(plan))) == [[0, 3], [1, 2]]


def test_best_fit_wastes_little() -> None:
    lengths = np.random.default_rng(0).integers(10, 300, 2000)
    plan = BestFitPlan(lengths, 512)
    assert lengths.sum() / (len(plan) * 512) > 0.99


def test_a_document_longer_than_a_row() -> None:
    with pytest.raises(ValueError, match=r'document 1 has 11 tokens, more than a row of 10.*too_long="split"'):
        BestFitPlan([10, 11], 10)
    plan = BestFitPlan([23], 10, too_long="split")
    assert sorted(piece for row in range(len(plan)) for piece in plan[row]) == [
        Piece(0, 0, 10), Piece(0, 10, 20), Piece(0, 20, 23),
    ]  # fmt: skip
    assert StreamPlan([23], 10)[2] == [Piece(0, 20, 23)]


@pytest.mark.parametrize("kind", [StreamPlan, BestFitPlan])
def test_what_cannot_be_packed_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="no documents"):
        kind([], 10)
    with pytest.raises(ValueError, match="document 1 has no tokens"):
        kind([1, 0], 10)
    with pytest.raises(ValueError, match="length must be at least 1"):
        kind([1], 0)
    with pytest.raises(ValueError, match="plan is for 2 documents; there are 1"):
        PackedRows([[1]], kind([1, 1], 10))
    for row in (1, -1):
        with pytest.raises(IndexError, match="1 rows"):
            kind([1], 10)[row]


def test_rows_of_a_file_of_tokens(tmp_path: Path) -> None:
    file = write_tokens(tmp_path / "a.bin", [[5, 6, 7], [8]], vocab_size=9, tokenizer="")
    row = PackedRows(file, StreamPlan(file.lengths, 6), pad=3)[0]
    assert row.ids.tolist() == [5, 6, 7, 8, 3, 3]
    assert row.documents.tolist() == [1, 1, 1, 2, 0, 0]
    assert row.positions.tolist() == [0, 1, 2, 0, 0, 0]
    plans = StreamPlan(file.lengths, 6), StreamPlan(file.lengths, 7), BestFitPlan(file.lengths, 6)
    assert len({PackedRows(file, plan).fingerprint for plan in plans}) == 3
    assert PackedRows(file, plans[0]).fingerprint == PackedRows(file, StreamPlan(file.lengths, 6)).fingerprint
    assert PackedRows([[1]], StreamPlan([1], 6)).fingerprint is None


@pytest.mark.parametrize("config", ["gpt2", "llama", "roberta"])
@pytest.mark.parametrize("kind", [StreamPlan, BestFitPlan])
def test_row_12_a_model_sees_each_document_of_a_row_as_if_alone(config: str, kind: Any) -> None:
    model = built(config)
    lengths = [5, 3, 9, 2, 7]
    documents = [tokens(length, seed=number).tolist() for number, length in enumerate(lengths)]
    rows = PackedRows(documents, kind(lengths, 10))
    for number in range(len(rows)):
        ids, numbers, positions = (part[None] for part in rows[number])
        with torch.no_grad():
            counted, given = model(ids, numbers), model(ids, numbers, positions=positions)
            for document in range(1, int(numbers.max()) + 1):
                here = numbers[0] == document
                alone = model(ids[:, here])
                assert largest_difference(counted[:, here], alone) < 1e-10
                assert largest_difference(given[:, here], alone) < 1e-10
