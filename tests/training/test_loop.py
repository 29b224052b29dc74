"""The training loop learns, reports truthfully, repeats itself and refuses nonsense."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from glassformer import Transformer
from glassformer.families.cs336 import CS336
from glassformer.objectives.base import Batch, Loss, LossTerm
from glassformer.objectives.causal_lm import NextToken
from glassformer.training.loop import Settings, Trainer, evaluate
from glassformer.training.optim import adamw
from glassformer.training.schedules import schedule
from tests.helpers import types_unchecked
from tests.training.random_windows import RandomWindows

PATTERN = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6] * 40)
SIZES = {"vocab_size": 10, "context_length": 16, "d_model": 32, "num_layers": 1, "num_heads": 4, "d_ff": 64}


class Listed:
    """Batches that are there already."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches = iter(batches)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self.batches)

    def state(self) -> dict[str, Any]:
        return {}

    def resume(self, state: Any) -> None:
        pass


def small(seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(CS336.facts(SIZES, "lm"))


def trainer(model: nn.Module, batches: Any = None, **settings: Any) -> Trainer:
    batches = RandomWindows(PATTERN, 4, 8, seed=0) if batches is None else batches
    return Trainer(model, NextToken(), batches, [adamw(model, 1e-2)], Settings(**settings))


def same(item: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(item.parameters(), other.parameters(), strict=True))


def test_it_learns_a_pattern_and_repeats_itself_to_the_bit() -> None:
    first, again = small(), small()
    losses = [r.loss for r in trainer(first, steps=60)]
    assert len(losses) == 60
    assert losses[-1] < 0.5 < 2.0 < losses[0]
    assert losses == [r.loss for r in trainer(again, steps=60)]
    assert same(first, again)


def test_reports_add_up() -> None:
    reports = list(trainer(small(), steps=5, accumulate=2))
    assert [r.step for r in reports] == [1, 2, 3, 4, 5]
    assert [r.tokens for r in reports] == [64] * 5
    assert [r.tokens_seen for r in reports] == [64, 128, 192, 256, 320]
    assert [r.fraction for r in reports] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(r.seconds > 0 for r in reports)
    assert all(r.terms == {"next": r.loss} for r in reports)
    assert all(0 <= r.metrics["accuracy"] <= 1 for r in reports)


def test_gradients_of_a_step_that_failed_are_not_added_to_the_next_one() -> None:
    class Fails(NextToken):
        calls = 0

        def loss(self, model: nn.Module, batch: Batch) -> Loss:
            Fails.calls += 1
            if Fails.calls == 2:  # the second micro-batch
                raise MemoryError("a batch is too large")
            return super().loss(model, batch)

    model, other = small(), small()
    windows = RandomWindows(PATTERN, 4, 8, seed=0)
    batches = [next(windows) for _ in range(4)]
    settings = Settings(steps=9, accumulate=2)
    run = Trainer(model, Fails(), Listed(batches), [adamw(model, 1e-2)], settings)
    with pytest.raises(MemoryError):
        run.advance()
    expected = trainer(other, Listed(batches[2:]), steps=9, accumulate=2).advance()
    assert (run.advance().grad_norm, run.step) == (expected.grad_norm, 1)
    assert same(model, other)


def test_the_learning_rate_follows_the_schedule() -> None:
    made = schedule("linear", warmup=0.5, start=0.0)
    reports = list(trainer(small(), steps=4, schedule=made))
    assert [r.lr for r in reports] == pytest.approx([0.005, 0.01, 0.005, 0.0])


def test_a_time_budget_ends_the_run() -> None:
    reports = list(trainer(small(), seconds=0.2))
    assert reports[-1].fraction <= 1
    assert [r.step for r in reports] == list(range(1, len(reports) + 1))


def unequal() -> list[Batch]:
    """Rows of very different lengths."""
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(0, 10, (length,), generator=generator) for length in (2, 9, 3, 16, 4, 5)]
    objective = NextToken()
    return [objective.prepare(some, generator) for some in (rows[:1], rows[1:2], rows[2:4], rows[4:])]


