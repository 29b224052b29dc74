"""A run from a recipe to a trained model in a folder; it can be stopped at any moment and goes on to the bit.

The folder::

    recipe.yaml     what the run is made of
    tokenizer/      as trained, or as taken from elsewhere
    tokens/         text as ids, where a job works from files
    log.jsonl       every step, validation and checkpoint
    checkpoints/    the newest ones and the best
    model/          what came out: glassformer.load opens it
    results.json    how good it is
    loss.svg        how it learned
"""

import json
import shutil
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from glassformer import hub
from glassformer.config.checks import check_choice
from glassformer.config.facts import for_json
from glassformer.models.transformer import Transformer
from glassformer.train import parallel
from glassformer.train.adapters import adapted, merged
from glassformer.train.assembling import Run, assemble
from glassformer.train.averaging import MovingAverage, load_average
from glassformer.train.checkpoint import CheckpointError, Checkpoints
from glassformer.train.jobs.base import as_loaded
from glassformer.train.log import RunLog, read_log
from glassformer.train.loop import Report, evaluate
from glassformer.train.processes import by_first, gathered
from glassformer.train.recipe import Recipe
from glassformer.train.recipe_files import write_recipe
from glassformer.train.resume import read_run, write_model, write_run
from glassformer.train.shards import gathered_weights
from glassformer.train.stopping import EarlyStopping
from glassformer.train.watching.curve import draw_curve
from glassformer.train.watching.watch import Watch, utilisation_of
from glassformer.weights.saving import write_text

