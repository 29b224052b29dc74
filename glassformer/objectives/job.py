"""Jobs: a recipe's ``job`` (``language``, ``classify`` …) is what it trains a model for.

A job makes examples from the rows of files, and chooses the objective (``base.Objective``), which computes the loss,
and the metrics. A recipe names its job (``job: classify``) and sets the job's options under ``objective``. A job holds
nothing but its recipe; the tokenizer, the model's config and the folder of a run are in a ``RunContext``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from jaxtyping import Int64
from torch import nn

from glassformer.config import Head, ModelConfig, from_dict, to_dict
from glassformer.data.loader import Dataset
from glassformer.hub import Loaded, LoadReport
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.objectives.base import Means, Objective
from glassformer.recipes.jobs import job_entry
from glassformer.recipes.recipe import Recipe
from glassformer.recipes.rows import Records
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.lineage import head_kind

R = TypeVar("R")


@runtime_checkable
class HasLengths(Protocol):
    """A data set with the length of each example."""

    @property
    def lengths(self) -> Int64[np.ndarray, "N"]:
        """Tokens of each example."""


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """A job without options."""


@dataclass(frozen=True, eq=False)
class RunContext:
    """What a run has prepared for its job: the tokenizer, the facts of the model, a folder for token files."""

    recipe: Recipe
    tokenizer: Tokenizer
    facts: ModelConfig
    folder: Path

    def token(self, role: str) -> int:
        """Return the id of the special token with this role; raise if the tokenizer has none."""
        number = getattr(self.tokenizer, role)
        if number is None:
            raise ValueError(
                f"the job {self.recipe.job} needs a tokenizer with a token for {role}, but it has none; set "
                f"tokenizer.style to a style that has it."
            )
        return int(number)

    @property
    def start(self) -> int:
        """The decoder's start token; raises if the facts name none."""
        start = self.facts.tokens.start
        if start is None:
            raise ValueError("the model's config names no start token for its decoder; set tokens.start.")
        return start


class Job(ABC, Generic[R]):
    """What a recipe trains for: makes examples, chooses objective and metrics. ``R`` is the type of a row."""

    head: ClassVar[str]  # the kind of head that a new model gets
    options_type: ClassVar[type] = NoOptions
    holds_out_rows: ClassVar[bool] = True  # False: the job itself splits off the validation data
    keeps_all: ClassVar[bool] = True  # False: only a part of the trained model is saved, which has no loss

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.options: Any = from_dict(self.options_type, recipe.objective, "objective")
        self.record = cast("type[R]", job_entry(recipe.job).rows)  # of the rows: one of ``data.records``

    def check(self) -> None:
        """Raise if the recipe lacks something that training needs, or sets something that the job cannot do.

        Evaluation of a trained model does not call this.
        """
        self.recipe.model.check_complete()

    @abstractmethod
    def texts(self, row: R) -> Iterable[str]:
        """Return the texts of a row, on which a tokenizer is trained."""

    def tokenizer_texts(self, rows: Records[R]) -> Iterable[str]:
        """Return all texts on which a tokenizer is trained; no validation text is among them."""
        return (text for row in rows for text in self.texts(row))

    def fingerprint(self) -> dict[str, Any]:
        """Return what must not change when a run is resumed, besides the recipe, the rows and the tokenizer."""
        return {}

    def own_tokenizer(self, rows: Iterable[R]) -> Tokenizer | None:
        """Return a tokenizer that the job builds itself; None: one is trained according to the recipe."""
        del rows
        return None

    def special(self, rows: Iterable[R]) -> tuple[str, ...]:
        """Return special tokens that the rows need besides those of the tokenizer's style: languages, control codes."""
        del rows
        return ()

    def labels(self, rows: Iterable[R]) -> tuple[str, ...]:
        """Return the labels of a task head."""
        del rows
        return ()

    def keeps(self, head: Head | None, labels: tuple[str, ...]) -> bool:
        """Whether a pretrained model keeps its head: it is of the job's kind and has all of these labels."""
        return head_kind(head) == self.head and {*labels} <= {*getattr(head, "labels", ())}

    def finish(self, facts: ModelConfig) -> ModelConfig:
        """Return the facts of a new model with this job's final changes."""
        return facts

    def export_remedies(self, facts: ModelConfig) -> Iterable[tuple[ModelConfig, str]]:
        """Return changed facts, for which Hugging Face may have a model where it has none for these, and the advice."""
        del facts
        return ()

    def build(self, run: RunContext) -> nn.Module:
        """Return a new model to train, not initialised yet."""
        return Transformer(run.facts)

    def saved_model(self, model: nn.Module) -> Transformer:
        """Return the part of the trained model that is saved and used afterwards."""
        return unwrapped(model)

    @abstractmethod
    def objective(self, run: RunContext) -> Objective[Any]:
        """Return the objective that the model is trained on."""

    @abstractmethod
    def examples(self, run: RunContext, parts: Mapping[str, Records[R]]) -> dict[str, Dataset[Any]]:
        """Return tokenised examples of each part of the data (``train``, ``valid``, ``test``)."""

    def derived_metrics(self, loss: float) -> dict[str, float]:
        """Return metrics that follow from the validation loss, such as perplexity."""
        del loss
        return {}

    def losses(self, means: Means) -> dict[str, float]:
        """Return the metrics of one pass over validation data: the loss, its parts, and what follows from it."""
        return {"loss": means.loss, **means.metrics, **self.derived_metrics(means.loss)}

    def metrics(self, run: RunContext, loaded: Loaded, rows: Sequence[R]) -> dict[str, float]:
        """Return metrics besides the loss. They cost more, so they are computed on few rows during training."""
        del run, loaded, rows
        return {}

    def metric_notes(self) -> list[str]:
        """Return what a reader must know to compare the metrics, such as the signature of BLEU."""
        return []

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[R]) -> list[str]:
        """Return what the model predicts for these rows, as readable text."""
        del run, loaded, rows
        return []


def job_of(recipe: Recipe) -> Job[Any]:
    """Return the job that a recipe names, with its options."""
    module, _, name = job_entry(recipe.job).implementation.partition(".")
    job_class: type[Job[Any]] = getattr(import_module(f"glassformer.objectives.{module}"), name)
    return job_class(recipe)


def with_all_options(recipe: Recipe) -> Recipe:
    """Return the recipe with all options of its job written out, defaults included."""
    return replace(recipe, objective=to_dict(job_of(recipe).options))


def without_smoothing(objective: Any) -> Any:
    """Return the objective (and any objective inside it) without label smoothing, for evaluation."""
    inner = {
        entry.name: without_smoothing(value)
        for entry in fields(objective)
        if is_dataclass(value := getattr(objective, entry.name)) and hasattr(value, "loss")
    }
    hard = {"smoothing": 0.0} if hasattr(objective, "smoothing") else {}
    return replace(objective, **inner, **hard) if inner or hard else objective


def as_loaded(model: Transformer, tokenizer: Tokenizer, folder: Path) -> Loaded:
    """Return a model in training as a ``Loaded``, which generation and tasks take."""
    loaded = Loaded(model, model.config, None, LoadReport(), folder)
    loaded.__dict__["tokenizer"] = tokenizer  # the value of its cached property
    return loaded
