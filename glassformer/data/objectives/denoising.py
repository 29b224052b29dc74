"""Five ways to spoil a text, which the decoder writes as it was (Lewis et al., 2019, section 2.2).

Each is a function of ids; ``Noise`` applies those that are asked for, always in this order: sentences are permuted,
spans infilled, tokens masked, tokens deleted, the whole rotated. The paper's models use the first two, with 30 % of the
tokens in spans. A share of the tokens is ⌈share · tokens⌉ of them, never more or less, as in the paper's program.

Not as there: spans never run into each other, so that a share is covered exactly.

Shapes: ``T`` tokens of a text, ``S`` of what becomes of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from glassformer.config.checks import check_number, check_probability
from glassformer.data.objectives.base import Batch, Loss
from glassformer.data.objectives.draws import pick
from glassformer.data.objectives.rows import Ids, as_ids
from glassformer.data.objectives.sequence_to_sequence import SequenceToSequence, SourceTarget


def mask_tokens(ids: Int[Tensor, "T"], share: float, mask: int, generator: torch.Generator) -> Int[Tensor, "T"]:
    """Random tokens replaced by the mask token."""
    return ids.index_fill(0, _some(len(ids), share, generator), mask)


def delete_tokens(ids: Int[Tensor, "T"], share: float, generator: torch.Generator) -> Int[Tensor, "S"]:
    """Random tokens left out; the model must find where."""
    kept = torch.ones(len(ids), dtype=torch.bool).index_fill(0, _some(len(ids), share, generator), False)
    return ids[kept]


def infill_text(
    ids: Int[Tensor, "T"], share: float, mask: int, generator: torch.Generator, mean: float = 3.0
) -> Int[Tensor, "S"]:
    """Random spans, each replaced by one mask token however long it is; one of length 0 puts a mask between tokens.

    Lengths are drawn from a Poisson distribution until they cover the share; the last is cut to cover it exactly. How
    the spans and the tokens that stay follow each other is random, all orders equally likely.
    """
    lengths = _span_lengths(math.ceil(share * len(ids)), mean, generator)
    kept = len(ids) - sum(lengths)
    pieces = torch.tensor([1] * kept + lengths, dtype=torch.long)
    is_span = torch.arange(len(pieces)) >= kept
    order = torch.randperm(len(pieces), generator=generator)
    sizes, spans = pieces[order], is_span[order]
    starts = sizes.cumsum(-1) - sizes  # of each piece in the text; those of spans are not looked at
    found = torch.full((len(pieces),), mask)
    found[~spans] = ids[starts[~spans]]
    return found


def permute_sentences(sentences: Sequence[Int[Tensor, "_"]], generator: torch.Generator) -> list[Int[Tensor, "_"]]:
    """The sentences in a random order."""
    return [sentences[number] for number in torch.randperm(len(sentences), generator=generator).tolist()]


def rotate_document(ids: Int[Tensor, "T"], generator: torch.Generator) -> Int[Tensor, "T"]:
    """The text from a random token on, and after its end from the start; the model must find where it began."""
    return ids.roll(-pick(0, len(ids) - 1, generator)) if len(ids) else ids


def _some(length: int, share: float, generator: torch.Generator) -> Int[Tensor, "_"]:
    """Random places, ⌈share · length⌉ of them."""
    return torch.randperm(length, generator=generator)[: math.ceil(share * length)]


def _span_lengths(tokens: int, mean: float, generator: torch.Generator) -> list[int]:
    """Lengths of spans that cover so many tokens together."""
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
    """What is done to a text; the shares are of its tokens."""

    mask_token: int
    permute: bool = True
    infill: float = 0.3
    mean: float = 3.0  # length of the spans that are infilled
    mask: float = 0.0
    delete: float = 0.0
    rotate: bool = False

    def __post_init__(self) -> None:
        check_probability(infill=self.infill, mask=self.mask, delete=self.delete)
        check_number(mean=self.mean)

    def spoil(self, sentences: Sequence[Int[Tensor, "_"]], generator: torch.Generator) -> Int[Tensor, "S"]:
        """One text, given as its sentences, spoiled."""
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
    """Write a text as it was before the noise; the loss is that of ``decoder``."""

    decoder: SequenceToSequence
    noise: Noise
    bos: int  # before and
    eos: int  # after both texts; the noise does not touch them

    def prepare(self, examples: Sequence[Sequence[Ids]], generator: torch.Generator) -> Batch:
        """Texts as lists of sentences without a frame, spoiled anew at every call."""
        return self.decoder.prepare([self._spoil(sentences, generator) for sentences in examples], generator)

    def _spoil(self, sentences: Sequence[Ids], generator: torch.Generator) -> SourceTarget:
        rows = [as_ids(sentence) for sentence in sentences]
        if not rows:
            raise ValueError("a text without sentences has nothing to spoil; leave it out.")
        bos, eos = torch.tensor([self.bos]), torch.tensor([self.eos])
        return SourceTarget(torch.cat((bos, self.noise.spoil(rows, generator), eos)), torch.cat((bos, *rows, eos)))

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``target``."""
        return self.decoder.loss(model, batch)
