"""Linear layer and embedding: starting values, ids of every kind, errors, reproducible gradients."""

import math

import numpy as np
import pytest
import torch

import glassformer as gf
from tests.helpers import FLOATS, normal, types_unchecked

# Standard deviation of a standard normal cut at ±3.
CUT = math.sqrt(1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2)))


def check_cut_normal(weight: torch.Tensor, std: float) -> None:
    weight = weight.detach()
    samples = weight.numel()
    assert abs(float(weight.mean())) < 5 * std / math.sqrt(samples)
    assert float(weight.std()) == pytest.approx(CUT * std, rel=5 / math.sqrt(2 * samples))
    assert 2.9 * std < float(weight.abs().max()) <= 3 * std * (1 + 1e-6)


@pytest.mark.parametrize(("d_in", "d_out"), [(300, 300), (100, 800), (800, 100)])
def test_linear_starts_from_a_cut_normal(d_in, d_out):
    linear = gf.Linear(d_in, d_out, bias=True)
    assert linear.weight.shape == (d_out, d_in)
    check_cut_normal(linear.weight, math.sqrt(2 / (d_in + d_out)))
    assert not linear.bias.any()


def test_embedding_starts_from_a_cut_normal():
    check_cut_normal(gf.Embedding(500, 200).weight, 1.0)


def test_reset_draws_anew_and_the_seed_decides():
    linear = gf.Linear(5, 5, bias=True)
    torch.manual_seed(0)
    again = gf.Linear(5, 5)
    assert torch.equal(linear.weight, again.weight)
    linear.bias.data.fill_(1)
    linear.reset_parameters()
    assert not torch.equal(linear.weight, again.weight)
    assert not linear.bias.any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types_and_leading_axes(dtype, device):
    linear = gf.Linear(6, 4, device, dtype, bias=True)
    for leading in ((), (3,), (2, 3), (0, 3)):
        y = linear(normal(*leading, 6, dtype=dtype, device=device))
        assert (y.shape, y.dtype) == ((*leading, 4), dtype)
    assert gf.Embedding(6, 4, device, dtype)(torch.tensor([0], device=device)).dtype == dtype


def test_linear_names_a_wrong_width():
    with pytest.raises(ValueError, match=r"Linear\(6, 4\) needs vectors of width 6; the input has shape \(2, 5\)"):
        gf.Linear(6, 4)(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="out_features must be at least 1, got 0"):
        gf.Linear(6, 0)
    with types_unchecked(), pytest.raises(TypeError, match=r"in_features must be an integer, got 6\.0"):
        gf.Linear(6.0, 4)


def test_sizes_may_be_whole_numbers_of_numpy():
    with types_unchecked():
        assert gf.Linear(np.int64(4), np.int32(3)).weight.shape == (3, 4)
        assert gf.Embedding(np.int64(4), np.uint8(3)).weight.shape == (4, 3)
        assert gf.MultiHeadAttention(np.int64(4), np.int64(2))(torch.ones(3, 4)).shape == (3, 4)
        model = gf.TransformerLM(*(np.int64(size) for size in (9, 8, 8, 1, 2, 12)))
        assert model(torch.arange(5)).shape == (5, 9)


@pytest.mark.parametrize("size", [True, np.True_, 4.0, np.float64(4), "4", None], ids=repr)
def test_sizes_of_other_kinds_are_refused(size):
    with types_unchecked(), pytest.raises(TypeError, match="in_features must be an integer"):
        gf.Linear(size, 3)


@pytest.mark.parametrize("ids", [[10], [3, 10], [-1], [0, -1, 4]], ids=str)
def test_embedding_names_an_id_outside_the_table(ids):
    wrong = 10 if 10 in ids else -1
    with pytest.raises(IndexError, match=f"token id {wrong} is outside the table: it has rows 0 to 9"):
        gf.Embedding(10, 4)(torch.tensor(ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_embedding_refuses_what_is_no_whole_number(dtype):
    with types_unchecked(), pytest.raises(TypeError, match=f"token id must be an integer; got a tensor of {dtype}"):
        gf.Embedding(10, 4)(torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_ids_of_every_whole_type(dtype, device):
    table = gf.Embedding(10, 4, device)
    ids = torch.tensor([[9, 0], [3, 3]])
    assert torch.equal(table(ids.to(device, dtype)), table.weight[ids.to(device)])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3, 1)], ids=str)
def test_ids_of_every_shape(shape, device):
    ids = torch.zeros(shape, dtype=torch.int64, device=device)
    assert gf.Embedding(10, 4, device)(ids).shape == (*shape, 4)


def test_embedding_gradient_is_reproducible_on_two_threads():
    """Many ids repeat, so that threads which added up rows in any order would differ in the last bits."""
    table, ids = gf.Embedding(50, 64), torch.randint(50, (64, 256))
    upstream = normal(64, 256, 64, dtype=torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        gradients = [torch.autograd.grad(table(ids), table.weight, upstream)[0] for _ in range(20)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
