"""Optimizers: every parameter in one group; Muon's steps; schedules; states that outlive a run."""

import math
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from glassformer import Transformer
from glassformer.training.checkpoint_contents import random_state, restore_random
from glassformer.training.optim import (
    Muon,
    adamw,
    decay_groups,
    list_groups,
    muon_and_adamw,
    optimizer_state,
    orthogonal,
    parameter_names,
    restore_optimizer,
    trained,
)
from glassformer.training.schedules import SCHEDULES, schedule
from tests.configs import CONFIGS, built


@pytest.mark.parametrize("name", CONFIGS)
def test_row_34_every_parameter_is_in_one_group_and_gains_and_biases_do_not_decay(name: str) -> None:
    model = built(name)
    for optimizers in ([adamw(model, 1e-3)], muon_and_adamw(model, 1e-3)):
        rows = list_groups(optimizers, model)
        assert sorted(row.name for row in rows) == sorted(name for name, _ in model.named_parameters())
        for row in rows:
            is_flat = row.name.endswith("bias") or "norm" in row.name.split(".")[-2]
            assert (row.weight_decay == 0) == (len(row.shape) < 2)
            assert not is_flat or row.weight_decay == 0
            if row.optimizer == "Muon":
                assert ".blocks." in row.name


def test_a_parameter_left_out_or_doubled_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"these are not: 1\.bias, 1\.weight"):
        list_groups([adamw(model[0], 1.0)], model)
    optimizer = adamw(model, 1.0)
    optimizer.param_groups[0]["params"].append(model[1].bias)
    with pytest.raises(ValueError, match=r"these are not: 1\.bias"):
        list_groups([optimizer], model)


def test_shared_and_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    groups = decay_groups(trained(model), 0.1)
    assert [len(group["params"]) for group in groups] == [1, 1]
    assert len(list_groups([adamw(model, 1.0)], model)) == 2


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 7)])
def test_the_step_of_muon_has_singular_values_near_1_and_the_same_singular_vectors(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonal(matrix)
    inside = left.T @ made @ right.T
    diagonal = inside.diagonal()
    assert ((diagonal > 0.6) & (diagonal < 1.3)).all()
    assert (inside - diagonal.diag()).abs().max() < 1e-9
    assert values.max() > 1.3  # it was not so before


def test_muon_by_hand() -> None:
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    before, first, second = p.detach().clone(), torch.randn_like(p), torch.randn_like(p)
    optimizer = Muon([p], lr=0.1, momentum=0.9, weight_decay=0.5)
    momentum = torch.zeros_like(p)
    for gradient in (first, second):
        p.grad = gradient.clone()
        optimizer.step()
        momentum = 0.9 * momentum + 0.1 * gradient
        ahead = 0.1 * gradient + 0.9 * momentum
        before = before * (1 - 0.1 * 0.5) - 0.1 * 0.2 * math.sqrt(4) * orthogonal(ahead)
    assert torch.allclose(p.detach(), before, rtol=0, atol=1e-12)


def test_muon_refuses_what_is_no_matrix() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\) belongs to AdamW"):
        Muon([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match="this model has none"):
        muon_and_adamw(nn.Linear(2, 2), 1.0)


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_muon_learns(name: str) -> None:
    torch.manual_seed(0)
    model = built(name).float()
    ids = torch.randint(0, model.config.vocab, (4, 8))
    optimizers = muon_and_adamw(model, 1e-2)
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_schedules_by_hand() -> None:
    cosine = schedule("cosine", warmup=0.1, start=0.0, floor=0.2)
    assert [cosine(p) for p in (0.0, 0.05, 0.1, 0.55, 1.0)] == pytest.approx([0, 0.5, 1, 0.6, 0.2])
    linear = schedule("linear", warmup=0.2, start=0.0, floor=0.0)
    assert [linear(p) for p in (0.1, 0.2, 0.6, 1.0)] == pytest.approx([0.5, 1, 0.5, 0])
    constant = schedule("constant", warmup=0.5, start=0.5)
    assert [constant(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.5, 0.75, 1, 1])


def test_inverse_sqrt_is_the_formula_of_2017() -> None:
    steps, warmup, width = 10_000, 400, 512
    made = schedule("inverse-sqrt", warmup=warmup / steps)
    peak = (width * warmup) ** -0.5
    for step in (1, 100, 400, 401, 5_000, 10_000):
        reference = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert peak * made(step / steps) == pytest.approx(reference, rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_stay_between_0_and_1_and_are_continuous(name: str) -> None:
    made = schedule(name, warmup=0.1)
    values = [made(i / 5000) for i in range(5001)]
    assert all(0 <= value <= 1 for value in values)
    assert max(abs(a - b) for a, b in pairwise(values)) < 0.01


def test_wrong_schedules_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="cosine"):
        schedule("cosinus")
    with pytest.raises(ValueError, match="warmup"):
        schedule("cosine", warmup=-0.1)
    with pytest.raises(ValueError, match="more than 0"):
        schedule("inverse-sqrt", warmup=0.0)
    with pytest.raises(TypeError, match="heat"):
        schedule("cosine", heat=0.1)


def steps(model: Transformer, optimizers: list[Any], seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        ids = torch.randint(0, model.config.vocab, (2, 6))
        model(ids).float().square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["adamw", "muon", "momentum"])
def test_an_optimizer_goes_on_as_if_it_had_never_stopped(kind: str) -> None:
    def made() -> tuple[Transformer, list[Any]]:
        model = built("gpt2").float()
        if kind == "momentum":
            return model, [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)]
        return model, [adamw(model, 1e-2)] if kind == "adamw" else muon_and_adamw(model, 1e-2)

    whole, optimizers = made()
    steps(whole, optimizers, range(6))
    first, before = made()
    steps(first, before, range(3))
    saved = [optimizer_state(optimizer, first) for optimizer in before]
    second, after = made()
    second.load_state_dict(first.state_dict())
    for optimizer, (tensors, values) in zip(after, saved, strict=True):
        restore_optimizer(optimizer, second, {k: v.clone() for k, v in tensors.items()}, values)
    steps(second, after, range(3, 6))
    for (name, a), b in zip(whole.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_another_model_s_state_is_refused() -> None:
    model, other = built("gpt2"), built("llama")
    tensors, values = optimizer_state(adamw(model, 1.0), model)
    with pytest.raises(ValueError, match="group 0 of the optimizer holds different parameters"):
        restore_optimizer(adamw(other, 1.0), other, tensors, values)


def test_names_are_without_wrappers() -> None:
    model = nn.Linear(2, 2)
    assert sorted(parameter_names(torch.compile(model)).values()) == ["bias", "weight"]
    wrapped = nn.Module()
    wrapped.module = model
    assert sorted(parameter_names(wrapped).values()) == ["bias", "weight"]


def test_random_numbers_go_on_from_where_they_were() -> None:
    torch.manual_seed(3)
    random.seed(3)
    random.gauss(0, 1)
    state = {name: tensor.clone() for name, tensor in random_state().items()}
    first = torch.rand(5), random.random(), random.gauss(0, 1)
    restore_random(state)
    again = torch.rand(5), random.random(), random.gauss(0, 1)
    assert torch.equal(first[0], again[0])
    assert first[1:] == again[1:]
