"""Contrastive search: likely tokens that do not say again what was said (Su et al. 2022, equation 5).

Of the k likeliest tokens v the one is written that has the largest (1 − α) · p(v) − α · max cos(h_v, h_j) over all
tokens j so far, prompt included; h is the decoder's vector before the head. With α = 0 this is greedy search.

All k candidates of a row are read at once. Their rows in the cache differ in the last slot alone, so that the choice
costs one slot moved, not a cache copied.

Shapes: ``R`` rows that are still being written, ``k`` candidates, ``S`` tokens so far, ``T`` of the prompts, ``D``
width, ``V`` vocabulary.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.generation.decoder import AHEAD, Decoder
from glassformer.generation.filters import Filters, check_logits, top_k
from glassformer.generation.record import Alternative, Ended, Fate, GenerationOutput, Node, Record
from glassformer.generation.sampling import probs
from glassformer.generation.search import IsDone, Row, Token, alternatives, rectangle
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.cache import KVCache
from glassformer.nn.norm import upcast


def contrastive_rows(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    rooms: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
) -> Generator[Token, None, list[list[GenerationOutput]]]:
    """Write on from every prompt; yields each token as it comes and returns the texts, one per prompt.

    ``rooms``: how many tokens may follow each prompt before the model's positions end.
    """
    assert settings.contrastive_alpha is not None
    ids, mask = rectangle(prompts, decoder.device)
    room = min(settings.max_new_tokens, max(rooms))
    cache, hidden = decoder.read(ids, mask, room)
    logits, past = decoder.apply_head(hidden[:, -1:])[:, -1], _Past(hidden, mask, room)
    filters = Filters(settings, logits.shape[-1], logits.device)
    count = _count(filters)
    decoder.select(cache, [row for row in range(len(prompts)) for _ in range(count)], range(len(prompts)))
    live = [_Text.begun(number, prompt, rooms[number], settings) for number, prompt in enumerate(prompts)]
    done: dict[int, GenerationOutput] = {}
    for written in range(settings.max_new_tokens):
        found = _candidates(logits, [text.row.history for text in live], written, filters)
        vectors = decoder.hidden(found.tokens.view(-1, 1), cache).view(len(live), count, -1)
        ranks = found.rank(past.likeness(vectors), settings.contrastive_alpha)
        best = ranks.argmax(-1)
        for number, (text, row_ranks, chosen) in enumerate(zip(live, ranks.tolist(), best.tolist(), strict=True)):
            yield text.add(number, found, row_ranks, chosen)
        ends = [text.row.ended(settings, is_done) for text in live]
        done |= {text.row.prompt: text.written(why) for text, why in zip(live, ends, strict=True) if why is not None}
        alive = [number for number, why in enumerate(ends) if why is None]
        if not alive:
            break
        vectors = vectors[torch.arange(len(live), device=vectors.device), best]  # (R, D)
        past.add(vectors, alive)
        _go_on(decoder, cache, best, alive, count)
        live = [live[number] for number in alive]
        logits = decoder.apply_head(vectors[alive].unsqueeze(1))[:, -1]
    return [[done[number]] for number in range(len(prompts))]


def _go_on(decoder: Decoder, cache: KVCache, best: Int[Tensor, "R"], alive: Sequence[int], count: int) -> None:
    """Let all copies of a row go on from its chosen one, and the rows that have ended leave."""
    sources = torch.arange(len(best), device=best.device) * count + best
    cache.reorder(sources.repeat_interleave(count), since=cache.length - 1)
    if len(alive) < len(best):
        decoder.select(cache, [number * count + copy for number in alive for copy in range(count)], alive)


class _Past:
    """The vectors of all tokens so far, each of length 1."""

    def __init__(self, hidden: Float[Tensor, "R T D"], mask: Bool[Tensor, "R T"] | None, room: int) -> None:
        self.length = hidden.shape[1]
        self._units = F.pad(_unit(hidden), (0, 0, 0, min(room, AHEAD)))
        self._padded = None if mask is None else ~mask

    def likeness(self, vectors: Float[Tensor, "R k D"]) -> Float[Tensor, "R k"]:
        """The largest cosine of each candidate with a real token so far."""
        cosines = _unit(vectors) @ self._units[:, : self.length].mT  # (R, k, S)
        if self._padded is not None:
            padded = F.pad(self._padded, (0, self.length - self._padded.shape[1]), value=False)
            cosines = cosines.masked_fill(padded[:, None], -torch.inf)
        return cosines.amax(-1)

    def add(self, vectors: Float[Tensor, "R D"], alive: Sequence[int]) -> None:
        """Take in the token that was written in each row, and go on with the rows ``alive``."""
        if self.length == self._units.shape[1]:
            self._units = F.pad(self._units, (0, 0, 0, self.length))
        self._units[:, self.length] = _unit(vectors)
        self.length += 1
        if len(alive) < len(self._units):
            self._units = self._units[alive]
            self._padded = None if self._padded is None else self._padded[alive]


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(upcast(vectors), dim=-1)


@dataclass(frozen=True)
class _Candidates:
    """The tokens of each row that may come next, the likeliest first."""

    tokens: Int[Tensor, "R k"]
    probs: Float[Tensor, "R k"]
    log_probs: Float[Tensor, "R k"]  # the model's own
    is_forbidden: Bool[Tensor, "R k"]  # where fewer than k are allowed
    alternatives: list[list[Alternative]]

    def rank(self, likeness: Float[Tensor, "R k"], alpha: float) -> Float[Tensor, "R k"]:
        """Likelihood weighed against likeness; a forbidden token stays one, however unlike all others it is."""
        return ((1 - alpha) * self.probs - alpha * likeness).masked_fill(self.is_forbidden, -torch.inf)


def _candidates(
    logits: Float[Tensor, "R V"], histories: Sequence[Sequence[int]], written: int, filters: Filters
) -> _Candidates:
    """The ``top_k`` likeliest tokens that the rules allow; of equals those with lower ids."""
    wide = upcast(logits)
    check_logits(wide)
    scores = filters.edit(wide, histories, written) if filters.has_edits else wide
    count = _count(filters)
    tokens = top_k(scores, count).topk(count, dim=-1).indices.sort(dim=-1).values
    # The likeliest first: where rounding makes two chances equal, the choice falls as in greedy search.
    tokens = tokens.gather(-1, scores.gather(-1, tokens).argsort(dim=-1, descending=True, stable=True))
    log_probs = wide.log_softmax(-1)
    return _Candidates(
        tokens,
        probs(scores).gather(-1, tokens),
        log_probs.gather(-1, tokens),
        scores.gather(-1, tokens) == -torch.inf,
        alternatives(log_probs, filters.settings.top_alternatives),
    )


def _count(filters: Filters) -> int:
    assert filters.settings.top_k is not None
    return min(filters.settings.top_k, filters.vocab_size)


@dataclass
class _Text:
    """A text that is being written, and the candidates looked at on the way."""

    row: Row
    record: Record | None
    node: int | None = None  # number of its last token in the record

    @classmethod
    def begun(cls, number: int, prompt: Sequence[int], room: int, settings: GenerationSettings) -> "_Text":
        """Nothing written yet."""
        return cls(Row(number, 0, list(prompt), room), Record() if settings.record else None)

    def add(self, number: int, found: _Candidates, ranks: Sequence[float], best: int) -> Token:
        """Write the ``best`` of the candidates in row ``number``."""
        tokens, log_probs = found.tokens[number].tolist(), found.log_probs[number].tolist()
        if self.record is not None:
            step, parent = len(self.row.ids), self.node
            for place, (token, log_prob, rank) in enumerate(zip(tokens, log_probs, ranks, strict=True)):
                if rank == -torch.inf:
                    continue
                fate: Fate = "kept" if place == best else "dropped"
                node = self.record.add(Node(step, parent, token, log_prob, rank, fate))
                self.node = node if place == best else self.node
        written = Token(self.row.prompt, self.row.sample, tokens[best], log_probs[best], found.alternatives[number])
        self.row.add(written, ranks[best])
        return written

    def written(self, why: Ended) -> GenerationOutput:
        """The text as it stands."""
        return replace(self.row.written(why), record=self.record)
