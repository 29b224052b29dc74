"""The convolution beside the first block, against PyTorch's own."""

import math

import pytest
import torch
import torch.nn.functional as F

from glassformer import config
from glassformer.nn.feedforward import ACTIVATIONS, Convolution
from tests.helpers import FLOATS, largest_difference, normal, randomise, right_padded

NORM = config.Norm(kind="layer", eps=1e-5)


def made(width=8, norm=NORM, **facts):
    layer = Convolution(config.Convolution(**{"kernel": 3, **facts}), norm, width)
    return randomise(layer).double().eval()


def theirs(layer, x, y, real=None):
    if real is not None:
        x = x * real[..., None]
    seen = F.conv1d(x.mT, layer.weight, layer.bias, padding=layer.weight.shape[-1] // 2, groups=layer.groups).mT
    return layer.norm(y + ACTIVATIONS[layer.activation](seen))


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_equals_pytorch(kernel, groups, length):
    layer = made(kernel=kernel, groups=groups)
    x, y = normal(2, length, 8), normal(2, length, 8, seed=1)
    assert largest_difference(layer(x, y), theirs(layer, x, y)) < 1e-12


@pytest.mark.parametrize("activation", ["tanh", "gelu", "relu"])
@pytest.mark.parametrize("norm", [NORM, config.Norm(kind="rms"), config.Norm(bias=False, eps=0.1)], ids=str)
def test_activation_and_norm_are_those_of_the_facts(activation, norm):
    layer = made(activation=activation, norm=norm)
    x, y = normal(2, 5, 8), normal(2, 5, 8, seed=1)
    assert largest_difference(layer(x, y), theirs(layer, x, y)) < 1e-12


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("groups", [1, 4])
def test_padding_counts_as_zeros_like_the_ends(side, groups):
    layer = made(kernel=5, groups=groups)
    real = right_padded(7, 4, 1, 0, width=7)
    real = real.flip(-1) if side == "left" else real
    x, y = normal(4, 7, 8), normal(4, 7, 8, seed=1)
    out = layer(x, y, real)
    assert largest_difference(out, theirs(layer, x, y, real)) < 1e-12
    for row in range(3):
        alone = layer(x[row, real[row]][None], y[row, real[row]][None])[0]
        assert largest_difference(out[row, real[row]], alone) < 1e-12


def test_garbage_in_padding_reaches_nobody():
    results = []
    real = right_padded(6, 3, width=6)
    for filler in (0.5, math.nan):
        layer = made()
        x = normal(2, 6, 8).masked_fill(~real[..., None], filler).requires_grad_()
        out = layer(x, normal(2, 6, 8, seed=1), real)[real]
        out.backward(normal(*out.shape, seed=2))
        results.append([out.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())])
    for clean, poisoned in zip(*results, strict=True):
        assert clean.isfinite().all()
        assert torch.equal(clean, poisoned)


def test_gradients():
    layer = made(width=4, groups=2)
    real = right_padded(3, 2, width=3)
    x, y = normal(2, 3, 4).requires_grad_(), normal(2, 3, 4, seed=1).requires_grad_()
    torch.autograd.gradcheck(lambda x, y, w, b: _with(layer, w, b)(x, y, real), (x, y, *_weights(layer)))


def _weights(layer):
    return layer.weight.detach().clone().requires_grad_(), layer.bias.detach().clone().requires_grad_()


def _with(layer, weight, bias):
    parameters = {"weight": weight, "bias": bias}
    return lambda *inputs: torch.func.functional_call(layer, parameters, inputs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_type(dtype):
    layer = made()
    x, y = normal(2, 5, 8), normal(2, 5, 8, seed=1)
    expected = layer(x, y)
    out = layer.to(dtype)(x.to(dtype), y.to(dtype))
    assert out.dtype == dtype
    assert largest_difference(out, expected) < 64 * torch.finfo(dtype).eps


def test_dropout_acts_only_while_training():
    layer, plain = made(dropout=0.5), made()
    x, y = normal(2, 5, 8), normal(2, 5, 8, seed=1)
    assert torch.equal(layer(x, y), plain(x, y))
    layer.train()
    assert not torch.equal(layer(x, y), layer(x, y))


def test_starting_weights():
    layer = Convolution(config.Convolution(kernel=3), NORM, 64)
    std = math.sqrt(2 / (64 * 3 + 64))
    assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.05)
    assert float(layer.weight.detach().abs().max()) <= 3 * std
    assert not layer.bias.any()
