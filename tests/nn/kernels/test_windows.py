"""Windows by blocks against the mask of all pairs: lengths, padding, documents, heads, dtypes, gradients, cost."""

import pytest
import torch

from glassformer.nn import masks
from glassformer.nn.attention import scaled_dot_product_attention as attend
from glassformer.nn.kernels.windows import attend_in_window, has_blocks, make_window_mask, window_block, window_blocks
from glassformer.nn.masks import Mask
from tests.helpers import FLOATS, largest_difference, normal

BATCH, HEADS, WIDTH, VALUES, SCALE = 3, 4, 8, 6, 0.3
# Largest difference from the formula on standard normal inputs, rounded to the type first.
BOUNDS = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 6e-2, torch.float16: 8e-3}
CASES = [  # tokens, window, queries per block
    (2, 1, 1), (5, 1, 2), (7, 6, 4), (9, 3, 3), (12, 4, 4), (13, 4, 2), (17, 5, 16), (23, 4, 3), (40, 7, 4),
    (41, 12, 6),
]  # fmt: skip
each_case = pytest.mark.parametrize(("length", "window", "block"), CASES)
each_mask = pytest.mark.parametrize("causal", [True, False])


def inputs(length, *, groups=HEADS, dtype=torch.float64):
    """Queries, keys and values that ask for gradients."""
    sizes = ((HEADS, WIDTH), (groups, WIDTH), (groups, VALUES))
    drawn = [normal(BATCH, heads, length, width, seed=i, dtype=dtype) for i, (heads, width) in enumerate(sizes)]
    return [x.requires_grad_() for x in drawn]


def padding(side, length):
    """Real slots of three rows: all, some, none."""
    lengths, slot = torch.tensor([length, length // 3 + 1, 0])[:, None], torch.arange(length)
    real = {"none": None, "right": slot < lengths, "left": slot >= length - lengths}
    real["both"] = (slot >= length // 4) & (slot < length // 4 + lengths)
    return real[side]


def by_formula(x, mask, allowed=None):
    """The definition, in float64."""
    mask = mask if allowed is None else mask & Mask(pairs=allowed)
    return attend(*(y.double() for y in x), mask, scale=SCALE, path="eager")


def compare(x, out, expected, bound):
    """Outputs, and the gradients of a random sum of them."""
    assert out.dtype == x[0].dtype
    assert largest_difference(out, expected) < bound
    weights = normal(*out.shape, seed=7)
    found, wanted = (torch.autograd.grad((y.double() * weights).sum(), x) for y in (out, expected))
    for ours, theirs in zip(found, wanted, strict=True):
        assert largest_difference(ours, theirs) < 4 * bound


@each_mask
@each_case
def test_every_pair_of_the_window_is_in_one_block(length, window, block, causal):
    mask = Mask(causal=causal, window=window)
    if not has_blocks(mask, length, length):
        assert length <= 2 * window
        return
    found = torch.zeros(length, length, dtype=torch.long)
    for blocks, allowed in make_window_mask(mask, length, None, block=block).blocks:
        here = torch.ones(blocks.queries, blocks.keys).tril().bool() if allowed is None else allowed
        for number in range(blocks.number):
            query, key = blocks.query + number * block, blocks.key + number * block
            found[query : query + blocks.queries, key : key + blocks.keys] += here
    assert torch.equal(found, mask.dense((length, length)).long())


@each_mask
@each_case
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_blocks_equal_the_formula(length, window, block, causal, groups):
    mask, x = Mask(causal=causal, window=window), inputs(length, groups=groups)
    if has_blocks(mask, length, length):
        out = attend_in_window(*x, make_window_mask(mask, length, None, block=block), SCALE, 0.0)
        compare(x, out, by_formula(x, mask), BOUNDS[torch.float64])


@each_mask
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [33, 64, 75])
def test_a_window_in_every_dtype(length, dtype, causal):
    """As the function is called, with blocks of the usual size."""
    mask, x = Mask(causal=causal, window=9), inputs(length, groups=2, dtype=dtype)
    compare(x, attend(*x, mask, scale=SCALE), by_formula(x, mask), BOUNDS[dtype])


@each_mask
@pytest.mark.parametrize("side", ["right", "left", "both"])
@pytest.mark.parametrize("packed", [False, True])
def test_padding_and_documents(side, packed, causal):
    length, window = 29, 4
    mask, x = Mask(causal=causal, window=window, keys=padding(side, length)), inputs(length)
    documents = torch.arange(length).expand(BATCH, -1) // torch.tensor([[11], [3], [7]]) if packed else None
    allowed = None if documents is None else documents[:, :, None] == documents[:, None, :]
    window_mask = make_window_mask(mask, length, None, documents, block=5)
    out = attend_in_window(*x, window_mask, SCALE, 0.0)
    compare(x, out, by_formula(x, mask, allowed), BOUNDS[torch.float64])
    assert out[2].abs().max() == 0  # a row of padding
    for path in ("eager", "sdpa"):
        assert largest_difference(attend(*x, window_mask, scale=SCALE, path=path), out) < BOUNDS[torch.float64]


@pytest.mark.parametrize("lead", [(), (2,), (2, 3, 2)])
def test_any_leading_axes(lead):
    x = [normal(*lead, 21, WIDTH, seed=i) for i in range(3)]
    mask = masks.causal() & masks.window(4)
    assert largest_difference(attend(*x, mask), attend(*x, mask, path="eager")) < BOUNDS[torch.float64]


def test_dropout_drops_weights_of_the_window_alone():
    """With values of one, a row is the sum of its weights: 1 on average, and nothing comes from outside the window."""
    length, window = 400, 6
    q, k, _ = inputs(length)
    mask = make_window_mask(masks.causal() & masks.window(window), length, None)
    torch.manual_seed(0)
    sums = attend_in_window(q, k, torch.ones(BATCH, HEADS, length, 1, dtype=torch.float64), mask, 0.0, 0.5).detach()
    assert abs(float(sums.mean()) - 1) < 0.05
    kept = (sums[:, :, window:] * window / 2).round(decimals=6).unique()
    assert set(kept.tolist()) <= set(range(window + 1))
    assert len(kept) > 3


def test_blocks_need_a_window_that_hides_something():
    causal, both = masks.causal() & masks.window(4), masks.window(4)
    assert [has_blocks(causal, length, length) for length in (3, 4, 5)] == [False, False, True]
    assert [has_blocks(both, length, length) for length in (7, 8, 9)] == [False, False, True]
    assert not has_blocks(causal, 3, 9)  # a chunk after cached tokens
    assert not has_blocks(masks.causal(), 9, 9)


@each_mask
def test_pairs_grow_linearly(causal):
    """Half a window more tokens cost half a window times the keys of a block."""

    def pairs(length):
        blocks = window_blocks(length, 64, causal=causal, block=window_block(64))
        return sum(b.number * b.queries * b.keys for b in blocks)

    steps = {pairs(length + 32) - pairs(length) for length in range(200, 1000)}
    assert steps == {32 * (96 if causal else 160)}
    for length in (129, 130, 131, 200):
        assert pairs(length) <= length**2
