"""Denoising: five kinds of noise, from which the decoder predicts the original text (Lewis et al., 2019, section 2.2).

Each is a function of ids; ``Noise`` applies those that are switched on, in this order: permute sentences, infill spans,
mask tokens, delete tokens, rotate the document. The paper's models use the first two, with 30 % of the tokens in spans.
A share of the tokens is always ⌈share · tokens⌉ of them, as in the paper's program. Different from it, spans never
touch each other, so that a share is covered exactly.

Shapes: ``T`` tokens of a text, ``S`` tokens of its copy with noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from glassformer.config.checks import check_positive_number, check_probability
from glassformer.data.loader import Dataset
from glassformer.data.records import TextRecord
from glassformer.generation.text import generate_text
from glassformer.hub import Loaded
from glassformer.objectives.base import Batch, Ids, Loss, as_ids, pick
from glassformer.objectives.examples import PlainTextJob, SentenceRows, sentences_of
from glassformer.objectives.job import RunContext
from glassformer.objectives.masking import SAMPLE_TOKENS, RowFill, show_ids
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget
from glassformer.recipes.rows import Records
from glassformer.text.plain_text import By


def mask_tokens(ids: Int[Tensor, "T"], share: float, mask: int, generator: torch.Generator) -> Int[Tensor, "T"]:
    """Replace random tokens by the mask token."""
    return ids.index_fill(0, _random_positions(len(ids), share, generator), mask)


def delete_tokens(ids: Int[Tensor, "T"], share: float, generator: torch.Generator) -> Int[Tensor, "S"]:
    """Delete random tokens; the model must find where they were."""
    kept = torch.ones(len(ids), dtype=torch.bool).index_fill(0, _random_positions(len(ids), share, generator), False)
    return ids[kept]


def infill_text(
    ids: Int[Tensor, "T"], share: float, mask: int, generator: torch.Generator, mean: float = 3.0
) -> Int[Tensor, "S"]:
    """Replace random spans by one mask token each, however long; a span of length 0 inserts a mask token.

    Lengths are drawn from a Poisson distribution until they cover the share; the last is cut to cover it exactly. All
    orders of spans and kept tokens are equally likely.
    """
    lengths = _span_lengths(math.ceil(share * len(ids)), mean, generator)
    kept = len(ids) - sum(lengths)
    pieces = torch.tensor([1] * kept + lengths, dtype=torch.long)
    is_span = torch.arange(len(pieces)) >= kept
    order = torch.randperm(len(pieces), generator=generator)
    sizes, spans = pieces[order], is_span[order]
    starts = sizes.cumsum(-1) - sizes  # of each piece in the text
    noisy = torch.full((len(pieces),), mask)
    noisy[~spans] = ids[starts[~spans]]
    return noisy


def permute_sentences(sentences: Sequence[Int[Tensor, "_"]], generator: torch.Generator) -> list[Int[Tensor, "_"]]:
    """Return the sentences in a random order."""
    return [sentences[number] for number in torch.randperm(len(sentences), generator=generator).tolist()]


def rotate_document(ids: Int[Tensor, "T"], generator: torch.Generator) -> Int[Tensor, "T"]:
    """Rotate the text so that it begins at a random token; the model must find its beginning."""
    return ids.roll(-pick(0, len(ids) - 1, generator)) if len(ids) else ids


def _random_positions(length: int, share: float, generator: torch.Generator) -> Int[Tensor, "_"]:
    """Return ⌈share · length⌉ random positions."""
    return torch.randperm(length, generator=generator)[: math.ceil(share * length)]


def _span_lengths(tokens: int, mean: float, generator: torch.Generator) -> list[int]:
    """Return random lengths of spans that add up to ``tokens``."""
    if not tokens:
        return []
    lengths = torch.zeros(0, dtype=torch.long)
    while int(lengths.sum()) < tokens:
        more = torch.poisson(torch.full((tokens,), mean), generator=generator)
        lengths = torch.cat((lengths, more.long()))
    covered = lengths.cumsum(-1)
    needed = int((covered < tokens).sum()) + 1
    return [*lengths[: needed - 1].tolist(), tokens - int(covered[needed - 1] - lengths[needed - 1])]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise that is applied to a text; shares are of its tokens."""

    mask_token: int
    permute: bool = True
    infill: float = 0.3
    mean: float = 3.0  # length of infilled spans
    mask: float = 0.0
    delete: float = 0.0
    rotate: bool = False

    def __post_init__(self) -> None:
        check_probability(infill=self.infill, mask=self.mask, delete=self.delete)
        check_positive_number(mean=self.mean)

    def apply(self, sentences: Sequence[Int[Tensor, "_"]], generator: torch.Generator) -> Int[Tensor, "S"]:
        """Return a text, as a list of sentences, with noise."""
        ids = torch.cat(permute_sentences(sentences, generator) if self.permute else list(sentences))
        if self.infill:
            ids = infill_text(ids, self.infill, self.mask_token, generator, self.mean)
        if self.mask:
            ids = mask_tokens(ids, self.mask, self.mask_token, generator)
        if self.delete:
            ids = delete_tokens(ids, self.delete, generator)
        return rotate_document(ids, generator) if self.rotate else ids


