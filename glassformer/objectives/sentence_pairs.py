"""Masked tokens and pairs of sentences, from one pass (Devlin et al., 2018; Lan et al., 2019), for an encoder.

* ``next_sentence_pairs``: half of the second parts come from another document (Devlin et al., 2018, section 3.1).
* ``sentence_order_pairs``: half of the pairs are swapped (Lan et al., 2019, section 3.1).

Both go through a document as the papers' programs do: sentences are collected until they fill a row, the row is split
between two sentences at random, and tokens that do not fit are removed from random ends of the longer part. With
probability ``short`` the rows of a document are filled to a random shorter length only, so that the model sees short
texts too. A document is a list of sentences, a sentence a list of ids without special tokens. Pairs are made once per
pass over a corpus; tokens are masked anew for every batch.

Shapes: ``B`` rows, ``T`` tokens of a row, ``V`` vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from glassformer.config import PretrainingHead
from glassformer.config.checks import check_positive_integer, check_probability
from glassformer.data.batching import hashed
from glassformer.data.loader import Dataset
from glassformer.data.records import TextRecord
from glassformer.hub import Loaded
from glassformer.nn.norm import upcast
from glassformer.objectives.base import (
    Batch,
    Loss,
    LossTerm,
    ModelRequirement,
    Padding,
    TokenRow,
    flip,
    pick,
    token_cross_entropy,
)
from glassformer.objectives.examples import EncodedExamples, PlainTextJob, sentences_of
from glassformer.objectives.job import RunContext
from glassformer.objectives.masking import (
    SAMPLE_TOKENS,
    Masking,
    MaskingOptions,
    masked_batch,
    predict_row,
    show_predictions,
)
from glassformer.recipes.rows import Records
from glassformer.text.plain_text import By

Sentence = Sequence[int]
IN_ORDER, OTHERWISE = 0, 1  # labels, as in the pair heads of the published models
NEEDS = ModelRequirement("MaskedPairs", PretrainingHead, families=("encoder",))
_SPECIAL_TOKENS = 3  # special tokens around two parts


class SentencePair(NamedTuple):
    """Two parts of a row; ``label`` is 0 if the second follows the first, else 1."""

    first: list[int]
    second: list[int]
    label: int


@dataclass(frozen=True, kw_only=True)
class PairLengths:
    """How long the rows are: at most ``length`` tokens of text, special tokens not counted."""

    length: int
    short: float = 0.1  # probability that the rows of a document are shorter

    def __post_init__(self) -> None:
        check_probability(short=self.short)
        if self.length < 2:
            raise ValueError(
                f"a pair has at least one token on either side, so length must be at least 2; got {self.length}."
            )

    def target(self, generator: torch.Generator) -> int:
        """Return the length to which the rows of one document are filled."""
        return pick(2, self.length, generator) if flip(self.short, generator) else self.length


def next_sentence_pairs(
    documents: Sequence[Sequence[Sentence]], rows: PairLengths, generator: torch.Generator
) -> list[SentencePair]:
    """Return one pass over the documents.

    A row of a single sentence always gets its second part from another document.
    """
    full = _without_empty(documents)
    if len(full) < 2:
        raise ValueError(f"a second part from another document needs two documents with text; got {len(full)}.")

    def pair(number: int, chunk: Sequence[Sentence], cut: int, target: int) -> tuple[SentencePair, int]:
        first = _joined(chunk[:cut])
        if cut < len(chunk) and not flip(0.5, generator):
            return SentencePair(first, _joined(chunk[cut:]), IN_ORDER), len(chunk)
        other = (number + pick(1, len(full) - 1, generator)) % len(full)
        start = pick(0, len(full[other]) - 1, generator)
        second = _joined(_gather(full[other][start:], target - len(first)))
        return SentencePair(first, second, OTHERWISE), cut  # the sentences after the cut are used again

    return list(_make_pairs(full, rows, generator, pair))


def sentence_order_pairs(
    documents: Sequence[Sequence[Sentence]], rows: PairLengths, generator: torch.Generator
) -> list[SentencePair]:
    """Return one pass over the documents; a row of a single sentence has no order and is skipped."""

    def pair(number: int, chunk: Sequence[Sentence], cut: int, target: int) -> tuple[SentencePair | None, int]:
        del number, target
        if cut == len(chunk):
            return None, len(chunk)
        parts = _joined(chunk[:cut]), _joined(chunk[cut:])
        if flip(0.5, generator):
            return SentencePair(parts[1], parts[0], OTHERWISE), len(chunk)
        return SentencePair(*parts, IN_ORDER), len(chunk)

    return list(_make_pairs(_without_empty(documents), rows, generator, pair))


PairMaker = Callable[[int, Sequence[Sentence], int, int], tuple[SentencePair | None, int]]


def _make_pairs(
    documents: Sequence[Sequence[Sentence]], rows: PairLengths, generator: torch.Generator, pair: PairMaker
) -> Iterator[SentencePair]:
    """Yield the pairs of all documents; ``pair`` makes one from a chunk of sentences, and says how many it used."""
    for number, document in enumerate(documents):
        target = rows.target(generator)
        start = 0
        while start < len(document):
            chunk = _gather(document[start:], target)
            cut = pick(1, len(chunk) - 1, generator) if len(chunk) > 1 else 1
            sentence_pair, used = pair(number, chunk, cut, target)
            start += used
            if sentence_pair is not None:
                yield _truncate(sentence_pair, rows.length, generator)


def _without_empty(documents: Sequence[Sequence[Sentence]]) -> list[list[Sentence]]:
    """Return documents without empty sentences, and without empty documents."""
    kept = [[sentence for sentence in document if len(sentence)] for document in documents]
    return [document for document in kept if document]


def _gather(sentences: Sequence[Sentence], target: int) -> Sequence[Sentence]:
    """Return the first sentences, as few as have at least ``target`` tokens, or all."""
    length = 0
    for number, sentence in enumerate(sentences):
        length += len(sentence)
        if length >= target:
            return sentences[: number + 1]
    return sentences


def _joined(sentences: Sequence[Sentence]) -> list[int]:
    return list(chain.from_iterable(sentences))


def _truncate(pair: SentencePair, longest: int, generator: torch.Generator) -> SentencePair:
    """Return the pair without tokens at random ends of the longer part, so that it fits."""
    ends = [[0, len(pair.first)], [0, len(pair.second)]]
    for _ in range(len(pair.first) + len(pair.second) - longest):
        longer = ends[0] if ends[0][1] - ends[0][0] > ends[1][1] - ends[1][0] else ends[1]
        if flip(0.5, generator):
            longer[0] += 1
        else:
            longer[1] -= 1
    return pair._replace(first=pair.first[slice(*ends[0])], second=pair.second[slice(*ends[1])])


def frame_pair(pair: SentencePair, cls: int, sep: int) -> TokenRow:
    """``[CLS] first [SEP] second [SEP]``; the second part and the token after it are of segment 1."""
    first, second = [cls, *pair.first, sep], [*pair.second, sep]
    return TokenRow(first + second, segments=[0] * len(first) + [1] * len(second))


@dataclass(frozen=True, kw_only=True)
class MaskedPairs:
    """Mean cross-entropy of masked tokens plus mean cross-entropy of the pairs' labels."""

    masking: Masking
    cls: int
    sep: int
    padding: Padding = field(default_factory=Padding)

    def prepare(self, examples: Sequence[SentencePair], generator: torch.Generator) -> Batch:
        """Return pairs of text with special tokens; tokens are masked anew at every call."""
        texts = [frame_pair(pair, self.cls, self.sep) for pair in examples]
        batch = masked_batch(texts, self.masking, generator, self.padding)
        labels = torch.tensor([pair.label for pair in examples])
        return replace(batch, labels=batch.labels | {"pair": labels}, counts={**batch.counts, "pair": len(labels)})

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return two terms, ``masked`` over the masked tokens and ``pair`` over the rows."""
        NEEDS.check(model)
        logits = dict(zip(("masked", "pair"), model(**batch.inputs), strict=True))  # B T V, B 2
        results = {name: token_cross_entropy(logits[name], batch.labels[name]) for name in logits}
        terms = {name: LossTerm(result.total, batch.counts[name]) for name, result in results.items()}
        accuracy = {f"{name} accuracy": (result.correct, batch.counts[name]) for name, result in results.items()}
        return Loss(terms, accuracy)


_PAIRS = {"next": next_sentence_pairs, "order": sentence_order_pairs}


@dataclass(frozen=True, kw_only=True)
class SentencePairsOptions:
    """How tokens are masked, and which pairs there are.

    ``next``: half of the second parts come from another document (Devlin et al., 2018). ``order``: half of the pairs
    are swapped (Lan et al., 2019).
    """

    pairs: Literal["next", "order"] = "next"
    masking: MaskingOptions = field(default_factory=MaskingOptions)
    sentences: By = "marks"  # how a document is split, see ``text.plain_text.cut_sentences``
    short: float = 0.1  # probability that the rows of a document are shorter
    passes: int = 1  # over the documents, each with other pairs; all are made before the run and kept in memory

    def __post_init__(self) -> None:
        self.masking.refuse_whole_words("masked-pairs")
        check_probability(short=self.short)
        check_positive_integer(passes=self.passes)


class SentencePairsJob(PlainTextJob):
    """For an encoder with two heads, for masked tokens and for pairs."""

    head = "pretraining"
    options_type = SentencePairsOptions

    def objective(self, run: RunContext) -> MaskedPairs:
        """Return the objective: cross-entropy of the masked tokens, and of the pairs' labels."""
        masking = self.options.masking.masking(run.tokenizer)
        return MaskedPairs(masking=masking, cls=run.token("cls"), sep=run.token("sep"))

    def examples(self, run: RunContext, parts: Mapping[str, Records[TextRecord]]) -> dict[str, Dataset[Any]]:
        """Return pairs of text, at most ``batch.length`` tokens with the special tokens."""
        return {part: self._pairs(run, part, rows) for part, rows in parts.items()}

    def _pairs(self, run: RunContext, part: str, rows: Records[TextRecord]) -> EncodedExamples[SentencePair]:
        documents = [self._sentences(run, row.text) for row in rows]
        longest = PairLengths(length=max(0, self.recipe.batch.length - _SPECIAL_TOKENS), short=self.options.short)
        generator = torch.Generator().manual_seed(hashed("pairs", self.recipe.run.seed, part))
        passes = self.options.passes if part == "train" else 1
        make = _PAIRS[self.options.pairs]
        pairs = [pair for _ in range(passes) for pair in make(documents, longest, generator)]
        return EncodedExamples(
            pairs, [len(pair.first) + len(pair.second) + _SPECIAL_TOKENS for pair in pairs], rows.fingerprint
        )

    def _sentences(self, run: RunContext, text: str) -> list[list[int]]:
        return sentences_of(run.tokenizer, text, self.options.sentences)

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[TextRecord]) -> list[str]:
        """Return the beginning of each text with blanks, predictions, and how likely the second part follows."""
        objective = self.objective(run)
        written = []
        for row in rows:
            first, second = _halves(
                self._sentences(run, row.text), min(SAMPLE_TOKENS, self.recipe.batch.length - _SPECIAL_TOKENS)
            )
            text = frame_pair(SentencePair(first, second, IN_ORDER), objective.cls, objective.sep)
            scores = upcast(predict_row(loaded, text)[1])[0]
            probability = float(scores.softmax(-1)[IN_ORDER])
            verdict = f"  → that the second part follows: {probability:.0%}" if first and second else ""
            written.append("\n".join(filter(None, (show_predictions(loaded, text, objective.masking), verdict))))
        return written


def _halves(sentences: Sequence[list[int]], longest: int) -> tuple[list[int], list[int]]:
    """Return the first sentence and those after it, ``longest`` tokens together."""
    first = [token for sentence in islice(sentences, 1) for token in sentence][: max(1, longest // 2)]
    rest = [token for sentence in islice(sentences, 1, None) for token in sentence]
    return first, rest[: longest - len(first)]
