"""Masked language modelling (Devlin et al., 2018; masked anew for every batch: Liu et al., 2019), also of a text and
its translation (Conneau and Lample, 2019), for an encoder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from glassformer.config import LMHead
from glassformer.data.loader import Dataset
from glassformer.data.records import PairRecord
from glassformer.hub import Loaded
from glassformer.objectives.base import (
    Batch,
    Ids,
    Loss,
    ModelRequirement,
    Padding,
    TokenRow,
    as_ids,
    as_token_row,
    label_loss,
)
from glassformer.objectives.examples import EncodedExamples
from glassformer.objectives.job import Job, RunContext
from glassformer.objectives.masking import (
    Masking,
    MaskingJob,
    MaskingOptions,
    RowFill,
    masked_batch,
    separator,
    show_predictions,
)
from glassformer.recipes.rows import Records

NEEDS = ModelRequirement("MaskedLM", LMHead, families=("encoder",))
_SPECIAL_TOKENS = 4  # special tokens around a text and its translation


@dataclass(frozen=True, kw_only=True)
class MaskedLM:
    """Cross-entropy of the chosen tokens, whether or not they were replaced.

    ``chunk`` is the number of positions whose logits are computed at a time, for a large vocabulary.
    """

    masking: Masking
    padding: Padding = field(default_factory=Padding)
    chunk: int | None = None

    @property
    def traceable(self) -> bool:
        """With a ``chunk``, heads that are not fused select positions by value."""
        return self.chunk is None

    def prepare(self, examples: Sequence[Ids | TokenRow], generator: torch.Generator) -> Batch:
        """Return rows with special tokens; tokens are masked anew at every call."""
        return masked_batch([as_token_row(example) for example in examples], self.masking, generator, self.padding)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``masked``."""
        NEEDS.check(model)
        return label_loss(model, batch, "masked", chunk=self.chunk)


@dataclass(frozen=True, eq=False)
class Translation:
    """A text and its translation, without special tokens; languages are numbers."""

    first: Ids
    second: Ids
    languages: tuple[int, int]


def join_translation(pair: Translation, separator: int) -> TokenRow:
    """Return a text and its translation in one row: each between two tokens ``separator``, positions from 0 in both."""
    halves = [
        torch.cat((torch.tensor([separator]), as_ids(ids), torch.tensor([separator])))
        for ids in (pair.first, pair.second)
    ]
    languages = [torch.full_like(half, number) for half, number in zip(halves, pair.languages, strict=True)]
    positions = [torch.arange(len(half)) for half in halves]
    return TokenRow(torch.cat(halves), languages=torch.cat(languages), positions=torch.cat(positions))