@dataclass(frozen=True, kw_only=True)
class Denoising:
    """Predict a text from its copy with noise; the loss is that of ``decoder``."""

    decoder: SequenceToSequence
    noise: Noise
    bos: int  # before both texts; without noise
    eos: int  # after both texts; without noise

    @property
    def traceable(self) -> bool:
        """As the objective that computes the loss."""
        return self.decoder.traceable

    def prepare(self, examples: Sequence[Sequence[Ids]], generator: torch.Generator) -> Batch:
        """Return texts as lists of sentences without special tokens; noise is drawn anew at every call."""
        return self.decoder.prepare([self._corrupt(sentences, generator) for sentences in examples], generator)

    def _corrupt(self, sentences: Sequence[Ids], generator: torch.Generator) -> SourceTarget:
        rows = [as_ids(sentence) for sentence in sentences]
        if not rows:
            raise ValueError("a text without sentences has nothing to corrupt; leave it out.")
        bos, eos = torch.tensor([self.bos]), torch.tensor([self.eos])
        return SourceTarget(torch.cat((bos, self.noise.apply(rows, generator), eos)), torch.cat((bos, *rows, eos)))

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return one term, ``target``."""
        return self.decoder.loss(model, batch)


@dataclass(frozen=True, kw_only=True)
class DenoisingOptions:
    """The noise (see ``Noise``), and how text is split into rows.

    ``full``: sentences of successive documents until a row is full. ``documents``: of one document only.
    """

    permute: bool = True
    infill: float = 0.3
    mean: float = 3.0  # length of infilled spans
    mask: float = 0.0
    delete: float = 0.0
    rotate: bool = False
    sentences: By = "marks"
    rows: RowFill = "full"
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_probability(infill=self.infill, mask=self.mask, delete=self.delete)
        check_positive_number(mean=self.mean)


class DenoisingJob(PlainTextJob):
    """Plain text with noise, from which the decoder predicts the text (Lewis et al., 2019)."""

    head = "lm"
    options_type = DenoisingOptions

    def objective(self, run: RunContext) -> Denoising:
        """Return the objective: cross-entropy of the whole text."""
        options: DenoisingOptions = self.options
        noise = Noise(
            mask_token=run.token("mask"),
            permute=options.permute,
            infill=options.infill,
            mean=options.mean,
            mask=options.mask,
            delete=options.delete,
            rotate=options.rotate,
        )
        decoder = SequenceToSequence(start=run.start, chunk=options.chunk)
        return Denoising(decoder=decoder, noise=noise, bos=run.token("bos"), eos=run.token("eos"))

    def examples(self, run: RunContext, parts: Mapping[str, Records[TextRecord]]) -> dict[str, Dataset[Any]]:
        """Return rows of sentences, at most ``batch.length`` tokens with BOS and EOS."""
        across = self.options.rows == "full"
        return {
            part: SentenceRows(
                (self._sentences(run, row.text) for row in rows), self._max_text, across=across, source=rows.fingerprint
            )
            for part, rows in parts.items()
        }

    @property
    def _max_text(self) -> int:
        if self.recipe.batch.length < 3:
            raise ValueError(f"batch.length={self.recipe.batch.length} leaves no space for text between BOS and EOS.")
        return self.recipe.batch.length - 2

    def _sentences(self, run: RunContext, text: str) -> list[list[int]]:
        return sentences_of(run.tokenizer, text, self.options.sentences)

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[TextRecord]) -> list[str]:
        """Return texts with noise, the generated texts, and the originals."""
        objective, longest, shown = self.objective(run), min(SAMPLE_TOKENS, self._max_text), []
        for row in rows:
            if not any(whole := self._sentences(run, row.text)):
                continue
            sentences = SentenceRows([whole], longest, across=False, source="")[0]
            batch = objective.prepare([sentences], torch.Generator().manual_seed(0))
            noisy, original = batch.inputs["ids"][0].tolist(), torch.cat(sentences).tolist()
            output = generate_text(loaded, [noisy], max_new_tokens=len(original) + 8)[0][0]
            lines = (show_ids(run.tokenizer, ids) for ids in (noisy, output.written.ids, original))
            shown.append("{}\n  → {}\n  = {}".format(*lines))
        return shown
