"""Hidden words, and a question about two sentences: does the second follow, or do the two stand in order?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch

from glassformer.config.checks import check_positive, check_probability
from glassformer.data.loader import Dataset
from glassformer.data.objectives import MaskedPairs, Rows, SentencePair, next_sentence_pairs, sentence_order_pairs
from glassformer.data.objectives.paired import frame_pair
from glassformer.data.objectives.sentences import IN_ORDER
from glassformer.data.order import hashed
from glassformer.data.records import Text
from glassformer.hub import Loaded
from glassformer.nn.norm import upcast
from glassformer.text.sentences import By
from glassformer.training.jobs.base import Encoded, RunContext
from glassformer.training.jobs.documents import PlainText
from glassformer.training.jobs.hiding import SAMPLE_TOKENS, Hiding, answer_of, guess_words
from glassformer.training.jobs.sentence_rows import sentences_of
from glassformer.training.reading import Records

_FRAME = 3  # tokens around two parts
_PAIRS = {"next": next_sentence_pairs, "order": sentence_order_pairs}


@dataclass(frozen=True, kw_only=True)
class PairedOptions:
    """How words are hidden, and which pairs there are.

    ``next``: half of the second parts come from another document (Devlin et al., 2018). ``order``: half of the pairs
    are swapped (Lan et al., 2019).
    """

    pairs: Literal["next", "order"] = "next"
    masking: Hiding = field(default_factory=Hiding)
    sentences: By = "marks"  # how a document is cut, see ``text.sentences``
    short: float = 0.1  # chance that a document's rows are shorter
    passes: int = 1  # over the documents, each with other pairs; they are made before the run and held in memory

    def __post_init__(self) -> None:
        self.masking.refuse_whole_words("masked-pairs")
        check_probability(short=self.short)
        check_positive(passes=self.passes)


class PairedText(PlainText):
    """For an encoder that judges words and pairs from one pass."""

    head = "pretraining"
    options_type = PairedOptions

    def objective(self, kit: RunContext) -> MaskedPairs:
        """Cross-entropy of the hidden words, and of the question about the pair."""
        masking = self.options.masking.masking(kit.tokenizer)
        return MaskedPairs(masking=masking, cls=kit.token("cls"), sep=kit.token("sep"))

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Text]]) -> dict[str, Dataset[Any]]:
        """Pairs of text, which together with their frame have at most ``batch.length`` tokens."""
        return {part: self._pairs(kit, part, rows) for part, rows in parts.items()}

    def _pairs(self, kit: RunContext, part: str, rows: Records[Text]) -> Encoded[SentencePair]:
        documents = [self._sentences(kit, row.text) for row in rows]
        longest = Rows(length=max(0, self.recipe.batch.length - _FRAME), short=self.options.short)
        generator = torch.Generator().manual_seed(hashed("pairs", self.recipe.run.seed, part))
        passes = self.options.passes if part == "train" else 1
        make = _PAIRS[self.options.pairs]
        found = [pair for _ in range(passes) for pair in make(documents, longest, generator)]
        return Encoded(found, [len(pair.first) + len(pair.second) + _FRAME for pair in found], rows.fingerprint)

    def _sentences(self, kit: RunContext, text: str) -> list[list[int]]:
        return sentences_of(kit.tokenizer, text, self.options.sentences)

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Text]) -> list[str]:
        """The beginning of each text in two parts with blanks, the guesses, and how sure the model is of the pair."""
        objective = self.objective(kit)
        written = []
        for row in rows:
            first, second = _halves(
                self._sentences(kit, row.text), min(SAMPLE_TOKENS, self.recipe.batch.length - _FRAME)
            )
            text = frame_pair(SentencePair(first, second, IN_ORDER), objective.cls, objective.sep)
            scores = upcast(answer_of(loaded, text)[1])[0]
            sure = float(scores.softmax(-1)[IN_ORDER])
            verdict = f"  → that the second part follows: {sure:.0%}" if first and second else ""
            written.append("\n".join(filter(None, (guess_words(loaded, text, objective.masking), verdict))))
        return written


def _halves(sentences: Sequence[list[int]], room: int) -> tuple[list[int], list[int]]:
    """The first sentence and those after it, as much as there is room for."""
    first = [token for sentence in islice(sentences, 1) for token in sentence][: max(1, room // 2)]
    rest = [token for sentence in islice(sentences, 1, None) for token in sentence]
    return first, rest[: room - len(first)]
