"""Span corruption (Raffel et al., 2019, section 3.1.4): spans of a text are removed, and the decoder predicts them.

    Thank you <X> me to your party <Y> week.   →   <X> for inviting <Y> last </s>

As in the paper's program the number of removed tokens and of spans depends on the length alone, and all ways to place
the spans are equally likely; a text starts with a kept span and ends with a removed one, so the targets have no last
sentinel, and a text so short that it has one span always loses its end. The ids of sentinels count down from
``<extra_id_0>``.

Shapes: ``T`` tokens of one text, ``S`` of the input, ``U`` of the target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from glassformer.config.checks import check_positive_integer, check_positive_number, check_probability
from glassformer.data.loader import Dataset
from glassformer.data.packing import Packed, PackedRows, StreamPlan
from glassformer.data.records import TextRecord
from glassformer.generation.text import generate_text
from glassformer.hub import Loaded
from glassformer.objectives.base import Batch, Ids, Loss, as_ids
from glassformer.objectives.examples import DatasetSlice, Mapped, PlainTextJob, texts_of, token_file
from glassformer.objectives.job import RunContext
from glassformer.objectives.masking import BLANK, SAMPLE_TOKENS, show_ids
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget
from glassformer.recipes.rows import Records
from glassformer.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class SpanSizes:
    """How many tokens are removed, and in how many spans."""

    density: float = 0.15  # share of the tokens
    mean: float = 3.0  # tokens per span

    def __post_init__(self) -> None:
        check_positive_number(density=self.density, mean=self.mean)
        check_probability(density=self.density)

    def counts(self, length: int) -> tuple[int, int]:
        """(Tokens to remove, number of spans) of a text of ``length`` tokens.

        At least one token is removed and one kept, and there are no more spans than tokens of either kind.
        """
        noise = min(max(round(length * self.density), 1), length - 1)
        return noise, min(max(round(noise / self.mean), 1), noise, length - noise)

    def lengths(self, length: int) -> tuple[int, int]:
        """Return the lengths of input and target for a text of ``length`` tokens, sentinels and EOS included."""
        noise, spans = self.counts(length)
        return length - noise + spans + 1, noise + spans + 1

    def longest_text(self, inputs: int) -> int:
        """Return the most tokens of a text whose input has at most ``inputs`` tokens."""
        if inputs < 3:
            raise ValueError(f"the shortest input is a token, a sentinel and EOS; {inputs} tokens are too few.")
        length = 2
        while self.lengths(length + 1)[0] <= inputs:
            length += 1
        return length


def random_segments(items: int, segments: int, generator: torch.Generator) -> Int[Tensor, "segments"]:
    """Return the sizes of ``segments`` parts, at least 1 each, that add up to ``items``.

    All partitions are equally likely.
    """
    cuts = torch.randperm(items - 1, generator=generator)[: segments - 1].sort().values + 1
    ends = torch.cat((torch.tensor([0]), cuts, torch.tensor([items])))
    return ends.diff()


def choose_spans(length: int, spans: SpanSizes, generator: torch.Generator) -> Bool[Tensor, "T"]:
    """Return which tokens of a text of ``length`` are removed."""
    if length < 2:
        raise ValueError(f"a text of {length} tokens is too short: at least one is removed and one kept; leave it out.")
    noise, number = spans.counts(length)
    kept = random_segments(length - noise, number, generator)
    cut = random_segments(noise, number, generator)
    sizes = torch.stack((kept, cut), -1).flatten()
    return (torch.arange(2 * number) % 2 == 1).repeat_interleave(sizes)


def leave_sentinels(ids: Int[Tensor, "T"], removed: Bool[Tensor, "T"], first: int) -> Int[Tensor, "S"]:
    """Return ids with each span of ``removed`` tokens replaced by a sentinel, whose ids count down from ``first``."""
    before = torch.cat((torch.tensor([False]), removed[:-1]))
    starts = removed & ~before
    sentinels = first + 1 - starts.cumsum(-1)
    return sentinels.where(starts, ids)[~removed | starts]


def corrupt(
    ids: Int[Tensor, "T"], removed: Bool[Tensor, "T"], first: int, eos: int
) -> tuple[Int[Tensor, "S"], Int[Tensor, "U"]]:
    """(The kept tokens with a sentinel for each span, the spans, each after its sentinel), both ending with EOS."""
    end = torch.tensor([eos])
    inputs, targets = leave_sentinels(ids, removed, first), leave_sentinels(ids, ~removed, first)
    return torch.cat((inputs, end)), torch.cat((targets, end))


@dataclass(frozen=True, kw_only=True)
class SpanCorruption:
    """Predict the removed spans; the loss is that of ``decoder``."""

    decoder: SequenceToSequence
    first_sentinel: int  # ``<extra_id_0>``; the others have the ids below it
    eos: int
    sentinels: int = 100
    spans: SpanSizes = field(default_factory=SpanSizes)

    def __post_init__(self) -> None:
        check_positive_integer(sentinels=self.sentinels)

    @property
    def traceable(self) -> bool:
        """As the objective that computes the loss."""
        return self.decoder.traceable

    def prepare(self, examples: Sequence[Ids], generator: torch.Generator) -> Batch:
        """Return texts without special tokens, corrupted anew at every call."""
        return self.decoder.prepare([self._corrupt(as_ids(ids), generator) for ids in examples], generator)

    def _corrupt(self, ids: Int[Tensor, "T"], generator: torch.Generator) -> SourceTarget:
        removed = choose_spans(len(ids), self.spans, generator)
        if (number := self.spans.counts(len(ids))[1]) > self.sentinels:
            raise ValueError(
                f"a text of {len(ids)} tokens is cut into {number} spans, and there are {self.sentinels} sentinels. "
                f"Cut the text into shorter ones, or set a larger spans.mean."
            )
        return SourceTarget(*corrupt(ids, removed, self.first_sentinel, self.eos))

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``target``."""
        return self.decoder.loss(model, batch)


