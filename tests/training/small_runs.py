"""What tests of jobs share: a recipe of few words, tokenizers of few pieces, and a short run without a session."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from glassformer.config import from_dict
from glassformer.data.batching import FixedPlan
from glassformer.data.loader import Loader
from glassformer.objectives.job import Job, RunContext, as_loaded, job_of
from glassformer.recipes.recipe import Recipe
from glassformer.recipes.rows import Records
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import TokenizerKind, train_tokenizer
from glassformer.training.build_model import make_facts, make_model
from glassformer.training.loop import Settings, StepReport, Trainer
from glassformer.training.optim import adamw

# Every word can be told from its neighbours, the second sentence from the first, one document from the other.
NUMBERS = "one two three. four five six. seven eight nine."
COLOURS = "red green blue. white black grey. pink brown gold."
DOCUMENTS = (NUMBERS, COLOURS) * 4


def recipe_of(job: str, model: dict[str, Any], *, length: int = 32, **changes: Any) -> Recipe:
    """A recipe for a small model; ``changes`` are whole sections."""
    settings = {
        "name": "small",
        "about": "a test",
        "expected": {"result": ""},
        "job": job,
        "data": {"format": "text"},
        "model": model,
        "batch": {"examples": 4, "length": length},
        "optimizer": {"lr": 1e-3},
        "run": {"steps": 10},
    }
    return from_dict(Recipe, {**settings, **changes})


def vocabulary(kind: TokenizerKind, style: str, texts: Sequence[str] = DOCUMENTS, size: int | None = 400) -> Tokenizer:
    """A tokenizer that knows the words of these texts."""
    return train_tokenizer(texts, kind=kind, vocab_size=size, special=style, min_frequency=1)


def records(rows: Sequence[Any]) -> Records[Any]:
    """Rows in memory."""
    return Records(rows, np.arange(len(rows)))


def ready(recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> tuple[Job[Any], RunContext]:
    """The job of a recipe, and what it works with."""
    job = job_of(recipe)
    return job, RunContext(recipe, tokenizer, make_facts(recipe, job, tokenizer, (), None), folder)


def train(
    job: Job[Any], context: RunContext, rows: Sequence[Any], *, steps: int, lr: float
) -> tuple[nn.Module, list[StepReport]]:
    """The trained model, and what every step said."""
    torch.manual_seed(0)
    model, objective = make_model(context, job, None), job.objective(context)
    examples = job.examples(context, {"train": records(rows)})["train"]
    loader = Loader(examples, objective.prepare, FixedPlan(len(examples), 8, seed=0), seed=0)
    trainer = Trainer(model, objective, loader, [adamw(model, lr)], Settings(steps=steps))
    return model, list(trainer)


def fell(reports: Sequence[StepReport], term: str | None = None) -> float:
    """By which factor the loss, or one term of it, fell from the first three steps to the last three."""
    losses = [report.loss if term is None else report.terms[term] for report in reports]
    return fmean(losses[:3]) / fmean(losses[-3:])


def samples(job: Job[Any], context: RunContext, model: nn.Module, rows: Sequence[Any]) -> list[str]:
    """What a job shows of a model."""
    return job.samples(context, as_loaded(job.saved_model(model), context.tokenizer, context.folder), rows)
