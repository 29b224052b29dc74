"""Spoiled text for an encoder-decoder: write the spans that were cut out, or the text as it was."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.config.checks import check_number, check_probability
from glassformer.data.loader import Dataset
from glassformer.data.objectives import Denoising, Noise, SequenceToSequence, SpanCorruption
from glassformer.data.objectives import Spans as Cuts
from glassformer.data.packing import Packed, PackedRows, StreamPlan
from glassformer.data.records import Text
from glassformer.generation.text import generate_text
from glassformer.hub import Loaded
from glassformer.text.sentences import By
from glassformer.text.tokenizer import Tokenizer
from glassformer.training.jobs.base import RunContext
from glassformer.training.jobs.documents import Mapped, Part, PlainText, texts_of, token_file
from glassformer.training.jobs.hiding import BLANK, SAMPLE_TOKENS, Filled, readable
from glassformer.training.jobs.sentence_rows import SentenceRows, sentences_of
from glassformer.training.reading import Records


@dataclass(frozen=True, kw_only=True)
class SpansOptions:
    """How much is cut out."""

    density: float = 0.15  # share of the tokens
    mean: float = 3.0  # tokens per span
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_number(density=self.density, mean=self.mean)
        check_probability(density=self.density)


class Spans(PlainText):
    """Spans of plain text are cut out, and the decoder writes them (Raffel et al., 2019, section 3.1.4).

    Texts follow each other without a mark between them and are cut so that what is left of a row, with its sentinels,
    fills ``batch.length``.
    """

    head = "lm"
    options_type = SpansOptions

    @property
    def _cuts(self) -> Cuts:
        return Cuts(density=self.options.density, mean=self.options.mean)

    def objective(self, kit: RunContext) -> SpanCorruption:
        """Cross-entropy of the spans."""
        first, count = sentinels(kit.tokenizer)
        longest = self._cuts.longest_text(self.recipe.batch.length)
        if (needed := self._cuts.counts(longest)[1]) > count:
            raise ValueError(
                f"rows of batch.length={self.recipe.batch.length} have {needed} spans, and the tokenizer has {count} "
                f"sentinels; take shorter rows, or a greater objective.mean."
            )
        return SpanCorruption(
            decoder=SequenceToSequence(start=kit.start, chunk=self.options.chunk),
            first_sentinel=first,
            eos=kit.token("eos"),
            sentinels=count,
            spans=self._cuts,
        )

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Text]]) -> dict[str, Dataset[Any]]:
        """Rows of text without a frame."""
        return {part: self._rows(kit, part, rows) for part, rows in parts.items()}

    def _rows(self, kit: RunContext, part: str, rows: Records[Text]) -> Dataset[Int[Tensor, "_"]]:
        file = token_file(kit.folder, part, texts_of(rows), rows.fingerprint, kit.tokenizer)
        room = self._cuts.longest_text(self.recipe.batch.length)
        packed = PackedRows(file, StreamPlan(file.lengths, room))
        rest = len(file.tokens) - room * (len(packed) - 1)
        lengths = [self._cuts.lengths(size)[0] for size in [room] * (len(packed) - 1) + [rest] if size > 1]
        if not lengths:
            raise ValueError(f"the text of data.{part} is one token; there is nothing to cut out of it.")

        def ids(row: Packed) -> Int[Tensor, "_"]:
            return row.ids[row.documents > 0]

        some = Part(packed, 0, len(lengths), packed.fingerprint)  # a last row of one token is left out
        return Mapped(some, ids, lengths)

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Text]) -> list[str]:
        """Texts with gaps, and as the model would fill them."""
        objective, written = self.objective(kit), []
        longest = min(SAMPLE_TOKENS, self._cuts.longest_text(self.recipe.batch.length))
        for row in rows:
            ids = kit.tokenizer.encode(row.text, special=False, allow_special=False)[:longest]
            if len(ids) < 2:
                continue
            batch = objective.prepare([ids], torch.Generator().manual_seed(0))
            gaps = batch.inputs["ids"][0].tolist()
            found = generate_text(loaded, [gaps], max_new_tokens=self._cuts.lengths(len(ids))[1] + 8)[0][0]
            blanks, filled = fill_gaps(kit.tokenizer, gaps, found.written.ids)
            written.append(f"{blanks}\n  → {filled}\n  = {readable(kit.tokenizer, ids)}")
        return written


def sentinels(tokenizer: Tokenizer) -> tuple[int, int]:
    """(The id of ``<extra_id_0>``, how many sentinels there are); those after the first have the ids below it."""
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
    """(A text with blanks for its sentinels, the same with what a decoder wrote for each, in brackets).

    Brackets are empty where it wrote nothing.
    """
    first, count = sentinels(tokenizer)
    marks, said, now = range(first - count + 1, first + 1), dict[int, list[int]](), -1
    for number in spans:
        if number in marks:
            now = number
            said[now] = []
        elif now in said and number != tokenizer.eos:
            said[now].append(number)
    blanks, filled, run = list[str](), list[str](), list[int]()
    for number in gaps:
        if number in marks:
            text = tokenizer.decode(run)
            blanks += [text, BLANK]
            filled += [text, f"[{tokenizer.decode(said.get(number, ())).strip()}]"]
            run = []
        else:
            run.append(number)
    last = tokenizer.decode(run, skip_special=True)
    return " ".join(" ".join((*blanks, last)).split()), " ".join(" ".join((*filled, last)).split())


@dataclass(frozen=True, kw_only=True)
class DenoisedOptions:
    """What is done to a text (see ``data.objectives.denoising``), and how text is cut into rows.

    ``full``: sentences of successive documents until a row is full. ``documents``: of one document only.
    """

    permute: bool = True
    infill: float = 0.3
    mean: float = 3.0  # length of the spans that are infilled
    mask: float = 0.0
    delete: float = 0.0
    rotate: bool = False
    sentences: By = "marks"
    rows: Filled = "full"
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_probability(infill=self.infill, mask=self.mask, delete=self.delete)
        check_number(mean=self.mean)


class Denoised(PlainText):
    """Plain text is spoiled, and the decoder writes it as it was (Lewis et al., 2019)."""

    head = "lm"
    options_type = DenoisedOptions

    def objective(self, kit: RunContext) -> Denoising:
        """Cross-entropy of the whole text."""
        options: DenoisedOptions = self.options
        noise = Noise(
            mask_token=kit.token("mask"),
            permute=options.permute,
            infill=options.infill,
            mean=options.mean,
            mask=options.mask,
            delete=options.delete,
            rotate=options.rotate,
        )
        decoder = SequenceToSequence(start=kit.start, chunk=options.chunk)
        return Denoising(decoder=decoder, noise=noise, bos=kit.token("bos"), eos=kit.token("eos"))

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Text]]) -> dict[str, Dataset[Any]]:
        """Rows of sentences, which between BOS and EOS have at most ``batch.length`` tokens."""
        across = self.options.rows == "full"
        return {
            part: SentenceRows(
                (self._sentences(kit, row.text) for row in rows), self._room, across=across, source=rows.fingerprint
            )
            for part, rows in parts.items()
        }

    @property
    def _room(self) -> int:
        if self.recipe.batch.length < 3:
            raise ValueError(f"batch.length={self.recipe.batch.length} has no room for text between BOS and EOS.")
        return self.recipe.batch.length - 2

    def _sentences(self, kit: RunContext, text: str) -> list[list[int]]:
        return sentences_of(kit.tokenizer, text, self.options.sentences)

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Text]) -> list[str]:
        """Spoiled texts, what the model makes of them, and what they were."""
        objective, room, written = self.objective(kit), min(SAMPLE_TOKENS, self._room), []
        for row in rows:
            if not any(whole := self._sentences(kit, row.text)):
                continue
            sentences = SentenceRows([whole], room, across=False, source="")[0]
            batch = objective.prepare([sentences], torch.Generator().manual_seed(0))
            spoiled, right = batch.inputs["ids"][0].tolist(), torch.cat(sentences).tolist()
            found = generate_text(loaded, [spoiled], max_new_tokens=len(right) + 8)[0][0]
            lines = (readable(kit.tokenizer, ids) for ids in (spoiled, found.written.ids, right))
            written.append("{}\n  → {}\n  = {}".format(*lines))
        return written
