"""One step of decoding, the same for decoders and for encoder-decoders: token ids in, logits of the next token out.

A step runs the model's own modules with a cache; ``Decoder`` hides what they need besides (a memory, masks). A search
sees ``begin``, ``step`` and ``select``; one that compares vectors ``read``, ``hidden`` and ``answer``.

Shapes: ``B`` rows, ``T`` new tokens, ``U`` of them looked at, ``M`` tokens of the memory, ``V`` vocabulary, ``D``
width.
"""

from collections.abc import Sequence
from copy import copy

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from glassformer.models.output_heads import LMHead
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache

AHEAD = 256  # new tokens for which memory is set aside at once; few texts get as long as they may


class Decoder:
    """A model that reads on.

    Args:
        model: a decoder or an encoder-decoder with a language-model head.
        source: what an encoder-decoder is given to read.
        source_mask: True where it has a real token.
        path: of attention, ``sdpa`` or ``eager``.
        chunk: read prompts in pieces of so many tokens, which bounds the memory they need; None: in one piece.
    """

    def __init__(
        self,
        model: Transformer,
        source: Integer[Tensor, "B M"] | None = None,
        source_mask: Bool[Tensor, "B M"] | None = None,
        *,
        path: AttentionPath = "sdpa",
        chunk: int | None = None,
    ) -> None:
        check_writes(model)
        if (source is None) != (model.encoder is None):
            raise ValueError("an encoder-decoder needs a source to read, and a decoder has none.")
        self.model = model
        self.path: AttentionPath = path
        self.chunk = chunk
        self.memory_mask = source_mask
        self.memory = None if source is None else model.encode(source, source_mask, path=self.path)
        if self.memory is not None and source_mask is not None:
            self.memory = self.memory.where(source_mask.unsqueeze(-1), 0.0)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def begin(
        self, ids: Integer[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None, room: int
    ) -> tuple[KVCache, Float[Tensor, "B V"]]:
        """Read the prompts, padded on the left; return a cache with room for so many more tokens, and the logits."""
        cache, hidden = self.read(ids, mask, room)
        return cache, self.apply_head(hidden[:, -1:])[:, -1]

    def read(
        self, ids: Integer[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None, room: int, *, forgets: bool = True
    ) -> tuple[KVCache, Float[Tensor, "B T D"]]:
        """The same, but return the decoder's vectors of all tokens; a cache that is to be cropped must not forget."""
        length = ids.shape[1] + min(room, AHEAD)
        cache = KVCache(length, forgets=forgets)
        size = self.chunk or ids.shape[1]
        pieces = []
        for start in range(0, ids.shape[1], size):
            piece = slice(start, start + size)
            hidden = self.model.decode(
                ids[:, piece],
                None if mask is None else mask[:, piece],
                memory=self.memory,
                memory_mask=self.memory_mask,
                cache=cache,
                path=self.path,
            )
            pieces.append(hidden)
        return cache, pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def step(self, ids: Integer[Tensor, "B T"], cache: KVCache, tail: int = 1) -> Float[Tensor, "B U V"]:
        """Read the next tokens of every row; return the logits after the last ``tail`` of them."""
        return self.apply_head(self.hidden(ids, cache)[:, -tail:])

    def hidden(self, ids: Integer[Tensor, "B T"], cache: KVCache) -> Float[Tensor, "B T D"]:
        """Read the next tokens of every row; return the decoder's vectors."""
        return self.model.decode(ids, memory=self.memory, memory_mask=self.memory_mask, cache=cache, path=self.path)

    def apply_head(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The logits that belong to the decoder's vectors."""
        return self.model.apply_head(hidden)

    def select(self, cache: KVCache, rows: Sequence[int], memory_rows: Sequence[int] | None = None) -> None:
        """Go on with these rows alone, some perhaps more than once.

        ``memory_rows``: the memory to keep, each serving the same number of rows that follow each other; None: one for
        each of ``rows``.
        """
        chosen = self._index(rows)
        shared = chosen if memory_rows is None else self._index(memory_rows)
        cache.select(chosen, memory_rows=shared)
        if cache.memory is not None:
            self.memory, self.memory_mask = cache.memory

    def alone(self, row: int) -> "Decoder":
        """The same model for one of the rows, which is then read by itself."""
        one = copy(self)
        if self.memory is not None:
            real = slice(None) if self.memory_mask is None else self.memory_mask[row]
            one.memory, one.memory_mask = self.memory[row, real].unsqueeze(0), None
        return one

    def _index(self, rows: Sequence[int]) -> Int[Tensor, "R"]:
        return torch.tensor(list(rows), dtype=torch.long, device=self.device)


def check_writes(model: Transformer) -> None:
    """Raise unless the model has a decoder and a language-model head."""
    if model.decoder is None or not isinstance(model.head, LMHead):
        raise ValueError(
            "text is written by a model with a decoder and a language-model head; this one has "
            f"{'no decoder' if model.decoder is None else 'another head'}."
        )
