"""Contrastive search: probable tokens that are unlike the text so far (Su et al., 2022, equation 5).

Of the k most probable tokens v, the next is the one with the largest (1 − α) · p(v) − α · max cos(h_v, h_j) over all
tokens j so far, including the prompt; h is the decoder's hidden state before the head. α = 0 is greedy search.

All k candidates of a row are computed at once. Their rows in the cache differ only in the last slot, so that choosing
one moves one slot and does not copy the cache.

Shapes: ``R`` rows that are still being generated, ``k`` candidates, ``S`` tokens so far, ``T`` of the prompts, ``D``
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
from glassformer.generation.search import (
    Alternative,
    Ended,
    GenerationOutput,
    IsDone,
    NewToken,
    Node,
    Record,
    SearchRow,
    Status,
    alternatives,
    probs,
    rectangle,
)
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.cache import KVCache
from glassformer.nn.norm import upcast


def contrastive_rows(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Continue every prompt; yields each token as it comes and returns the outputs, one per prompt.

    ``max_new``: how many tokens may follow each prompt before the model's positions end.
    """
    assert settings.contrastive_alpha is not None
    # Prefill the prompts, then repeat each of them for its k candidates.
    ids, mask = rectangle(prompts, decoder.device)  # (R, T)
    longest = min(settings.max_new_tokens, max(max_new))
    cache, hidden = decoder.prefill(ids, mask, longest)  # hidden (R, T, D)
    logits, past = decoder.apply_head(hidden[:, -1:])[:, -1], _Past(hidden, mask, longest)
    filters = Filters(settings, logits.shape[-1], logits.device)
    count = _count(filters)
    decoder.select(cache, [row for row in range(len(prompts)) for _ in range(count)], range(len(prompts)))
    live = [_ContrastiveRow.start(number, prompt, max_new[number], settings) for number, prompt in enumerate(prompts)]
    outputs: dict[int, GenerationOutput] = {}
    for step in range(settings.max_new_tokens):
        # Read all candidates and rank them: probability against the largest cosine with the text so far.
        candidates = _candidates(logits, [text.row.history for text in live], step, filters)
        vectors = decoder.hidden(candidates.tokens.view(-1, 1), cache).view(len(live), count, -1)  # (R, k, D)
        ranks = candidates.rank(past.similarity(vectors), settings.contrastive_alpha)  # (R, k)
        best = ranks.argmax(-1)
        for number, (text, row_ranks, chosen) in enumerate(zip(live, ranks.tolist(), best.tolist(), strict=True)):
            yield text.add(number, candidates, row_ranks, chosen)
        # Take out the rows that have ended; the others continue from their chosen candidate.
        ends = [text.row.ended(settings, is_done) for text in live]
        outputs |= {t.row.prompt: t.output(ended) for t, ended in zip(live, ends, strict=True) if ended is not None}
        alive = [number for number, ended in enumerate(ends) if ended is None]
        if not alive:
            break
        vectors = vectors[torch.arange(len(live), device=vectors.device), best]  # (R, D)
        past.add(vectors, alive)
        _keep_chosen(decoder, cache, best, alive, count)
        live = [live[number] for number in alive]
        logits = decoder.apply_head(vectors[alive].unsqueeze(1))[:, -1]  # (R, V)
    return [[outputs[number]] for number in range(len(prompts))]


def _keep_chosen(decoder: Decoder, cache: KVCache, best: Int[Tensor, "R"], alive: Sequence[int], count: int) -> None:
    """Let all copies of a row continue from its chosen candidate, and take out the rows that have ended."""
    sources = torch.arange(len(best), device=best.device) * count + best
    cache.reorder(sources.repeat_interleave(count), since=cache.length - 1)
    if len(alive) < len(best):
        decoder.select(cache, [number * count + copy for number in alive for copy in range(count)], alive)


class _Past:
    """The hidden states of all tokens so far, each normalised to length 1."""

    def __init__(self, hidden: Float[Tensor, "R T D"], mask: Bool[Tensor, "R T"] | None, max_new: int) -> None:
        self.length = hidden.shape[1]
        self._units = F.pad(_unit(hidden), (0, 0, 0, min(max_new, AHEAD)))
        self._padded = None if mask is None else ~mask

    def similarity(self, vectors: Float[Tensor, "R k D"]) -> Float[Tensor, "R k"]:
        """Return the largest cosine of each candidate with a real token so far."""
        cosines = _unit(vectors) @ self._units[:, : self.length].mT  # (R, k, S)
        if self._padded is not None:
            padded = F.pad(self._padded, (0, self.length - self._padded.shape[1]), value=False)
            cosines = cosines.masked_fill(padded[:, None], -torch.inf)
        return cosines.amax(-1)

    def add(self, vectors: Float[Tensor, "R D"], alive: Sequence[int]) -> None:
        """Add the new token of each row, and continue with the rows ``alive``."""
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
    """The possible next tokens of each row, the most probable first."""

    tokens: Int[Tensor, "R k"]
    probs: Float[Tensor, "R k"]
    log_probs: Float[Tensor, "R k"]  # the model's own
    is_forbidden: Bool[Tensor, "R k"]  # where fewer than k are allowed
    alternatives: list[list[Alternative]]

    def rank(self, similarity: Float[Tensor, "R k"], alpha: float) -> Float[Tensor, "R k"]:
        """(1 − α) · probability − α · similarity; −inf for forbidden tokens."""
        return ((1 - alpha) * self.probs - alpha * similarity).masked_fill(self.is_forbidden, -torch.inf)


def _candidates(
    logits: Float[Tensor, "R V"], histories: Sequence[Sequence[int]], step: int, filters: Filters
) -> _Candidates:
    """Return the ``top_k`` most probable tokens that the processors allow; of equals those with lower ids."""
    wide = upcast(logits)
    check_logits(wide)
    scores = filters.process(wide, histories, step) if filters.has_processors else wide
    count = _count(filters)
    tokens = top_k(scores, count).topk(count, dim=-1).indices.sort(dim=-1).values
    # The most probable first: where rounding makes two probabilities equal, the choice is that of greedy search.
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
class _ContrastiveRow:
    """A text that is being generated, and the record of its candidates."""

    row: SearchRow
    record: Record | None
    node: int | None = None  # index of its last token in the record

    @classmethod
    def start(cls, number: int, prompt: Sequence[int], max_new: int, settings: GenerationSettings) -> "_ContrastiveRow":
        """Return a text without new tokens."""
        return cls(SearchRow(number, 0, list(prompt), max_new), Record() if settings.record else None)

    def add(self, number: int, candidates: _Candidates, ranks: Sequence[float], best: int) -> NewToken:
        """Append the candidate ``best`` of row ``number``."""
        tokens, log_probs = candidates.tokens[number].tolist(), candidates.log_probs[number].tolist()
        if self.record is not None:
            step, parent = len(self.row.ids), self.node
            for index, (token_id, log_prob, rank) in enumerate(zip(tokens, log_probs, ranks, strict=True)):
                if rank == -torch.inf:
                    continue
                status: Status = "kept" if index == best else "dropped"
                node = self.record.add(Node(step, parent, token_id, log_prob, rank, status))
                self.node = node if index == best else self.node
        others = candidates.alternatives[number]
        token = NewToken(self.row.prompt, self.row.sample, tokens[best], log_probs[best], others)
        self.row.add(token, ranks[best])
        return token

    def output(self, ended: Ended) -> GenerationOutput:
        """Return the text as it is now."""
        return replace(self.row.output(ended), record=self.record)
