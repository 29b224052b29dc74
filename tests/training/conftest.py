"""What tests of training share: a trained model that they begin from, and runs without an estimate of their cost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.training.session import Session
from tests.training.small_sessions import small, trained

ESTIMATED = ("test_cost", "test_logging")  # the modules whose runs begin with an estimate of their cost


@pytest.fixture(scope="session")
def teacher(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A small trained model of masked words; whoever changes it copies it first."""
    changes = ("model.sizes.num_hidden_layers=2", "run.steps=20", "evaluation.every=20", "run.checkpoint_every=20")
    folder = made_once("teacher", lambda folder: trained(small("bert-mlm", folder, *changes), folder / "out"))
    return folder / "out" / "model"


@pytest.fixture(autouse=True)
def _no_estimates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of a tiny run takes longer than the run."""
    if request.module.__name__.rpartition(".")[2] not in ESTIMATED:
        monkeypatch.setattr(Session, "_estimate_cost", lambda *_: None)
