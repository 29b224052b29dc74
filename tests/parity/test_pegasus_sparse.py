"""Block-sparse attention in a whole model: rows long enough that the blocks bite, against Hugging Face.

The reference lays its blocks over the slots of a batch and pads to whole blocks itself, so rows of a batch are compared
as they stand, padded on the right. Its hidden states keep the slots of that padding and are not compared. Short rows
are attended in full by both.
"""

from pathlib import Path

import pytest
import torch

from glassformer.config import BlockSparse, change
from glassformer.models.transformer import Transformer
from tests.parity.cases_bart import ODD, SMALL
from tests.parity.harness import EXACT, Case, Pair, rows

LONG = {"max_position_embeddings": 80, "block_size": 3, "num_random_blocks": 1}
CASES = [
    Case("sparse", "BigBirdPegasusForConditionalGeneration", {**SMALL, **LONG}, pad=0, hidden=False),
    Case(
        "sparse-odd",
        "BigBirdPegasusForConditionalGeneration",
        {**ODD, **LONG, "num_random_blocks": 2, "block_size": 4, "use_bias": True},
        pad=0,
        hidden=False,
    ),
    Case("sparse", "BigBirdPegasusModel", {**SMALL, **LONG}, pad=0, hidden=False, answer="last_hidden_state"),
]
TARGETS = (7, 4, 8)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize(
    "lengths", [(60, 60, 60), (61, 61, 61), (58, 41, 50), (9, 5, 7)], ids=["whole", "part", "padded", "short"]
)
def test_same_numbers_as_the_reference(case: Case, lengths: tuple[int, ...], tmp_path: Path) -> None:
    pair = Pair.make(case, tmp_path)
    tokens, targets = rows(lengths, 1), rows(TARGETS, 2)
    alone = pair.compare(tokens, targets, "none")
    together = pair.compare(tokens, targets, "right")
    assert max(alone, together) <= EXACT, (alone, together)


def test_facts_of_the_blocks_matter(tmp_path: Path) -> None:
    """The comparison above would notice other blocks."""
    pair = Pair.make(CASES[0], tmp_path)
    tokens, targets = rows((60, 60, 60), 1), rows(TARGETS, 2)
    facts, path = pair.ours.config, "encoder.attention.windows"
    for window in (
        None,
        BlockSparse(block=4, random=1),
        BlockSparse(block=3, random=2),
        BlockSparse(block=3, random=1, semantics="set"),
    ):
        other = Transformer(change(facts, path, (window,))).double().eval()
        other.load_state_dict(pair.ours.state_dict())
        with torch.no_grad():
            gap = (
                (other(tokens[0][None], target=targets[0][None]) - pair.ours(tokens[0][None], target=targets[0][None]))
                .abs()
                .max()
            )
        assert gap > 1e-4, window
