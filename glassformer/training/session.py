"""A run from a recipe to a trained model in a folder; it can be stopped at any moment and resumes bit for bit.

The folder::

    recipe.yaml     the recipe of the run
    tokenizer/      if one was trained
    tokens/         text as token ids, if the job works from files
    log.jsonl       every step, validation and checkpoint
    checkpoints/    the newest ones and the best
    model/          the trained model, or the best so far if the run was stopped: glassformer.load opens it
    results.json    metrics of the model
    loss.svg        the loss curve
"""

import json
import os
import shutil
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glassformer import hub
from glassformer.config import ModelConfig
from glassformer.config.checks import Setting
from glassformer.config.facts import for_json
from glassformer.families import lineages
from glassformer.models.transformer import Transformer
from glassformer.recipes.files import write_recipe
from glassformer.recipes.recipe import Recipe
from glassformer.training.adapters import merged_with, save_adapters
from glassformer.training.averaging import MovingAverage, load_average
from glassformer.training.build import Run, build_run, fast_precision
from glassformer.training.checkpoint_contents import needs_base, read_run, write_model, write_run
from glassformer.training.checkpoint_folders import CheckpointError, Checkpoints, FolderLock, step_of
from glassformer.training.cost import add_times, estimate_memory, fastest_threads
from glassformer.training.evaluation import Evaluator, evaluation_note
from glassformer.training.logging.curve import draw_curve
from glassformer.training.logging.progress import Monitor
from glassformer.training.logging.sinks import RunLog
from glassformer.training.logging.throughput import utilisation_of
from glassformer.training.loop import StepReport
from glassformer.training.parallel import Process, all_gather, on_rank_zero
from glassformer.training.stopping import EarlyStopping, StopSignals
from glassformer.training.threads import computing_with, start_threads
from glassformer.weights.reader import ConfigError
from glassformer.weights.saving import naming_file, write_text

# Metrics of which less is better; of all others, more.
SMALLER = ("loss", "perplexity")
# What a run writes: before its first step, during training, and after its last checkpoint.
RECIPE = "recipe.yaml"
PREPARED = ("tokenizer", "tokens")
DURING = ("log.jsonl", "checkpoints")
MODEL = "model"
AT_THE_END = (MODEL, "results.json", "loss.svg")
STOPPING = "stopping after this step, with a checkpoint; a second Ctrl-C stops now, without one"
COMPILES = (
    "model and loss are compiled as one graph during the first step, which takes up to a minute; run.compile=false "
    "avoids that"
)
BEGUN = ".begun"  # holds the recipe that the other files belong to, until the first checkpoint


class StoppedError(Exception):
    """A signal stopped the run, after it had written a checkpoint of this step and a model.

    Args:
        step: the last one.
        kept: the steps of the checkpoints that the model is made of: the best, the newest, or several to average.
    """

    def __init__(self, step: int, kept: Sequence[int]) -> None:
        super().__init__(f"stopped after step {step:,}, from which the run can be resumed.")
        self.step, self.kept = step, list(kept)


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    folder: Path  # of the model
    step: int
    results: dict[str, dict[str, float]]  # metrics by part of the data


