"""Where the numbers of a run go: its own log file, TensorBoard, Weights & Biases.

The log has one line of JSON per event, with ``kind`` (cost, step, validation, sample, checkpoint) and ``step``. Times
and memory are under ``measured``: two equal runs differ in nothing else.

A package that is not installed is an error before the run begins. During the run no failure of TensorBoard or Weights &
Biases may end it: ``Sinks`` reports the first failure of each in one line, ignores later ones, and tries every write
again, because a disk may be freed and a network may come back. What is lost there is still in the log.
"""

import html
import json
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from glassformer.config.checks import check_count
from glassformer.config.facts import for_json
from glassformer.training.loop import StepReport
from glassformer.weights.saving import naming_file, write_text


class RunLog:
    """The log file of a run; every line is flushed as it is written.

    Args:
        path: the file; it and its folder are created if needed.
        after: keep the lines of steps up to this one and drop the rest, which a killed run wrote after its last
            checkpoint; the run will write them again.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in _complete_lines(path) if json.loads(line)["step"] <= after] if after else []
        write_text(path, "".join(f"{line}\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, values: dict[str, Any], measured: dict[str, Any] | None = None) -> None:
        """Append one line."""
        line = {"kind": kind, "step": step, **values} | ({"measured": measured} if measured else {})
        with naming_file(self.path):
            self._file.write(json.dumps(for_json(line), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file; an empty one is removed."""
        try:
            with naming_file(self.path):
                self._file.close()
        finally:
            if self.path.is_file() and not self.path.stat().st_size:
                self.path.unlink()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines of a log; the last one may be incomplete if the run was killed."""
    return [json.loads(line) for line in _complete_lines(path)]


def _complete_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    *complete, _ = path.read_text(encoding="utf-8").split("\n")  # after the last newline: nothing, or half a line
    return complete


LogValues = Mapping[str, float | None]  # None: not known at this step


@runtime_checkable
class Sink(Protocol):
    """A destination for the numbers and texts of a run."""

    def step(self, step: int, values: LogValues) -> None:
        """Write the values of a training step; see ``step_values``."""

    def validation(self, step: int, values: LogValues) -> None:
        """Write the metrics of a validation."""

    def text(self, step: int, text: str, name: str = "sample") -> None:
        """Write a text, such as a sample; one per name and step."""

    def close(self) -> None:
        """Write what is left, and end."""


def step_values(report: StepReport, *, mfu: float | None = None, memory: int | None = None) -> dict[str, float | None]:
    """Return a report as named values, with what else was measured."""
    several = len(report.terms) > 1  # a single term is the loss itself
    return {
        "loss": report.loss,
        **({f"loss {name}": value for name, value in report.terms.items()} if several else {}),
        **report.metrics,
        "lr": report.lr,
        "grad_norm": report.grad_norm,
        "tokens_seen": report.tokens_seen,
        "tokens_per_second": report.tokens / report.seconds if report.seconds else None,
        "mfu": mfu,
        "memory": memory,
    }


class TensorBoard:
    """Event files in a folder, for ``tensorboard --logdir``.

    Args:
        folder: of the files; a resumed run uses the same one.
        done: steps of the run that were made already. Events of later steps, which will be made again, are hidden; all
            of them if ``done`` is 0.
    """

    def __init__(self, folder: Path, *, done: int = 0) -> None:
        check_count(done=done)
        self._writer = import_tensorboard().SummaryWriter(str(folder), purge_step=done + 1 if done else 0)

    def step(self, step: int, values: LogValues) -> None:
        """Write scalars under ``train/``."""
        self._scalars("train", step, values)

    def validation(self, step: int, values: LogValues) -> None:
        """Write scalars under ``validation/`` and flush."""
        self._scalars("validation", step, values)
        self._writer.flush()

    def text(self, step: int, text: str, name: str = "sample") -> None:
        """Write a text that is shown literally, not as Markdown."""
        self._writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()), step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _scalars(self, group: str, step: int, values: LogValues) -> None:
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(f"{group}/{name}", value, step)


class WeightsAndBiases:
    """A run at Weights & Biases.

    A resumed run keeps its id, which is in the run's folder. The service accepts every step once and in order; steps
    that it has already, which are made again after the last checkpoint with the same result, are not sent.

    Args:
        folder: of the run, for its id and the service's own files.
        project: of the run.
        name: of the run; None lets the service choose one.
        done: steps of the run that were made already; 0 is a new run with a new id.
        facts: its settings, as JSON can write them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        project: str,
        name: str | None = None,
        done: int = 0,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        check_count(done=done)
        self._wandb = import_wandb()
        folder.mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=project,
            name=name,
            id=_run_id(folder / "wandb-id.txt", is_new=done == 0),
            resume="allow",
            dir=str(folder),
            config=dict(facts or {}),
        )
        self._known = int(self._run.step)  # the first step that the service does not have yet

    def step(self, step: int, values: LogValues) -> None:
        """Log under ``train/``."""
        self._send("train", step, values)

    def validation(self, step: int, values: LogValues) -> None:
        """Log under ``validation/``."""
        self._send("validation", step, values)

    def text(self, step: int, text: str, name: str = "sample") -> None:
        """Write the text unchanged, with its line breaks."""
        if step >= self._known:
            self._run.log({name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, step=step)

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()

    def _send(self, group: str, step: int, values: LogValues) -> None:
        if step >= self._known:
            named = {f"{group}/{name}": value for name, value in values.items() if value is not None}
            self._run.log(named, step=step)


class Sinks:
    """All sinks of a run as one that never fails; use it in a ``with`` statement.

    Args:
        sinks: to write to; may be empty.
        warn: called with a sentence when one of them fails for the first time; by default a Python warning.
    """

    def __init__(self, sinks: Sequence[Sink], *, warn: Callable[[str], None] = warnings.warn) -> None:
        self._sinks, self._warn = list(sinks), warn
        self._failed: set[int] = set()  # indices of those that were reported

    def step(self, step: int, values: LogValues) -> None:
        """To all sinks."""
        self._each(lambda sink: sink.step(step, values))

    def validation(self, step: int, values: LogValues) -> None:
        """To all sinks."""
        self._each(lambda sink: sink.validation(step, values))

    def text(self, step: int, text: str, name: str = "sample") -> None:
        """To all sinks."""
        self._each(lambda sink: sink.text(step, text, name))

    def close(self) -> None:
        """To all sinks."""
        self._each(lambda sink: sink.close())

    def __enter__(self) -> "Sinks":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _each(self, write: Callable[[Sink], None]) -> None:
        for number, sink in enumerate(self._sinks):
            try:
                write(sink)
            except Exception as error:  # whatever it is: the run must not end because of it
                if number not in self._failed:
                    self._failed.add(number)
                    reason = str(error) or type(error).__name__
                    self._warn(
                        f"{type(sink).__name__} failed ({reason}); the run continues, and log.jsonl is complete."
                    )


def _run_id(file: Path, *, is_new: bool) -> str:
    """Return the id of a run at the service; a resumed run that began without the service gets a new one."""
    if not is_new and file.is_file():
        return file.read_text(encoding="utf-8").strip()
    run_id = secrets.token_hex(8)
    write_text(file, run_id + "\n")
    return run_id


def import_tensorboard() -> Any:
    """Return what writes events for TensorBoard."""
    return _import("tensorboard", "torch.utils.tensorboard", "TensorBoard")


def import_wandb() -> Any:
    """Return the package of Weights & Biases."""
    return _import("wandb", "wandb", "Weights & Biases")


def _import(package: str, module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{name} needs the package {package}: pip install {package}, or leave it out.") from error
