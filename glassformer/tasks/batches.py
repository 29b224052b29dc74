"""Run a model on sequences of any length: sort them by length, pad, run batch by batch, restore the order.

Padding is on the right, with id 0; the mask says which tokens are real.

Shapes: ``B`` batch, ``T`` tokens, ``U`` tokens of an encoder-decoder's decoder, ``D`` model width.
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

Result = TypeVar("Result")


class Row(NamedTuple):
    """One sequence; ``target`` is for the decoder of an encoder-decoder."""

    ids: Sequence[int]
    segments: Sequence[int]
    target: Sequence[int] | None = None


@runtime_checkable
class Rows(Protocol):
    """A list of rows, or an object that makes each row on access."""

    def __len__(self) -> int:
        """The number of rows."""

    def __getitem__(self, number: int, /) -> Row:
        """One row."""


Progress = Callable[[int, int], None]


class Batch(NamedTuple):
    """Padded rows; masks are True at real tokens. ``target``: the ids that the decoder of an encoder-decoder reads."""

    numbers: tuple[int, ...]  # indices of the rows
    ids: Integer[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Integer[Tensor, "B T"] | None
    target: Integer[Tensor, "B U"] | None
    target_mask: Bool[Tensor, "B U"] | None


def run_in_batches(
    model: Transformer,
    rows: Rows,
    run: Callable[[Transformer, Batch], Sequence[Result]],
    batch_size: int,
    progress: Progress | None = None,
) -> list[Result]:
    """The result of ``run`` for each row, in the order of the rows.

    Args:
        model: in any mode; ``run`` gets it in evaluation mode.
        rows: the sequences; each is accessed twice, first for its length.
        run: takes the model and a batch, returns one result per row; called without gradients.
        batch_size: rows per batch; those of similar length together, the longest first.
        progress: called with the number of rows done and their total.
    """
    check_positive(batch_size=batch_size)
    lengths = [len(rows[number].ids) for number in range(len(rows))]
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    results: dict[int, Result] = {}
    model = evaluation_view(model)
    with torch.inference_mode():
        for first in range(0, len(order), batch_size):
            batch = _make_batch(model, rows, tuple(order[first : first + batch_size]))
            results.update(zip(batch.numbers, run(model, batch), strict=True))
            if progress is not None:
                progress(len(results), len(order))
    return [results[number] for number in range(len(lengths))]


def head_input(model: Transformer, batch: Batch) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"]]:
    """The hidden states that the head reads, and their mask.

    An encoder-decoder without a target decodes the same text, shifted right by its start token.
    """
    if model.config.encoder is None:
        return model.decode(batch.ids, batch.mask, segments=batch.segments), batch.mask
    hidden = encode(model, batch)
    if model.config.decoder is None:
        return hidden, batch.mask
    target, mask = batch.target, batch.target_mask
    if target is None or mask is None:
        start = torch.full_like(batch.ids[:, :1], start_token(model.config))
        target, mask = torch.cat((start, batch.ids[:, :-1]), -1), batch.mask
    return model.decode(target, mask, memory=hidden, memory_mask=batch.mask), mask


def encode(model: Transformer, batch: Batch) -> Float[Tensor, "B T D"]:
    """The hidden states of the encoder, or of the decoder if there is no encoder."""
    read = model.decode if model.config.encoder is None else model.encode
    return read(batch.ids, batch.mask, segments=batch.segments)


def start_token(facts: config.Model) -> int:
    """The id that an encoder-decoder's decoder begins with."""
    if facts.tokens.start is None:
        raise ValueError(
            "the facts of this encoder-decoder have no start token for its decoder; "
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
    """Rows padded on the right with 0, and their mask."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    ids = torch.tensor([[*row, *(0 for _ in range(width - len(row)))] for row in rows], dtype=torch.long)
    return ids.to(device), (torch.arange(width) < lengths[:, None]).to(device)
