"""Classification: the label of a text or of a pair of texts (Devlin et al., 2018, section 4).

Padding has no effect: a text has the same scores and the same loss with padding on either side or none.

Shapes: ``B`` rows, ``T`` tokens, ``C`` labels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import nn

from glassformer.config import Head, ModelConfig, TaskHead
from glassformer.config.checks import check_choice, check_probability
from glassformer.config.parts import Pool
from glassformer.data.loader import Dataset
from glassformer.data.records import BadRowError, LabelledRecord
from glassformer.hub import Loaded
from glassformer.metrics.base import F1Score, add_up, mean
from glassformer.metrics.tasks import score_labels
from glassformer.nn.norm import upcast
from glassformer.objectives.base import (
    Batch,
    Ids,
    Loss,
    LossTerm,
    ModelRequirement,
    Padding,
    TokenRow,
    as_token_row,
    head_output,
    token_cross_entropy,
)
from glassformer.objectives.examples import (
    BATCH_SIZE,
    CUT,
    NoteCounts,
    as_trained,
    encode_rows,
    label_id,
    max_row_tokens,
    readable_rows,
    row_tokens,
    task_token_row,
)
from glassformer.objectives.job import Job, RunContext
from glassformer.recipes.rows import Records
from glassformer.tasks.batches import TextTokens, fit
from glassformer.tasks.classify import Classified, classify

CLASSIFIES = ModelRequirement("Classification", TaskHead, ("classify", "pair"))
NUMBER = ("number",)  # the labels of a head that predicts a number
NAMELESS = ("LABEL_0",)  # the same in models of Hugging Face


@dataclass(frozen=True, eq=False)
class ClassificationExample:
    """A row with special tokens and its label: the number of a class, 1 or 0 for each class, or a number."""

    text: Ids | TokenRow
    label: int | float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The label of a text.

    ``kind`` of label: ``one`` of several classes (cross-entropy over the rows), ``several`` classes or none (binary
    cross-entropy over rows · classes), or a ``number`` (squared error over the rows, from a head with one output).
    """

    traceable: ClassVar[bool] = True

    kind: Literal["one", "several", "number"] = "one"
    smoothing: float = 0.0  # of ``one``
    padding: Padding = field(default_factory=Padding)

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("one", "several", "number"))
        check_probability(smoothing=self.smoothing)

    def prepare(self, examples: Sequence[ClassificationExample], generator: torch.Generator) -> Batch:
        """Return rows with labels; nothing is random."""
        del generator
        texts = [as_token_row(example.text) for example in examples]
        inputs = self.padding.inputs(texts)
        labels = torch.tensor([example.label for example in examples])
        if labels.ndim != (2 if self.kind == "several" else 1) or (self.kind == "one" and labels.is_floating_point()):
            expected = {"one": "integers", "several": "lists of 0 and 1", "number": "numbers"}[self.kind]
            raise ValueError(f"labels of kind {self.kind!r} are {expected}; got {[e.label for e in examples[:3]]} …")
        return Batch(
            inputs=inputs,
            labels={"label": labels},
            counts={"label": labels.numel()},
            tokens=sum(len(text.ids) for text in texts),
            per_token=False,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``label``."""
        CLASSIFIES.check(model)
        scores, labels, count = head_output(model, batch.inputs), batch.labels["label"], batch.counts["label"]
        if self.kind == "one":
            result = token_cross_entropy(scores, labels, self.smoothing)
            return Loss({"label": LossTerm(result.total, count)}, {"accuracy": (result.correct, count)})
        scores = upcast(scores if self.kind == "several" else scores.squeeze(-1))
        if scores.shape != labels.shape:
            raise ValueError(
                f"the head gives scores of shape {tuple(scores.shape)} for labels of shape {tuple(labels.shape)}; a "
                f"head needs as many labels as a text has numbers."
            )
        targets = labels.to(scores.dtype)
        if self.kind == "number":
            return Loss({"label": LossTerm(F.mse_loss(scores, targets, reduction="sum"), count)})
        total = F.binary_cross_entropy_with_logits(scores, targets, reduction="sum")
        return Loss({"label": LossTerm(total, count)}, {"accuracy": (((scores > 0) == (targets > 0.5)).sum(), count)})


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions:
    """What labels are, and how a new model pools the vectors of a text."""

    kind: Literal["one", "several", "number"] = "one"  # one class, several classes or none, a number
    between: str = ","  # separates ``several`` labels; alone: no label
    smoothing: float = 0.0  # of ``one``
    pool: Pool | None = None  # which vectors represent the text; None: as in the lineage

    def __post_init__(self) -> None:
        check_choice("objective.kind", self.kind, ("one", "several", "number"))
        check_choice("objective.pool", self.pool or "first", get_args(Pool))
        check_probability(smoothing=self.smoothing)
        if not self.between:
            raise ValueError("objective.between must be the separator of labels; got an empty text.")


class ClassificationJob(Job[LabelledRecord]):
    """Labels of texts, or of pairs of texts."""

    head = "classify"
    options_type = ClassificationOptions

    def check(self) -> None:
        """Raise if the recipe sets the pooling of a pretrained model, which has its own."""
        super().check()
        if self.options.pool is not None and self.recipe.model.start is not None:
            raise ValueError(
                "objective.pool is for new models; that of model.start has its own pooling: set objective.pool=null."
            )

    def texts(self, row: LabelledRecord) -> Iterable[str]:
        """Return the text, or both."""
        return (row.text,) if row.second is None else (row.text, row.second)

    def labels(self, rows: Iterable[LabelledRecord]) -> tuple[str, ...]:
        """Return all labels that occur, in alphabetical order."""
        if self.options.kind == "number":
            return NUMBER
        labels = tuple(sorted({label for row in rows for label in self._names(row)}))
        if len(labels) < (2 if self.options.kind == "one" else 1):
            raise ValueError(
                f"there is nothing to tell apart: the labels of the rows are {', '.join(labels) or 'none'}. Is "
                f"data.columns.label the right column?"
            )
        return labels

    def keeps(self, head: Head | None, labels: tuple[str, ...]) -> bool:
        """Whether the head has all of these labels, or predicts a number if the labels are numbers."""
        is_number = self.options.kind == "number" and getattr(head, "labels", ()) == NAMELESS
        return super().keeps(head, NAMELESS if is_number else labels)

    def finish(self, facts: ModelConfig) -> ModelConfig:
        """Return the facts with the pooling of the options in the head."""
        head = facts.head
        if self.options.pool is None or not isinstance(head, TaskHead):
            return facts
        return replace(facts, head=replace(head, pool=self.options.pool))

    def export_remedies(self, facts: ModelConfig) -> Iterable[tuple[ModelConfig, str]]:
        """Return the facts with each pooling, if it is set: models of Hugging Face pool as their lineage does."""
        head = facts.head
        if self.options.pool is None or not isinstance(head, TaskHead):
            return []
        heads = (replace(head, pool=pool) for pool in get_args(Pool))
        return [(replace(facts, head=other), "With objective.pool=null it can.") for other in heads]

    def objective(self, run: RunContext) -> Classification:
        """Return the objective: cross-entropy of the class, binary cross-entropy per class, or squared error."""
        del run
        return Classification(kind=self.options.kind, smoothing=self.options.smoothing)

    def examples(self, run: RunContext, parts: Mapping[str, Records[LabelledRecord]]) -> dict[str, Dataset[Any]]:
        """Return texts with special tokens, truncated to ``batch.length``; of a pair the longer text first."""
        return {part: encode_rows(run, rows, partial(self._make, run)) for part, rows in parts.items()}

    def _make(self, run: RunContext, row: LabelledRecord, counts: NoteCounts) -> list[ClassificationExample]:
        encoded, longest = self._read(run, row), max_row_tokens(run)
        counts[CUT] += len(encoded.tokens) > longest
        text = task_token_row(run, fit(encoded, longest, "right").row)
        return [ClassificationExample(text, self._label(run, row))]

    def _read(self, run: RunContext, row: LabelledRecord) -> TextTokens:
        if self.options.kind == "number":
            _number(row)
        return row_tokens(run, row.origin, row.text, row.second)

    def _label(self, run: RunContext, row: LabelledRecord) -> int | float | list[float]:
        if self.options.kind == "number":
            return _number(row)
        numbers = [label_id(run, name, row.origin) for name in self._names(row)]
        if self.options.kind == "one":
            return numbers[0]
        assert isinstance(run.facts.head, TaskHead)
        return [float(number in numbers) for number in range(len(run.facts.head.labels))]

    def _names(self, row: LabelledRecord) -> list[str]:
        if self.options.kind == "one":
            return [row.label]
        names = (name.strip() for name in row.label.split(self.options.between))
        return [name for name in names if name]

    def _predict(self, loaded: Loaded, rows: Sequence[LabelledRecord]) -> list[Classified]:
        texts = [row.text if row.second is None else (row.text, row.second) for row in rows]
        multi_label = self.options.kind != "one"
        return classify(as_trained(loaded), texts, multi_label=multi_label, truncate="right", batch_size=BATCH_SIZE)

    def metrics(self, run: RunContext, loaded: Loaded, rows: Sequence[LabelledRecord]) -> dict[str, float]:
        """Return accuracy and macro F1; for several labels, micro and macro F1; for numbers, their correlations."""
        rows = readable_rows(run, rows, self._read)
        predictions = self._predict(loaded, rows)
        if self.options.kind == "number":
            scores = [prediction.labels[0].score for prediction in predictions]
            return {"correlation": _correlation(scores, [_number(row) for row in rows])}
        if self.options.kind == "one":
            names = [prediction.labels[0].name for prediction in predictions]
            return score_labels(names, [row.label for row in rows]).metrics()
        return _score_several(
            [_likely(prediction) for prediction in predictions], [{*self._names(row)} for row in rows]
        )

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[LabelledRecord]) -> list[str]:
        """Return a text, the predicted label with its probability, and the right one."""
        rows = readable_rows(run, rows, self._read)
        shown = []
        for row, prediction in zip(rows, self._predict(loaded, rows), strict=True):
            best = prediction.labels[0]
            text = f"{best.name} ({best.probability:.0%})"
            if self.options.kind == "several":
                likely = [label for label in prediction.labels if label.probability > 0.5]
                text = ", ".join(f"{label.name} ({label.probability:.0%})" for label in likely) or "none"
            elif self.options.kind == "number":
                text = f"{best.score:.3g}"
            shown.append(f"{' | '.join(self.texts(row))}\n  → {text}\n  = {row.label}")
        return shown


def _number(row: LabelledRecord) -> float:
    try:
        number = float(row.label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRowError(row.origin, "no number", f"the label is {row.label!r:.60}", "Write a number")
    return number


def _correlation(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Pearson's correlation; 0 if either is constant, or there are fewer than two rows."""
    if len(predicted) < 2:
        return 0.0
    deviations = [[number - mean(values) for number in values] for values in (predicted, gold)]
    lengths = [math.sqrt(math.fsum(number * number for number in values)) for values in deviations]
    product = math.fsum(a * b for a, b in zip(*deviations, strict=True))
    return product / (lengths[0] * lengths[1]) if all(lengths) else 0.0


def _likely(prediction: Classified) -> set[str]:
    return {label.name for label in prediction.labels if label.probability > 0.5}


def _score_several(predicted: Sequence[set[str]], gold: Sequence[set[str]]) -> dict[str, float]:
    counts = []
    for label in sorted(set().union(*predicted, *gold)):
        has = [(label in own, label in correct) for own, correct in zip(predicted, gold, strict=True)]
        counts.append(F1Score(has.count((True, True)), sum(own for own, _ in has), sum(correct for _, correct in has)))
    right = [own == correct for own, correct in zip(predicted, gold, strict=True)]
    every = {"micro f1": add_up(counts).f1, "macro f1": mean([count.f1 for count in counts]) if counts else 0.0}
    return {"subset accuracy": mean(right), **every}
