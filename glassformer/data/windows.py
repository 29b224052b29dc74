"""Windows over one long text: every stretch of so many tokens, or stretches one after the other.

Shapes: ``N`` tokens of the text, ``n`` of a window.
"""

import hashlib

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from glassformer.config.checks import check_positive


class Windows:
    """Windows by number, cut when they are asked for: number i starts at token i · ``stride``.

    A window has ``length`` tokens and the one after them, so that each of its tokens has a next one. With
    ``stride=length`` they follow each other and every token but the first is the next one exactly once; the last window
    is what is left. ``fingerprint`` is a SHA-256 of what the windows are.

    Args:
        tokens: the text as ids; may lie on disk.
        length: tokens of a window.
        stride: from one window's start to the next one's.
        source: a SHA-256 of the tokens, if somebody knows it; else it is computed.
    """

    def __init__(
        self, tokens: Integer[np.ndarray, "N"], length: int, *, stride: int = 1, source: str | None = None
    ) -> None:
        check_positive(length=length, stride=stride)
        if len(tokens) < 2:
            raise ValueError(f"a text of {len(tokens)} tokens has no next token to learn; give a longer one.")
        self._tokens, self._length, self._stride = tokens, length, stride
        self._count = max(1, -(-(len(tokens) - 1 - length) // stride) + 1)
        source = source or hashlib.sha256(np.ascontiguousarray(tokens).tobytes()).hexdigest()
        facts = f"windows {source} {len(tokens)} {length} {stride}"
        self.fingerprint = hashlib.sha256(facts.encode()).hexdigest()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Int[Tensor, "n"]:
        if not 0 <= number < self._count:
            raise IndexError(f"there are {self._count:,} windows, numbered from 0; got {number}.")
        start = number * self._stride
        return torch.from_numpy(self._tokens[start : start + self._length + 1].astype(np.int64))
