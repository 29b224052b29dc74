"""What a job is: from rows to examples, an objective for them, and what is measured besides the loss.

A recipe names its job and states the job's options under ``objective``. A job holds nothing but its recipe; what it
works with comes in a ``RunContext`` once the run has it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Int64
from torch import nn

from glassformer.config import Head, Model, from_dict
from glassformer.data.loader import Dataset
from glassformer.data.objectives.base import Objective
from glassformer.hub import Loaded, Report
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.loop import Means
from glassformer.training.reading import Records
from glassformer.training.recipe import Recipe
from glassformer.weights.lineage import head_kind

R = TypeVar("R")


@runtime_checkable
class Measured(Protocol):
    """Examples of many lengths."""

    @property
    def lengths(self) -> Int64[np.ndarray, "N"]:
        """Tokens of each."""


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """A job without options."""


@dataclass(frozen=True, eq=False)
class RunContext:
    """What a run has made ready: the tokenizer, the facts of the model, a folder for files of its own."""

    recipe: Recipe
    tokenizer: Tokenizer
    facts: Model
    folder: Path

    def token(self, role: str) -> int:
        """The id of the token that plays a role; a tokenizer without it is an error."""
        found = getattr(self.tokenizer, role)
        if found is None:
            raise ValueError(
                f"the job {self.recipe.job} needs a tokenizer with a token for {role}, and this one has none; set "
                f"tokenizer.style to one that has it."
            )
        return int(found)

    @property
    def start(self) -> int:
        """The id that the decoder begins with; a model whose facts name none is an error."""
        found = self.facts.tokens.start
        if found is None:
            raise ValueError("the model's facts name no start token for its decoder; set tokens.start.")
        return found


class Job(ABC, Generic[R]):
    """What a model is trained for."""

    record: ClassVar[type]  # what a row is: one of ``data.records``
    head: ClassVar[str]  # the kind of head that a new model gets
    options_type: ClassVar[type] = NoOptions
    holds_out_rows: ClassVar[bool] = True  # False: the job itself sets apart what is judged
    keeps_all: ClassVar[bool] = True  # False: what is kept is only a part of what learns, and has no loss of its own

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.options: Any = from_dict(self.options_type, recipe.objective, "objective")

    def check(self) -> None:
        """Raise if the recipe leaves out what a run needs and whoever uses it has to say, or says what it cannot have.

        Whether a trained model can be judged is no matter of this.
        """
        self.recipe.model.check_said()

    @abstractmethod
    def texts(self, row: R) -> Iterable[str]:
        """What a tokenizer has to be trained for."""

    def vocabulary(self, rows: Records[R]) -> Iterable[str]:
        """All that a tokenizer is trained on: nothing of what is judged later."""
        return (text for row in rows for text in self.texts(row))

    def identity(self) -> dict[str, Any]:
        """What may not change while a run goes on, besides the recipe, the rows and the tokenizer."""
        return {}

    def own_tokenizer(self, rows: Iterable[R]) -> Tokenizer | None:
        """A tokenizer that the job makes itself; None: one is trained as the recipe says."""
        del rows
        return None

    def special(self, rows: Iterable[R]) -> tuple[str, ...]:
        """Special tokens that the rows ask for besides those of the style: languages, codes."""
        del rows
        return ()

    def labels(self, rows: Iterable[R]) -> tuple[str, ...]:
        """The labels of a task head."""
        del rows
        return ()

    def keeps(self, head: Head | None, labels: tuple[str, ...]) -> bool:
        """Whether the head of a model to start from goes on learning: one of the kind that has all of these labels."""
        return head_kind(head) == self.head and {*labels} <= {*getattr(head, "labels", ())}

    def finish(self, facts: Model) -> Model:
        """A last word on the facts of a new model."""
        return facts

    def export_remedy(self) -> str | None:
        """What makes the model one that Hugging Face has, where the job is the reason that it is not."""
        return None

    def build(self, kit: RunContext) -> nn.Module:
        """The model that is trained, with fresh weights."""
        return Transformer(kit.facts)

    def shown(self, model: nn.Module) -> Transformer:
        """What of the trained model is kept and used in the end."""
        return unwrapped(model)

    @abstractmethod
    def objective(self, kit: RunContext) -> Objective[Any]:
        """What is learned from examples."""

    @abstractmethod
    def examples(self, kit: RunContext, parts: Mapping[str, Records[R]]) -> dict[str, Dataset[Any]]:
        """Tokenised examples of every part."""

    def of_loss(self, loss: float) -> dict[str, float]:
        """Other ways to say a validation loss."""
        del loss
        return {}

    def losses(self, means: Means) -> dict[str, float]:
        """What a validation says: the loss, what is told beside it, and other ways to say it."""
        return {"loss": means.loss, **means.parts, **self.of_loss(means.loss)}

    def figures(self, kit: RunContext, loaded: Loaded, rows: Sequence[R]) -> dict[str, float]:
        """What is measured besides the loss; costs more, so of few rows while learning."""
        del kit, loaded, rows
        return {}

    def footnotes(self) -> list[str]:
        """What has to be known to read the figures."""
        return []

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[R]) -> list[str]:
        """What the model makes of these rows, for people to look at."""
        del kit, loaded, rows
        return []


class Encoded(Generic[R]):
    """Examples in memory with their lengths.

    ``fingerprint`` is that of the rows they were made from; ``cut`` says how many were too long and lost tokens.
    """

    def __init__(self, examples: Sequence[R], lengths: Sequence[int], fingerprint: str, *, cut: int = 0) -> None:
        if not examples:
            raise ValueError("no examples are left; the rows are too short, or too long, for this job.")
        self._examples = examples
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.fingerprint = fingerprint
        self.cut = cut

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> R:
        return self._examples[number]


def without_smoothing(objective: Any) -> Any:
    """The same objective, or one that has it inside, with labels as they are: for judging."""
    inner = {
        one.name: without_smoothing(value)
        for one in fields(objective)
        if is_dataclass(value := getattr(objective, one.name)) and hasattr(value, "loss")
    }
    hard = {"smoothing": 0.0} if hasattr(objective, "smoothing") else {}
    return replace(objective, **inner, **hard) if inner or hard else objective


def as_loaded(model: Transformer, tokenizer: Tokenizer, place: Path) -> Loaded:
    """A model in training as everything that reads and writes texts takes it."""
    loaded = Loaded(model, model.config, None, Report(), place)
    loaded.__dict__["tokenizer"] = tokenizer  # where the cached property would put the one it reads
    return loaded