@dataclass(frozen=True, kw_only=True)
class SpanCorruptionOptions:
    """How many tokens are removed, and in how many spans."""

    density: float = 0.15  # share of the tokens
    mean: float = 3.0  # tokens per span
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_positive_number(density=self.density, mean=self.mean)
        check_probability(density=self.density)


class SpanCorruptionJob(PlainTextJob):
    """Spans of plain text are removed, and the decoder predicts them (Raffel et al., 2019, section 3.1.4).

    Texts follow each other without a separator, and rows are cut so that the input, with its sentinels, fills
    ``batch.length``.
    """

    head = "lm"
    options_type = SpanCorruptionOptions

    @property
    def _sizes(self) -> SpanSizes:
        return SpanSizes(density=self.options.density, mean=self.options.mean)

    def objective(self, run: RunContext) -> SpanCorruption:
        """Return the objective: cross-entropy of the spans."""
        first, count = sentinels(run.tokenizer)
        longest = self._sizes.longest_text(self.recipe.batch.length)
        if (needed := self._sizes.counts(longest)[1]) > count:
            raise ValueError(
                f"rows of batch.length={self.recipe.batch.length} have {needed} spans, and the tokenizer has {count} "
                f"sentinels; take shorter rows, or set a larger objective.mean."
            )
        return SpanCorruption(
            decoder=SequenceToSequence(start=run.start, chunk=self.options.chunk),
            first_sentinel=first,
            eos=run.token("eos"),
            sentinels=count,
            spans=self._sizes,
        )

    def examples(self, run: RunContext, parts: Mapping[str, Records[TextRecord]]) -> dict[str, Dataset[Any]]:
        """Return rows of text without special tokens."""
        return {part: self._rows(run, part, rows) for part, rows in parts.items()}

    def _rows(self, run: RunContext, part: str, rows: Records[TextRecord]) -> Dataset[Int[Tensor, "_"]]:
        file = token_file(run.folder, part, texts_of(rows), rows.fingerprint, run.tokenizer)
        longest = self._sizes.longest_text(self.recipe.batch.length)
        packed = PackedRows(file, StreamPlan(file.lengths, longest))
        rest = len(file.tokens) - longest * (len(packed) - 1)
        lengths = [self._sizes.lengths(size)[0] for size in [longest] * (len(packed) - 1) + [rest] if size > 1]
        if not lengths:
            raise ValueError(f"the text of data.{part} is one token; there is nothing to remove from it.")

        def ids(row: Packed) -> Int[Tensor, "_"]:
            return row.ids[row.documents > 0]

        kept = DatasetSlice(packed, 0, len(lengths), packed.fingerprint)  # without a last row of one token
        return Mapped(kept, ids, lengths)

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[TextRecord]) -> list[str]:
        """Return texts with gaps, and the model's spans for them."""
        objective, written = self.objective(run), []
        longest = min(SAMPLE_TOKENS, self._sizes.longest_text(self.recipe.batch.length))
        for row in rows:
            ids = run.tokenizer.encode(row.text, special=False, allow_special=False)[:longest]
            if len(ids) < 2:
                continue
            batch = objective.prepare([ids], torch.Generator().manual_seed(0))
            gaps = batch.inputs["ids"][0].tolist()
            output = generate_text(loaded, [gaps], max_new_tokens=self._sizes.lengths(len(ids))[1] + 8)[0][0]
            blanks, filled = fill_gaps(run.tokenizer, gaps, output.written.ids)
            written.append(f"{blanks}\n  → {filled}\n  = {show_ids(run.tokenizer, ids)}")
        return written


def sentinels(tokenizer: Tokenizer) -> tuple[int, int]:
    """(The id of ``<extra_id_0>``, the number of sentinels); the ids of the others count down from it."""
    first, count = tokenizer.backend.token_to_id("<extra_id_0>"), 1
    if first is None:
        raise ValueError(
            "spans need a tokenizer with sentinels, <extra_id_0> and so on; set tokenizer.style to one that has them."
        )
    while tokenizer.backend.token_to_id(f"<extra_id_{count}>") == first - count:
        count += 1
    if tokenizer.backend.token_to_id(f"<extra_id_{count}>") is not None:
        raise ValueError(
            f"the ids of sentinels must go down one by one from <extra_id_0>; <extra_id_{count}> does not."
        )
    return int(first), count


def fill_gaps(tokenizer: Tokenizer, gaps: Sequence[int], spans: Sequence[int]) -> tuple[str, str]:
    """(A text with blanks for its sentinels, the same with the predicted spans in brackets).

    Brackets are empty for spans that were not predicted.
    """
    first, count = sentinels(tokenizer)
    # The predicted ids of each span, by its sentinel.
    all_sentinels, span_ids, current = range(first - count + 1, first + 1), dict[int, list[int]](), -1
    for number in spans:
        if number in all_sentinels:
            current = number
            span_ids[current] = []
        elif current in span_ids and number != tokenizer.eos:
            span_ids[current].append(number)
    # The text, with blanks or spans in the place of sentinels.
    blanks, filled, kept = list[str](), list[str](), list[int]()
    for number in gaps:
        if number in all_sentinels:
            text = tokenizer.decode(kept)
            blanks += [text, BLANK]
            filled += [text, f"[{tokenizer.decode(span_ids.get(number, ())).strip()}]"]
            kept = []
        else:
            kept.append(number)
    last = tokenizer.decode(kept, skip_special=True)
    return " ".join(" ".join((*blanks, last)).split()), " ".join(" ".join((*filled, last)).split())
