"""The training loop learns, reports truthfully, repeats itself and refuses nonsense."""

import itertools
import math

import pytest
import torch
from torch import nn

from glassformer import Embedding, TransformerLM
from glassformer.data.batches import random_windows
from glassformer.train.loop import evaluate, next_token_loss, train
from glassformer.train.optim import adamw, warmup_cosine

PATTERN = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6] * 40)


def small_run(steps: int) -> tuple[TransformerLM, list[float]]:
    torch.manual_seed(0)
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    batches = random_windows(PATTERN, 4, 16, seed=0)
    return model, [r.loss for r in train(model, batches, adamw(model, 1e-2), steps=steps)]


def test_it_learns_a_pattern_and_repeats_itself_to_the_bit() -> None:
    model, losses = small_run(60)
    again, same_losses = small_run(60)
    assert len(losses) == 60
    assert losses[-1] < 0.5 < 2.0 < losses[0]
    assert losses == same_losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_reports_add_up() -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    reports = list(train(model, random_windows(PATTERN, 4, 8, seed=0), adamw(model, 1e-2), steps=5))
    assert [r.step for r in reports] == [1, 2, 3, 4, 5]
    assert [r.tokens for r in reports] == [32, 64, 96, 128, 160]
    assert [r.fraction for r in reports] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert reports[-1].seconds_left == 0
    assert reports[-1].tokens_per_second == pytest.approx(160 / reports[-1].seconds)


def test_a_time_budget_ends_the_run() -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    reports = list(train(model, random_windows(PATTERN, 1, 4, seed=0), adamw(model, 1e-2), seconds=0.2))
    assert reports[-1].fraction <= 1
    assert [r.step for r in reports] == list(range(1, len(reports) + 1))


def test_the_loss_is_the_mean_cross_entropy_per_token() -> None:
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    by_hand = -sum(
        float(logits[b, t, targets[b, t]] - logits[b, t].exp().sum().log()) for b in range(2) for t in range(3)
    )
    assert float(next_token_loss(logits, targets)) == pytest.approx(by_hand / 6, rel=1e-5)


def test_evaluation_changes_nothing() -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64).train()
    batches = list(itertools.islice(random_windows(PATTERN, 2, 8, seed=1), 3))
    before = [p.clone() for p in model.parameters()]
    with torch.no_grad():
        losses = [float(next_token_loss(model(x), y)) for x, y in batches]
    assert evaluate(model, batches) == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_spoilt() -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = math.nan
    before = model.token_embeddings.weight.clone()
    with pytest.raises(FloatingPointError, match=r"nan at step 1.*lower learning rate"):
        next(train(model, random_windows(PATTERN, 2, 8, seed=0), adamw(model, 1e-2), steps=3))
    assert torch.equal(before, model.token_embeddings.weight)


@pytest.mark.parametrize("lengths", [{}, {"steps": 3, "seconds": 1.0}])
def test_the_length_of_a_run_is_said_once(lengths: dict[str, float]) -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    with pytest.raises(ValueError, match="either steps or seconds"):
        next(train(model, random_windows(PATTERN, 2, 8, seed=0), adamw(model, 1e-2), **lengths))


@pytest.mark.parametrize("length", [{"steps": 0}, {"steps": -1}, {"seconds": 0.0}, {"seconds": -1.0}], ids=str)
def test_a_run_of_no_length_is_refused(length: dict[str, float]) -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    with pytest.raises(ValueError, match=next(iter(length))):
        list(train(model, random_windows(PATTERN, 2, 8, seed=0), adamw(model, 1e-2), **length))


def test_a_single_step_changes_the_weights() -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert len(list(train(model, random_windows(PATTERN, 2, 8, seed=0), adamw(model, 1e-2), steps=1))) == 1
    assert not [name for name, p in model.named_parameters() if torch.equal(p, before[name])]


@pytest.mark.parametrize("stop_after", [1, 3])
def test_the_learning_rates_are_given_back(stop_after: int) -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    optimizer = adamw(model, 1e-2)
    optimizer.param_groups[1]["lr"] = 3e-3
    run = train(model, random_windows(PATTERN, 2, 8, seed=0), optimizer, steps=3)
    for _ in itertools.islice(run, stop_after):
        pass
    run.close()  # what the end of a for loop does when it is left early
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 3e-3]
    list(train(model, random_windows(PATTERN, 2, 8, seed=0), optimizer, steps=3))
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 3e-3]


def test_batches_that_run_out_are_counted() -> None:
    model = TransformerLM(10, 16, 32, 1, 4, 64)
    batches = list(itertools.islice(random_windows(PATTERN, 2, 8, seed=0), 3))
    optimizer = adamw(model, 1e-2)
    with pytest.raises(ValueError, match=r"(?s)\b3\b.*\b5\b"):
        list(train(model, batches, optimizer, steps=5))
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-2]
    assert len(list(train(model, batches, optimizer, steps=3))) == 3


def test_nothing_to_evaluate_on() -> None:
    with pytest.raises(ValueError, match="batch"):
        evaluate(TransformerLM(10, 16, 32, 1, 4, 64), [])


def test_decay_touches_matrices_and_tables_alone() -> None:
    model = TransformerLM(10, 16, 32, 2, 4, 64)
    decayed, spared = adamw(model, 1e-3, weight_decay=0.3).param_groups
    names = {id(p): n for n, p in model.named_parameters()}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    assert {names[id(p)] for p in spared["params"]} == {n for n in names.values() if "ln" in n}
    assert sorted(names.values()) == sorted(names[id(p)] for g in (decayed, spared) for p in g["params"])


def test_frozen_parameters_are_left_out() -> None:
    model = nn.ModuleList([Embedding(3, 2), Embedding(3, 2)])
    model[0].weight.requires_grad_(False)
    decayed, _ = adamw(model, 1e-3).param_groups
    assert [id(p) for p in decayed["params"]] == [id(model[1].weight)]


def test_the_schedule_rises_then_falls() -> None:
    assert warmup_cosine(0.0) == pytest.approx(0.05)  # a rate of 0 would waste the first step
    rising = [warmup_cosine(0.05 * i / 50) for i in range(51)]
    assert rising == sorted(rising)
    assert len({*rising}) > 40
    assert warmup_cosine(0.05) == pytest.approx(1.0)
    assert warmup_cosine(0.525) == pytest.approx((1 + 0.05) / 2)
    assert warmup_cosine(1.0) == pytest.approx(0.05)
    values = [warmup_cosine(0.05 + 0.95 * i / 50) for i in range(51)]
    assert values == sorted(values, reverse=True)
