"""Known silent bugs of disentangled attention; see ``test_silent_bugs`` for what a row is."""

from pathlib import Path

import pytest
import torch

from glassformer import config
from glassformer.nn.multi_head import Attention, AttentionContext
from glassformer.nn.relative import distances, relative_rows, signed_log_bucket
from tests.helpers import largest_difference, normal, randomise
from tests.parity.cases_deberta import SECOND, SMALL, case
from tests.parity.harness import BOUNDS, EXACT, Pair, rows

LENGTHS = (39, 24, 6)  # buckets end at 7 and distances at 12: all three parts of the scale are used
CASES = [
    case("deberta", "DebertaForMaskedLM", SMALL),
    case("deberta_v2", "DebertaV2ForMaskedLM", SECOND),
    case("deberta_v2-convolved", "DebertaV2ForMaskedLM", {**SECOND, "conv_kernel_size": 3, "share_att_key": False}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("dtype", [torch.float64, *BOUNDS], ids=str)
def test_row_14_disentangled_parity_beyond_the_buckets(case, dtype, tmp_path: Path) -> None:
    pair = Pair.make(case, tmp_path)
    pair = pair if dtype == torch.float64 else pair.cast(dtype)
    for side in ("none", "right", "left"):
        assert pair.compare(rows(LENGTHS, 1), None, side) <= BOUNDS.get(dtype, case.bound)


@pytest.mark.parametrize("path", ["eager", "sdpa"])
@pytest.mark.parametrize("terms", [("c2p",), ("p2c",), ("c2p", "p2c")])
def test_row_14_every_pair_by_itself(terms: tuple[str, ...], path: str) -> None:
    """The sign of the distance, in both terms: a key after the query is not a key before it."""
    facts = config.Disentangled(span=4, terms=terms, buckets=4, max_distance=9, key_bias=True)
    attention = Attention(config.Attention(heads=1, head_dim=6, score_bias=facts), 6).double()
    randomise(attention)
    x, table, places = normal(15, 6, seed=1), normal(8, 6, seed=2), torch.arange(15)
    context = AttentionContext(relative=(table, relative_rows(facts, distances(places, places))), path=path)
    q, k, v = attention.q(x), attention.k(x), attention.v(x)
    scores = q @ k.T
    for i in range(15):
        for j in range(15):
            row = min(max(int(signed_log_bucket(torch.tensor(i - j), 4, 9)) + 4, 0), 7)
            if "c2p" in terms:
                scores[i, j] += q[i] @ attention.position_k(table)[row]
            if "p2c" in terms:
                scores[i, j] += k[j] @ attention.position_q(table)[row]
    expected = attention.o((scores / 6**0.5).softmax(-1) @ v)
    assert largest_difference(attention(x[None], context=context)[0], expected) < EXACT


def test_row_14_log_buckets_keep_order_sign_and_range() -> None:
    """Distances up to half the buckets are themselves; from ``max_distance`` on, all are the last row."""
    facts = config.Disentangled(span=8, buckets=8, max_distance=20)
    away = torch.arange(-60, 61)
    pressed = signed_log_bucket(away, 8, 20)
    assert (pressed.diff() >= 0).all()
    assert torch.equal(pressed, -pressed.flip(0))
    assert torch.equal(pressed[56:65], away[56:65])  # −4 to 4
    assert set(pressed[away.abs() <= 19].abs().tolist()) == set(range(8))
    used = relative_rows(facts, -away[None])[0]
    assert {0, 15} <= set(used.tolist()) <= set(range(16))
    assert (used[away >= 19] == 15).all()
    assert (used[away < -19] == 0).all()


def test_row_14_large_scores_stay_finite_in_float16() -> None:
    facts = config.Disentangled(span=4, shared_projections=True)
    attention = Attention(config.Attention(heads=2, head_dim=64, scale=(3 * 64) ** -0.5, score_bias=facts), 128)
    torch.nn.init.eye_(attention.q.weight)
    torch.nn.init.eye_(attention.k.weight)
    x, table, places = 50 * normal(5, 128, seed=1), 50 * normal(8, 128, seed=2), torch.arange(5)
    context = AttentionContext(relative=(table, relative_rows(facts, distances(places, places))))
    half = AttentionContext(relative=(table.half(), context.relative[1]))
    assert (x @ table.T).abs().max() > torch.finfo(torch.float16).max  # what would have overflowed
    found = attention.half()(x.half()[None], context=half)
    expected = attention.double()(x[None], context=context)
    assert largest_difference(found, expected) < 0.02 * expected.abs().max()
