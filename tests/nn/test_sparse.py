"""Block-sparse attention: both readings against their definition and the published code, padding, draws, cost.

The definition here loops over queries and repeats the keys that count more than once; it shares nothing with the code
under test but the random blocks, which have tests of their own.
"""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import BigBirdConfig, BigBirdModel

from glassformer.config import BlockSparse
from glassformer.nn.sparse import block_sparse_attention, block_sparse_mask, random_blocks
from tests.helpers import FLOATS, largest_difference, normal, randomise, right_padded, some_at_once, types_unchecked

HEADS, WIDTH, VALUES, SCALE = 3, 4, 5, 0.4
# Largest difference from the definition on standard normal inputs, rounded to the type first.
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-2, torch.float16: 5e-3}

each_reading = pytest.mark.parametrize("semantics", ["reference", "set"])
each_padding = pytest.mark.parametrize("kind", ["none", "right", "left", "holes"])

attend = functools.partial(block_sparse_attention, scale=SCALE)


def inputs(batch, length, *, device="cpu", dtype=torch.float64):
    """Queries, keys and values that ask for gradients."""
    widths = (WIDTH, WIDTH, VALUES)
    drawn = [normal(batch, HEADS, length, w, seed=i, device=device, dtype=dtype) for i, w in enumerate(widths)]
    return [x.requires_grad_() for x in drawn]


def padding(kind, length, device="cpu"):
    """Which slots of four rows are real: all, most, a third and none of them, or those between random holes."""
    lengths, slot = torch.tensor([length, max(0, length - 3), length // 3, 0])[:, None], torch.arange(length)
    real = {
        "none": None,
        "right": slot < lengths,
        "left": slot >= length - lengths,
        "holes": normal(4, length, seed=9) < 0.8,
    }[kind]
    return None if real is None else real.to(device)


@functools.cache
def seen_keys(length, pattern):
    """For each head and query of an unpadded sequence: its keys, each as often as it counts."""
    if length <= (5 + 2 * pattern.random) * pattern.block:
        return [[list(range(length))] * length] * HEADS
    size, blocks = pattern.block, -(-length // pattern.block)
    drawn = random_blocks(torch.tensor([blocks - 1]), blocks - 2, HEADS, pattern)[0].tolist()

    def keys(head, query):
        block = query // size
        seen = list({0, block - 1, block, block + 1, blocks - 1})
        if block in (0, blocks - 1):
            seen = list(range(blocks))
        elif pattern.semantics == "set":
            seen += drawn[head][block - 1]
        else:
            seen += [0] * pattern.random
        return [key for b in seen for key in range(b * size, min(length, b * size + size))]

    return [[keys(head, query) for query in range(length)] for head in range(HEADS)]


def definition(q, k, v, pattern, real=None):
    """Query by query. ``reference`` hides padding from a pattern over all slots, ``set`` never meets it."""
    batch, heads, length, _ = q.shape
    real = torch.ones(batch, length, dtype=torch.bool) if real is None else real.cpu()
    rows = []
    for row in range(batch):
        is_real = real[row].tolist()
        places = [slot for slot in range(length) if is_real[slot] or pattern.semantics == "reference"]
        out = [[v.new_zeros(v.shape[-1])] * length for _ in range(heads)]
        for head, queries in enumerate(seen_keys(len(places), pattern)):
            for place, keys in zip(places, queries, strict=True):
                keys = [places[key] for key in keys if is_real[places[key]]]
                if is_real[place]:
                    weights = torch.softmax(k[row, head, keys] @ q[row, head, place] * SCALE, -1)
                    out[head][place] = weights @ v[row, head, keys]
        rows.append(torch.stack([torch.stack(head) for head in out]))
    return torch.stack(rows)


def lengths(block, random):
    """Short, the longest that is attended in full, one more, whole blocks and broken ones."""
    limit = (5 + 2 * random) * block
    return limit // 2, limit, limit + 1, limit + 2 * block, limit + 3 * block - 1


@each_reading
@each_padding
@pytest.mark.parametrize(
    ("block", "random"), some_at_once([(1, 2), (2, 3), (3, 1), (4, 0)], {(1, 2), (3, 1)}.__contains__)
)
def test_outputs_and_gradients_equal_the_definition(semantics, kind, block, random, device):
    pattern = BlockSparse(block=block, random=random, semantics=semantics, seed=5)
    for length in lengths(block, random):
        leaves, real = inputs(4, length, device=device), padding(kind, length, device)
        ours, theirs = attend(*leaves, pattern, real), definition(*leaves, pattern, real)
        assert largest_difference(ours, theirs) <= BOUNDS[torch.float64]
        if length != lengths(block, random)[-1]:
            continue
        direction = normal(*ours.shape, seed=7, device=device)
        for a, b in zip(
            torch.autograd.grad(ours, leaves, direction), torch.autograd.grad(theirs, leaves, direction), strict=True
        ):
            assert largest_difference(a, b) <= BOUNDS[torch.float64]


@each_reading
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_floating_type(semantics, dtype, device):
    pattern = BlockSparse(block=4, random=1, semantics=semantics)
    leaves = inputs(2, 37, dtype=dtype, device=device)
    real = right_padded(37, 30, width=37, device=device)
    out = attend(*leaves, pattern, real)
    assert out.dtype == dtype
    exact = attend(*(x.double() for x in leaves), pattern, real)
    assert largest_difference(out, exact) <= BOUNDS[dtype]
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), leaves))


