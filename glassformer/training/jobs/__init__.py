"""What models are trained for, by the name that a recipe calls it."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from glassformer.config import to_dict
from glassformer.config.checks import check_choice
from glassformer.training.jobs.base import Job
from glassformer.training.recipe import Recipe

# name: module and class, imported when asked for
_JOBS = {
    "language": "language.Language",
    "controlled": "language.Controlled",
    "text-to-text": "text_to_text.TextToText",
    "toy": "toy.Toy",
    "masked": "masked.MaskedText",
    "masked-pairs": "paired.PairedText",
    "masked-translation": "masked.MaskedTranslation",
    "replaced": "replaced.Replaced",
    "distillation": "distilled.Distilled",
    "spans": "noise.Spans",
    "denoising": "noise.Denoised",
    "classify": "labels.Classification",
    "tag": "labels.Tagging",
    "answer": "answering.Answering",
}


def job_of(recipe: Recipe) -> Job[Any]:
    """The job that a recipe names, with its options."""
    made: Job[Any] = _class_of(recipe.job)(recipe)
    return made


def record_of(job: str) -> type:
    """What a row of a job is: one of ``data.records``."""
    record: type = _class_of(job).record
    return record


def _class_of(job: str) -> type[Job[Any]]:
    check_choice("job", job, _JOBS)
    module, _, name = _JOBS[job].partition(".")
    found: type[Job[Any]] = getattr(import_module(f"glassformer.training.jobs.{module}"), name)
    return found


def with_all_options(recipe: Recipe) -> Recipe:
    """A recipe that states the options of its job, those with their defaults included."""
    return replace(recipe, objective=to_dict(job_of(recipe).options))


def job_names() -> tuple[str, ...]:
    """All jobs."""
    return tuple(_JOBS)
