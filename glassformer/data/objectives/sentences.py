"""From documents to pairs of text: does the second follow the first, or do the two stand in order?

* ``next_sentence_pairs``: half of the time the second part comes from another document (Devlin et al., 2018, 3.1).
* ``sentence_order_pairs``: half of the time the two parts are swapped (Lan et al., 2019, section 3.1).

Both walk a document as the papers' programs do: sentences are gathered until they fill a row, the row is cut between
two sentences at random, and what does not fit is taken off the longer part, at a random end. Now and then (``short``) a
document's rows are filled to a random shorter length only, so that short texts are learned too. A document is a list of
sentences, a sentence a list of ids without a frame.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch

from glassformer.config.checks import check_probability
from glassformer.data.objectives.draws import flip, pick

Sentence = Sequence[int]
IN_ORDER, OTHERWISE = 0, 1  # labels, in the order of the pair heads of the published models


class SentencePair(NamedTuple):
    """Two parts of a row; ``label`` is 0 where the second follows the first, else 1."""

    first: list[int]
    second: list[int]
    label: int


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How long the rows are: at most ``length`` tokens of text, the frame not counted."""

    length: int
    short: float = 0.1  # chance that a document's rows are shorter

    def __post_init__(self) -> None:
        check_probability(short=self.short)
        if self.length < 2:
            raise ValueError(
                f"a pair has at least one token on either side, so length must be at least 2; got {self.length}."
            )

    def target(self, generator: torch.Generator) -> int:
        """To what length the rows of one document are filled."""
        return pick(2, self.length, generator) if flip(self.short, generator) else self.length


def next_sentence_pairs(
    documents: Sequence[Sequence[Sentence]], rows: Rows, generator: torch.Generator
) -> list[SentencePair]:
    """One pass over the documents; a row of a single sentence always gets its second part from another document."""
    full = _full(documents)
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

    return list(_walk(full, rows, generator, pair))


def sentence_order_pairs(
    documents: Sequence[Sequence[Sentence]], rows: Rows, generator: torch.Generator
) -> list[SentencePair]:
    """One pass over the documents; a row of a single sentence has no order and is left out."""

    def pair(number: int, chunk: Sequence[Sentence], cut: int, target: int) -> tuple[SentencePair | None, int]:
        del number, target
        if cut == len(chunk):
            return None, len(chunk)
        parts = _joined(chunk[:cut]), _joined(chunk[cut:])
        if flip(0.5, generator):
            return SentencePair(parts[1], parts[0], OTHERWISE), len(chunk)
        return SentencePair(*parts, IN_ORDER), len(chunk)

    return list(_walk(_full(documents), rows, generator, pair))


Maker = Callable[[int, Sequence[Sentence], int, int], tuple[SentencePair | None, int]]


def _walk(
    documents: Sequence[Sequence[Sentence]], rows: Rows, generator: torch.Generator, pair: Maker
) -> Iterator[SentencePair]:
    """The pairs of all documents; ``pair`` makes one and says how many of the gathered sentences it used."""
    for number, document in enumerate(documents):
        target = rows.target(generator)
        start = 0
        while start < len(document):
            chunk = _gather(document[start:], target)
            cut = pick(1, len(chunk) - 1, generator) if len(chunk) > 1 else 1
            made, used = pair(number, chunk, cut, target)
            start += used
            if made is not None:
                yield _cut_down(made, rows.length, generator)


def _full(documents: Sequence[Sequence[Sentence]]) -> list[list[Sentence]]:
    """Documents without empty sentences, and none that is empty itself."""
    found = [[sentence for sentence in document if len(sentence)] for document in documents]
    return [document for document in found if document]


def _gather(sentences: Sequence[Sentence], target: int) -> Sequence[Sentence]:
    """As many sentences as it takes to fill ``target`` tokens."""
    length = 0
    for number, sentence in enumerate(sentences):
        length += len(sentence)
        if length >= target:
            return sentences[: number + 1]
    return sentences


def _joined(sentences: Sequence[Sentence]) -> list[int]:
    return list(chain.from_iterable(sentences))


def _cut_down(pair: SentencePair, longest: int, generator: torch.Generator) -> SentencePair:
    """Tokens taken off the longer part one by one, each at a random end, until the pair fits."""
    ends = [[0, len(pair.first)], [0, len(pair.second)]]
    for _ in range(len(pair.first) + len(pair.second) - longest):
        longer = ends[0] if ends[0][1] - ends[0][0] > ends[1][1] - ends[1][0] else ends[1]
        if flip(0.5, generator):
            longer[0] += 1
        else:
            longer[1] -= 1
    return pair._replace(first=pair.first[slice(*ends[0])], second=pair.second[slice(*ends[1])])