@each_reading
@each_padding
@pytest.mark.parametrize("length", [20, 45])
def test_weights_are_those_of_the_outputs(semantics, kind, length):
    pattern = BlockSparse(block=4, random=1, semantics=semantics)
    q, k, v = inputs(4, length)
    real = padding(kind, length)
    out, weights = attend(q, k, v, pattern, real, return_weights=True)
    assert largest_difference(out, attend(q, k, v, pattern, real)) <= BOUNDS[torch.float64]
    assert largest_difference(weights @ v, out) <= BOUNDS[torch.float64]
    real = torch.ones(4, length, dtype=torch.bool) if real is None else real
    assert largest_difference(weights.sum(-1), real[:, None].expand(-1, HEADS, -1).double()) <= 1e-12
    assert not weights.masked_select(~real[:, None, None]).any()


@each_reading
def test_the_mask_counts_the_keys(semantics):
    pattern = BlockSparse(block=3, random=2, semantics=semantics)
    for length in lengths(3, 2):
        counts = torch.zeros(HEADS, length, length, dtype=torch.float64)
        for head, queries in enumerate(seen_keys(length, pattern)):
            for query, keys in enumerate(queries):
                for key in keys:
                    counts[head, query, key] += 1
        mask = block_sparse_mask(length, pattern, HEADS, dtype=torch.float64)
        assert largest_difference(mask.exp(), counts) <= 1e-12


@torch.no_grad()
def hugging_face(pattern, real):
    """What the attention layer of a model meets and makes: queries, keys, values; outputs for real tokens.

    The model fills up to whole blocks, and at its first call decides by the length how it will attend.
    """
    config = BigBirdConfig(
        vocab_size=90, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=8,
        max_position_embeddings=128, block_size=pattern.block, num_random_blocks=pattern.random,
    )  # fmt: skip
    model = randomise(BigBirdModel(config).double().eval())
    inputs = {"input_ids": (normal(*real.shape).abs() * 20).long(), "attention_mask": real.long()}
    model(**inputs)
    layer, seen = model.encoder.layer[0].attention.self, {}
    layer.register_forward_hook(lambda _, args, result: seen.update(hidden=args[0], out=result[0]))
    model(**inputs)
    hidden, out = (seen[name][:, : real.shape[1]] for name in ("hidden", "out"))
    projected = (projection(hidden) for projection in (layer.query, layer.key, layer.value))
    return [x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for x in projected], out[real]


