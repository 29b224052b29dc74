"""Norms: starting values, types, and half-precision inputs whose squares overflow."""

import math

import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

import glassformer as gf
from tests.helpers import FLOATS, largest_difference, normal, randomise, types_unchecked

each_norm = pytest.mark.parametrize("norm", [gf.RMSNorm, gf.LayerNorm])


def test_norms_start_as_plain_normalisation():
    assert torch.equal(gf.RMSNorm(5).weight, torch.ones(5))
    assert torch.equal(gf.LayerNorm(5).weight, torch.ones(5))
    assert torch.equal(gf.LayerNorm(5).bias, torch.zeros(5))
    assert gf.LayerNorm(5, bias=False).bias is None
    assert gf.RMSNorm(5).eps == gf.LayerNorm(5).eps == 1e-5
    assert torch.equal(gf.RMSNorm(5, offset=True).weight, torch.zeros(5))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_gain_of_one_plus_weight_is_added_up_in_float32(dtype, device):
    """The reference is Gemma's own norm; 1 + 0.001 in bfloat16 would be 1."""
    ours = gf.RMSNorm(8, 1e-6, device, dtype, offset=True)
    theirs = GemmaRMSNorm(8, 1e-6).to(device, dtype)
    with torch.no_grad():
        ours.weight.copy_(normal(8, device=device, dtype=dtype) * 0.01)
        theirs.weight.copy_(ours.weight)
    x = normal(3, 8, seed=1, device=device, dtype=dtype)
    assert largest_difference(ours(x), theirs(x)) <= (1e-6 if dtype in (torch.float32, torch.float64) else 0.0)


@each_norm
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("weights", [None, torch.float32], ids=["same", "float32 weights"])
def test_the_type_that_goes_in_comes_out(norm, dtype, weights, device):
    layer, x = norm(6, device=device, dtype=weights or dtype), normal(2, 3, 6, dtype=dtype, device=device)
    assert layer(x).dtype == dtype
    assert layer(x).shape == x.shape


@each_norm
@pytest.mark.parametrize("size", [300.0, 5_000.0, 60_000.0])
def test_large_half_precision_numbers_do_not_overflow(norm, size, device):
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -0.5], device=device)
    x = (signs * size).half()
    layer = norm(8, device=device)
    out = layer.half()(x)
    assert largest_difference(out, layer.double()(x.double())) < 2e-3


@each_norm
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_stay_zeros(norm, dtype):
    x = torch.zeros(3, 4, dtype=dtype, requires_grad=True)
    out = norm(4).to(dtype)(x)
    out.sum().backward()
    assert not out.any()
    assert x.grad.isfinite().all()


@each_norm
def test_scale_of_the_input_does_not_matter(norm):
    x, layer = normal(3, 16), norm(16, eps=0.0).double()
    assert largest_difference(layer(1e-6 * x), layer(1e6 * x)) < 1e-10
    assert largest_difference(layer(x).square().mean(-1), torch.ones(3)) < 1e-12


@each_norm
def test_a_width_of_nothing_is_refused(norm):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        norm(0)


def test_reset_makes_it_plain_normalisation_again():
    for layer in (randomise(gf.RMSNorm(5)), randomise(gf.LayerNorm(5)), randomise(gf.LayerNorm(5, bias=False))):
        layer.reset_parameters()
        assert torch.equal(layer.weight, torch.ones(5))
        assert getattr(layer, "bias", None) is None or torch.equal(layer.bias, torch.zeros(5))


@each_norm
@pytest.mark.parametrize("width", [1, 6])
def test_another_width_is_named(norm, width):
    with types_unchecked(), pytest.raises(ValueError, match=rf"(?s)(?=.*\b8\b)(?=.*\b{width}\b)"):
        norm(8)(torch.ones(2, 3, width))


@each_norm
def test_whole_numbers_are_refused(norm):
    with types_unchecked(), pytest.raises(TypeError, match="floating-point"):
        norm(8)(torch.ones(3, 8, dtype=torch.int64))


@each_norm
@pytest.mark.parametrize("eps", [-1e-5, math.nan])
def test_an_epsilon_that_is_none_is_refused(norm, eps):
    with pytest.raises(ValueError, match="eps"):
        norm(8, eps=eps)