@dataclass(frozen=True, kw_only=True)
class TranslationMaskedLM:
    """Masked tokens of a text and its translation in one row (Conneau and Lample, 2019, section 3.3).

    A word masked in one language can be predicted from the other. The loss is that of ``masked``.
    """

    masked: MaskedLM
    separator: int  # the token before and after each text; ``</s>`` in the paper's program

    @property
    def traceable(self) -> bool:
        """As the objective that computes the loss."""
        return self.masked.traceable

    def prepare(self, examples: Sequence[Translation], generator: torch.Generator) -> Batch:
        """Return pairs of texts, joined; tokens are masked anew at every call."""
        return self.masked.prepare([join_translation(pair, self.separator) for pair in examples], generator)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``masked``."""
        return self.masked.loss(model, batch)


@dataclass(frozen=True, kw_only=True)
class MaskedLMOptions:
    """How tokens are masked, and how text is split into rows (see ``masking.text_rows``)."""

    masking: MaskingOptions = field(default_factory=MaskingOptions)
    rows: RowFill = "full"
    chunk: int | None = None  # positions whose logits are computed at a time, for a large vocabulary


class MaskedLMJob(MaskingJob):
    """Plain text, masked anew in every batch (Devlin et al., 2018; Liu et al., 2019)."""

    head = "lm"
    options_type = MaskedLMOptions

    def objective(self, run: RunContext) -> MaskedLM:
        """Return the objective: cross-entropy of the masked tokens."""
        return MaskedLM(masking=self.options.masking.masking(run.tokenizer), chunk=self.options.chunk)


@dataclass(frozen=True, kw_only=True)
class MaskedTranslationOptions:
    """How tokens are masked."""

    masking: MaskingOptions = field(default_factory=MaskingOptions)
    chunk: int | None = None

    def __post_init__(self) -> None:
        self.masking.refuse_whole_words("masked-translation")


class MaskedTranslationJob(Job[PairRecord]):
    """Pairs of a text and its translation (Conneau and Lample, 2019, section 3.3).

    Languages are numbered in the order of ``data.languages``. The paper alternates these with rows of one language; a
    run here does one of the two.
    """

    head = "lm"
    options_type = MaskedTranslationOptions

    def texts(self, row: PairRecord) -> Iterable[str]:
        """Return both texts."""
        return row.source, row.target

    def objective(self, run: RunContext) -> TranslationMaskedLM:
        """Return the objective: cross-entropy of the masked tokens of both texts."""
        known, needed = run.facts.embed.languages, len(self.recipe.data.languages)
        if known < needed:
            raise ValueError(
                f"the model has embeddings for {known} languages, and data.languages names {needed}; raise their "
                f"number in model.sizes."
            )
        masked = MaskedLM(masking=self.options.masking.masking(run.tokenizer), chunk=self.options.chunk)
        return TranslationMaskedLM(masked=masked, separator=separator(run))

    def examples(self, run: RunContext, parts: Mapping[str, Records[PairRecord]]) -> dict[str, Dataset[Any]]:
        """Return pairs of texts, at most ``batch.length`` tokens with the special tokens."""
        datasets = {}
        for part, rows in parts.items():
            pairs, cut = self._encoded(run, list(rows))
            lengths = [len(pair.first) + len(pair.second) + _SPECIAL_TOKENS for pair in pairs]
            datasets[part] = EncodedExamples(pairs, lengths, rows.fingerprint, cut=cut)
        return {**datasets}

    def _encoded(self, run: RunContext, rows: Sequence[PairRecord]) -> tuple[list[Translation], int]:
        """Return the pairs, and how many were truncated."""
        columns = [
            run.tokenizer.encode_batch(texts, special=False, allow_special=False)
            for texts in ([row.source for row in rows], [row.target for row in rows])
        ]
        pairs, cut = [], 0
        for row, first, second in zip(rows, *columns, strict=True):
            halves = _cut_pair(first, second, self.recipe.batch.length - _SPECIAL_TOKENS)
            ours, theirs = (torch.tensor(half, dtype=torch.int32) for half in halves)
            pairs.append(Translation(ours, theirs, self._languages(row)))
            cut += len(ours) < len(first) or len(theirs) < len(second)
        return pairs, cut

    def _languages(self, row: PairRecord) -> tuple[int, int]:
        known, wanted = self.recipe.data.languages, (row.source_language, row.target_language)
        numbers = [known.index(code) for code in wanted if code in known]
        if len(numbers) != 2:
            raise ValueError(
                f"{row.origin}: its languages are {wanted[0]} and {wanted[1]}; set both with data.languages=[en, de]."
            )
        return numbers[0], numbers[1]

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[PairRecord]) -> list[str]:
        """Return texts and their translations with blanks, and the model's predictions."""
        objective = self.objective(run)
        joined = [join_translation(pair, objective.separator) for pair in self._encoded(run, rows)[0]]
        return [show_predictions(loaded, text, objective.masked.masking) for text in joined]


def _cut_pair(first: list[int], second: list[int], longest: int) -> tuple[list[int], list[int]]:
    """Return two texts, truncated to ``longest`` tokens together; the longer text is truncated first."""
    if longest < 2:
        length = longest + _SPECIAL_TOKENS
        raise ValueError(
            f"batch.length={length} leaves no space for two texts and the {_SPECIAL_TOKENS} tokens around them."
        )
    kept = min(len(first), max(longest - len(second), longest - longest // 2))
    return first[:kept], second[: longest - kept]