def test_row_32_micro_batches_of_unequal_length_are_one_batch() -> None:
    batches = unequal()
    generator = torch.Generator()
    rows = [
        torch.cat((batch.inputs["ids"][row, :length], batch.labels["next"][row, length - 1 : length]))
        for batch in batches
        for row, length in enumerate((batch.labels["next"] >= 0).sum(-1).tolist())
    ]
    item, many = small().double(), small().double()
    whole = list(trainer(item, Listed([NextToken().prepare(rows, generator)] * 3), steps=3))
    parts = list(trainer(many, Listed(batches * 3), steps=3, accumulate=4))
    assert [r.loss for r in parts] == pytest.approx([r.loss for r in whole], rel=1e-12)
    assert [r.grad_norm for r in parts] == pytest.approx([r.grad_norm for r in whole], rel=1e-10)
    assert [r.tokens for r in parts] == [r.tokens for r in whole]
    for a, b in zip(item.parameters(), many.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_row_32_a_mean_of_means_would_be_something_else() -> None:
    batches = unequal()
    model = small().double()
    means = [evaluate(model, NextToken(), [batch]).loss for batch in batches]
    together = evaluate(model, NextToken(), batches).loss
    counts = [batch.counts["next"] for batch in batches]
    by_hand = sum(m * c for m, c in zip(means, counts, strict=True)) / sum(counts)
    assert together == pytest.approx(by_hand, rel=1e-12)
    assert abs(together - sum(means) / len(means)) > 1e-3


def test_gradients_longer_than_allowed_are_cut_and_the_report_says_how_long_they_were() -> None:
    free, cut = small(), small()
    batches = list(itertools.islice(RandomWindows(PATTERN, 4, 8, seed=0), 1))
    settings = {"steps": 1, "schedule": schedule("constant", warmup=0.0)}
    made = [
        Trainer(
            model,
            NextToken(),
            Listed(batches),
            [torch.optim.SGD(model.parameters(), 1.0)],
            Settings(**settings, clip=clip),
        )
        for model, clip in ((free, None), (cut, 0.1))
    ]
    start = [p.detach().clone() for p in free.parameters()]
    reports = [next(iter(item)) for item in made]
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm)
    moved = [
        math.sqrt(sum(float((a - b.detach()).square().sum()) for a, b in zip(start, model.parameters(), strict=True)))
        for model in (free, cut)
    ]
    assert moved[0] == pytest.approx(reports[0].grad_norm, rel=1e-4)
    assert moved[1] == pytest.approx(0.1, rel=1e-4)


def test_row_33_the_length_is_taken_after_the_scale_is_off() -> None:
    """In float16 the loss is scaled up; neither the report nor the clipping may see that."""
    narrow = trainer(small(), steps=2, precision="float16")
    narrow.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain = trainer(small(), steps=2)
    for a, b in zip(narrow, plain, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=2e-3)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=2e-2)
        assert not a.skipped


