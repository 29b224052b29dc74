"""Hidden words of plain text, and of a text beside its translation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from glassformer.data.loader import Dataset
from glassformer.data.objectives import Masked, Masking, Translation, TranslationMasked
from glassformer.data.objectives import Text as Row
from glassformer.data.objectives.masked import join_translation
from glassformer.data.records import Pair, Text
from glassformer.hub import Loaded
from glassformer.training.jobs.base import Encoded, Job, RunContext
from glassformer.training.jobs.documents import PlainText
from glassformer.training.jobs.hiding import Filled, Hiding, guess_words, sample_row, separator, text_rows
from glassformer.training.reading import Records

_FRAME = 4  # tokens around a text and its translation


class HiddenWords(PlainText):
    """Jobs that hide words of plain text; their options have ``masking`` and ``rows`` (see ``hiding``)."""

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Text]]) -> dict[str, Dataset[Any]]:
        """Framed rows of ``batch.length`` tokens."""
        return {**text_rows(kit, parts, self.options.rows, whole_words=self.options.masking.whole_words)}

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Text]) -> list[str]:
        """Each text as ``sample`` has it."""
        hiding: Hiding = self.options.masking
        masking = hiding.masking(kit.tokenizer)
        texts = [sample_row(kit, row.text, whole_words=hiding.whole_words) for row in rows]
        return [self.sample(loaded, text, masking) for text in texts]

    def sample(self, loaded: Loaded, text: Row, masking: Masking) -> str:
        """A row with blanks, and the model's guesses."""
        return guess_words(loaded, text, masking)


@dataclass(frozen=True, kw_only=True)
class MaskedOptions:
    """How words are hidden, and how text is cut into rows (see ``hiding.text_rows``)."""

    masking: Hiding = field(default_factory=Hiding)
    rows: Filled = "full"
    chunk: int | None = None  # judge so many places at a time, for a large vocabulary


class MaskedText(HiddenWords):
    """Words of plain text, hidden anew in every batch (Devlin et al., 2018; Liu et al., 2019)."""

    head = "lm"
    options_type = MaskedOptions

    def objective(self, kit: RunContext) -> Masked:
        """Cross-entropy of the hidden words."""
        return Masked(masking=self.options.masking.masking(kit.tokenizer), chunk=self.options.chunk)


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """How words are hidden."""

    masking: Hiding = field(default_factory=Hiding)
    chunk: int | None = None

    def __post_init__(self) -> None:
        self.masking.refuse_whole_words("masked-translation")


class MaskedTranslation(Job[Pair]):
    """Words of a text and of its translation, side by side (Conneau and Lample, 2019, section 3.3).

    A language's number is its place in ``data.languages``. The paper trains on rows of one language in turn with
    these; here a run does one of the two.
    """

    record = Pair
    head = "lm"
    options_type = TranslationOptions

    def texts(self, row: Pair) -> Iterable[str]:
        """Both texts."""
        return row.source, row.target

    def objective(self, kit: RunContext) -> TranslationMasked:
        """Cross-entropy of the hidden words of both texts."""
        known, needed = kit.facts.embed.languages, len(self.recipe.data.languages)
        if known < needed:
            raise ValueError(
                f"the model has vectors for {known} languages, and data.languages names {needed}; raise their number "
                f"in model.sizes."
            )
        masked = Masked(masking=self.options.masking.masking(kit.tokenizer), chunk=self.options.chunk)
        return TranslationMasked(masked=masked, frame=separator(kit))

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Pair]]) -> dict[str, Dataset[Any]]:
        """Pairs of texts, which together with their frame have at most ``batch.length`` tokens."""
        found = {}
        for part, rows in parts.items():
            pairs, cut = self._encoded(kit, list(rows))
            lengths = [len(pair.first) + len(pair.second) + _FRAME for pair in pairs]
            found[part] = Encoded(pairs, lengths, rows.fingerprint, cut=cut)
        return {**found}

    def _encoded(self, kit: RunContext, rows: Sequence[Pair]) -> tuple[list[Translation], int]:
        """The pairs, and how many were cut."""
        columns = [
            kit.tokenizer.encode_batch(texts, special=False, allow_special=False)
            for texts in ([row.source for row in rows], [row.target for row in rows])
        ]
        found, cut = [], 0
        for row, first, second in zip(rows, *columns, strict=True):
            halves = _cut_pair(first, second, self.recipe.batch.length - _FRAME)
            ours, theirs = (torch.tensor(half, dtype=torch.int32) for half in halves)
            found.append(Translation(ours, theirs, self._languages(row)))
            cut += len(ours) < len(first) or len(theirs) < len(second)
        return found, cut

    def _languages(self, row: Pair) -> tuple[int, int]:
        known, wanted = self.recipe.data.languages, (row.source_language, row.target_language)
        numbers = [known.index(code) for code in wanted if code in known]
        if len(numbers) != 2:
            raise ValueError(
                f"{row.origin}: its languages are {wanted[0]} and {wanted[1]}; say both with data.languages=[en, de]."
            )
        return numbers[0], numbers[1]

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Pair]) -> list[str]:
        """Texts beside their translations with blanks, and the model's guesses."""
        objective = self.objective(kit)
        joined = [join_translation(pair, objective.frame) for pair in self._encoded(kit, rows)[0]]
        return [guess_words(loaded, text, objective.masked.masking) for text in joined]


def _cut_pair(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Two texts cut at their ends to fit together; a short one leaves its room to the other."""
    if room < 2:
        raise ValueError(f"batch.length={room + _FRAME} has no room for two texts and the {_FRAME} tokens around them.")
    kept = min(len(first), max(room - len(second), room - room // 2))
    return first[:kept], second[: room - kept]
