"""Two ways to guess how a text goes on, for ``speculative``: a smaller model, or the text itself.

Shapes: ``G`` guesses, ``V`` vocabulary.
"""

from collections.abc import Sequence
from itertools import takewhile

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config.checks import check_positive
from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters, NothingLeftError, check_logits
from glassformer.generation.sampling import SeededRNG, draw, probs
from glassformer.generation.search import Row
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.speculative import Proposal, RowStats
from glassformer.models.transformer import transformer_of
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache
from glassformer.nn.modes import evaluation_view
from glassformer.nn.norm import upcast


class ModelDraft:
    """Guesses what a smaller model would write under the same settings.

    Past the end of its own positions it guesses nothing: the text is then the same, and as slow as without it.

    Args:
        model: a decoder, or an encoder-decoder that reads the same source; its vocabulary is the target's.
        length: tokens guessed at a time.
        path: of attention, ``sdpa`` or ``eager``.
    """

    def __init__(self, model: nn.Module, length: int = 5, *, path: AttentionPath = "sdpa") -> None:
        check_positive(length=length)
        self.model, self.length, self.path = transformer_of(model), length, path
        self.tally = RowStats()
        self._cache: KVCache | None = None
        self._read: list[int] = []  # the ids whose keys and values the cache holds

    def begin(self, settings: GenerationSettings, vocab_size: int, source: Sequence[int] | None) -> None:
        """Forget the text before; with an encoder, read the source."""
        if self.model.config.vocab != vocab_size:
            raise ValueError(
                f"a draft must share the vocabulary of the model that it guesses for: it has {self.model.config.vocab} "
                f"tokens, the model {vocab_size}. Choose a draft with the same tokenizer."
            )
        if self.model.encoder is None:
            source = None
        elif source is None:
            raise ValueError("the draft is an encoder-decoder and the model a decoder, which has no source to read.")
        device = next(self.model.parameters()).device
        ids = None if source is None else torch.tensor([list(source)], device=device)
        self._decoder = Decoder(evaluation_view(self.model, detached=True), ids, path=self.path)
        self._filters = Filters(settings, vocab_size, device)
        self._cache, self._read = None, []

    def propose(self, row: Row, most: int, rng: SeededRNG) -> Proposal:
        """The next tokens, each drawn after those before it, and the chances they were drawn by."""
        longest = self.model.config.longest
        if longest is not None:
            most = min(most, longest - len(row.history) + 1)  # the last guess is not read
        if most <= 0:
            return [], None
        return self._guess(row, min(most, self.length), rng)

    def _guess(self, row: Row, most: int, rng: SeededRNG) -> Proposal:
        logits = self._catch_up(row)
        guesses: list[int] = []
        drawn_by = []
        while (q := self._chances(logits, row, guesses)) is not None:
            guesses.append(int(draw(q, rng.roll([0]))))
            drawn_by.append(q)
            if len(guesses) == most or guesses[-1] in self._filters.settings.eos:
                break
            logits = self._step(guesses[-1:])
        return guesses, torch.cat(drawn_by) if drawn_by else None

    def _catch_up(self, row: Row) -> Float[Tensor, "1 V"]:
        """Read the text as it now is; guesses that are no part of it are taken back."""
        if self._cache is None:
            ids = torch.tensor([row.history], device=self._decoder.device)
            room = min(self._filters.settings.max_new_tokens, row.room)
            self._cache, hidden = self._decoder.read(ids, None, room, forgets=False)
            self._read = list(row.history)
            return self._decoder.apply_head(hidden[:, -1:])[:, -1]
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(self._read, row.history, strict=False))))
        same = min(same, len(row.history) - 1)  # the last token is always read: what follows it is asked for
        self._cache.crop(same)
        del self._read[same:]
        return self._step(row.history[same:])

    def _step(self, ids: Sequence[int]) -> Float[Tensor, "1 V"]:
        assert self._cache is not None
        self._read += ids
        return self._decoder.step(torch.tensor([list(ids)], device=self._decoder.device), self._cache)[:, -1]

    def _chances(self, logits: Float[Tensor, "1 V"], row: Row, guesses: Sequence[int]) -> Float[Tensor, "1 V"] | None:
        """The chances after some guesses, under the rules of the settings; None where these leave no token."""
        scores = upcast(logits)
        check_logits(scores)
        if self._filters.has_edits:
            try:
                scores = self._filters.edit(scores, [[*row.history, *guesses]], len(row.ids) + len(guesses))
            except NothingLeftError:  # of a text that is but guessed; should it come to be, the target says so
                return None
        return probs(self._filters.shape(scores))


class PromptLookup:
    """Guesses that what followed the last tokens before will follow again (Saxena 2023).

    Costs next to nothing; good where a text repeats its prompt or itself, or an answer its source.

    Args:
        ngram: so many last tokens are looked for, then one fewer, and so on; the latest place counts.
        length: tokens guessed at a time.
    """

    def __init__(self, ngram: int = 3, length: int = 10) -> None:
        check_positive(ngram=ngram, length=length)
        self.ngram, self.length = ngram, length
        self.tally = RowStats()
        self._source: list[int] = []

    def begin(self, settings: GenerationSettings, vocab_size: int, source: Sequence[int] | None) -> None:
        """Take the source as a second place to look."""
        del settings, vocab_size
        self._source = list(source or [])

    def propose(self, row: Row, most: int, rng: SeededRNG) -> Proposal:
        """What followed, each token certain."""
        del rng
        most, history = min(most, self.length), row.history
        for size in range(min(self.ngram, len(history)), 0, -1):
            after = _last_end(history[:-1], history[-size:])
            if after is not None:
                return _continued(history, after, most), None
            after = _last_end(self._source[:-1], history[-size:])
            if after is not None:
                return self._source[after : after + most], None
        return [], None


def _last_end(ids: Sequence[int], run: Sequence[int]) -> int | None:
    """Where the last occurrence of ``run`` ends."""
    size = len(run)
    ends = range(len(ids), size - 1, -1)
    return next((end for end in ends if ids[end - size : end] == run), None)


def _continued(ids: Sequence[int], after: int, count: int) -> list[int]:
    """Copy on from a place; past the end the copy is copied, so that what repeats goes on repeating."""
    longer = list(ids)
    for place in range(after, after + count):
        longer.append(longer[place])
    return longer[len(ids) :]
