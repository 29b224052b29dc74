"""A bias on the scores of attention: both paths, with every mask, in forward and backward; and resolved masks."""

import math

import pytest
import torch

import glassformer as gf
from glassformer.nn import masks
from glassformer.nn.attention import softmax
from glassformer.nn.masks import DenseMask, Mask, resolve
from tests.helpers import FLOATS, PATHS, largest_difference, normal, right_padded

BOUNDS = {torch.float64: 1e-12, torch.float32: 4e-6, torch.bfloat16: 6e-2, torch.float16: 8e-3}
BATCH, HEADS, LENGTH = 2, 4, 6

each_path = pytest.mark.parametrize("path", PATHS)
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def attend(q, k, v, mask=None, **options):
    return gf.scaled_dot_product_attention(q, k, v, mask, **options)


def inputs(queries=LENGTH, keys=LENGTH, kv_heads=HEADS, dtype=torch.float64, device="cpu", leading=(BATCH,)):
    shapes = ((*leading, HEADS, queries, 8), (*leading, kv_heads, keys, 8), (*leading, kv_heads, keys, 5))
    return [normal(*shape, seed=i, dtype=dtype, device=device) for i, shape in enumerate(shapes)]


def make_mask(kind, queries=LENGTH, keys=LENGTH, device="cpu"):
    real = right_padded(keys, keys - 2, width=keys, device=device)
    pairs = (normal(BATCH, HEADS, queries, keys, seed=5) < 0.5).to(device)
    pairs[..., 0] = True
    return {
        "none": None,
        "causal": masks.causal(),
        "window": masks.causal() & masks.window(3),
        "padding": masks.padding(real),
        "causal and padding": masks.causal() & masks.padding(real),
        "pairs": Mask(pairs=pairs),
        "resolved": DenseMask(pairs),
        "resolved causal": DenseMask(causal=True) if queries == keys else DenseMask(pairs),
    }[kind]


KINDS = ("none", "causal", "window", "padding", "causal and padding", "pairs", "resolved", "resolved causal")
SHAPES = {
    "all": (BATCH, HEADS, LENGTH, LENGTH),
    "heads": (HEADS, LENGTH, LENGTH),
    "one head": (BATCH, 1, LENGTH, LENGTH),
    "square": (LENGTH, LENGTH),
    "keys": (1, LENGTH),
    "queries": (HEADS, LENGTH, 1),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def by_hand(q, k, v, mask, bias):
    """softmax(q · k / √K + bias) over what the mask allows, one query at a time."""
    batch, heads, queries, _ = q.shape
    keys, group = k.shape[-2], heads // k.shape[1]
    if isinstance(mask, DenseMask):
        mask = Mask(causal=mask.causal, pairs=mask.allowed)
    allowed = (mask or Mask()).dense((batch, heads, queries, keys)).expand(batch, heads, queries, keys)
    bias = bias.expand(batch, heads, queries, keys)
    out = q.new_zeros(batch, heads, queries, v.shape[-1])
    for b in range(batch):
        for h in range(heads):
            for t in range(queries):
                seen = [s for s in range(keys) if allowed[b, h, t, s]]
                if seen:
                    scores = k[b, h // group, seen] @ q[b, h, t] / math.sqrt(q.shape[-1]) + bias[b, h, t, seen]
                    out[b, h, t] = torch.softmax(scores, -1) @ v[b, h // group, seen]
    return out


@each_path
@each_kind
@pytest.mark.parametrize(
    ("shape", "kv_heads"),
    [("all", 4), ("all", 2), ("heads", 1), ("one head", 2), ("square", 4), ("keys", 2), ("queries", 4)],
)
def test_bias_equals_the_formula(path, kind, kv_heads, shape):
    q, k, v = inputs(kv_heads=kv_heads)
    mask, bias = make_mask(kind), 2 * normal(*SHAPES[shape], seed=9)
    assert largest_difference(attend(q, k, v, mask, bias=bias, path=path), by_hand(q, k, v, mask, bias)) < 1e-12


@each_path
@each_kind
def test_fewer_queries_than_keys(path, kind):
    """As with a cache: the queries are the last ones."""
    q, k, v = inputs(queries=2)
    mask, bias = make_mask(kind, queries=2), normal(HEADS, 2, LENGTH, seed=9)
    assert largest_difference(attend(q, k, v, mask, bias=bias, path=path), by_hand(q, k, v, mask, bias)) < 1e-12


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)], ids=lambda leading: f"{len(leading) + 3}axes")
def test_paths_agree_whatever_the_leading_axes(leading, device):
    q, k, v = inputs(leading=leading, device=device)
    for axes in range(2, 4 + len(leading)):
        bias = normal(*(*leading, HEADS, LENGTH, LENGTH)[-axes:], seed=9, device=device)
        eager, fused = (attend(q, k, v, masks.causal(), bias=bias, path=path) for path in PATHS)
        assert largest_difference(eager, fused) < 1e-12
    if not leading:
        one = [x[0] for x in (q, k, v)]
        assert largest_difference(
            attend(*one, bias=bias[0], path="eager"), attend(*one, bias=bias[0], path="sdpa")
        ) < 1e-12  # fmt: skip


