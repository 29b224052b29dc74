"""Positions that change the scores: buckets of distances, ALiBi, disentangled content and position."""

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from glassformer.config import BucketBias, Disentangled
from glassformer.nn.relative import (
    alibi_bias,
    alibi_slopes,
    bucket_bias,
    disentangled_bias,
    distance_bucket,
    distances,
    relative_rows,
    signed_log_bucket,
)
from tests.helpers import FLOATS, largest_difference, normal

FAR = 2000


def expected_bucket(distance: int, buckets: int, max_distance: int, *, bidirectional: bool) -> int:
    """The formula of the published code in plain Python, one distance at a time.

    The logarithms are float32 there, and so is everything after them.
    """
    start = 0
    if bidirectional:
        buckets //= 2
        start = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    near = buckets // 2
    if distance < near:
        return start + distance
    single = torch.tensor(distance, dtype=torch.float32) / near
    far = near + int(torch.log(single) / math.log(max_distance / near) * (buckets - near))
    return start + min(far, buckets - 1)


COUNTS = [(32, 128), (32, 64), (8, 20), (10, 128), (7, 50), (4, 5), (64, 1000)]


@pytest.mark.parametrize("bidirectional", [True, False], ids=["both ways", "past"])
@pytest.mark.parametrize(("buckets", "max_distance"), COUNTS)
def test_buckets_equal_the_formula_at_every_distance(bidirectional, buckets, max_distance, device):
    facts = BucketBias(buckets=buckets, max_distance=max_distance)
    away = range(-300, 301)
    expected = [expected_bucket(d, buckets, max_distance, bidirectional=bidirectional) for d in away]
    assert distance_bucket(torch.tensor(away, device=device), facts, bidirectional=bidirectional).tolist() == expected


@pytest.mark.parametrize("bidirectional", [True, False], ids=["both ways", "past"])
@pytest.mark.parametrize(("buckets", "max_distance"), COUNTS)
def test_buckets_equal_hugging_face(bidirectional, buckets, max_distance):
    away = torch.arange(-FAR, FAR + 1)
    facts = BucketBias(buckets=buckets, max_distance=max_distance)
    theirs = T5Attention._relative_position_bucket(away, bidirectional, buckets, max_distance)
    assert torch.equal(distance_bucket(away, facts, bidirectional=bidirectional), theirs)


@pytest.mark.parametrize(("buckets", "max_distance"), COUNTS)
def test_buckets_equal_those_of_mpnet(buckets, max_distance):
    away = torch.arange(-FAR, FAR + 1)
    facts = BucketBias(buckets=buckets, max_distance=max_distance)
    theirs = MPNetEncoder.relative_position_bucket(away, buckets, max_distance)
    assert torch.equal(distance_bucket(away, facts, bidirectional=True), theirs)


@pytest.mark.parametrize("bidirectional", [True, False], ids=["both ways", "past"])
def test_buckets_stay_in_the_table_and_grow_with_distance(bidirectional):
    facts = BucketBias(buckets=12, max_distance=40)
    rows = distance_bucket(torch.arange(-FAR, FAR + 1), facts, bidirectional=bidirectional)
    assert int(rows.min()) == 0
    assert int(rows.max()) == 11
    past, future = rows[: FAR + 1].flip(0), rows[FAR:]
    assert (past.diff() >= 0).all()
    if bidirectional:
        assert (future[1:] == past[1:] + 6).all()
    else:
        assert (future == 0).all()  # what comes later is hidden by the mask


def test_distances_are_key_minus_query():
    queries, keys = torch.tensor([[3, 4], [0, 1]]), torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 0, 1]])
    away = distances(queries, keys)
    assert away.shape == (2, 2, 5)
    assert away[0, 0].tolist() == [-3, -2, -1, 0, 1]
    assert away[1, 1].tolist() == [-1, -1, -1, -1, 0]
    assert torch.equal(distances(queries[0], keys[0]), away[0])


@pytest.mark.parametrize("causal", [True, False])
def test_bucket_bias_looks_up_each_head(causal):
    facts, table = BucketBias(buckets=8, max_distance=20), normal(8, 3).requires_grad_()
    away = distances(torch.tensor([[0, 5], [2, 3]]), torch.tensor([[0, 1, 9], [2, 3, 30]]))
    bias = bucket_bias(table, facts, away, causal=causal)
    assert bias.shape == (2, 3, 2, 3)
    for b in range(2):
        for t in range(2):
            for s in range(3):
                row = expected_bucket(int(away[b, t, s]), 8, 20, bidirectional=not causal)
                assert torch.equal(bias[b, :, t, s], table[row])
    bias.sum().backward()
    hits = distance_bucket(away, facts, bidirectional=not causal).flatten().bincount(minlength=8).double()
    assert torch.equal(table.grad, hits[:, None].expand(8, 3))


# ---- ALiBi


