"""Masks as values: what they say written out, how they combine, how they meet batch axes, and which are refused."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import glassformer as gf
from glassformer.nn import masks
from glassformer.nn.masks import Mask
from tests.helpers import PATHS, largest_difference, normal, randomise, right_padded, types_unchecked


def by_loops(queries, keys, *, causal=False, window=None, real=None, pairs=None):
    """The rules one pair at a time; query and key positions both end at the last key."""
    rows = []
    for t in range(queries):
        i = keys - queries + t
        rows.append(
            [
                not (
                    (causal and j > i)
                    or (window is not None and abs(i - j) >= window)
                    or (real is not None and not real[j])
                    or (pairs is not None and not pairs[t][j])
                )
                for j in range(keys)
            ]
        )
    return rows


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        (3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (2, [[1, 1, 0], [1, 1, 1]]),
        (1, [[1, 1, 1]]),
        (5, [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    ],
    ids=["square", "chunk", "last", "more queries than keys"],
)
def test_causal_is_aligned_to_the_end(queries, expected):
    assert masks.causal().dense((queries, 3)).int().tolist() == expected


def test_window():
    assert masks.window(2).dense((4, 4)).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    past = masks.window(2) & masks.causal()
    assert past.dense((4, 4)).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert past.dense((1, 4)).int().tolist() == [[0, 0, 1, 1]]


def test_cross_lets_real_queries_see_real_keys():
    dense = masks.cross(right_padded(2, 1, width=2), right_padded(1, 3, width=3)).dense((2, 2, 3))
    assert dense.int().tolist() == [[[1, 0, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 0]]]


@given(data=st.data(), queries=st.integers(1, 6), keys=st.integers(1, 6))
def test_combinations_equal_loops(data, queries, keys):
    booleans = st.lists(st.booleans(), min_size=keys, max_size=keys)
    rules = {
        "causal": data.draw(st.booleans()),
        "window": data.draw(st.none() | st.integers(1, 7)),
        "real": data.draw(st.none() | booleans),
        "pairs": data.draw(st.none() | st.lists(booleans, min_size=queries, max_size=queries)),
    }
    parts = [masks.causal()] if rules["causal"] else []
    if rules["window"] is not None:
        parts += [masks.window(rules["window"]), masks.window(rules["window"] + 1)]  # the narrower one counts
    if rules["real"] is not None:
        parts.append(masks.padding(torch.tensor(rules["real"])))
    if rules["pairs"] is not None:
        parts.append(Mask(pairs=torch.tensor(rules["pairs"])))
    combined = Mask()
    for part in data.draw(st.permutations(parts)):
        combined = combined & part
    assert combined.dense((queries, keys)).tolist() == by_loops(queries, keys, **rules)


@given(seed=st.integers(0, 1000), queries=st.integers(1, 4), keys=st.integers(1, 4), same=st.booleans())
def test_combined_tensors_hold_where_both_do(seed, queries, keys, same):
    """Per batch row, per batch row and head, per pair: all aligned to the left, also where batch = heads."""
    batch, heads = (2, 2) if same else (2, 3)
    real, real_in_head = normal(batch, keys, seed=seed) < 0.5, normal(batch, heads, keys, seed=seed + 1) < 0.5
    pairs, pairs_in_head = normal(batch, queries, keys, seed=seed) < 0.5, normal(batch, heads, queries, keys) < 0.5
    mask = masks.padding(real) & masks.padding(real_in_head) & Mask(pairs=pairs) & Mask(pairs=pairs_in_head)
    dense = mask.dense((batch, heads, queries, keys)).expand(batch, heads, queries, keys)
    for b in range(batch):
        for h in range(heads):
            for t in range(queries):
                for j in range(keys):
                    holds = real[b, j] and real_in_head[b, h, j] and pairs[b, t, j] and pairs_in_head[b, h, t, j]
                    assert dense[b, h, t, j] == bool(holds)


@pytest.mark.parametrize("axes", [3, 4, 5])
@pytest.mark.parametrize("kind", ["keys", "pairs"])
def test_batch_axes_are_aligned_to_the_left(axes, kind):
    """All leading axes have size 2, so that a mask aligned to the right would fit as well."""
    real = right_padded(4, 1, width=4)
    mask = masks.padding(real) if kind == "keys" else Mask(pairs=real[:, None, :].expand(2, 3, 4))
    dense = mask.dense((*[2] * (axes - 2), 3, 4)).expand(*[2] * (axes - 2), 3, 4)
    assert dense[0].all()
    assert not dense[1, ..., 1:].any()
    assert dense[1, ..., 0].all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["keys", "pairs"])
def test_two_batch_axes_in_multi_head_attention(path, kind):
    """A mask for the first batch axis serves every row of the second, also where the two have the same size."""
    attention = randomise(gf.MultiHeadAttention(8, 2)).double()
    x, real = normal(3, 3, 5, 8), right_padded(5, 2, 3, width=5)
    mask = masks.padding(real) if kind == "keys" else Mask(pairs=real[:, None, :].expand(3, 5, 5))
    expected = torch.stack([attention(x[b], mask=masks.padding(real[b]), path=path) for b in range(3)])
    assert largest_difference(attention(x, mask=mask, path=path), expected) < 1e-12


@pytest.mark.parametrize("path", PATHS)
def test_padding_per_head_in_multi_head_attention(path):
    attention = randomise(gf.MultiHeadAttention(8, 2)).double()
    x, real = normal(2, 5, 8), torch.stack((right_padded(5, 2, width=5), right_padded(1, 4, width=5)), dim=1)
    pairs = real[:, :, None, :].expand(2, 2, 5, 5)
    expected = attention(x, mask=pairs, path=path)
    assert largest_difference(attention(x, mask=masks.padding(real), path=path), expected) < 1e-12


def test_only_causal_is_recognised():
    assert masks.causal().is_only_causal(4)
    assert (masks.causal() & masks.window(4)).is_only_causal(4)
    assert not (masks.causal() & masks.window(3)).is_only_causal(4)
    assert not (masks.causal() & masks.padding(torch.ones(4, dtype=torch.bool))).is_only_causal(4)
    assert not Mask().is_only_causal(4)


def test_a_mask_is_a_value():
    mask = masks.causal()
    with pytest.raises(FrozenInstanceError):
        mask.causal = False
    assert (mask & masks.window(3)).window == 3
    assert mask.window is None


# ---- what is refused


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("make", [masks.padding, lambda x: Mask(pairs=x[None])], ids=["keys", "pairs"])
def test_numbers_are_no_mask(dtype, make):
    with types_unchecked(), pytest.raises(TypeError, match=rf"(?s){dtype}.*mask\.bool\(\)"):
        make(torch.ones(4, dtype=dtype))


def test_too_few_axes():
    with types_unchecked(), pytest.raises(ValueError, match=r"pairs needs at least 2 axes; got shape \(3,\)"):
        Mask(pairs=torch.ones(3, dtype=torch.bool))


def test_a_window_holds_at_least_the_query():
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        masks.window(0)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        Mask(window=0)


def test_a_mask_and_a_tensor_are_not_combined_by_guessing():
    with types_unchecked(), pytest.raises(TypeError, match=r"(?s)masks\.padding.*Mask\(pairs="):
        masks.causal() & torch.ones(3, 3, dtype=torch.bool)


def attend(mask, queries=3, keys=4, batch=2):
    q, k = normal(batch, 2, queries, 6), normal(batch, 2, keys, 6)
    return gf.scaled_dot_product_attention(q, k, k, mask)


def true(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (masks.padding(true(2, 5)), r"\(2, 5\).*3 queries and 4 keys.*masks\.padding"),
        (Mask(pairs=true(2, 4)), r"\(2, 4\).*3 queries and 4 keys"),
        (masks.cross(true(2, 4), true(2, 3)), r"\(2, 4, 3\).*3 queries and 4 keys"),
        (true(2, 2, 3, 5), r"\(2, 2, 3, 5\).*3 queries and 4 keys"),
        (masks.padding(true(2, 2, 1, 4)), r"\(2, 2, 1, 4\).*more axes"),
        (masks.padding(true(3, 4)), r"\(3, 4\)"),
        (Mask(pairs=true(3, 3, 4)), r"\(3, 3, 4\)"),
        (Mask(pairs=true(2, 5, 3, 4)), r"\(2, 5, 3, 4\)"),
    ],
    ids=["keys", "pairs", "crossed", "bare", "too many axes", "batch of keys", "batch of pairs", "heads of pairs"],
)
def test_a_mask_that_does_not_fit_is_named(mask, names):
    with types_unchecked(), pytest.raises(ValueError, match=f"(?s){names}"):
        attend(mask)


def test_masks_that_do_not_fit_each_other():
    with pytest.raises(ValueError, match=r"(?s)\(2, 5\).*\(2, 4\)"):
        masks.padding(true(2, 5)) & masks.padding(true(2, 4))


def test_bare_booleans_with_axes_in_between_are_refused():
    assert attend(true(3, 4)).shape == attend(true(2, 1, 3, 4)).shape == (2, 2, 3, 6)
    with pytest.raises(ValueError, match=r"(?s)\(2, 3, 4\).*\(2, 2, 3, 6\).*unsqueeze\(1\)"):
        attend(true(2, 3, 4))
