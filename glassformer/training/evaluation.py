"""Evaluation: of the model of a run while it trains (``Evaluator``), and of a saved model on files.

Nothing here changes the model or the random numbers of a run. Losses are without label smoothing, so that they can be
compared, and in float32. With several processes all of them call the methods of ``Evaluator``; generation is done by
the first alone.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from glassformer import hub
from glassformer.config import LMHead, ModelConfig, PretrainingHead, TaskHead, to_dict
from glassformer.config.checks import check_choice
from glassformer.data.loader import Loader
from glassformer.data.records import TextRecord
from glassformer.hub import JOB, Loaded
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import Objective
from glassformer.objectives.examples import read_note
from glassformer.objectives.job import Job, RunContext, as_loaded, job_of, without_smoothing
from glassformer.recipes.files import ENDINGS, ending_of, recipe_of
from glassformer.recipes.recipe import Recipe
from glassformer.recipes.rows import Records, read_part
from glassformer.training.adapters import adapted, merged
from glassformer.training.averaging import MovingAverage
from glassformer.training.build import Run, batch_plan
from glassformer.training.checkpoint_contents import random_state, restore_random
from glassformer.training.logging.sinks import read_log
from glassformer.training.loop import evaluate
from glassformer.training.parallel import Process, all_gather, gathered_weights, own_batches
from glassformer.weights.lineage import head_kind

DRY_RUN_ROWS = 2  # rows on which everything is tried before a run begins


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates the model of a run.

    Args:
        run: that trains.
        average: of its weights; if not None, they are evaluated and kept.
        process: the current process.
        folder: of the run.
    """

    run: Run
    average: MovingAverage | None
    process: Process
    folder: Path

    def averaged(self) -> AbstractContextManager[None]:
        """Apply the averaged weights, if there are any, inside the ``with`` block."""
        return nullcontext() if self.average is None else self.average.applied()

    def kept_model(self) -> Transformer:
        """Return the part of the model that is kept in the end, with its adapters merged."""
        model = self.run.job.saved_model(self.run.model)
        return merged(model) if adapted(model) else model

    def validate(self, rows: int | None, batches: int | None = None) -> dict[str, float] | None:
        """Return loss and metrics on the validation rows; None if there are none.

        Args:
            rows: how many for the metrics, which cost more than the loss; None: all.
            batches: how many for the loss; None: as many as the recipe says.
        """
        if "valid" not in self.run.examples:
            return None
        with self.averaged():
            # Loss, by all processes together.
            means = evaluate(
                self.run.model, self.run.eval_objective, own_batches(islice(self.run.batches("valid"), batches))
            )
            metrics = self.run.job.losses(means)
            # Other metrics, by the first process.
            with gathered_weights(self.run.model):
                if self.process.is_first and "valid" in self.run.parts:
                    metrics |= self._metrics(list(islice(self.run.parts["valid"], rows)))
        return all_gather(metrics)[0]  # the first process has all of them

    def _metrics(self, rows: list[Any]) -> dict[str, float]:
        return self.run.job.metrics(self.run.context, self._loaded(), rows)

    def _loaded(self) -> Loaded:
        return as_loaded(self.kept_model(), self.run.context.tokenizer, self.folder)

    def samples(self, count: int) -> list[str]:
        """Return what the model generates for a few rows."""
        rows = list(islice(self.run.parts.get("valid", self.run.parts["train"]), count))
        if not rows:
            return []
        with self.averaged(), gathered_weights(self.run.model):
            return self.run.job.samples(self.run.context, self._loaded(), rows) if self.process.is_first else []

    def dry_run(self, by: str, samples: int) -> None:
        """Try everything on a few rows before the run begins, so that no mistake shows only hours later."""
        before = random_state(self.process.device)
        metrics = self.validate(DRY_RUN_ROWS, batches=1)
        if metrics is not None:
            check_choice("evaluation.by", by, metrics)
        self.samples(min(samples, 1))
        restore_random(before, self.process.device)

    def measure(self, folder: Path) -> dict[str, dict[str, float]]:
        """Return loss and metrics of the saved model, on all validation and test rows.

        Complete in the first process.
        """
        loaded = hub.load(folder, device=self.process.device)
        parts = [part for part in ("valid", "test") if part in self.run.examples]
        results: dict[str, dict[str, float]] = {}
        for part in parts:  # collective work first, then that of the first process
            results[part] = self._saved_loss(loaded.model, part)
        for part in parts if self.process.is_first else []:
            if part in self.run.parts:
                results[part] |= self.run.job.metrics(self.run.context, loaded, list(self.run.parts[part]))
        return results

    def _saved_loss(self, model: Transformer, part: str) -> dict[str, float]:
        """Return the loss of the saved model.

        If that is only a part of what was trained, it has none: the best logged one.
        """
        if not self.run.job.keeps_all:
            lines = read_log(self.folder / "log.jsonl") if part == "valid" else []
            best = [line for line in lines if line["kind"] == "validation" and line["best"]]
            return {name: value for name, value in best[-1].items() if isinstance(value, float)} if best else {}
        batches = own_batches(self.run.batches(part, whole=True))
        return self.run.job.losses(evaluate(model, self.run.eval_objective, batches))


