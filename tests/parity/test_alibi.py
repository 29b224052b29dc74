"""ALiBi against BLOOM of Hugging Face: padding on either side in float32, long inputs, and gelu as BLOOM writes it."""

from pathlib import Path

import pytest
import torch
from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

from glassformer.nn.feedforward import gelu, gelu_tanh
from tests.helpers import PATHS, largest_difference, normal
from tests.parity.cases_bloom import CASES
from tests.parity.harness import BOUNDS, Case, Pair, pad_rows, rows

WRITERS = [case for case in CASES if case.architecture == "BloomForCausalLM"]


@pytest.mark.parametrize("case", WRITERS, ids=lambda case: case.id)
def test_padding_on_either_side_equals_the_reference_at_real_tokens(case: Case, tmp_path: Path) -> None:
    """In float32: in float64 the reference's own mask makes NaN of padding on the left."""
    pair = Pair.make(case, tmp_path).cast(torch.float32)
    tokens, _ = pair.inputs()
    for side in ("left", "right"):
        ids, mask = pad_rows(tokens, side)
        theirs = pair.ask_theirs(input_ids=ids, attention_mask=mask.long()).logits
        for path in PATHS:
            with torch.no_grad():
                ours = pair.ours(ids, mask, path=path)
            assert largest_difference(ours[mask], theirs[mask]) < BOUNDS[torch.float32]


def test_half_precision_stays_near_the_exact_answer_at_long_distances(tmp_path: Path) -> None:
    """Nearer than the reference, whose bias grows with the position of the key and is rounded in that precision."""
    pair = Pair.make(CASES[0], tmp_path)
    (row,) = rows((900,), 3)
    half = pair.cast(torch.bfloat16)
    with torch.no_grad():
        exact = pair.ours(row[None])
        gaps = {path: largest_difference(half.ours(row[None], path=path), exact) for path in PATHS}
        theirs = largest_difference(half.ask_theirs(input_ids=row[None]).logits, exact)
    assert max(gaps.values()) < theirs, (gaps, theirs)
    assert max(gaps.values()) < BOUNDS[torch.bfloat16], gaps


def test_gelu_of_bloom_is_the_tanh_approximation_with_a_rounded_constant() -> None:
    x = 4 * normal(10_000)
    assert largest_difference(gelu_tanh(x), bloom_gelu_forward(x)) < 1e-8  # √(2/π) to eight digits
    assert largest_difference(gelu(x), bloom_gelu_forward(x)) > 1e-4