def published_slopes(heads: int) -> list[float]:
    """The published code of ALiBi (github.com/ofirpress/attention_with_linear_biases), in plain Python."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return published_slopes(power) + published_slopes(2 * power)[0::2][: heads - power]


@pytest.mark.parametrize("heads", [*range(1, 34), 40, 64, 71, 112])
def test_slopes_equal_the_published_code_and_hugging_face(heads, device):
    ours = alibi_slopes(heads, torch.float64, device)
    assert ours.tolist() == pytest.approx(published_slopes(heads), rel=1e-13)
    assert largest_difference(alibi_slopes(heads, device=device).cpu(), _get_alibi_slopes(heads, "cpu")) < 1e-6


def test_slopes_of_the_paper():
    """Section 3 of the paper: 1/2, 1/4 … 1/256 for 8 heads, and their geometric means between them for 16."""
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(16, torch.float64).tolist() == pytest.approx([2 ** (-i / 2) for i in range(1, 17)], rel=1e-15)


@pytest.mark.parametrize("dtype", FLOATS)
def test_alibi_is_minus_the_slope_times_the_absolute_distance(dtype, device):
    """Rounded once: in half precision whole numbers beyond 2048 (float16) and 256 (bfloat16) cannot be told apart."""
    queries, keys = torch.tensor([[5000, 5001]]), torch.tensor([[0, 4321, 4999, 5000, 5001, 6000]])
    bias = alibi_bias(6, distances(queries, keys).to(device), dtype)
    assert bias.dtype == dtype
    assert bias.shape == (1, 6, 2, 6)
    slopes = alibi_slopes(6, torch.promote_types(dtype, torch.float32))
    for head in range(6):
        for query in range(2):
            for key in range(6):
                exact = -slopes[head] * abs(int(queries[0, query]) - int(keys[0, key]))
                assert bias[0, head, query, key].cpu() == exact.to(dtype)


def test_alibi_of_a_distance_that_half_precision_cannot_hold_hides_the_key():
    bias = alibi_bias(8, torch.tensor([[-200_000, 0]]), torch.float16)
    assert bias[0].tolist() == [[-math.inf, 0.0]]
    assert not bias.isnan().any()


# ---- logarithmic buckets


@pytest.mark.parametrize(("buckets", "max_distance"), [(256, 512), (6, 12), (32, 128), (10, 50), (64, 100)])
def test_logarithmic_buckets_equal_hugging_face(buckets, max_distance):
    away = torch.arange(-5 * max_distance, 5 * max_distance + 1)
    theirs = make_log_bucket_position(away, buckets, max_distance)
    ours = signed_log_bucket(away, buckets, max_distance)
    assert not ours.is_floating_point()
    assert torch.equal(ours, theirs.long())


def test_logarithmic_buckets_keep_near_distances_and_the_sign():
    away = torch.arange(-600, 601)
    pressed = signed_log_bucket(away, 64, 512)
    near = away.abs() <= 32
    assert torch.equal(pressed[near], away[near])
    assert torch.equal(pressed, -pressed.flip(0))
    assert (pressed.diff() >= 0).all()
    assert int(pressed[away == 511]) == 63  # the farthest of the table
    assert pressed.unique().numel() < away.numel() / 4


@pytest.mark.parametrize("buckets", [0, 6])
def test_rows_of_relative_positions_are_clamped(buckets):
    facts = Disentangled(span=4, buckets=buckets, max_distance=12)
    away = torch.arange(-40, 41)[None]  # key − query
    rows = relative_rows(facts, away)
    assert int(rows.min()) == 0
    assert int(rows.max()) == 7
    assert int(rows[0, 40]) == 4
    assert int(rows[0, 39]) == 5  # one behind: the row after the middle
    assert int(rows[0, 41]) == 3
    if not buckets:
        expected = [min(max(4 - d, 0), 7) for d in range(-40, 41)]
        assert rows[0].tolist() == expected


# ---- disentangled attention


@pytest.mark.parametrize("terms", ["c2p", "p2c", "both"])
@pytest.mark.parametrize("batched", [True, False], ids=["rows per sequence", "rows for all"])
def test_disentangled_bias_equals_loops(terms, batched, device):
    batch, heads, queries, keys, width, table = 2, 3, 4, 5, 6, 8
    q, k = normal(batch, heads, queries, width, device=device), normal(batch, heads, keys, width, seed=1, device=device)
    position_q = normal(heads, table, width, seed=2, device=device) if terms != "c2p" else None
    position_k = normal(heads, table, width, seed=3, device=device) if terms != "p2c" else None
    shape = (batch, queries, keys) if batched else (queries, keys)
    rows = torch.randint(table, shape, generator=torch.Generator().manual_seed(0)).to(device)
    bias = disentangled_bias(q, k, position_q, position_k, rows)
    assert bias.shape == (batch, heads, queries, keys)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for j in range(keys):
                    row = int(rows[b, i, j] if batched else rows[i, j])
                    expected = 0.0
                    if position_k is not None:
                        expected += float(q[b, h, i] @ position_k[h, row])
                    if position_q is not None:
                        expected += float(position_q[h, row] @ k[b, h, j])
                    assert float(bias[b, h, i, j]) == pytest.approx(expected, abs=1e-12)


def test_disentangled_bias_without_terms_is_zero():
    bias = disentangled_bias(normal(2, 3, 4, 6), normal(2, 3, 5, 6), None, None, torch.zeros(4, 5, dtype=torch.int64))
    assert bias.shape == (2, 3, 4, 5)
    assert not bias.any()


def test_gradients_of_disentangled_bias():
    rows = torch.randint(4, (2, 3, 3), generator=torch.Generator().manual_seed(0))
    inputs = [normal(*shape, seed=i).requires_grad_() for i, shape in enumerate([(2, 2, 3, 4)] * 2 + [(2, 4, 4)] * 2)]
    torch.autograd.gradcheck(lambda *x: disentangled_bias(*x, rows), inputs)


def test_whole_distances_equal_their_mean_difference():
    """Shifting all positions changes nothing: both mechanisms look at distances alone."""
    here, shifted = torch.arange(6), torch.arange(6) + 100
    facts = Disentangled(span=3, buckets=4, max_distance=9)
    assert torch.equal(relative_rows(facts, distances(here, here)), relative_rows(facts, distances(shifted, shifted)))
    assert largest_difference(distances(here, here), distances(shifted, shifted)) == 0
