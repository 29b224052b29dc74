"""What tests of whole runs share: every recipe made tiny, run to its end or stopped on the way."""

from pathlib import Path

import pytest
import torch

from glassformer.recipes.files import read_recipe
from glassformer.recipes.recipe import Recipe
from glassformer.training import parallel
from glassformer.training.checkpoint_folders import CheckpointError
from glassformer.training.logging.progress import Monitor
from glassformer.training.logging.sinks import read_log
from glassformer.training.session import Outcome, Session
from tests.training.tiny_recipes import tiny

HERE = parallel.Process(torch.device("cpu"))
TAUGHT = ("distil", "finetune", "ner-en")  # these start from another model


def small(name: str, folder: Path, *changes: str) -> Recipe:
    kind = None if name in (*TAUGHT, "toy") else read_recipe(name).tokenizer.kind
    return read_recipe(name, [*tiny(name, folder, kind), *changes])


def trained(recipe: Recipe, out: Path, *, resume: bool = False) -> Outcome:
    return Session(recipe, out, HERE, Monitor(), resume=resume).train()


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_log(out / "log.jsonl") if line["kind"] == "step"]


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(
    recipe: Recipe, out: Path, match: str, *, resume: bool = False, error: type[Exception] = CheckpointError
) -> None:
    """A run neither begins nor goes on, and everything in its folder stays as it was."""
    before = content(out)
    with pytest.raises(error, match=match):
        trained(recipe, out, resume=resume)
    assert content(out) == before


class Listens(Monitor):
    """Remembers what is told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.notes.append(f"warning: {text}")


class Stopped(Exception):  # noqa: N818
    pass


class StopsAt(Monitor):
    """Somebody pulls the plug after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.last = step

    def step(self, report, epoch):  # type: ignore[no-untyped-def]
        measured = super().step(report, epoch)
        if report.step == self.last:
            raise Stopped
        return measured
