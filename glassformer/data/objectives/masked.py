"""Masked words (Devlin et al., 2018; anew for every batch: Liu et al., 2019), also of a text and its translation
(Conneau and Lample, 2019), for an encoder.

Shapes: ``B`` rows, ``T`` tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from glassformer.config import LMHead
from glassformer.data.objectives.base import IGNORE, Batch, Loss, Term
from glassformer.data.objectives.masking import Masking
from glassformer.data.objectives.model_io import ModelRequirement, ask_tokens
from glassformer.data.objectives.rows import Ids, Padding, Text, as_ids, as_text

NEEDS = ModelRequirement("Masked", LMHead, families=("encoder",))


def hide_words(texts: Sequence[Text], masking: Masking, generator: torch.Generator, padding: Padding) -> Batch:
    """A batch in which words are hidden; its labels and count are called ``masked``."""
    noisy, labels = [], []
    for text in texts:
        words = None if text.words is None else as_ids(text.words)
        seen, hidden = masking.hide(as_ids(text.ids), generator, words)
        noisy.append(replace(text, ids=seen))
        labels.append(hidden)
    inputs, wanted = padding.inputs(noisy), padding.labels(labels)
    count = int((wanted != IGNORE).sum())
    tokens = sum(len(text.ids) for text in texts)
    return Batch(inputs=inputs, labels={"masked": wanted}, counts={"masked": count}, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Cross-entropy of the words that were chosen, whether or not something else stands in their place.

    ``chunk`` judges so many places at a time, for a large vocabulary.
    """

    masking: Masking
    padding: Padding = field(default_factory=Padding)
    chunk: int | None = None

    def prepare(self, examples: Sequence[Ids | Text], generator: torch.Generator) -> Batch:
        """Framed texts, in which words are hidden anew at every call."""
        return hide_words([as_text(example) for example in examples], self.masking, generator, self.padding)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``masked``."""
        NEEDS.check(model)
        judged = ask_tokens(model, batch.inputs, batch.labels["masked"], chunk=self.chunk)
        count = batch.counts["masked"]
        return Loss({"masked": Term(judged.total, count)}, {"accuracy": (judged.right, count)})


@dataclass(frozen=True, eq=False)
class Translation:
    """A text and its translation, without a frame; the languages by number."""

    first: Ids
    second: Ids
    languages: tuple[int, int]


def join_translation(pair: Translation, frame: int) -> Text:
    """A text and its translation in one row: each between two tokens ``frame``, positions from 0 in both."""
    halves = [
        torch.cat((torch.tensor([frame]), as_ids(ids), torch.tensor([frame]))) for ids in (pair.first, pair.second)
    ]
    languages = [torch.full_like(half, number) for half, number in zip(halves, pair.languages, strict=True)]
    positions = [torch.arange(len(half)) for half in halves]
    return Text(torch.cat(halves), languages=torch.cat(languages), positions=torch.cat(positions))


@dataclass(frozen=True, kw_only=True)
class TranslationMasked:
    """Masked words of a text beside its translation, in both (Conneau and Lample, 2019, section 3.3).

    A word hidden in one language can be guessed from the other. The loss is that of ``masked``.
    """

    masked: Masked
    frame: int  # the token before and after each text; ``</s>`` in the paper's program

    def prepare(self, examples: Sequence[Translation], generator: torch.Generator) -> Batch:
        """Pairs of texts, joined, in which words are hidden anew at every call."""
        return self.masked.prepare([join_translation(pair, self.frame) for pair in examples], generator)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``masked``."""
        return self.masked.loss(model, batch)
