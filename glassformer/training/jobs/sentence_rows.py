"""Documents as sentences, and rows of whole sentences."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Int, Int32
from torch import Tensor

from glassformer.text.sentences import By, cut_sentences
from glassformer.text.tokenizer import Tokenizer


def sentences_of(tokenizer: Tokenizer, text: str, by: By) -> list[list[int]]:
    """The ids of each sentence of a text, without a frame."""
    return tokenizer.encode_batch(cut_sentences(text, by), special=False, allow_special=False)


class SentenceRows:
    """Rows of whole sentences by number: as many as there is room for, in their order; a longer one is cut.

    All tokens are held in memory, four bytes each.

    Args:
        documents: the ids of the sentences of each.
        room: tokens of a row at most.
        across: a row may go on with the next document.
        source: the fingerprint of what the documents were made from.
    """

    def __init__(self, documents: Iterable[Sequence[Sequence[int]]], room: int, *, across: bool, source: str) -> None:
        pieces: list[np.ndarray] = []
        firsts, used = list[int](), room
        for sentences in documents:
            used = used if across else room  # a full row: the next sentence begins another
            for ids in (part for sentence in sentences for part in _cut(sentence, room)):
                if used + len(ids) > room:
                    firsts.append(len(pieces))
                    used = 0
                used += len(ids)
                pieces.append(ids)
        if not pieces:
            raise ValueError("there is no text to spoil; the rows are empty.")
        self._tokens = torch.from_numpy(np.concatenate(pieces))
        self._ends = np.cumsum([0, *map(len, pieces)])
        self._firsts = [*firsts, len(pieces)]
        self.lengths = np.diff(self._ends[self._firsts]) + 2
        self.fingerprint = source

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> list[Int[Tensor, "_"]]:
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self):,} rows, numbered from 0; got {number}.")
        bounds = self._ends[self._firsts[number] : self._firsts[number + 1] + 1].tolist()
        return list(torch.split(self._tokens[bounds[0] : bounds[-1]], np.diff(bounds).tolist()))


def _cut(sentence: Sequence[int], room: int) -> list[Int32[np.ndarray, "_"]]:
    """A sentence in parts that fit; one without tokens is none."""
    ids = np.asarray(sentence, dtype=np.int32)
    return [ids[start : start + room] for start in range(0, len(ids), room)]