@each_kind
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("shape", ["all", "heads", "square"])
def test_gradients_agree_that_of_the_bias_included(kind, kv_heads, shape, device):
    results = []
    for path in PATHS:
        leaves = [x.requires_grad_() for x in inputs(kv_heads=kv_heads, device=device)]
        bias = normal(*SHAPES[shape], seed=9, device=device).requires_grad_()
        out = attend(*leaves, make_mask(kind, device=device), bias=bias, path=path)
        out.backward(normal(*out.shape, seed=11, device=device))
        results.append([x.grad for x in (*leaves, bias)])
    for eager, fused in zip(*results, strict=True):
        assert float(eager.abs().max()) > 1e-3
        assert largest_difference(eager, fused) < 1e-11


@each_path
def test_gradients_are_right(path):
    q, k, v = (normal(*shape, seed=i) for i, shape in enumerate([(2, 2, 3), (1, 3, 3), (1, 3, 2)]))
    bias, mask = normal(2, 2, 3, seed=9), masks.causal()
    torch.autograd.gradcheck(
        lambda *x: attend(*x[:3], mask, bias=x[3], path=path), [x.requires_grad_() for x in (q, k, v, bias)]
    )


@each_path
def test_a_hidden_slot_gives_the_bias_no_gradient(path):
    q, k, v = inputs()
    bias = normal(BATCH, HEADS, LENGTH, LENGTH, seed=9).requires_grad_()
    real = right_padded(6, 4, width=6)
    out = attend(q, k, v, masks.causal() & masks.padding(real), bias=bias, path=path)
    out.backward(normal(*out.shape, seed=11))
    hidden = ~(masks.causal() & masks.padding(real)).dense((BATCH, HEADS, LENGTH, LENGTH)).expand_as(bias)
    assert not bias.grad[hidden].any()
    assert bias.grad[~hidden].any()


@each_path
def test_garbage_in_the_bias_of_hidden_slots_does_not_leak(path):
    q, k, v = inputs()
    mask, bias = masks.causal(), normal(HEADS, LENGTH, LENGTH, seed=9)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    clean = attend(q, k, v, mask, bias=bias, path=path)
    for garbage in (math.nan, math.inf, 1e300):
        assert torch.equal(attend(q, k, v, mask, bias=bias.masked_fill(later, garbage), path=path), clean)


@each_path
@each_dtype
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_fully_masked_row_gives_zeros_and_finite_gradients(path, dtype, kv_heads, device):
    leaves = [x.requires_grad_() for x in inputs(kv_heads=kv_heads, dtype=dtype, device=device)]
    bias = normal(HEADS, LENGTH, LENGTH, seed=9, dtype=dtype, device=device).requires_grad_()
    blind = right_padded(0, 4, width=LENGTH, device=device)
    for mask in (masks.padding(blind), DenseMask(blind[:, None, None].expand(BATCH, 1, LENGTH, LENGTH))):
        out = attend(*leaves, mask, bias=bias, path=path)
        assert out.dtype == dtype
        assert (out[0] == 0).all()
        assert (out[1] != 0).any(-1).all()
        out.backward(torch.ones_like(out))
        for x in (*leaves, bias):
            assert x.grad.isfinite().all()
        assert (leaves[0].grad[0] == 0).all()
    with torch.no_grad():
        assert (attend(*leaves, masks.padding(blind), bias=bias, path=path)[0] == 0).all()


@each_dtype
@each_kind
def test_paths_agree_in_every_type(dtype, kind, device):
    q, k, v = inputs(kv_heads=2, dtype=dtype, device=device)
    bias = normal(HEADS, LENGTH, LENGTH, seed=9, dtype=dtype, device=device)
    mask = make_mask(kind, device=device)
    eager, fused = (attend(q, k, v, mask, bias=bias, path=path) for path in PATHS)
    assert eager.dtype == fused.dtype == dtype
    assert largest_difference(eager, fused) < BOUNDS[dtype]
    exact = attend(*(x.double() for x in (q, k, v)), mask, bias=bias.double(), path="eager")
    assert largest_difference(eager, exact) < BOUNDS[dtype]


