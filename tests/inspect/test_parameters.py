"""Counting parameters: each stored number once, however the sharing came about."""

import pytest
import torch
from torch import nn

import glassformer as gf


class Holder(nn.Module):
    """A module with the given parameters and submodules."""

    def __init__(self, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def test_untied_models_are_simple_sums():
    model = nn.Sequential(gf.Linear(3, 4, bias=True), gf.RMSNorm(4), nn.Linear(4, 2))
    assert gf.num_parameters(model) == (12 + 4) + 4 + (8 + 2) == sum(p.numel() for p in model.parameters())
    assert gf.num_parameters(nn.Module()) == 0
    assert gf.num_parameters(nn.ReLU()) == 0


@pytest.mark.parametrize("device_name", ["cpu", "meta"])
@pytest.mark.parametrize("embedding", [gf.Embedding, nn.Embedding])
@pytest.mark.parametrize("tie", ["none", "object", "storage", "view", "transposed"])
def test_a_head_tied_to_an_embedding(device_name, embedding, tie):
    table = embedding(10, 4, device=device_name)
    own = nn.Parameter(torch.empty(10, 4, device=device_name))
    head = {
        "none": own,
        "object": table.weight,
        "storage": nn.Parameter(table.weight.data),
        "view": nn.Parameter(table.weight.detach().view(5, 8)),
        "transposed": nn.Parameter(table.weight.detach().T),
    }[tie]
    model = Holder(table=table, body=gf.Linear(4, 4, device=device_name), head=Holder(weight=head))
    shared = tie != "none"
    assert gf.num_parameters(model) == 40 + 16 + (0 if shared else 40)
    assert gf.num_parameters(model, embeddings=False) == 16 + (0 if shared else 40)


@pytest.mark.parametrize("device_name", ["cpu", "meta"])
def test_views_of_one_flat_buffer(device_name):
    flat = torch.empty(100, device=device_name)
    side_by_side = Holder(a=nn.Parameter(flat[:30].view(5, 6)), b=nn.Parameter(flat[30:70]))
    overlapping = Holder(a=nn.Parameter(flat[:30]), b=nn.Parameter(flat[20:50]), c=nn.Parameter(flat[25:28]))
    apart = Holder(a=nn.Parameter(flat[:10]), b=nn.Parameter(flat[90:]))
    assert gf.num_parameters(side_by_side) == 70
    assert gf.num_parameters(overlapping) == 50
    assert gf.num_parameters(apart) == 20


@pytest.mark.parametrize("device_name", ["cpu", "meta"])
def test_views_with_gaps(device_name):
    """Columns of a matrix: the numbers between them belong to somebody else, or to nobody."""
    matrix = torch.empty(4, 6, device=device_name)
    left, right = nn.Parameter(matrix[:, :2]), nn.Parameter(matrix[:, 2:])
    assert gf.num_parameters(Holder(left=left)) == 8
    assert gf.num_parameters(Holder(left=left, right=right)) == 24
    assert gf.num_parameters(Holder(left=left, whole=nn.Parameter(matrix))) == 24
    assert gf.num_parameters(Holder(every_other=nn.Parameter(torch.empty(10, device=device_name)[::2]))) == 5


def test_scalars_and_empty_parameters():
    model = Holder(scalar=nn.Parameter(torch.tensor(1.0)), empty=nn.Parameter(torch.empty(0, 5)))
    assert gf.num_parameters(model) == 1


def test_separate_tensors_on_the_meta_device_are_separate():
    model = nn.Sequential(*(gf.Linear(3, 3, device="meta") for _ in range(4)))
    assert gf.num_parameters(model) == 36


def test_frozen_parameters_and_half_precision_count_alike():
    model = gf.Linear(3, 4).requires_grad_(False)
    assert gf.num_parameters(model) == gf.num_parameters(model.half()) == 12


def test_a_module_used_twice_counts_once():
    block = gf.Linear(4, 4)
    assert gf.num_parameters(nn.Sequential(block, gf.RMSNorm(4), block)) == 20


def test_buffers_do_not_count():
    model = nn.BatchNorm1d(4)
    assert gf.num_parameters(model) == 8


@pytest.mark.parametrize("embedding", [gf.Embedding, nn.Embedding])
def test_position_tables_are_embeddings_too(embedding):
    model = Holder(
        tokens=embedding(10, 4),
        positions=gf.LearnedPositionalEmbedding(6, 4),
        norm=gf.LayerNorm(4),
        head=gf.Linear(4, 10),
    )
    assert gf.num_parameters(model) == 40 + 24 + 8 + 40
    assert gf.num_parameters(model, embeddings=False) == 8 + 40


def test_two_tables_of_one_storage():
    first, second = gf.Embedding(10, 4), nn.Embedding(10, 4)
    second.weight = nn.Parameter(first.weight.data)
    model = Holder(first=first, second=second, norm=gf.RMSNorm(4))
    assert gf.num_parameters(model) == 44
    assert gf.num_parameters(model, embeddings=False) == 4