@pytest.mark.parametrize("block", [2, 4])
@pytest.mark.parametrize("random", [1, 2, 3])  # without random ones, it fails
@pytest.mark.parametrize("kind", ["none", "right", "left"])
def test_equal_to_hugging_face(block, random, kind):
    pattern = BlockSparse(block=block, random=random)
    for length in lengths(block, random):
        real = padding(kind, length)
        real = torch.ones(3, length, dtype=torch.bool) if real is None else real[:3]  # no answer for rows of nothing
        projected, theirs = hugging_face(pattern, real)
        ours = block_sparse_attention(*projected, pattern, real, scale=WIDTH**-0.5).transpose(1, 2).flatten(2)[real]
        assert float(theirs.std()) > 0.1
        assert largest_difference(ours, theirs) <= 1e-10


def test_lengths_and_padding_change_the_answer_of_the_reference_as_in_hugging_face():
    """Not a promise but a fact to know: its last block is that of the batch."""
    pattern = BlockSparse(block=4, random=1)
    q, k, v = inputs(1, 48)
    alone = attend(q[:, :, :40], k[:, :, :40], v[:, :, :40], pattern)
    padded = attend(q, k, v, pattern, right_padded(40, width=48))[:, :, :40]
    assert largest_difference(alone, padded) > 1e-2


@pytest.mark.parametrize("length", [1, 28, 29, 40, 43])
def test_padding_and_neighbours_change_nothing_in_a_set(length, device):
    pattern = BlockSparse(block=4, random=1, semantics="set")
    alone = inputs(1, length, device=device)
    expected = attend(*alone, pattern)
    for before, after, others in ((0, 0, 2), (0, 9, 0), (5, 0, 3), (33, 2, 1)):
        width = before + length + after
        batch = inputs(others + 1, width, device=device)
        real = right_padded(length, *range(width, width - others, -1), width=width, device=device)
        real[0] = real[0].roll(before)
        for mixed, x in zip(batch, alone, strict=True):
            mixed.data[0, :, before : before + length] = x.data[0]
        out = attend(*batch, pattern, real)[:1]
        assert largest_difference(out[:, :, before : before + length], expected) <= BOUNDS[torch.float64]
        assert not out[0, :, ~real[0]].any()


@each_reading
@each_padding
def test_what_padding_holds_reaches_nothing(semantics, kind):
    pattern = BlockSparse(block=2, random=1, semantics=semantics)
    leaves, real = inputs(4, 37), padding(kind, 37)
    clean = attend(*leaves, pattern, real)
    gradients = torch.autograd.grad(clean.square().sum(), leaves)
    if real is not None:
        for x, rubbish in zip(leaves, (torch.nan, torch.inf, torch.nan), strict=True):
            x.data.masked_fill_(~real[:, None, :, None], rubbish)
        assert not clean.masked_select(~real[:, None, :, None]).any()
    spoilt = attend(*leaves, pattern, real)
    assert largest_difference(spoilt, clean) == 0
    for a, b in zip(torch.autograd.grad(spoilt.square().sum(), leaves), gradients, strict=True):
        assert largest_difference(a, b) == 0


@each_reading
@pytest.mark.parametrize("length", [0, 1])
def test_next_to_nothing(semantics, length):
    out = attend(*inputs(2, length), BlockSparse(block=4, random=1, semantics=semantics))
    assert out.shape == (2, HEADS, length, VALUES)


def test_random_blocks_are_different_and_neither_neighbours_nor_ends():
    for random, last, seed in ((1, 7, 0), (2, 9, 1), (3, 11, 2), (3, 30, 3)):
        drawn = random_blocks(torch.tensor([last]), last - 1, 7, BlockSparse(random=random, seed=seed))[0]
        for head in drawn.tolist():
            for block, chosen in enumerate(head, start=1):
                assert len(set(chosen)) == random
                assert all(0 < other < last and abs(other - block) > 1 for other in chosen)