@each_path
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wide_bias_for_narrow_vectors(path, dtype):
    """A table kept in float32 beside a half-precision model."""
    q, k, v = inputs(dtype=dtype)
    bias = normal(HEADS, LENGTH, LENGTH, seed=9, dtype=torch.float32)
    out = attend(q, k, v, bias=bias, path=path)
    assert out.dtype == dtype
    exact = attend(*(x.double() for x in (q, k, v)), bias=bias.double(), path="eager")
    assert largest_difference(out, exact) < BOUNDS[dtype]


@each_path
def test_the_bias_is_not_scaled(path):
    q, k, v = inputs()
    bias = normal(HEADS, LENGTH, LENGTH, seed=9)
    expected = softmax(0.5 * q @ k.mT + bias, -1) @ v
    assert largest_difference(attend(q, k, v, bias=bias, scale=0.5, path=path), expected) < 1e-12


def test_weights_know_the_bias():
    q, k, v = inputs()
    bias = normal(HEADS, LENGTH, LENGTH, seed=9)
    out, weights = attend(q, k, v, masks.causal(), bias=bias, path="eager", return_weights=True)
    assert largest_difference(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH)) < 1e-12
    assert largest_difference(weights @ v, out) < 1e-12
    strong = torch.full((LENGTH, LENGTH), -1e9, dtype=torch.float64).fill_diagonal_(0.0)
    _, own = attend(q, k, v, bias=strong, path="eager", return_weights=True)
    assert largest_difference(own, torch.eye(LENGTH).expand_as(own)) < 1e-12


# ---- resolved masks


SCORES = (2, 4, 5, 5)


def test_resolve_says_nothing_where_nothing_is_hidden():
    assert resolve(Mask(), SCORES, None, keep_causal=True) is None
    assert resolve(Mask(), SCORES, None, keep_causal=False) is None
    assert resolve(masks.causal(), (2, 4, 1, 5), None, keep_causal=False) is None  # the newest token sees all
    assert resolve(masks.causal() & masks.window(5), (2, 4, 1, 5), None, keep_causal=True) is None


def test_resolve_keeps_the_word_causal_only_where_it_means_the_triangle():
    for mask in (masks.causal(), masks.causal() & masks.window(5)):
        kept = resolve(mask, SCORES, None, keep_causal=True)
        assert kept is not None
        assert kept.causal
        assert kept.allowed is None
    chunk = resolve(masks.causal(), (2, 4, 3, 5), None, keep_causal=True)
    assert not chunk.causal
    assert chunk.allowed.tolist() == torch.ones(3, 5, dtype=torch.bool).tril(2).tolist()
    real = right_padded(5, 3, width=5)
    for mask in (masks.causal() & masks.padding(real), masks.causal() & masks.window(4)):
        written = resolve(mask, SCORES, None, keep_causal=True)
        assert not written.causal
        assert torch.equal(written.allowed, mask.dense(SCORES))


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(),
        masks.window(2),
        masks.causal() & masks.window(2),
        masks.padding(right_padded(5, 3, width=5)),
        masks.causal() & masks.padding(right_padded(5, 3, width=5)),
        Mask(pairs=normal(2, 5, 5) < 0),
        masks.causal() & masks.window(1),
        Mask(),
    ],
    ids=["causal", "window", "past window", "padding", "causal and padding", "pairs", "itself", "none"],
)
@pytest.mark.parametrize("queries", [5, 3, 1])
def test_a_resolved_mask_means_what_the_mask_means(mask, queries):
    if mask.pairs is not None:
        mask = Mask(pairs=mask.pairs[:, :queries])
    q, k, v = inputs(queries=queries, keys=5)
    expected = attend(q, k, v, mask, path="eager")
    for path in PATHS:
        for keep in (True, False):
            resolved = resolve(mask, (BATCH, HEADS, queries, 5), q.device, keep_causal=keep)
            assert largest_difference(attend(q, k, v, resolved, path=path), expected) < 1e-12


@each_path
def test_an_empty_batch_with_a_bias(path):
    q, k, v = (x[:0] for x in inputs())
    for mask in (None, DenseMask(causal=True), masks.causal()):
        out = attend(q, k, v, mask, bias=normal(HEADS, LENGTH, LENGTH), path=path)
        assert out.shape == (0, HEADS, LENGTH, 5)
