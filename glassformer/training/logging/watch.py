"""Everybody who is told of a run, behind one door: the terminal, TensorBoard, Weights & Biases; or nobody."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console

from glassformer.config import Model
from glassformer.training.logging.progress import Progress
from glassformer.training.logging.sinks import Sink, Sinks, step_values
from glassformer.training.logging.speed import Utilisation, flops_per_token, peak_memory, typical_row
from glassformer.training.loop import Precision, Report
from glassformer.training.objectives.base import Batch

Open = Callable[[int], Sink]  # from the steps that are done to a sink that goes on after them


class Watch:
    """Tells what happens; to be used in ``with``, after ``start``.

    Args:
        console: where people look; None: nowhere.
        name: of the run.
        sinks: others to be told.
    """

    def __init__(self, console: Console | None = None, name: str = "", sinks: Sequence[Open] = ()) -> None:
        self._console, self._name, self._open = console, name, sinks
        self._progress: Progress | None = None
        self._sinks = Sinks([])
        self._stack = ExitStack()
        self._device = torch.device("cpu")

    def start(self, *, steps: int, done: int, device: torch.device, utilisation: Utilisation | None) -> None:
        """A run of so many steps begins, or goes on after ``done`` of them."""
        self._device = device
        if self._console is not None:
            self._progress = Progress(self._console, steps=steps, name=self._name, utilisation=utilisation)
        self._sinks = Sinks([one(done) for one in self._open], warn=self.note)

    def __enter__(self) -> "Watch":
        if self._progress is not None:
            self._stack.enter_context(self._progress)
        self._stack.enter_context(self._sinks)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def step(self, report: Report, epoch: int | None) -> dict[str, Any]:
        """One step was made; returns what was measured of it."""
        memory = peak_memory(self._device)
        if self._progress is not None:
            self._progress.step(report, epoch=epoch, memory=memory)
        self._sinks.step(report.step, step_values(report, memory=memory))
        return {"seconds": report.seconds, "memory": memory}

    def validation(self, step: int, loss: float, figures: Mapping[str, float], best: bool) -> None:
        """The model was tried on rows that it does not learn from."""
        if self._progress is not None:
            self._progress.validation(step, loss, figures, best=best)
        self._sinks.validation(step, {"loss": loss, **figures})

    def sample(self, step: int, text: str, number: int) -> None:
        """What the model makes of a row, the so-manyth of those that are shown."""
        if self._progress is not None:
            self._progress.sample(step, text)
        self._sinks.text(step, text, name=f"sample {number}")

    def checkpoint(self, step: int, path: Path, best: bool) -> None:
        """The run can go on from there."""
        if self._progress is not None:
            self._progress.checkpoint(step, path, best=best)

    def note(self, text: str) -> None:
        """Anything else worth a line."""
        if self._progress is not None:
            self._progress.note(text)


def utilisation_of(
    facts: Sequence[Model], batch: Batch, device: torch.device, precision: Precision, devices: int
) -> Utilisation | None:
    """What MFU is reckoned from, for rows like those of a batch; ``facts`` of all models that learn from it."""
    row = typical_row([batch])
    flops = sum(flops_per_token(one, row) for one in facts)
    return Utilisation.known(flops, device, precision, devices=devices)