# A saved model on files, without a run.

# What of a recipe a later evaluation needs, by section: how rows are read, and what masking depends on.
_KEPT = {
    "data": ("format", "documents", "marker", "columns", "separator", "header", "quoted", "prefix", "ignored",
             "languages", "split"),
    "batch": ("examples", "tokens", "length"),
    "run": ("seed",),
    "evaluation": ("beam",),
}  # fmt: skip
_INSTEAD = {  # keys that have no effect here, and what does the same
    "run.device": "--device",
    "run.precision": "--dtype",
    "run.threads": "--threads",
    "model.start": "MODEL",
    "model.load_options": "--head, --lineage, --allow-pickle, --ignore-keys, --fresh or --tokenizer-kind",
    "data.test": "FILE",
    "evaluation.rows": "data.limit",
    "model.teacher": "job=distillation besides",
}
_TASKS = {"classify": "classify", "pair": "classify", "tag": "tag", "span": "answer"}


def job_for(facts: ModelConfig) -> str:
    """Return the name of the job that a model's head is for."""
    head = facts.head
    if isinstance(head, TaskHead) and head.task in _TASKS:
        return _TASKS[head.task]
    if isinstance(head, LMHead):
        return {"decoder": "language", "encoder": "masked", "encoder-decoder": "text-to-text"}[facts.family]
    if isinstance(head, PretrainingHead):
        return "masked-pairs"
    kind = "none" if head is None else type(head).__name__
    raise ValueError(f"there is no evaluation for a model with the head {kind}; load it with another head.")


def evaluation_note(job: Job[Any]) -> dict[str, Any]:
    """Return what is saved beside the model of a job, to evaluate it later as it was evaluated after training."""
    page = to_dict(job.recipe)
    kept = {section: {name: page[section][name] for name in names} for section, names in _KEPT.items()}
    return {"job": job.recipe.job, "objective": to_dict(job.options), **kept}


def check_changes(changes: Mapping[str, str]) -> None:
    """Raise unless every key has an effect on an evaluation; most of a recipe is about training."""
    known = [f"{section}.{name}" for section, names in _KEPT.items() for name in names]
    known += ["job", "objective", "data.limit", "data.on_bad_row"]
    if changes.get("job") == "distillation":
        known.append("model.teacher")
    for key in changes:
        setting = "objective" if key.startswith("objective.") else ".".join(key.split(".")[:2])
        if setting in _INSTEAD and setting not in known:
            raise ValueError(f"{setting} changes nothing here; use {_INSTEAD[setting]}.")
        check_choice("what KEY=VALUE changes of an evaluation", setting, known)


def _saved_note(loaded: Loaded) -> dict[str, Any]:
    """Return the evaluation note beside a model, or what follows from its head."""
    path = loaded.folder / JOB
    if not path.is_file():
        return {"job": job_for(loaded.config), "objective": _default_options(loaded.config)}
    try:
        note = _checked_note(read_note(path))
        job_of(recipe_of("evaluation", _page(loaded, note, note.get("data", {}).get("format", "text"), None)))
    except (TypeError, ValueError) as error:
        remedy = "remove it, and the job follows from the model's head"
        raise ValueError(f"{path} is damaged; {remedy}. What is wrong: {error}") from error
    return note


def _checked_note(note: Any) -> dict[str, Any]:
    """Return a note after checking that its sections are mappings; a student is evaluated without its teacher."""
    if not isinstance(note, dict) or not {"job", "objective"} <= note.keys():
        raise ValueError("it must be a mapping with a job and an objective.")
    if wrong := [name for name in ("objective", *_KEPT) if not isinstance(note.get(name, {}), dict)]:
        raise ValueError(f"{wrong[0]} must be a mapping, got {note[wrong[0]]!r}.")
    if note["job"] == "distillation":
        masking = {name: note["objective"].get(name) for name in ("masking", "rows")}
        note = {**note, "job": "masked", "objective": masking}
    return note


def _default_options(facts: ModelConfig) -> dict[str, Any]:
    """Return options of the job for a head: a single score is a regression."""
    head = facts.head
    is_number = isinstance(head, TaskHead) and _TASKS.get(head.task) == "classify" and len(head.labels) == 1
    return {"kind": "number"} if is_number else {}


