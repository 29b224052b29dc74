"""Feed-forward network: widths, types, dropout, and the error for an unknown activation."""

import pytest
import torch

import glassformer as gf
from glassformer.nn.feedforward import ACTIVATIONS, swiglu_width
from tests.helpers import FLOATS, largest_difference, normal, types_unchecked


@pytest.mark.parametrize(("d_model", "width"), [(1, 64), (24, 64), (25, 128), (512, 1408), (768, 2048), (1600, 4288)])
def test_swiglu_width_is_rounded_up_to_a_multiple_of_64(d_model, width):
    assert swiglu_width(d_model) == width
    assert gf.SwiGLU(d_model, device="meta").w1.weight.shape == (width, d_model)


def test_swiglu_width_with_another_multiple():
    assert swiglu_width(512, multiple=1) == 1366
    assert swiglu_width(512, multiple=256) == 1536


def test_swiglu_has_three_matrices_and_nothing_else():
    shapes = {name: tuple(parameter.shape) for name, parameter in gf.SwiGLU(4, 6).named_parameters()}
    assert shapes == {"w1.weight": (6, 4), "w2.weight": (4, 6), "w3.weight": (6, 4)}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_keep_the_type_and_bear_large_numbers(name, dtype, device):
    x = torch.tensor([-6e4, -300.0, 0.0, 300.0, 6e4], dtype=dtype, device=device)
    y = ACTIVATIONS[name](x)
    assert y.dtype == dtype
    far = x.clamp(-1, 1) if name == "tanh" else x.clamp(min=0)  # what each comes to far from zero
    assert largest_difference(y, far) < 1e-30


@pytest.mark.parametrize(("name", "nearest"), [("gelu_tan", "gelu_tanh"), ("rel", "relu"), ("sillu", "silu")])
def test_an_unknown_activation_error_suggests_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"got '{name}'. Did you mean '{nearest}'"):
        gf.FeedForward(4, 8, activation=name)


@pytest.mark.parametrize("name", ["gelu_new", "swish", "Gelu", ""])
def test_an_unknown_activation_is_answered_with_the_list(name):
    with pytest.raises(ValueError, match="activation must be one of gelu, gelu_tanh, relu, silu"):
        gf.FeedForward(4, 8, activation=name)


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_activations_refuse_whole_numbers(name):
    with types_unchecked(), pytest.raises(TypeError, match="floating-point"):
        ACTIVATIONS[name](torch.arange(3))


def test_every_position_is_treated_alike_and_alone():
    network, x = gf.FeedForward(6, 10, gated=True).double(), normal(2, 5, 6)
    alone = torch.stack([torch.stack([network(vector) for vector in row]) for row in x])
    assert torch.allclose(network(x), alone, atol=1e-12)


def test_dropout_only_while_training():
    network, x = gf.FeedForward(6, 10, dropout=0.5), normal(50, 6, dtype=torch.float32)
    whole = network.eval()(x)
    assert torch.equal(network(x), whole)
    dropped = network.train()(x)
    kept = dropped != 0
    assert 0.3 < kept.float().mean() < 0.7
    assert torch.allclose(dropped[kept], 2 * whole[kept])
    with pytest.raises(ValueError, match=r"dropout must be .* got 1\.5"):
        gf.FeedForward(6, 10, dropout=1.5)
