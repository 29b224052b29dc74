"""A run from a recipe to a trained model in a folder; it can be stopped at any moment and goes on to the bit.

The folder::

    recipe.yaml     what the run is made of
    tokenizer/      where one was trained
    tokens/         text as ids, where a job works from files
    log.jsonl       every step, validation and checkpoint
    checkpoints/    the newest ones and the best
    model/          what came out, or the best so far where the run was stopped: glassformer.load opens it
    results.json    how good it is
    loss.svg        how it learned
"""

import json
import shutil
from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.config.facts import for_json
from glassformer.models.transformer import Transformer
from glassformer.training import parallel
from glassformer.training.assembling import Run, build_run
from glassformer.training.averaging import MovingAverage
from glassformer.training.checkpoint import CheckpointError, Checkpoints, step_of
from glassformer.training.folder_lock import FolderLock
from glassformer.training.judging import Evaluator
from glassformer.training.keeping import chosen, export_note, keep_model, write_shown
from glassformer.training.log import RunLog
from glassformer.training.logging.curve import draw_curve
from glassformer.training.logging.watch import Watch, utilisation_of
from glassformer.training.loop import Report
from glassformer.training.processes import by_first, gathered
from glassformer.training.recipe import Recipe
from glassformer.training.recipe_files import write_recipe
from glassformer.training.resume import read_run, write_run
from glassformer.training.stop_signals import StopSignals
from glassformer.training.stopping import EarlyStopping
from glassformer.weights.saving import write_text

# Figures of which less is better; of all others, more.
SMALLER = ("loss", "perplexity")
# What a run writes: before its first step, on the way, and after its last checkpoint.
RECIPE = "recipe.yaml"
PREPARED = ("tokenizer", "tokens")
ON_THE_WAY = ("log.jsonl", "checkpoints")
MODEL = "model"
AT_THE_END = (MODEL, "results.json", "loss.svg")
STOPPING = "stopping after this step, with a checkpoint; a second Ctrl-C stops now, without one"
BEGUN = ".begun"  # says of which recipe the rest is, until the first checkpoint


class StoppedError(Exception):
    """Somebody asked the run to stop; a checkpoint was written after the step it names, and a model of those so far.

    Args:
        step: the last one that was made.
        kept: the steps of the checkpoints that the model is made of: the best, the newest, or several to average.
    """

    def __init__(self, step: int, kept: Sequence[int]) -> None:
        super().__init__(f"stopped after step {step:,}, from which the run can go on.")
        self.step, self.kept = step, list(kept)


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    folder: Path  # of the model
    step: int
    results: dict[str, dict[str, float]]  # by part of the data


