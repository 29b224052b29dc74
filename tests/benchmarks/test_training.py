"""The benchmark of training runs, and refuses to time two loops that do different things. No figure is checked."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks import loading, training
from glassformer.objectives.base import Batch


def test_every_case_and_recipe_gets_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["training", "--quick"])
    training.main()
    lines = capsys.readouterr().out.splitlines()
    for title in [*(case.title for case in training.CASES), *(trial.recipe for trial in loading.TRIALS)]:
        found = [line for line in lines if line.startswith(title)]
        assert len(found) == 1, title
        assert any(character.isdigit() for character in found[0].removeprefix(title)), found


@pytest.mark.parametrize("case", training.CASES, ids=lambda case: case.name)
def test_loops_that_differ_are_not_timed(case: training.Case) -> None:
    def changed(sizes: training.Sizes, generator: torch.Generator) -> training.Prepared:
        objective, batch, theirs = case.prepare(sizes, generator)
        return objective, batch, {**theirs, "input_ids": other_first_token(theirs["input_ids"])}

    assert training.largest_difference(case, training.QUICK, "cpu") <= training.CLOSE
    with pytest.raises(RuntimeError, match="do not do the same"):
        training.largest_difference(replace(case, prepare=changed), training.QUICK, "cpu")


def other_first_token(ids: Tensor) -> Tensor:
    return torch.cat(((ids[:, :1] + 1) % training.QUICK.vocab, ids[:, 1:]), dim=1)


def test_waiting_hands_on_what_comes_and_notes_how_long() -> None:
    batches = [Batch(inputs={}, labels={}, counts={}, tokens=number) for number in range(3)]
    waiting = loading.Waiting(iter(batches))
    assert [batch.tokens for batch, _ in zip(waiting, range(3), strict=False)] == [0, 1, 2]
    assert len(waiting.seconds) == 3
    assert min(waiting.seconds) >= 0


def test_shares_are_of_the_whole_step() -> None:
    waits = loading.Waits(steps=[1.0, 3.0], waits=[0.0, 0.2], at_once=[0.4])
    assert str(waits).split() == ["2", "2000.0", "ms", "100.00", "ms", "5.00%", "10.00%", "20.00%"]
