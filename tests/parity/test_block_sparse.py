"""Block-sparse attention in a whole model against Hugging Face, at lengths where blocks matter, up to 4,096 tokens."""

from pathlib import Path

import pytest
import torch

from glassformer.config import BlockSparse, change
from glassformer.models.transformer import Transformer
from tests.helpers import largest_difference
from tests.parity.cases_bigbird import FULL
from tests.parity.harness import BOUNDS, EXACT, FIRST_WORD, VOCAB, Case, Pair, pad_rows, rows

SIDES = ("none", "right", "left")


def sparse(block: int, random: int, **more) -> Case:
    """The reference's hidden states end in padding to a whole block, so that its logits alone are compared."""
    config = {
        **FULL, "attention_type": "block_sparse", "block_size": block, "num_random_blocks": random,
        "max_position_embeddings": 128, **more,
    }  # fmt: skip
    return Case(f"bigbird-{block}-{random}", "BigBirdForMaskedLM", config, segments=2, hidden=False)


@pytest.mark.parametrize(
    ("block", "random", "lengths"),
    [(1, 1, (17, 30, 9)), (2, 1, (21, 30, 19)), (2, 2, (19, 40, 3)), (3, 2, (28, 31, 29)), (4, 1, (45, 61, 33))],
)
def test_equal_to_the_reference_with_any_padding(
    block: int, random: int, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    """Rows long and short, that end in the middle of a block or with it; the reference pads blocks itself."""
    pair = Pair.make(sparse(block, random), tmp_path)
    pattern = BlockSparse(block=block, random=random)
    assert pair.ours.config.encoder.attention.windows == (pattern,)
    for side in SIDES:
        assert pair.compare(rows(lengths, 1), None, side) <= EXACT
    for dtype, bound in BOUNDS.items():
        assert pair.cast(dtype).compare(rows(lengths, 1), None, "right") <= bound
    for other in (
        BlockSparse(block=block + 1, random=random),
        BlockSparse(block=block, random=random - 1),
        BlockSparse(block=block, random=random, semantics="set"),
        None,
    ):
        assert change_pattern(pair, other).compare(rows(lengths, 1), None, "right") > 1e-4


def test_short_texts_are_attended_in_full(tmp_path: Path) -> None:
    pair = Pair.make(sparse(4, 1), tmp_path)  # full up to 28 tokens
    for side in SIDES:
        assert pair.compare(rows((26, 19, 3), 1), None, side) <= EXACT
        assert change_pattern(pair, None).compare(rows((26, 19, 3), 1), None, side) <= EXACT


@pytest.mark.parametrize("real", [4096, 4001])
def test_equal_to_the_reference_at_4096_tokens(real: int, tmp_path: Path) -> None:
    case = sparse(64, 3, max_position_embeddings=4096, num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    pair = Pair.make(case, tmp_path)
    ids = torch.randint(FIRST_WORD, VOCAB, (1, 4096))
    mask = torch.arange(4096)[None] < real
    with torch.no_grad():
        ours = pair.ours(ids, None if real == 4096 else mask)
        theirs = pair.theirs(ids, attention_mask=mask.long()).logits
    assert largest_difference(ours[mask], theirs[mask]) <= EXACT


@pytest.mark.parametrize("lengths", [(21, 30, 19), (40, 9, 1)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_read_as_sets_padding_changes_nothing(side: str, lengths: tuple[int, ...], tmp_path: Path) -> None:
    model = change_pattern(
        Pair.make(sparse(2, 1), tmp_path), BlockSparse(block=2, random=1, semantics="set", seed=3)
    ).ours
    tokens = rows(lengths, 1)
    ids, mask = pad_rows(tokens, side, extra=5)
    with torch.no_grad():
        together = model(ids, mask)
        for number, row in enumerate(tokens):
            assert largest_difference(together[number][mask[number]], model(row[None])[0]) < 1e-12


def change_pattern(pair: Pair, pattern: BlockSparse | None) -> Pair:
    """The same weights with another pattern."""
    facts = change(pair.ours.config, "encoder.attention.windows", (pattern,))
    model = Transformer(facts).double().eval()
    model.load_state_dict(pair.ours.state_dict())
    return Pair(pair.case, pair.theirs, model, pair.folder)