def test_random_blocks_are_drawn_with_equal_chances():
    drawn = random_blocks(torch.tensor([9]), 8, 5000, BlockSparse(random=2))[0]
    for block, candidates in ((1, range(3, 9)), (4, (1, 2, 6, 7, 8)), (8, range(1, 7))):
        shares = drawn[:, block - 1].flatten().bincount(minlength=10) / 5000
        assert all(abs(shares[c] - 2 / len(candidates)) < 0.03 for c in candidates)


def test_random_blocks_depend_on_the_row_and_the_seed_alone():
    pattern = BlockSparse(random=3, seed=1)
    before = torch.get_rng_state()
    alone = random_blocks(torch.tensor([15]), 14, 3, pattern)[0]
    torch.manual_seed(99)
    batch = random_blocks(torch.tensor([40, 15, 12]), 39, 3, pattern)
    assert torch.equal(batch[1, :, :14], alone)
    assert int(batch.min()) > 0
    assert int(batch[2].max()) < 12
    assert not torch.equal(random_blocks(torch.tensor([15]), 14, 3, BlockSparse(random=3, seed=2))[0], alone)
    assert not torch.equal(alone[0], alone[1])
    torch.set_rng_state(before)
    attend(*inputs(1, 60), BlockSparse(block=4, random=1, semantics="set"))
    assert torch.equal(torch.get_rng_state(), before)


@each_reading
@pytest.mark.parametrize("length", [20, 80])
def test_dropout_takes_weights_and_keeps_their_mean(semantics, length):
    pattern = BlockSparse(block=4, random=1, semantics=semantics)
    q, k, v = inputs(6, length)
    sums = attend(q, k, torch.ones_like(v), pattern, dropout=0.3).detach()
    assert abs(float(sums.mean()) - 1) < 0.02
    assert float(sums.std()) > 0.05
    _, weights = attend(q, k, v, pattern, dropout=0.3, return_weights=True)
    assert largest_difference(weights.sum(-1), torch.ones(6, HEADS, length)) <= 1e-12


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return result


def cost(length, pattern, real=None):
    """Floating-point operations of the matrix products, and the largest tensor, forwards and backwards."""
    leaves = inputs(1, length, dtype=torch.float32)
    with FlopCounterMode(display=False) as products, LargestTensor() as memory:
        torch.autograd.grad(attend(*leaves, pattern, real).sum(), leaves)
    return products.get_total_flops(), memory.elements


@each_reading
def test_twice_the_length_costs_twice_as_much(semantics):
    pattern = BlockSparse(block=4, random=2, semantics=semantics)
    small, large = cost(512, pattern), cost(1024, pattern)
    for once, twice in zip(small, large, strict=True):
        assert 1.8 * once <= twice <= 2.2 * once
    assert large[1] < 1024**2


def test_a_short_row_in_a_long_batch_costs_little():
    pattern = BlockSparse(block=4, random=2, semantics="set")
    assert cost(1024, pattern, right_padded(36, width=1024))[0] == cost(36, pattern)[0]


@each_reading
def test_autocast_does_not_narrow_the_scores(semantics):
    pattern = BlockSparse(block=4, random=1, semantics=semantics)
    q, k, v = inputs(1, 48, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = attend(q, k, v, pattern)
    assert largest_difference(narrow, attend(q, k, v, pattern)) == 0


def test_wrong_inputs_are_explained():
    pattern = BlockSparse(block=2, random=1)
    q, k, v = inputs(2, 6)
    with types_unchecked():
        with pytest.raises(ValueError, match="as many key and value heads as query heads"):
            attend(q, k[:, :1], v[:, :1], pattern)
        with pytest.raises(ValueError, match="is self-attention"):
            attend(q, k[:, :, :3], v[:, :, :3], pattern)
        with pytest.raises(TypeError, match=r"\.bool\(\)"):
            attend(q, k, v, pattern, torch.ones(2, 6))
        with pytest.raises(ValueError, match="has the shape"):
            attend(q, k, v, pattern, torch.ones(2, 5, dtype=torch.bool))
        with pytest.raises(ValueError, match="dropout"):
            attend(q, k, v, pattern, dropout=1.0)