def test_an_overflow_in_float16_lowers_the_scale_and_changes_no_weight() -> None:
    run = trainer(small(), steps=3, precision="float16")
    run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = [p.clone() for p in run.model.parameters()]
    report = run.advance()
    assert report.skipped
    assert math.isfinite(report.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    assert run.scaler.get_scale() < 2.0**40


def test_an_overflow_of_one_optimizer_s_gradients_stops_the_others_too() -> None:
    model = small()
    first, *others = model.parameters()
    optimizers = [torch.optim.SGD([first], 0.1), torch.optim.SGD(others, 0.1)]
    run = Trainer(
        model, NextToken(), RandomWindows(PATTERN, 4, 8, seed=0), optimizers, Settings(steps=3, precision="float16")
    )
    run.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [p.clone() for p in model.parameters()]
    overflow = first.register_hook(lambda grad: grad * math.inf)
    assert run.advance().skipped
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert run.scaler.get_scale() == 512.0
    overflow.remove()
    assert not run.advance().skipped
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_bfloat16_is_near_float32() -> None:
    narrow = [r.loss for r in trainer(small(), steps=20, precision="bfloat16")]
    plain = [r.loss for r in trainer(small(), steps=20)]
    assert narrow != plain
    assert narrow == pytest.approx(plain, rel=0.1, abs=0.05)


class TwoTerms:
    """An objective with terms that count different numbers of positions."""

    def prepare(self, examples: Any, generator: torch.Generator) -> Batch:
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        x = model(batch.inputs["x"])
        return Loss(
            {"a": LossTerm(x.sum(), batch.counts["a"]), "b": LossTerm(x.square().sum(), batch.counts["b"], 50.0)}
        )


def test_every_term_is_divided_by_its_own_count() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    batches = [
        Batch(inputs={"x": torch.tensor([[1.0, 2.0]]).double()}, labels={}, counts={"a": 1, "b": 3}, tokens=1),
        Batch(inputs={"x": torch.tensor([[0.5, -1.0]]).double()}, labels={}, counts={"a": 2, "b": 1}, tokens=1),
    ]
    with torch.no_grad():
        values = [float(model(batch.inputs["x"])) for batch in batches]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    report = Trainer(model, TwoTerms(), Listed(batches), [optimizer], Settings(steps=1, accumulate=2)).advance()
    a, b = sum(values) / 3, sum(v * v for v in values) / 4
    assert report.terms == pytest.approx({"a": a, "b": b})
    assert report.loss == pytest.approx(a + 50 * b)


def test_evaluation_changes_nothing() -> None:
    model = small().train()
    batches = list(itertools.islice(RandomWindows(PATTERN, 2, 8, seed=1), 3))
    before = [p.clone() for p in model.parameters()]
    result = evaluate(model, NextToken(), batches)
    with torch.no_grad():
        by_hand = [
            nn.functional.cross_entropy(model(**b.inputs).flatten(0, 1), b.labels["next"].flatten()) for b in batches
        ]
    assert result.loss == pytest.approx(float(sum(by_hand)) / 3, rel=1e-6)
    assert result.terms == {"next": result.loss}
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_row_31_the_loss_does_not_depend_on_how_texts_are_batched() -> None:
    model = small().double()
    generator = torch.Generator().manual_seed(1)
    rows = [
        torch.randint(0, 10, (int(n),), generator=generator) for n in torch.randint(2, 16, (16,), generator=generator)
    ]
    losses = [
        evaluate(model, NextToken(), [NextToken().prepare(rows[i : i + n], generator) for i in range(0, 16, n)]).loss
        for n in (1, 8, 16)
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-12)


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_spoilt() -> None:
    model = small()
    with torch.no_grad():
        model.head.out.weight[0, 0] = math.nan
    before = model.embed.token.weight.clone()
    with pytest.raises(FloatingPointError, match=r"nan at step 1; no weight was changed.*lower lr"):
        trainer(model, steps=3).advance()
    assert torch.equal(before, model.embed.token.weight)


@pytest.mark.parametrize("lengths", [{}, {"steps": 3, "seconds": 1.0}])
def test_the_length_of_a_run_is_said_once(lengths: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either steps or seconds"):
        Settings(**lengths)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"steps": -1},
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"steps": 1, "accumulate": 0},
        {"steps": 1, "clip": 0.0},
    ],
    ids=str,
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=list(wrong)[-1]):
        Settings(**wrong)


def test_an_unknown_precision_is_refused() -> None:
    with types_unchecked(), pytest.raises(ValueError, match="bfloat16"):
        Settings(steps=1, precision="bf16")  # type: ignore[arg-type]


def test_a_single_step_changes_the_weights() -> None:
    model = small()
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert len(list(trainer(model, steps=1))) == 1
    assert not [name for name, p in model.named_parameters() if torch.equal(p, before[name])]


@pytest.mark.parametrize("stop_after", [1, 3])
def test_the_learning_rates_are_given_back(stop_after: int) -> None:
    model = small()
    optimizer = adamw(model, 1e-2)
    optimizer.param_groups[1]["lr"] = 3e-3
    run = iter(Trainer(model, NextToken(), RandomWindows(PATTERN, 2, 8, seed=0), [optimizer], Settings(steps=3)))
    for _ in itertools.islice(run, stop_after):
        pass
    run.close()  # what the end of a for loop does when it is left early
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 3e-3]


def test_batches_that_run_out_are_counted() -> None:
    batches = list(itertools.islice(RandomWindows(PATTERN, 2, 8, seed=0), 3))
    with pytest.raises(ValueError, match="ran out after 3 steps, with 60% done"):
        list(trainer(small(), Listed(batches), steps=5))


def test_nothing_to_evaluate_on() -> None:
    with pytest.raises(ValueError, match="no batches"):
        evaluate(small(), NextToken(), [])
