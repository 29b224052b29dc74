"""Span corruption (Raffel et al., 2019, section 3.1.4): spans of a text are cut out, and the decoder writes them.

    Thank you <X> me to your party <Y> week.   →   <X> for inviting <Y> last </s>

As in the paper's program the number of tokens cut out and the number of spans follow from the length alone, and all
ways to place them are equally likely; a text starts with a span that stays and ends with one that is cut out, so the
targets have no last sentinel, and of a text so short that one span is enough it is always the end that is cut out.
Sentinels go down from ``<extra_id_0>``, which has the highest id.

Shapes: ``T`` tokens of one text, ``S`` of what is left of it, ``U`` of what was cut out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from glassformer.config.checks import check_number, check_positive, check_probability
from glassformer.data.objectives.base import Batch, Loss
from glassformer.data.objectives.rows import Ids, as_ids
from glassformer.data.objectives.sequence_to_sequence import SequenceToSequence, SourceTarget


@dataclass(frozen=True, kw_only=True)
class Spans:
    """How much is cut out."""

    density: float = 0.15  # share of the tokens
    mean: float = 3.0  # tokens per span

    def __post_init__(self) -> None:
        check_number(density=self.density, mean=self.mean)
        check_probability(density=self.density)

    def counts(self, length: int) -> tuple[int, int]:
        """(Tokens to cut out, spans to cut them out in) of a text of ``length`` tokens.

        Something is cut out and something stays, and there are no more spans than tokens on either side.
        """
        noise = min(max(round(length * self.density), 1), length - 1)
        return noise, min(max(round(noise / self.mean), 1), noise, length - noise)

    def lengths(self, length: int) -> tuple[int, int]:
        """The lengths of input and target that come of a text of ``length`` tokens, sentinels and EOS included."""
        noise, spans = self.counts(length)
        return length - noise + spans + 1, noise + spans + 1

    def longest_text(self, inputs: int) -> int:
        """How many tokens a text may have for its input to fill, and not exceed, ``inputs`` tokens."""
        if inputs < 3:
            raise ValueError(f"the shortest input is a token, a sentinel and EOS; {inputs} tokens are too few.")
        length = 2
        while self.lengths(length + 1)[0] <= inputs:
            length += 1
        return length


def random_segments(items: int, segments: int, generator: torch.Generator) -> Int[Tensor, "segments"]:
    """The sizes of ``segments`` parts of at least 1 that add up to ``items``; every way to cut is equally likely."""
    cuts = torch.randperm(items - 1, generator=generator)[: segments - 1].sort().values + 1
    ends = torch.cat((torch.tensor([0]), cuts, torch.tensor([items])))
    return ends.diff()


def choose_spans(length: int, spans: Spans, generator: torch.Generator) -> Bool[Tensor, "T"]:
    """Which tokens of a text of ``length`` are cut out."""
    if length < 2:
        raise ValueError(f"a text of {length} tokens has nothing to cut out and something to keep; leave it out.")
    noise, number = spans.counts(length)
    kept = random_segments(length - noise, number, generator)
    cut = random_segments(noise, number, generator)
    sizes = torch.stack((kept, cut), -1).flatten()
    return (torch.arange(2 * number) % 2 == 1).repeat_interleave(sizes)


def leave_sentinels(ids: Int[Tensor, "T"], gone: Bool[Tensor, "T"], first: int) -> Int[Tensor, "S"]:
    """Ids with each run of ``gone`` tokens replaced by one sentinel: ``first`` and down from it."""
    before = torch.cat((torch.tensor([False]), gone[:-1]))
    starts = gone & ~before
    sentinels = first + 1 - starts.cumsum(-1)
    return sentinels.where(starts, ids)[~gone | starts]


def corrupt(
    ids: Int[Tensor, "T"], gone: Bool[Tensor, "T"], first: int, eos: int
) -> tuple[Int[Tensor, "S"], Int[Tensor, "U"]]:
    """(What is left, with a sentinel for each span; the spans, each behind its sentinel), both ended by EOS."""
    end = torch.tensor([eos])
    return torch.cat((leave_sentinels(ids, gone, first), end)), torch.cat((leave_sentinels(ids, ~gone, first), end))


@dataclass(frozen=True, kw_only=True)
class SpanCorruption:
    """Write the spans that were cut out; the loss is that of ``decoder``."""

    decoder: SequenceToSequence
    first_sentinel: int  # ``<extra_id_0>``; the others have the ids below it
    eos: int
    sentinels: int = 100
    spans: Spans = field(default_factory=Spans)

    def __post_init__(self) -> None:
        check_positive(sentinels=self.sentinels)

    def prepare(self, examples: Sequence[Ids], generator: torch.Generator) -> Batch:
        """Texts without a frame, corrupted anew at every call."""
        return self.decoder.prepare([self._corrupt(as_ids(ids), generator) for ids in examples], generator)

    def _corrupt(self, ids: Int[Tensor, "T"], generator: torch.Generator) -> SourceTarget:
        gone = choose_spans(len(ids), self.spans, generator)
        if (number := self.spans.counts(len(ids))[1]) > self.sentinels:
            raise ValueError(
                f"a text of {len(ids)} tokens is cut into {number} spans, and there are {self.sentinels} sentinels. "
                f"Cut the text into shorter ones, or set a greater spans.mean."
            )
        return SourceTarget(*corrupt(ids, gone, self.first_sentinel, self.eos))

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``target``."""
        return self.decoder.loss(model, batch)
