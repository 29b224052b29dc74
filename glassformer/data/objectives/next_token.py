"""The next token, from all before it (Radford et al., 2018), for a decoder.

Inputs are a row without its last token, labels the row without its first: the one place where they are shifted. What is
known of a row beforehand, a prompt or a control code (Keskar et al., 2019), is read and not predicted. Documents packed
into one row see only themselves (the mask holds their numbers), and none is asked for the first token of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from glassformer.config import LMHead
from glassformer.config.checks import check_count, check_probability
from glassformer.data.objectives.base import IGNORE, Batch, Loss, Term
from glassformer.data.objectives.model_io import ModelRequirement, ask_tokens
from glassformer.data.objectives.rows import Ids, Padding, Text, as_ids

_TOO_SHORT = "a row of fewer than two tokens has no next token to predict; leave it out."
NEEDS = ModelRequirement("NextToken", LMHead, families=("decoder",))


@dataclass(frozen=True, eq=False)
class Document:
    """A text to be written; its first ``given`` tokens are read but not predicted."""

    ids: Ids
    given: int = 0
    language: int | None = None  # for models with a vector per language

    def __post_init__(self) -> None:
        check_count(given=self.given)


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """Several documents in one row, each as if alone."""

    documents: Sequence[Ids | Document]


def with_code(ids: Ids, code: int, *, bos: int | None = None, predicted: bool = False) -> Document:
    """A text after its control code, and that after ``bos`` if there is one (Keskar et al., 2019, section 3).

    A code that comes first cannot be predicted: there is nothing before it to predict it from.
    """
    if predicted and bos is None:
        raise ValueError(f"the control code {code} comes first, so nothing predicts it; say bos, or predicted=False.")
    before = [code] if bos is None else [bos, code]
    return Document(torch.cat((torch.tensor(before), as_ids(ids))), given=0 if predicted else len(before))


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """Cross-entropy of every token after the first of its document. A row of N tokens is N − 1 places."""

    smoothing: float = 0.0
    padding: Padding = field(default_factory=Padding)
    chunk: int | None = None  # judge so many places at a time, for a large vocabulary; None: all at once

    def __post_init__(self) -> None:
        check_probability(smoothing=self.smoothing)

    def prepare(self, examples: Sequence[Ids | Document | PackedDocuments], generator: torch.Generator) -> Batch:
        """Rows of ids, documents or packed documents; nothing is drawn."""
        del generator
        if all(isinstance(example, Tensor) for example in examples) and self.padding.multiple == 1:
            return self._plain([as_ids(cast(Tensor, example)) for example in examples])
        texts, labels, numbers = zip(*(_row(example) for example in examples), strict=True) if examples else ((),) * 3
        inputs = self.padding.inputs(texts)
        if any(isinstance(example, PackedDocuments) for example in examples):
            inputs["mask"] = self.padding.rectangle(numbers, 0)
        found = self.padding.labels(labels)
        count = int((found != IGNORE).sum())
        tokens = sum(len(text.ids) for text in texts)
        return Batch(inputs=inputs, labels={"next": found}, counts={"next": count}, tokens=tokens)

    def _plain(self, rows: Sequence[Tensor]) -> Batch:
        """The same for rows of ids of which nothing else is said, all at once."""
        if any(row.shape[0] < 2 for row in rows):
            raise ValueError(_TOO_SHORT)
        real = self.padding.mask([row[1:] for row in rows])
        found = self.padding.labels(rows)
        inputs = {"ids": found[:, :-1].where(real, self.padding.fill)}
        if not bool(real.all()):
            inputs["mask"] = real
        count = int(real.sum())
        labels = {"next": found[:, 1:].where(real, IGNORE)}
        return Batch(inputs=inputs, labels=labels, counts={"next": count}, tokens=count)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``next``."""
        NEEDS.check(model)
        judged = ask_tokens(model, batch.inputs, batch.labels["next"], smoothing=self.smoothing, chunk=self.chunk)
        count = batch.counts["next"]
        return Loss({"next": Term(judged.total, count)}, {"accuracy": (judged.right, count)})


def _row(example: Ids | Document | PackedDocuments) -> tuple[Text, Tensor, Tensor]:
    """What is read, what is to be predicted at each place, and the number of each place's document, from 1."""
    some = example.documents if isinstance(example, PackedDocuments) else [example]
    documents = [one if isinstance(one, Document) else Document(one) for one in some]
    rows = [as_ids(document.ids) for document in documents]
    if sum(map(len, rows)) < 2:
        raise ValueError(_TOO_SHORT)
    labels = [
        row.where(torch.arange(len(row)) >= max(1, d.given), IGNORE) for row, d in zip(rows, documents, strict=True)
    ]
    numbers = torch.cat([torch.full_like(row, number) for number, row in enumerate(rows, start=1)])
    text = Text(torch.cat(rows)[:-1], languages=_languages(documents, rows))
    return text, torch.cat(labels)[1:], numbers[:-1]


def _languages(documents: Sequence[Document], rows: Sequence[Tensor]) -> Tensor | None:
    said = [document.language for document in documents if document.language is not None]
    if not said:
        return None
    if len(said) < len(rows):
        raise ValueError(f"{len(said)} of the {len(rows)} documents of a row have a language; say it for all.")
    return torch.cat([torch.full_like(row, number) for row, number in zip(rows, said, strict=True)])[:-1]
