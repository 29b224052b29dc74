"""Jobs: what a recipe trains for. A job turns rows of files into examples, and names the objective and the metrics.

A recipe names its job (``job: classify``) and sets the job's options under ``objective``. A job holds nothing but its
recipe; the tokenizer, the model's facts and the folder of a run come in a ``RunContext``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int64
from torch import nn

from glassformer.config import Head, Model, from_dict, to_dict
from glassformer.config.checks import check_choice
from glassformer.data.loader import Dataset
from glassformer.hub import Loaded, Report
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.loop import Means
from glassformer.training.objectives.base import Objective
from glassformer.training.reading import Records
from glassformer.training.recipe import Recipe
from glassformer.weights.lineage import head_kind

R = TypeVar("R")
# The name in recipes: module and class, imported when the job is used.
_JOBS = {
    "language": "causal_lm.LanguageJob",
    "controlled": "causal_lm.ControlledJob",
    "text-to-text": "seq2seq.TextToTextJob",
    "toy": "seq2seq.ToyJob",
    "masked": "masked_lm.MaskedLMJob",
    "masked-pairs": "sentence_pairs.SentencePairsJob",
    "masked-translation": "masked_lm.MaskedTranslationJob",
    "replaced": "replaced_tokens.ReplacedTokensJob",
    "distillation": "distillation.DistillationJob",
    "spans": "span_corruption.SpanCorruptionJob",
    "denoising": "denoising.DenoisingJob",
    "classify": "classification.ClassificationJob",
    "tag": "tagging.TaggingJob",
    "answer": "question_answering.QuestionAnsweringJob",
}


@runtime_checkable
class Measured(Protocol):
    """A data set that knows the length of each example."""

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
    facts: Model
    folder: Path

    def token(self, role: str) -> int:
        """The id of the special token with this role; a tokenizer without it is an error."""
        number = getattr(self.tokenizer, role)
        if number is None:
            raise ValueError(
                f"the job {self.recipe.job} needs a tokenizer with a token for {role}, and this one has none; set "
                f"tokenizer.style to one that has it."
            )
        return int(number)

    @property
    def start(self) -> int:
        """The decoder's start token; a model whose facts name none is an error."""
        start = self.facts.tokens.start
        if start is None:
            raise ValueError("the model's facts name no start token for its decoder; set tokens.start.")
        return start


class Job(ABC, Generic[R]):
    """From a recipe to examples, an objective, metrics and samples. ``R`` is the type of a row."""

    record: ClassVar[type]  # the type of a row: one of ``data.records``
    head: ClassVar[str]  # the kind of head that a new model gets
    options_type: ClassVar[type] = NoOptions
    holds_out_rows: ClassVar[bool] = True  # False: the job itself splits off the validation data
    keeps_all: ClassVar[bool] = True  # False: only a part of the trained model is saved, and it has no loss of its own

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.options: Any = from_dict(self.options_type, recipe.objective, "objective")

    def check(self) -> None:
        """Raise if the recipe lacks something that training needs, or sets something that the job cannot do.

        Evaluation of a trained model does not call this.
        """
        self.recipe.model.check_said()

    @abstractmethod
    def texts(self, row: R) -> Iterable[str]:
        """The texts of a row, on which a tokenizer is trained."""

    def vocabulary(self, rows: Records[R]) -> Iterable[str]:
        """All texts on which a tokenizer is trained; no validation text is among them."""
        return (text for row in rows for text in self.texts(row))

    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed, besides the recipe, the rows and the tokenizer."""
        return {}

    def own_tokenizer(self, rows: Iterable[R]) -> Tokenizer | None:
        """A tokenizer that the job builds itself; None: one is trained according to the recipe."""
        del rows
        return None

    def special(self, rows: Iterable[R]) -> tuple[str, ...]:
        """Special tokens that the rows need besides those of the tokenizer's style: languages, control codes."""
        del rows
        return ()

    def labels(self, rows: Iterable[R]) -> tuple[str, ...]:
        """The labels of a task head."""
        del rows
        return ()

    def keeps(self, head: Head | None, labels: tuple[str, ...]) -> bool:
        """Whether a pretrained model keeps its head: it is of the job's kind and has all of these labels."""
        return head_kind(head) == self.head and {*labels} <= {*getattr(head, "labels", ())}

    def finish(self, facts: Model) -> Model:
        """Final changes to the facts of a new model."""
        return facts

    def export_remedy(self) -> str | None:
        """How to make the model exportable to Hugging Face, if it is this job's options that prevent it."""
        return None

    def build(self, run: RunContext) -> nn.Module:
        """A new model to train, not initialised yet."""
        return Transformer(run.facts)

    def shown(self, model: nn.Module) -> Transformer:
        """The part of the trained model that is saved and used afterwards."""
        return unwrapped(model)

    @abstractmethod
    def objective(self, run: RunContext) -> Objective[Any]:
        """The objective that the model is trained on."""

    @abstractmethod
    def examples(self, run: RunContext, parts: Mapping[str, Records[R]]) -> dict[str, Dataset[Any]]:
        """Tokenised examples of each part of the data (``train``, ``valid``, ``test``)."""

    def derived_metrics(self, loss: float) -> dict[str, float]:
        """Metrics that follow from the validation loss, such as perplexity."""
        del loss
        return {}

    def losses(self, means: Means) -> dict[str, float]:
        """The metrics of one pass over validation data: the loss, its parts, and what follows from it."""
        return {"loss": means.loss, **means.parts, **self.derived_metrics(means.loss)}

    def figures(self, run: RunContext, loaded: Loaded, rows: Sequence[R]) -> dict[str, float]:
        """Metrics besides the loss. They cost more, so they are computed on few rows during training."""
        del run, loaded, rows
        return {}

    def footnotes(self) -> list[str]:
        """What a reader must know to compare the metrics, such as the signature of BLEU."""
        return []

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[R]) -> list[str]:
        """What the model predicts for these rows, as readable text."""
        del run, loaded, rows
        return []


def job_of(recipe: Recipe) -> Job[Any]:
    """The job that a recipe names, with its options."""
    return _class_of(recipe.job)(recipe)


def record_of(job: str) -> type:
    """The type of a job's rows: one of ``data.records``."""
    record: type = _class_of(job).record
    return record


def with_all_options(recipe: Recipe) -> Recipe:
    """The recipe with all options of its job written out, defaults included."""
    return replace(recipe, objective=to_dict(job_of(recipe).options))


def job_names() -> tuple[str, ...]:
    """The names of all jobs."""
    return tuple(_JOBS)


def _class_of(job: str) -> type[Job[Any]]:
    check_choice("job", job, _JOBS)
    module, _, name = _JOBS[job].partition(".")
    job_class: type[Job[Any]] = getattr(import_module(f"glassformer.training.objectives.{module}"), name)
    return job_class


def without_smoothing(objective: Any) -> Any:
    """The objective (and any objective inside it) without label smoothing, for evaluation."""
    inner = {
        entry.name: without_smoothing(value)
        for entry in fields(objective)
        if is_dataclass(value := getattr(objective, entry.name)) and hasattr(value, "loss")
    }
    hard = {"smoothing": 0.0} if hasattr(objective, "smoothing") else {}
    return replace(objective, **inner, **hard) if inner or hard else objective


def as_loaded(model: Transformer, tokenizer: Tokenizer, folder: Path) -> Loaded:
    """A model in training as a ``Loaded``, which generation and tasks take."""
    loaded = Loaded(model, model.config, None, Report(), folder)
    loaded.__dict__["tokenizer"] = tokenizer  # the value of its cached property
    return loaded