def evaluation_recipe(loaded: Loaded, format_: str, files: Any, job: str | None = None) -> dict[str, Any]:
    """Return a recipe that evaluates a model on files, as it was evaluated after training if its folder says how.

    Another ``job`` has other options. How files of another format were read does not matter, except their languages.
    Changes to the page are the caller's.
    """
    note = _saved_note(loaded)
    if job not in (None, note["job"]):
        note = {"job": job, "objective": {}}
    return _page(loaded, note, format_, files)


def _page(loaded: Loaded, note: dict[str, Any], format_: str, files: Any) -> dict[str, Any]:
    data, max_length = note.get("data", {}), loaded.config.max_length
    if data.get("format") != format_:
        data = {name: value for name, value in data.items() if name == "languages"}
    batch = {"examples": 16, "length": 512 if max_length is None else min(max_length, 512)}
    return {
        "about": "evaluation",
        "expected": {"result": ""},
        "job": note["job"],
        "objective": note["objective"],
        "data": {**data, "format": format_, "test": files},
        "model": {"start": str(loaded.folder)},
        "batch": note.get("batch", batch),
        "optimizer": {"lr": 1.0},
        "run": {"steps": 1, **note.get("run", {})},
        "evaluation": {"rows": None, **note.get("evaluation", {})},
    }


def evaluate_model(loaded: Loaded, recipe: Recipe, part: str = "test") -> tuple[dict[str, float], list[str]]:
    """Return loss and metrics of a model on a part of a recipe's data; and notes on its rows."""
    job: Job[Any] = job_of(recipe)
    if not job.keeps_all:
        raise ValueError(
            f"the job {recipe.job} saves only a part of what it trains, which cannot be evaluated on its own. "
            f"Fine-tune it first: glassformer train finetune model.start={recipe.model.start} data.train=FILE."
        )
    kind = head_kind(loaded.config.head)
    if {"pair": "classify"}.get(kind, kind) != job.head:
        raise ValueError(f"the job {recipe.job} is for models with the head {job.head}, and this model has {kind}.")
    # Loss over all rows, as examples of the job's objective.
    rows: Records[Any] = read_part(recipe.data, part, job.record)
    with tempfile.TemporaryDirectory() as folder:
        context = RunContext(recipe, loaded.tokenizer, loaded.config, Path(folder))
        examples = job.examples(context, {part: rows})[part]
        losses = _losses(loaded.model, without_smoothing(job.objective(context)), job, examples, recipe)
    # Rows that were left out or cut.
    notes = [str(rows.stats)] if rows.stats is not None and rows.stats.bad else []
    notes += getattr(examples, "notes", [])
    if cut := getattr(examples, "cut", 0):
        notes.append(f"{cut:,} of {len(rows):,} rows were cut to {recipe.batch.length} tokens")
    return losses | job.metrics(context, loaded, list(rows)), notes


def _losses(
    model: Transformer, objective: Objective[Any], job: Job[Any], examples: Any, recipe: Recipe
) -> dict[str, float]:
    plan = batch_plan(recipe, examples, shuffle=False)
    with Loader(examples, objective.prepare, plan, seed=recipe.run.seed) as loader:
        return job.losses(evaluate(model, objective, loader.epoch()))


def format_of(loaded: Loaded, files: Sequence[str]) -> str:
    """Return the format of files, inferred from their names, else that of the model's training data."""
    endings = {ending_of(file) for file in files}
    format_ = ENDINGS.get(*endings) if len(endings) == 1 else None
    trained_on = _saved_note(loaded).get("data", {}).get("format")
    fits = len(files) == 2 if trained_on == "parallel" else len(endings) == 1
    if fits and format_ in (None, "text") and trained_on not in (None, "toy", "documentation"):  # those have no files
        recipe = recipe_of("evaluation", evaluation_recipe(loaded, "text", None))
        format_ = format_ if format_ is not None and job_of(recipe).record is TextRecord else trained_on
    if format_ is None:
        names = ", ".join(files) or "no files"
        pairs = "; this model was trained on pairs of aligned files" if trained_on == "parallel" else ""
        raise ValueError(
            f"the format of {names} cannot be inferred from the file names{pairs}. "
            f"Set --format to one of {', '.join([*ENDINGS.values(), 'parallel', 'dataset'])}."
        )
    return format_


def files_of(format_: str, files: Sequence[str]) -> Any:
    """Return files in the form of a recipe's ``data``; of two aligned files, the first is the source."""
    if format_ == "parallel":
        if len(files) != 2:
            raise ValueError(f"aligned files are two, the source and the target; got {len(files)}.")
        return {"source": files[0], "target": files[1]}
    return files[0] if len(files) == 1 else list(files)
