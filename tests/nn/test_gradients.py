"""Gradients against finite differences, in float64 and tiny shapes."""

from itertools import product

import pytest
import torch
from torch.autograd import gradcheck

import glassformer as gf
from glassformer.nn import masks
from glassformer.nn.feedforward import ACTIVATIONS, activated, gated
from glassformer.nn.norm import layer_norm, rms_norm
from tests.helpers import PATHS, normal, right_padded, some_at_once


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return normal(*shape, seed=seed).requires_grad_()


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_norms(eps):
    x, weight, bias = leaf(2, 3, 4), leaf(4, seed=1), leaf(4, seed=2)
    assert gradcheck(lambda x, w: rms_norm(x, w, eps), (x, weight))
    assert gradcheck(lambda x, w: layer_norm(x, w, None, eps), (x, weight))
    assert gradcheck(lambda x, w, b: layer_norm(x, w, b, eps), (x, weight, bias))


@pytest.mark.parametrize("dim", [0, -1])
def test_softmax(dim):
    assert gradcheck(lambda x: gf.softmax(x, dim), (leaf(3, 4) * 3,))


def test_softmax_with_minus_infinity():
    blocked = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    assert gradcheck(lambda x: gf.softmax(x.masked_fill(blocked, -torch.inf), -1), (leaf(3, 3),))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    x = torch.tensor([-20.0, -3.0, -0.5, 0.3, 2.0, 20.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(ACTIVATIONS[name], (x,))


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
@pytest.mark.parametrize("positions", [None, torch.tensor([[7, 0, 3], [1, 1, 2]])], ids=["default", "explicit"])
def test_rotary(pairing, positions):
    rope = gf.RotaryPositionalEmbedding(100.0, 4, 8, pairing=pairing)
    assert gradcheck(lambda x: rope(x, positions), (leaf(2, 3, 4),))


MASKS = {
    "none": None,
    "causal": masks.causal(),
    "padding": masks.padding(right_padded(4, 2, width=4)),
    "nothing to attend": masks.padding(right_padded(4, 0, width=4)),
    "window": masks.window(2),
    "all": masks.causal() & masks.window(2) & masks.padding(~right_padded(1, 2, width=4)),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("kind", "queries"), some_at_once(product(MASKS, (4, 2)), lambda given: given[1] == 2 or given[0] == "all")
)
def test_attention(path, kind, queries):
    mask = MASKS[kind]
    """Two query heads share one key head."""
    q, k, v = leaf(2, 2, queries, 2), leaf(2, 1, 4, 2, seed=1), leaf(2, 1, 4, 3, seed=2)
    assert gradcheck(lambda q, k, v: gf.scaled_dot_product_attention(q, k, v, mask, path=path), (q, k, v))


def test_gated_feed_forward():
    def network(x, up, gate, down):
        return gated(activated(x @ gate, gf.silu), x @ up) @ down

    assert gradcheck(network, (leaf(2, 3), leaf(3, 4, seed=1), leaf(3, 4, seed=2), leaf(4, 3, seed=3)))