class Session:
    """A run in a folder.

    Args:
        recipe: of the run.
        folder: for everything it writes.
        process: the current process.
        monitor: shows and logs what happens.
        resume: continue the run in the folder, or begin if there is none; without it a folder that holds a run is an
            error.
    """

    def __init__(
        self, recipe: Recipe, folder: Path, process: Process, monitor: Monitor, *, resume: bool = False
    ) -> None:
        self.recipe, self.folder, self.process, self.monitor = recipe, folder, process, monitor
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=recipe.run.keep)
        self._lock = FolderLock(folder)
        with computing_with(recipe.run.threads), ExitStack() as undo:
            undo.callback(self._lock.release)
            # Check and lock the folder, then build the run.
            on_rank_zero(lambda: self._enter_folder(resume))
            latest = self.checkpoints.latest()
            self.run: Run = build_run(recipe, folder, process, latest, begin=lambda: self._begin(undo))
            run = recipe.run
            average = None if run.average is None else MovingAverage(self.run.model, run.average)
            self.evaluator = Evaluator(self.run, average, process, folder)
            patience = recipe.evaluation.patience
            if patience is not None and "valid" not in self.run.examples:
                raise ValueError("evaluation.patience needs validation rows, and there are none.")
            self.stopping = EarlyStopping(
                patience if patience is not None else run.steps + 1, smaller_is_better=recipe.evaluation.by in SMALLER
            )
            # Resume from the last checkpoint, or try everything once.
            self._notes = self._restore(latest, resume)
            undo.pop_all()
        self._first_step = self.run.trainer.step
        self._epochs = deque([self.run.epoch])  # of the steps that are not reported yet, and of the next one

    def _enter_folder(self, resume: bool) -> None:
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if not existing.is_dir():
            raise ValueError(f"{existing} is a file, and a run needs a folder: choose another.")
        if self.folder.is_dir():
            self._lock.take()
        has_begun, has_checkpoint = (self.folder / BEGUN).exists(), bool(self.checkpoints.all())
        is_run = has_checkpoint or (has_begun and (self.folder / RECIPE).exists())
        if is_run and not resume:
            raise CheckpointError(
                "{} holds a run: continue it with {}, or choose another folder with {}.",
                str(self.folder),
                Setting("resume", True),
                Setting("out"),
            )
        if not has_checkpoint:
            self._check_overwriting((*PREPARED, RECIPE, *DURING) if has_begun else ())
        if has_begun or has_checkpoint:
            self.checkpoints.tidy()

    def _begin(self, undo: ExitStack) -> None:
        """Make the folder, now that something will be written to it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        undo.callback(self._leave)  # not before: the mark may belong to the process that holds the lock
        if not self.checkpoints.all():
            mark, recipe = self.folder / BEGUN, write_recipe(self.recipe)
            if mark.exists() and mark.read_text(encoding="utf-8") != recipe:  # left by a start with another recipe
                for name in PREPARED:
                    shutil.rmtree(self.folder / name, ignore_errors=True)
            write_text(mark, recipe)

    def _leave(self) -> None:
        """Remove the mark of a run that wrote nothing else."""
        if not any((self.folder / name).exists() for name in (*PREPARED, RECIPE)):
            (self.folder / BEGUN).unlink(missing_ok=True)

    def _check_overwriting(self, own: Collection[str]) -> None:
        """Raise if a run that begins would overwrite what is not its ``own``."""
        outputs = [self.folder / name for name in (*PREPARED, RECIPE, *DURING, *AT_THE_END)]
        model, tokenizer = self.recipe.model, self.recipe.tokenizer
        inputs = {"model.start": model.start, "model.teacher": model.teacher, "tokenizer.load": tokenizer.load}
        for key, name in inputs.items():
            path = None if name is None else Path(name).expanduser().resolve()
            if path is not None and any(path.is_relative_to(output.resolve()) for output in outputs):
                raise ValueError(f"{key}={name} is where the run writes; choose another folder for the run.")
        if existing := [output.name for output in outputs if output.exists() and output.name not in own]:
            raise CheckpointError(
                f"{self.folder} holds {', '.join(existing)}, but no checkpoint of the run that wrote them; a new run "
                f"would overwrite them. Choose another folder for the run, or move them away."
            )

    def _restore(self, latest: Path | None, resume: bool) -> list[str]:
        """Resume from the last checkpoint, or check that the run can begin. Returns notes to show."""
        run = self.run
        if latest is not None:
            notes = read_run(latest, run.trainer, run.fingerprint, extras=self._extras(), base=run.base)
            recipe, used = self.recipe, run.recipe
            pairs = ((recipe.model.start, used.model.start), (recipe.tokenizer.load, used.tokenizer.load))
            missing = [
                f"{path} is gone and not needed: the checkpoint has its contents" for path, now in pairs if path != now
            ]
            notes += precision_notes(recipe, run, self.process.device, is_resumed=True)
            return [f"resuming after step {run.trainer.step:,}", *dict.fromkeys(missing), *notes, *run.notes()]
        self.evaluator.dry_run(self.recipe.evaluation.by, self.recipe.evaluation.samples)
        begins = ["there is no checkpoint yet, so the run starts from the beginning"] if resume else []
        export = export_note(run)
        precision = precision_notes(self.recipe, run, self.process.device, is_resumed=False)
        return [*begins, *run.start_notes, *precision, *([] if export is None else [export]), *run.notes()]

    def _save_recipe(self) -> None:
        """From now on the folder holds a run, with the changes to its recipe included."""
        write_text(self.folder / RECIPE, write_recipe(self.recipe))

    def _extras(self) -> dict[str, Any]:
        averaged = {} if self.evaluator.average is None else {"average": self.evaluator.average}
        return {"stopping": self.stopping, **averaged}

    def train(self) -> Outcome:
        """Make all remaining steps, then save the best model and measure it."""
        trainer, recipe = self.run.trainer, self.recipe
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            latest = None if self.run.trainer.step == 0 else self.checkpoints.latest()
            threads = start_threads(self.recipe.run.threads, latest, self.process)
            self._start_monitor()
            stack.enter_context(self.monitor)
            on_rank_zero(self._save_recipe)
            log = stack.enter_context(RunLog(self.folder / "log.jsonl", after=trainer.step)) if self._is_first else None
            for note in (*self._notes, *threads.notes):
                self.monitor.note(note)
            self._estimate_cost(log, threads.measures)
            if recipe.evaluation.untrained and trainer.step == 0:
                self._show_samples(log, 0)
            signals = StopSignals(lambda: self.monitor.note(STOPPING))
            with signals if self.process.world == 1 else nullcontext():
                self._make_steps(log, signals)
            return self._finish()

    def _estimate_cost(self, log: RunLog | None, measures_threads: bool) -> None:
        """Show what the remaining steps will cost; the estimate of the whole run goes to the log."""
        if self.stopping.is_over or self.run.trainer.step >= self.recipe.run.steps:
            return
        # Memory is shown before any step is made: it may not suffice for one.
        cost = estimate_memory(self.run, self.process, self.folder)
        self._show_cost([cost.summary()], cost.warnings())
        chosen = fastest_threads(cost, self.run, self.process) if measures_threads else None
        self._show_cost([] if chosen is None else [chosen], [])
        timed = add_times(cost, self.run, self.process)
        time = timed.time_summary()
        self._show_cost(
            [] if time is None else [time], [text for text in timed.warnings() if text not in cost.warnings()]
        )
        if log is not None and self.run.trainer.step == 0:
            log.write("cost", 0, *timed.record())
        if timed.pays_to_compile:
            self.run.trainer.train_module.compile_whole()
            self._show_cost([COMPILES], [])

    def _show_cost(self, notes: Sequence[str], warnings: Sequence[str]) -> None:
        for text in notes if self._is_first else ():
            self.monitor.note(text)
        for text in warnings if self._is_first else ():
            self.monitor.warning(text)

    def _make_steps(self, log: RunLog | None, signals: StopSignals) -> None:
        trainer = self.run.trainer
        trainer.must_fetch = lambda step: self._is_due(step) or signals.received
        trainer.after_update.append(lambda: self._epochs.append(self.run.epoch))
        if self.evaluator.average is not None:
            trainer.after_update.append(self.evaluator.average.update)
        for report in trainer if not self.stopping.is_over else ():
            self._after_step(report, log, signals)
            if self.stopping.is_over:
                patience = self.recipe.evaluation.patience
                self.monitor.note(f"stopped early: {patience} evaluations in a row were no better.")
                break

    def _after_step(self, report: StepReport, log: RunLog | None, signals: StopSignals) -> None:
        """Log the step; validate, write a checkpoint and stop where they are due."""
        self._log_step(log, report)
        if report.step < self.run.trainer.begun:  # the next step has taken its batch: this one is not due
            return
        # Validation.
        is_last = report.step == self.recipe.run.steps
        is_evaluated = is_last or report.step % self.recipe.evaluation.every == 0
        is_best = self._validate(log, report.step) if is_evaluated else False
        if is_evaluated:
            self._show_samples(log, report.step)
        # Checkpoint, after everything that the log says of this step: a run that is killed resumes here.
        stop = signals.received and not is_last  # read once: a signal that comes later is for the next step
        is_due = is_last or is_best or self.stopping.is_over or report.step % self.recipe.run.checkpoint_every == 0
        if is_due or stop:
            self._checkpoint(log if is_due else None, report.step, is_best)
        # The stop.
        if stop:
            folders = checkpoints_to_keep(self.checkpoints, self.recipe.evaluation.last)
            save_model(self.folder / MODEL, self.run, folders)
            raise StoppedError(report.step, [step_of(folder) for folder in folders])

    def _is_due(self, step: int) -> bool:
        """Whether something is done after a step that needs the weights as they are then."""
        run, evaluation = self.recipe.run, self.recipe.evaluation
        return step == run.steps or step % evaluation.every == 0 or step % run.checkpoint_every == 0

    def _start_monitor(self) -> None:
        run, recipe = self.run, self.recipe
        models = [part.config for part in run.model.modules() if isinstance(part, Transformer)]
        batch = next(iter(run.batches("valid" if "valid" in run.examples else "train")))
        precision = run.trainer.settings.precision
        utilisation = utilisation_of(models, batch, self.process.device, precision, self.process.world)
        self.monitor.start(
            steps=recipe.run.steps, done=run.trainer.step, device=self.process.device, utilisation=utilisation
        )

    @property
    def _is_first(self) -> bool:
        return self.process.is_first

    def _log_step(self, log: RunLog | None, report: StepReport) -> None:
        epoch = self._epochs.popleft()
        if log is None:
            return
        values = {"loss": report.loss, "terms": report.terms, "parts": report.metrics, "lr": report.lr}
        values |= {"grad_norm": report.grad_norm, "tokens": report.tokens, "tokens_seen": report.tokens_seen}
        measured = self.monitor.step(report, epoch)
        log.write("step", report.step, values | ({"skipped": True} if report.skipped else {}), measured)

    def _validate(self, log: RunLog | None, step: int) -> bool:
        """Evaluate on the validation rows; return whether it is the best so far."""
        metrics = self.evaluator.validate(self.recipe.evaluation.rows)
        if metrics is None:
            return False
        is_best = self.stopping.better(metrics[self.recipe.evaluation.by])
        if log is not None:
            log.write("validation", step, {**metrics, "best": is_best})
            others = {name: value for name, value in metrics.items() if name != "loss"}
            self.monitor.validation(step, metrics["loss"], others, is_best)
        return is_best

    def _show_samples(self, log: RunLog | None, step: int) -> None:
        for number, text in enumerate(self.evaluator.samples(self.recipe.evaluation.samples), start=1):
            if log is not None:
                log.write("sample", step, {"number": number, "text": text})
            self.monitor.sample(step, text, number)

    def _checkpoint(self, log: RunLog | None, step: int, is_best: bool) -> None:
        if log is not None:  # first: a line too many is cut off when the run resumes, a missing one would stay missing
            log.write("checkpoint", step, {"best": is_best})
        path = self.checkpoints.write(step, self._fill, is_best=is_best)
        if self._is_first:
            (self.folder / BEGUN).unlink(missing_ok=True)
            self.monitor.checkpoint(step, path, is_best)

    def _fill(self, folder: Path) -> None:
        run, evaluator = self.run, self.evaluator
        is_plain = run.base is None and evaluator.average is None and evaluator.kept_model() is run.model
        write_run(
            folder,
            run.trainer,
            run.fingerprint,
            tokenizer=run.context.tokenizer,
            lineage=run.lineage,
            extras=self._extras(),
            write_exported=None if is_plain else partial(write_kept_model, run=run, evaluator=evaluator),
            base=run.base,
        )

    def _finish(self) -> Outcome:
        path = self.folder / MODEL
        was_finished = self.run.trainer.step == self._first_step and (self.folder / "results.json").exists()
        if not any(all_gather(was_finished and path.is_dir())):  # else it may hold files that the user has added since
            on_rank_zero(lambda: self._save_best(path))
        results = self.evaluator.measure(path)
        if self._is_first:
            notes = [note.partition("\n")[0] for note in self.run.notes()] + self.run.job.metric_notes()
            page = results | ({"notes": notes} if notes else {})
            write_text(self.folder / "results.json", json.dumps(for_json(page), indent=2, ensure_ascii=False) + "\n")
            for note in notes:
                self.monitor.note(note)
            draw_curve(self.folder / "log.jsonl", self.folder / "loss.svg")
        return Outcome(path, self.run.trainer.step, results)

    def _save_best(self, path: Path) -> None:
        """Save the model of the best checkpoint, or the mean of the last few."""
        last = self.recipe.evaluation.last
        if self.checkpoints.best() is None and "valid" in self.run.examples and last == 1:
            self.monitor.note("the best checkpoint no longer exists; the last checkpoint is used.")
        save_model(path, self.run, checkpoints_to_keep(self.checkpoints, last))


def checkpoints_to_keep(checkpoints: Checkpoints, last: int) -> list[Path]:
    """Return the checkpoints that the saved model is made of: the best, else the newest, or the ``last`` few."""
    newest, best = checkpoints.all()[-last:], checkpoints.best()
    return newest if len(newest) > 1 or best is None else [best]


def write_kept_model(folder: Path, run: Run, evaluator: Evaluator) -> None:
    """Fill a checkpoint with what is kept of a run: a model that can be loaded, or only its adapters.

    All processes call it; the first writes.
    """
    tokenizer, base = run.context.tokenizer, run.base
    with evaluator.averaged():
        if base is None:
            write_model(folder, evaluator.kept_model(), tokenizer, run.lineage)
            return
        on_rank_zero(lambda: save_adapters(run.model, folder, base=base))
        on_rank_zero(lambda: tokenizer.save(folder))


def save_model(path: Path, run: Run, checkpoints: Sequence[Path]) -> None:
    """Save the model of a checkpoint, or the mean of several; an earlier model stays until the new one is complete."""
    if needs_base(checkpoints[0]):
        model: Transformer = merged_with(run.model, checkpoints)
    else:
        model = hub.load(checkpoints[-1]).model
        if len(checkpoints) > 1:
            load_average(model, checkpoints)
    # Write it beside the earlier model, then exchange the two.
    hidden, before = (path.with_name(f".{path.name}.{state}") for state in ("new", "before"))
    with naming_file(path):
        try:
            for leftover in (hidden, before):
                shutil.rmtree(leftover, ignore_errors=True)
            hub.save(model, hidden, tokenizer=run.context.tokenizer, lineage=run.lineage)
            write_text(hidden / hub.JOB, json.dumps(evaluation_note(run.job), indent=2, ensure_ascii=False) + "\n")
            if path.exists():
                os.replace(path, before)
            os.replace(hidden, path)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
            shutil.rmtree(before, ignore_errors=True)


def precision_notes(stated: Recipe, run: Run, device: torch.device, *, is_resumed: bool) -> list[str]:
    """Return notes on the precision, if the recipe as stated leaves the choice to the run."""
    used = run.trainer.settings.precision
    if stated.run.precision != "auto":
        return []
    if is_resumed:
        return [] if used == fast_precision(device) else [f"matrix products in {used}, as before"]
    if used == "float32":
        return []
    return [f"matrix products in {used}; run.precision=float32 is slower and more accurate"]


def export_note(run: Run) -> str | None:
    """Return why the model cannot be written for Hugging Face, and what to do about it; None if it can."""
    facts = run.context.facts
    reason = _export_obstacle(run.lineage, facts)
    if reason is None:
        return None
    others = run.job.export_remedies(facts)
    remedies = [remedy for other, remedy in others if _export_obstacle(run.lineage, other) is None]
    return " ".join([f"glassformer convert cannot write this model for Hugging Face: {reason}.", *remedies[:1]])


def _export_obstacle(name: str | None, facts: ModelConfig) -> str | None:
    """Return why Hugging Face has no model of a lineage with these facts; None if it has."""
    if name is None:
        return "its lineage is not known"
    lineage = lineages()[name]
    if lineage.model_type is None:
        return f"Hugging Face has no model of the type {lineage.name}"
    try:
        lineage.config(facts)
    except ConfigError as error:
        return str(error).rstrip(".")
    return None
