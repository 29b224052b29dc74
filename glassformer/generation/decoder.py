"""One decoding step, the same for decoders and encoder-decoders: token ids in, logits of the next token out.

A step runs the model's own modules with a cache; ``Decoder`` holds what else they need (encoder output, masks). A
search calls ``begin``, ``step`` and ``select``; a search that compares vectors calls ``prefill``, ``hidden`` and
``apply_head``.

Shapes: ``B`` rows, ``T`` new tokens, ``U`` last tokens with logits, ``M`` source tokens in ``memory`` (the encoder's
output), ``V`` vocabulary, ``D`` width.
"""

from collections.abc import Sequence
from copy import copy

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from glassformer.config.options import Decoding
from glassformer.models.output_heads import LMHead
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache

AHEAD = 256  # new tokens that the cache is allocated for at first; few texts reach their maximum length


class Decoder:
    """A model that is fed tokens step by step.

    Args:
        model: a decoder or an encoder-decoder with a language-model head.
        source: the ids for the encoder of an encoder-decoder.
        source_mask: True at real tokens of the source.
        path: the attention path, ``sdpa`` or ``eager``.
        chunk: prefill prompts in chunks of this many tokens, which bounds the memory used; None: in one.
        decoding: how steps are run, not ``auto``; see ``steps``.
    """

    def __init__(
        self,
        model: Transformer,
        source: Integer[Tensor, "B M"] | None = None,
        source_mask: Bool[Tensor, "B M"] | None = None,
        *,
        path: AttentionPath = "sdpa",
        chunk: int | None = None,
        decoding: Decoding = "dynamic",
    ) -> None:
        check_generates(model)
        if (source is None) != (model.encoder is None):
            raise ValueError("an encoder-decoder needs a source, and a decoder takes none.")
        self.model = model
        self.path: AttentionPath = path
        self.chunk = chunk
        self.decoding: Decoding = decoding
        self.memory_mask = source_mask
        self.memory = None if source is None else model.encode(source, source_mask, path=self.path)
        if self.memory is not None and source_mask is not None:
            self.memory = self.memory.where(source_mask.unsqueeze(-1), 0.0)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.model.parameters()).device

    def begin(
        self, ids: Integer[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None, max_new: int
    ) -> tuple[KVCache, Float[Tensor, "B V"]]:
        """Prefill the prompts, padded on the left; return a cache for up to ``max_new`` more tokens, and the logits."""
        cache, hidden = self.prefill(ids, mask, max_new)
        return cache, self.apply_head(hidden[:, -1:])[:, -1]

    def prefill(
        self, ids: Integer[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None, max_new: int, *, evicts: bool = True
    ) -> tuple[KVCache, Float[Tensor, "B T D"]]:
        """Like ``begin``, but return the hidden states of all tokens; a cache that will be cropped must not evict."""
        # A static cache has its own slots for what follows.
        length = ids.shape[1] + (min(max_new, AHEAD) if self.decoding == "dynamic" else 0)
        cache = KVCache(length, evicts=evicts)
        # Prefill chunk by chunk; the cache carries keys and values over. Each piece is (B, c, D), c tokens of T.
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
        """Feed the next tokens of every row; return the logits after the last ``tail`` of them."""
        return self.apply_head(self.hidden(ids, cache)[:, -tail:])

    def hidden(self, ids: Integer[Tensor, "B T"], cache: KVCache) -> Float[Tensor, "B T D"]:
        """Feed the next tokens of every row; return the decoder's hidden states."""
        return self.model.decode(ids, memory=self.memory, memory_mask=self.memory_mask, cache=cache, path=self.path)

    def apply_head(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """Return the logits of hidden states."""
        return self.model.apply_head(hidden)

    def select(self, cache: KVCache, rows: Sequence[int], memory_rows: Sequence[int] | None = None) -> None:
        """Continue with these rows only; a row may be repeated.

        ``memory_rows``: the rows of the encoder's output to keep, each shared by the same number of consecutive rows;
        None: one for each of ``rows``.
        """
        chosen = self._index(rows)
        shared = chosen if memory_rows is None else self._index(memory_rows)
        cache.select(chosen, memory_rows=shared)
        if cache.memory is not None:
            self.memory, self.memory_mask = cache.memory

    def alone(self, row: int) -> "Decoder":
        """Return a decoder for one of the rows alone."""
        single = copy(self)
        if self.memory is not None:
            real = slice(None) if self.memory_mask is None else self.memory_mask[row]
            single.memory, single.memory_mask = self.memory[row, real].unsqueeze(0), None
        return single

    def _index(self, rows: Sequence[int]) -> Int[Tensor, "R"]:
        return torch.tensor(list(rows), dtype=torch.long, device=self.device)


def check_generates(model: Transformer) -> None:
    """Raise unless the model has a decoder and a language-model head."""
    if model.decoder is None or not isinstance(model.head, LMHead):
        raise ValueError(
            "generation needs a model with a decoder and a language-model head; this one has "
            f"{'no decoder' if model.decoder is None else 'another head'}."
        )
