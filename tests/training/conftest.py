"""A trained model that tests of training begin from, made once for all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.small_sessions import small, trained


@pytest.fixture(scope="session")
def teacher(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A small trained model of masked words; whoever changes it copies it first."""
    changes = ("model.sizes.num_hidden_layers=2", "run.steps=20", "evaluation.every=20", "run.checkpoint_every=20")
    folder = made_once("teacher", lambda folder: trained(small("bert-mlm", folder, *changes), folder / "out"))
    return folder / "out" / "model"