class Session:
    """A run in a folder.

    Args:
        recipe: what it is made of.
        folder: where everything goes.
        process: of those that train together.
        watch: who is told what happens.
        resume: go on where the run in the folder stopped, and begin where there is none; a folder that holds one is an
            error without it.
    """

    def __init__(
        self, recipe: Recipe, folder: Path, process: parallel.Process, watch: Watch, *, resume: bool = False
    ) -> None:
        self.recipe, self.folder, self.process, self.watch = recipe, folder, process, watch
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=recipe.run.keep)
        self._lock = FolderLock(folder)
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            by_first(lambda: self._enter_folder(resume))
            latest = self.checkpoints.latest()
            self.run: Run = build_run(recipe, folder, process, latest, begin=lambda: self._begin(undo))
            run = recipe.run
            average = None if run.average is None else MovingAverage(self.run.model, run.average)
            self.judge = Evaluator(self.run, average, process, folder)
            patience = recipe.evaluation.patience
            if patience is not None and "valid" not in self.run.examples:
                raise ValueError("evaluation.patience waits for better validations, and there are no validation rows.")
            self.stopping = EarlyStopping(
                patience if patience is not None else run.steps + 1, smaller_is_better=recipe.evaluation.by in SMALLER
            )
            self._notes = self._take_up(latest, resume)
            undo.pop_all()
        self._epoch, self._first_step = self.run.epoch, self.run.trainer.step

    def _enter_folder(self, resume: bool) -> None:
        there = next(one for one in (self.folder, *self.folder.parents) if one.exists())
        if not there.is_dir():
            raise ValueError(f"{there} is a file, and a run goes into a folder: say another --out.")
        if self.folder.is_dir():
            self._lock.take()
        has_begun, has_checkpoint = (self.folder / BEGUN).exists(), bool(self.checkpoints.all())
        is_run = has_checkpoint or (has_begun and (self.folder / RECIPE).exists())
        if is_run and not resume:
            raise CheckpointError(f"{self.folder} holds a run: go on with it by --resume, or say another --out.")
        if not has_checkpoint:
            self._check_room((*PREPARED, RECIPE, *ON_THE_WAY) if has_begun else ())
        if has_begun or has_checkpoint:
            self.checkpoints.tidy()

    def _begin(self, undo: ExitStack) -> None:
        """Make the folder, now that something is to be written there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        undo.callback(self._leave)  # not before: the mark may be that of whoever holds the lock
        if not self.checkpoints.all():
            mark, made_of = self.folder / BEGUN, write_recipe(self.recipe)
            if mark.exists() and mark.read_text(encoding="utf-8") != made_of:  # what another start has left
                for name in PREPARED:
                    shutil.rmtree(self.folder / name, ignore_errors=True)
            write_text(mark, made_of)

    def _leave(self) -> None:
        """Of a run that came to nothing, nothing stays."""
        if not any((self.folder / name).exists() for name in (*PREPARED, RECIPE)):
            (self.folder / BEGUN).unlink(missing_ok=True)

    def _check_room(self, own: Collection[str]) -> None:
        """Raise if a run that begins would write over what is not its ``own``."""
        written = [self.folder / name for name in (*PREPARED, RECIPE, *ON_THE_WAY, *AT_THE_END)]
        model, tokenizer = self.recipe.model, self.recipe.tokenizer
        needed = {"model.start": model.start, "model.teacher": model.teacher, "tokenizer.load": tokenizer.load}
        for key, place in needed.items():
            whole = None if place is None else Path(place).expanduser().resolve()
            if whole is not None and any(whole.is_relative_to(one.resolve()) for one in written):
                raise ValueError(f"{key}={place} lies where the run writes; say another --out.")
        if others := [one.name for one in written if one.exists() and one.name not in own]:
            raise CheckpointError(
                f"{self.folder} holds {', '.join(others)}, but no checkpoint of the run that made this; a new one "
                f"would write over it. Say another folder with --out, or move it away."
            )

    def _take_up(self, latest: Path | None, resume: bool) -> list[str]:
        """Go on from the last checkpoint, or see that all can begin. Returns what to tell."""
        if latest is not None:
            run = self.run
            told = read_run(latest, run.trainer, run.identity, extras=self._extras(), base=run.base)
            plan, found = self.recipe, self.run.recipe
            pairs = ((plan.model.start, found.model.start), (plan.tokenizer.load, found.tokenizer.load))
            gone = [
                f"{place} is not there; the checkpoint has what came from it" for place, now in pairs if place != now
            ]
            return [f"going on after step {self.run.trainer.step:,}", *dict.fromkeys(gone), *told, *self.run.notes()]
        self.judge.dry_run(self.recipe.evaluation.by, self.recipe.evaluation.samples)
        begins = ["no checkpoint was written yet, so the run begins"] if resume else []
        export = export_note(self.run)
        return [*begins, *self.run.begins, *([] if export is None else [export]), *self.run.notes()]

    def _write_down(self) -> None:
        """From now on the folder holds a run, with all that was changed since it began."""
        write_text(self.folder / RECIPE, write_recipe(self.recipe))

    def _extras(self) -> dict[str, Any]:
        averaged = {} if self.judge.average is None else {"average": self.judge.average}
        return {"stopping": self.stopping, **averaged}

    def train(self) -> Outcome:
        """Make all steps that are left, then keep the best model and say how good it is."""
        trainer, plan = self.run.trainer, self.recipe
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            self._start_watch()
            stack.enter_context(self.watch)
            by_first(self._write_down)
            log = stack.enter_context(RunLog(self.folder / "log.jsonl", after=trainer.step)) if self._is_first else None
            for note in self._notes:
                self.watch.note(note)
            if plan.evaluation.untrained and trainer.step == 0:
                self._show_samples(0)
            signals = StopSignals(lambda: self.watch.note(STOPPING))
            with signals if self.process.world == 1 else nullcontext():
                self._make_steps(log, signals)
            return self._finish()

    def _make_steps(self, log: RunLog | None, signals: StopSignals) -> None:
        for report in self.run.trainer if not self.stopping.is_over else ():
            self._after(report, log, signals)
            if self.stopping.is_over:
                patience = self.recipe.evaluation.patience
                self.watch.note(f"stopped early: {patience} evaluations in a row were no better.")
                break

    def _after(self, report: Report, log: RunLog | None, signals: StopSignals) -> None:
        """What follows a step: log lines, a validation and a checkpoint where they are due, a stop if it is wished."""
        if self.judge.average is not None:
            self.judge.average.update()
        self._tell_step(log, report)
        is_last = report.step == self.recipe.run.steps
        is_judged = is_last or report.step % self.recipe.evaluation.every == 0
        better = self._validate(log, report.step) if is_judged else False
        stop = signals.came and not is_last  # asked once: a signal that comes later is for the next step
        is_due = is_last or better or self.stopping.is_over or report.step % self.recipe.run.checkpoint_every == 0
        if is_due or stop:
            self._checkpoint(log if is_due else None, report.step, better)
        if is_judged:
            self._show_samples(report.step)
        if stop:
            folders = chosen(self.checkpoints, self.recipe.evaluation.last)
            keep_model(self.folder / MODEL, self.run, folders)
            raise StoppedError(report.step, [step_of(folder) for folder in folders])

    def _start_watch(self) -> None:
        run = self.run
        models = [part for part in run.model.modules() if isinstance(part, Transformer)]
        example = next(iter(run.batches("valid" if "valid" in run.examples else "train")))
        busy = utilisation_of(
            [one.config for one in models], example, self.process.device, self.recipe.run.precision, self.process.world
        )
        steps = self.recipe.run.steps
        self.watch.start(steps=steps, done=run.trainer.step, device=self.process.device, utilisation=busy)

    @property
    def _is_first(self) -> bool:
        return self.process.is_first

    def _tell_step(self, log: RunLog | None, report: Report) -> None:
        if log is None:
            return
        facts = {"loss": report.loss, "terms": report.terms, "parts": report.parts, "lr": report.lr}
        facts |= {"grad_norm": report.grad_norm, "tokens": report.tokens, "tokens_seen": report.tokens_seen}
        measured = self.watch.step(report, self._epoch)
        self._epoch = self.run.epoch
        log.write("step", report.step, facts | ({"skipped": True} if report.skipped else {}), measured)

    def _validate(self, log: RunLog | None, step: int) -> bool:
        """Try the model on the validation rows; whether it was never better."""
        found = self.judge.validate(self.recipe.evaluation.rows)
        if found is None:
            return False
        better = self.stopping.better(found[self.recipe.evaluation.by])
        if log is not None:
            log.write("validation", step, {**found, "best": better})
            figures = {name: value for name, value in found.items() if name != "loss"}
            self.watch.validation(step, found["loss"], figures, better)
        return better

    def _show_samples(self, step: int) -> None:
        for number, text in enumerate(self.judge.samples(self.recipe.evaluation.samples), start=1):
            self.watch.sample(step, text, number)

    def _checkpoint(self, log: RunLog | None, step: int, better: bool) -> None:
        if log is not None:  # first: a line too many is cut off when the run goes on, one that lacks would be missed
            log.write("checkpoint", step, {"best": better})
        path = self.checkpoints.write(step, self._fill, is_best=better)
        if self._is_first:
            (self.folder / BEGUN).unlink(missing_ok=True)
            self.watch.checkpoint(step, path, better)

    def _fill(self, folder: Path) -> None:
        run, judge = self.run, self.judge
        is_plain = run.base is None and judge.average is None and judge.shown() is run.model
        write_run(
            folder,
            run.trainer,
            run.identity,
            tokenizer=run.kit.tokenizer,
            lineage=run.lineage,
            extras=self._extras(),
            show=None if is_plain else partial(write_shown, run=run, judge=judge),
            base=run.base,
        )

    def _finish(self) -> Outcome:
        place = self.folder / MODEL
        was_finished = self.run.trainer.step == self._first_step and (self.folder / "results.json").exists()
        if not any(gathered(was_finished and place.is_dir())):  # else it may hold what somebody has added since
            by_first(lambda: self._keep(place))
        results = self.judge.measure(place)
        if self._is_first:
            notes = [note.partition("\n")[0] for note in self.run.notes()] + self.run.job.footnotes()
            told = results | ({"notes": notes} if notes else {})
            write_text(self.folder / "results.json", json.dumps(for_json(told), indent=2, ensure_ascii=False) + "\n")
            for note in notes:
                self.watch.note(note)
            draw_curve(self.folder / "log.jsonl", self.folder / "loss.svg")
        return Outcome(place, self.run.trainer.step, results)

    def _keep(self, place: Path) -> None:
        """Put the best model into its place, or the mean of the last few."""
        last = self.recipe.evaluation.last
        if self.checkpoints.best() is None and "valid" in self.run.examples and last == 1:
            self.watch.note("the best checkpoint is not there any more; the model is the last one.")
        keep_model(place, self.run, chosen(self.checkpoints, last))
