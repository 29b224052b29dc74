"""How good a model is on rows that nobody trains on: the figures of its job, without a run."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.config import LMHead, Model, PretrainingHead, TaskHead
from glassformer.data.loader import Loader
from glassformer.data.objectives.base import Objective
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.train.assembling import batch_plan
from glassformer.train.jobs import job_of
from glassformer.train.jobs.base import Job, Kit, without_smoothing
from glassformer.train.jobs.documents import read_note
from glassformer.train.loop import evaluate
from glassformer.train.reading import Records, read_part
from glassformer.train.recipe import Recipe

JOB = "job.json"  # beside a model that was trained by a recipe: what for, and with which options
_TASKS = {"classify": "classify", "pair": "classify", "tag": "tag", "span": "answer"}


def job_for(facts: Model) -> str:
    """The name of the job that a model's head is for."""
    head = facts.head
    if isinstance(head, TaskHead) and head.task in _TASKS:
        return _TASKS[head.task]
    if isinstance(head, LMHead):
        return {"decoder": "language", "encoder": "masked", "encoder-decoder": "text-to-text"}[facts.family]
    kind = "none" if head is None else type(head).__name__
    if isinstance(head, PretrainingHead):
        return "masked-pairs"
    raise ValueError(f"a model with the head {kind} has nothing to be judged by; load it with another head.")


def page_for(loaded: Loaded, format_: str, files: Any) -> dict[str, Any]:
    """The page of a recipe that judges a model on files, by the job that it was trained for if its folder says that.

    Changes to it are the caller's.
    """
    longest = loaded.config.longest
    said = read_note(loaded.folder / JOB) or {"job": job_for(loaded.config), "objective": {}}
    return {
        "about": "evaluation",
        "expected": {"result": ""},
        **said,
        "data": {"format": format_, "test": files},
        "model": {"start": str(loaded.folder)},
        "batch": {"examples": 16, "length": 512 if longest is None else min(longest, 512)},
        "optimizer": {"lr": 1.0},
        "run": {"steps": 1},
        "evaluation": {"rows": None},
    }


def judge_model(loaded: Loaded, recipe: Recipe, part: str = "test") -> tuple[dict[str, float], list[str]]:
    """The loss and every figure of a model on a part of the data of a recipe; and what is to be told of its rows."""
    job: Job[Any] = job_of(recipe)
    rows: Records[Any] = read_part(recipe.data, part, job.record)
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(recipe, loaded.tokenizer, loaded.config, Path(folder))
        examples = job.examples(kit, {part: rows})[part]
        losses = _losses(loaded.model, without_smoothing(job.objective(kit)), job, examples, recipe)
    notes = [str(rows.tally)] if rows.tally is not None and rows.tally.bad else []
    notes += getattr(examples, "notes", [])
    return losses | job.figures(kit, loaded, list(rows)), notes


def _losses(
    model: Transformer, objective: Objective[Any], job: Job[Any], examples: Any, recipe: Recipe
) -> dict[str, float]:
    plan = batch_plan(recipe, examples, shuffle=False)
    with Loader(examples, objective.prepare, plan, seed=recipe.run.seed) as loader:
        return job.losses(evaluate(model, objective, loader.epoch()))


def files_of(format_: str, given: Sequence[str]) -> Any:
    """Files as a recipe names them: of aligned ones, the source first."""
    if format_ == "parallel":
        if len(given) != 2:
            raise ValueError(f"aligned files are two, the source and the target; got {len(given)}.")
        return {"source": given[0], "target": given[1]}
    return given[0] if len(given) == 1 else list(given)
