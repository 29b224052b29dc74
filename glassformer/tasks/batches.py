"""The one place where sequences of many lengths become rectangles: sorted by length, padded, asked, put back in order.

Padding stands on the right, and what id it has matters to nobody: the mask says what is real.

Shapes: ``B`` batch, ``T`` tokens, ``U`` tokens of the decoder beside an encoder, ``D`` model width.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from glassformer import config
from glassformer.config.checks import check_positive
from glassformer.models.transformer import Transformer
from glassformer.nn.modes import evaluation_view

Answer = TypeVar("Answer")


class Row(NamedTuple):
    """One sequence; ``target`` is for the decoder beside an encoder."""

    ids: Sequence[int]
    segments: Sequence[int]
    target: Sequence[int] | None = None


@runtime_checkable
class Rows(Protocol):
    """A list of rows, or what makes them when they are asked for."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int, /) -> Row:
        """One of them."""


Progress = Callable[[int, int], None]


class Batch(NamedTuple):
    """Rows as rectangles; in the masks True is a real token. ``target`` is what the decoder beside an encoder gets."""

    numbers: tuple[int, ...]  # which rows these are
    ids: Integer[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Integer[Tensor, "B T"] | None
    target: Integer[Tensor, "B U"] | None
    target_mask: Bool[Tensor, "B U"] | None


def ask_in_batches(
    model: Transformer,
    rows: Rows,
    ask: Callable[[Transformer, Batch], Sequence[Answer]],
    batch_size: int,
    progress: Progress | None = None,
) -> list[Answer]:
    """What ``ask`` gives for each row, in the order of the rows.

    Args:
        model: in whatever mode; ``ask`` gets it in evaluation mode.
        rows: what to ask about; looked up one by one, a first time for their lengths.
        ask: the model and a batch in, one answer per row out; runs without gradients.
        batch_size: rows at a time; those of about the same length come together, the longest first.
        progress: called with how many rows are done, and of how many.
    """
    check_positive(batch_size=batch_size)
    lengths = [len(rows[number].ids) for number in range(len(rows))]
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    found: dict[int, Answer] = {}
    model = evaluation_view(model)
    with torch.inference_mode():
        for first in range(0, len(order), batch_size):
            batch = _make_batch(model, rows, tuple(order[first : first + batch_size]))
            found.update(zip(batch.numbers, ask(model, batch), strict=True))
            if progress is not None:
                progress(len(found), len(order))
    return [found[number] for number in range(len(lengths))]


def vectors(model: Transformer, batch: Batch) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"]]:
    """The vectors that the head reads, and which of them are real.

    Where an encoder-decoder reads one text alone, its decoder gets the same text, shifted by its start token.
    """
    if model.config.encoder is None:
        return model.decode(batch.ids, batch.mask, segments=batch.segments), batch.mask
    hidden = encoded(model, batch)
    if model.config.decoder is None:
        return hidden, batch.mask
    target, mask = batch.target, batch.target_mask
    if target is None or mask is None:
        start = torch.full_like(batch.ids[:, :1], start_token(model.config))
        target, mask = torch.cat((start, batch.ids[:, :-1]), -1), batch.mask
    return model.decode(target, mask, memory=hidden, memory_mask=batch.mask), mask


def encoded(model: Transformer, batch: Batch) -> Float[Tensor, "B T D"]:
    """The encoder's vectors, or those of the only decoder."""
    read = model.decode if model.config.encoder is None else model.encode
    return read(batch.ids, batch.mask, segments=batch.segments)


def start_token(facts: config.Model) -> int:
    """The id that a decoder beside an encoder begins with."""
    if facts.tokens.start is None:
        raise ValueError(
            "the facts of this encoder-decoder do not say which token its decoder starts with; "
            "set tokens.start with glassformer.config.change."
        )
    return facts.tokens.start


def _make_batch(model: Transformer, rows: Rows, numbers: tuple[int, ...]) -> Batch:
    chosen = [rows[number] for number in numbers]
    device = next(model.parameters()).device
    ids, mask = _rectangle([row.ids for row in chosen], device)
    segments = None
    if model.config.embed.segments:
        segments, _ = _rectangle([row.segments for row in chosen], device)
    targets = [row.target for row in chosen if row.target is not None]
    target, target_mask = _rectangle(targets, device) if targets else (None, None)
    return Batch(numbers, ids, mask, segments, target, target_mask)


def _rectangle(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Integer[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Rows padded on the right with 0, and which slots are real."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    ids = torch.tensor([[*row, *(0 for _ in range(width - len(row)))] for row in rows], dtype=torch.long)
    return ids.to(device), (torch.arange(width) < lengths[:, None]).to(device)
