"""Autocast may round matrix products, but neither norms, nor softmax, nor scores of attention."""

import pytest
import torch

import glassformer as gf
from tests.helpers import largest_difference, normal, randomise, relative_difference

HALVES = (torch.float16, torch.bfloat16)
each_half = pytest.mark.parametrize("dtype", HALVES, ids=str)


@each_half
@pytest.mark.parametrize("norm", [gf.RMSNorm, gf.LayerNorm])
def test_norms_are_not_rounded(norm, dtype):
    """Squares of these numbers are beyond the largest float16."""
    layer, x = randomise(norm(16)), normal(4, 16, dtype=torch.float32) * 300
    expected = layer(x)
    with torch.autocast("cpu", dtype):
        out = layer(x)
    assert out.dtype == torch.float32
    assert largest_difference(out, expected) < 1e-6


@each_half
def test_softmax_is_not_rounded(dtype):
    x = normal(4, 16, dtype=torch.float32) * 100
    with torch.autocast("cpu", dtype):
        out = gf.softmax(x, -1)
    assert out.dtype == torch.float32
    assert largest_difference(out, gf.softmax(x.double(), -1)) < 1e-6


@each_half
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("size", [10, 100])
def test_scores_of_attention_are_not_rounded(dtype, leading, size):
    """The average may be, to 2⁻⁸ of values near 3. Scores in the narrow type would overflow, or be off by 0.5."""
    q, k, v = (normal(*leading, 6, 8, seed=seed, dtype=torch.float32) for seed in range(3))
    q, k = q * size, k * size
    exact = gf.scaled_dot_product_attention(q.double(), k.double(), v.double(), path="eager")
    with torch.autocast("cpu", dtype):
        out, weights = gf.scaled_dot_product_attention(q, k, v, path="eager", return_weights=True)
    assert out.isfinite().all()
    assert weights.isfinite().all()
    assert largest_difference(out, exact) < 3e-2


@pytest.mark.parametrize("path", ["eager", "sdpa"])
def test_language_model_is_near_its_float32_logits(path):
    """Within 6e-2 of the largest logit: the same as for a model whose weights are bfloat16."""
    model, ids = randomise(gf.TransformerLM(19, 12, 16, 2, 4, 24)), torch.randint(19, (3, 12))
    with torch.no_grad():
        expected = model(ids, path=path)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids, path=path)
    assert logits.isfinite().all()
    assert 0 < relative_difference(logits, expected) < 6e-2