# Figures of which less is better; of all others, more.
SMALLER = ("loss", "perplexity")


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
        resume: go on where the run in the folder stopped; a folder that holds one is an error without it.
    """

    def __init__(
        self, recipe: Recipe, folder: Path, process: parallel.Process, watch: Watch, *, resume: bool = False
    ) -> None:
        self.recipe, self.folder, self.process, self.watch = recipe, folder, process, watch
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=recipe.run.keep)
        self._check_folder(resume)
        by_first(self._begin_folder)
        self.run: Run = assemble(recipe, folder, process)
        run = recipe.run
        self.average = None if run.average is None else MovingAverage(self.run.model, run.average)
        patience = recipe.evaluation.patience
        self.stopping = EarlyStopping(
            patience if patience is not None else run.steps + 1, smaller_is_better=recipe.evaluation.by in SMALLER
        )
        latest, told = self.checkpoints.latest(), []
        if resume and latest is not None:
            told = read_run(latest, self.run.trainer, self.run.identity, extras=self._extras())
        self._epoch = self.run.epoch
        self._notes = [*told, *self.run.notes()]

    def _check_folder(self, resume: bool) -> None:
        begun = (self.folder / "recipe.yaml").exists()
        if begun and not resume:
            raise CheckpointError(f"{self.folder} holds a run: go on with it by --resume, or take another folder.")
        if resume and not begun:
            raise CheckpointError(f"{self.folder} holds no run to go on with; leave out --resume to begin one.")

    def _begin_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoints.tidy()
        if not (self.folder / "recipe.yaml").exists():
            write_text(self.folder / "recipe.yaml", write_recipe(self.recipe))

    def _extras(self) -> dict[str, Any]:
        averaged = {} if self.average is None else {"average": self.average}
        return {"stopping": self.stopping, **averaged}

    def train(self) -> Outcome:
        """Make all steps that are left, then keep the best model and say how good it is."""
        trainer, plan = self.run.trainer, self.recipe
        with ExitStack() as stack:
            log = stack.enter_context(RunLog(self.folder / "log.jsonl", after=trainer.step)) if self._is_first else None
            self._start_watch()
            stack.enter_context(self.watch)
            for note in self._notes:
                self.watch.note(note)
            if plan.evaluation.untrained and trainer.step == 0:
                self._show_samples(0)
            for report in trainer:
                if self.average is not None:
                    self.average.update()
                self._tell_step(log, report)
                is_last = report.step == plan.run.steps
                better = False
                if is_last or report.step % plan.evaluation.every == 0:
                    better = self._judge(log, report.step)
                    self._show_samples(report.step)
                is_over = self.stopping.is_over
                if is_last or is_over or better or report.step % plan.run.checkpoint_every == 0:
                    self._checkpoint(log, report.step, better)
                if is_over:
                    self.watch.note(f"stopped early: {plan.evaluation.patience} evaluations in a row were no better.")
                    break
            return self._finish()

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

    def _judge(self, log: RunLog | None, step: int) -> bool:
        """Evaluate on the validation rows; whether the model was never better."""
        if "valid" not in self.run.examples:
            return False
        with self._averaged():
            means = evaluate(self.run.model, self.run.objective, parallel.own_share(self.run.batches("valid")))
            figures = {**means.parts, **self.run.job.of_loss(means.loss)}
            with gathered_weights(self.run.model):
                figures |= self._figures("valid", self.recipe.evaluation.rows) if self._is_first else {}
        figures = gathered(figures)[0]  # the first one measured them
        found = {"loss": means.loss, **figures}
        check_choice("evaluation.by", self.recipe.evaluation.by, found)
        better = self.stopping.better(found[self.recipe.evaluation.by])
        if log is not None:
            log.write("validation", step, {**found, "best": better})
            self.watch.validation(step, means.loss, figures, better)
        return better

    def _averaged(self) -> AbstractContextManager[None]:
        """The model with the weights that are kept in the end."""
        return nullcontext() if self.average is None else self.average.applied()

    def _shown(self) -> Transformer:
        model = self.run.job.shown(self.run.model)
        return merged(model) if adapted(model) else model

    def _figures(self, part: str, rows: int | None) -> dict[str, float]:
        if part not in self.run.parts:
            return {}
        loaded = as_loaded(self._shown(), self.run.kit.tokenizer, self.folder)
        return self.run.job.figures(self.run.kit, loaded, list(islice(self.run.parts[part], rows)))

    def _show_samples(self, step: int) -> None:
        """What the model makes of a few rows by now; the first process alone asks and tells."""
        part = self.run.parts.get("valid", self.run.parts["train"])
        rows = list(islice(part, self.recipe.evaluation.samples))
        if not rows:
            return
        with self._averaged(), gathered_weights(self.run.model):
            if self._is_first:
                loaded = as_loaded(self._shown(), self.run.kit.tokenizer, self.folder)
                for number, text in enumerate(self.run.job.samples(self.run.kit, loaded, rows), start=1):
                    self.watch.sample(step, text, number)

    def _checkpoint(self, log: RunLog | None, step: int, better: bool) -> None:
        path = self.checkpoints.write(step, self._fill, is_best=better)
        if log is not None:
            log.write("checkpoint", step, {"best": better})
            self.watch.checkpoint(step, path, better)

    def _fill(self, folder: Path) -> None:
        is_plain = self.average is None and self._shown() is self.run.model
        write_run(
            folder,
            self.run.trainer,
            self.run.identity,
            tokenizer=self.run.kit.tokenizer,
            extras=self._extras(),
            show=None if is_plain else self._write_kept,
        )

    def _write_kept(self, folder: Path) -> None:
        with self._averaged():
            write_model(folder, self._shown(), self.run.kit.tokenizer)

    def _finish(self) -> Outcome:
        place = self.folder / "model"
        by_first(lambda: self._keep(place))
        results = self._measure(place)
        if self._is_first:
            write_text(self.folder / "results.json", json.dumps(for_json(results), indent=2) + "\n")
            draw_curve(self.folder / "log.jsonl", self.folder / "loss.svg")
        return Outcome(place, self.run.trainer.step, results)

    def _keep(self, place: Path) -> None:
        """Put the best model into its place, or the mean of the last few."""
        last, best = self.checkpoints.all()[-self.recipe.evaluation.last :], self.checkpoints.best()
        chosen = best if best is not None and len(last) == 1 else last[-1]
        loaded = hub.load(chosen)
        if self.recipe.evaluation.last > 1:
            load_average(loaded.model, last)
        shutil.rmtree(place, ignore_errors=True)
        hub.save(loaded, place, tokenizer=self.run.kit.tokenizer)

    def _measure(self, place: Path) -> dict[str, dict[str, float]]:
        """Every figure of the kept model, on all rows that it did not learn from; the first process has them all."""
        loaded = hub.load(place, device=self.process.device)
        found: dict[str, dict[str, float]] = {}
        for part in ("valid", "test"):
            if part in self.run.examples:
                found[part] = self._loss(loaded.model, part)
            if part in self.run.parts and self._is_first:
                rows = list(self.run.parts[part])
                found[part] |= self.run.job.figures(self.run.kit, loaded, rows)
        return found

    def _loss(self, model: nn.Module, part: str) -> dict[str, float]:
        """The loss of the kept model; where that is only a part of what learned, the best that was logged."""
        if type(model) is not type(self.run.model):
            lines = [line for line in read_log(self.folder / "log.jsonl") if line["kind"] == "validation"]
            best = [line for line in lines if line["best"]]
            return {name: value for name, value in best[-1].items() if isinstance(value, float)} if best else {}
        means = evaluate(model, self.run.objective, parallel.own_share(self.run.batches(part, whole=True)))
        return {"loss": means.loss, **means.parts, **self.run.job.of_loss(means.loss)}
