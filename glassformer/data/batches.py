"""Batches of token ids.

Shapes: ``N`` tokens of the corpus, ``B`` rows, ``T`` tokens per row.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Int, Integer
from torch import Tensor

from glassformer.config.checks import check_positive


def random_windows(
    tokens: Integer[Tensor, "N"], batch: int, length: int, *, seed: int
) -> Iterator[tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]]:
    """Endless pairs (inputs, targets) cut from random places of ``tokens``; targets are the inputs one token later."""
    check_positive(batch=batch, length=length)
    if tokens.numel() <= length:
        raise ValueError(
            f"a corpus of {tokens.numel()} tokens is too short for windows of {length} and their next token."
        )
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(length + 1)
    while True:
        starts = torch.randint(tokens.numel() - length, (batch, 1), generator=generator)
        windows = tokens[starts + offsets].long()  # B T+1
        yield windows[:, :-1], windows[:, 1:]
