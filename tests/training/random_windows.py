"""Batches from random places of one long text: the simplest there are.

Shapes: ``N`` tokens of the corpus, ``B`` rows, ``T`` tokens per row.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Integer
from torch import Tensor

from glassformer.config.checks import check_positive_integer
from glassformer.data.batching import hashed
from glassformer.objectives.base import Batch


class RandomWindows:
    """Endless batches from random places of ``tokens``; labels are the inputs one token later.

    Every batch is drawn by its own number, so that a run can go on from any of them.
    """

    def __init__(self, tokens: Integer[Tensor, "N"], batch: int, length: int, *, seed: int) -> None:
        check_positive_integer(batch=batch, length=length)
        if tokens.numel() <= length:
            raise ValueError(
                f"a corpus of {tokens.numel()} tokens is too short for windows of {length} and their next token."
            )
        self.tokens, self.batch, self.length, self.seed = tokens, batch, length, seed
        self.number = 0  # of the next batch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Inputs ``ids`` (B, T) and labels ``next`` (B, T)."""
        generator = torch.Generator().manual_seed(hashed(self.seed, self.number))
        starts = torch.randint(self.tokens.numel() - self.length, (self.batch, 1), generator=generator)
        windows = self.tokens[starts + torch.arange(self.length + 1)].long()  # B T+1
        self.number += 1
        inputs, labels = windows[:, :-1], windows[:, 1:]
        size = inputs.numel()
        return Batch(inputs={"ids": inputs}, labels={"next": labels}, counts={"next": size}, tokens=size)

    def state(self) -> dict[str, Any]:
        """The number of the next batch."""
        return {"number": self.number}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.number = state["number"]
