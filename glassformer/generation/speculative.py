"""Speculative decoding: propose several tokens cheaply, and let the model verify all of them in one pass.

The text has exactly the distribution that the model alone would give it, whatever is proposed (Leviathan et al. 2023,
Chen et al. 2023): a draft token x that was sampled with probability q(x) is accepted with probability
min(1, p(x) / q(x)); the first that is rejected is replaced by a sample from max(0, p − q), and if all are accepted one
more token is sampled from p. Both p and q are the probabilities after all filters. At temperature 0 this
means: draft tokens are accepted while they are the most probable token.

A ``Draft`` proposes: ``ModelDraft`` with a smaller model, ``PromptLookup`` by finding the last tokens earlier in the
text. Rows are generated one after the other, each with a cache and random numbers of its own.

Shapes: ``R`` rows, ``G`` draft tokens, ``V`` vocabulary.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from glassformer.config.checks import check_positive_integer
from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters, NothingLeftError, check_logits
from glassformer.generation.search import (
    GenerationOutput,
    IsDone,
    NewToken,
    Record,
    SearchRow,
    SeededRNG,
    alternatives,
    draw,
    probs,
)
from glassformer.generation.settings import GenerationSettings
from glassformer.models.transformer import transformer_of
from glassformer.nn.attention import AttentionPath
from glassformer.nn.cache import KVCache
from glassformer.nn.modes import evaluation_view
from glassformer.nn.norm import upcast

# Draft tokens, and the probabilities (G, V) that each was sampled from; None: each was certain.
Proposal = tuple[list[int], Float[Tensor, "G V"] | None]


@dataclass
class DraftStats:
    """How many tokens of a draft were accepted, over all texts since it was made."""

    proposed: int = 0
    accepted: int = 0
    passes: int = 0  # of the model, including that over the prompt
    tokens: int = 0  # generated


@runtime_checkable
class Draft(Protocol):
    """Proposes how a text continues."""

    stats: DraftStats

    def begin(self, settings: GenerationSettings, vocab_size: int, source: Sequence[int] | None) -> None:
        """Start a new text; ``source``: the ids for the encoder of an encoder-decoder."""

    def propose(self, row: SearchRow, max_new: int, rng: SeededRNG) -> Proposal:
        """At most ``max_new`` tokens to follow the row's history, sampled with numbers of ``rng.uniform([0])``."""


def accept(
    p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], draft: Int[Tensor, "R"], uniforms: Float64[Tensor, "R 2"]
) -> tuple[Bool[Tensor, "R"], Int[Tensor, "R"]]:
    """Whether each draft token, sampled from ``q``, is accepted, and the next token, whose distribution is then ``p``.

    ``uniforms``: two random numbers in [0, 1) for each row.
    """
    p, q = (wide / wide.sum(-1, keepdim=True) for wide in (p.double(), q.double()))
    p_draft, q_draft = (probability.gather(-1, draft.unsqueeze(-1)).squeeze(-1) for probability in (p, q))  # R
    if not bool((q_draft > 0).all()):
        raise ValueError(f"a draft proposed {draft[q_draft <= 0].tolist()}, tokens whose probability in q is 0.")
    uniforms = uniforms.to(p.device)
    # Accept with probability min(1, p / q).
    is_accepted = uniforms[:, 0] * q_draft < p_draft
    # Otherwise sample from max(0, p − q). Where p = q it is 0: a rejection is then due to rounding, and p is sampled.
    residual = (p - q).clamp(min=0)
    residual = residual.where(residual.sum(-1, keepdim=True) > 0, p)
    return is_accepted, draft.where(is_accepted, draw(residual, uniforms[:, 1]))


def speculative_rows(
    decoder: Decoder,
    draft: Draft,
    prompts: Sequence[Sequence[int]],
    max_new: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
    sources: Sequence[Sequence[int]] | None = None,
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Continue every prompt; yields each token as it comes and returns the outputs, ``samples`` per prompt.

    ``max_new``: how many tokens may follow each prompt before the model's positions end; ``sources``: the ids for
    the encoder of an encoder-decoder.
    """
    filters = Filters(settings, decoder.model.config.vocab, decoder.device)
    outputs: list[list[GenerationOutput]] = []
    for number, prompt in enumerate(prompts):
        # Prefill the prompt once; all samples share its cache.
        target, source = decoder.alone(number), None if sources is None else sources[number]
        ids = torch.tensor([list(prompt)], device=decoder.device)  # (1, T)
        cache, _ = target.prefill(ids, None, min(settings.max_new_tokens, max_new[number]), evicts=False)
        draft.stats.passes += 1
        outputs.append([])
        for sample in range(settings.samples):
            draft.begin(settings, filters.vocab_size, source)
            row = SearchRow(number, sample, list(prompt), max_new[number], record=Record() if settings.record else None)
            verifier = _Verifier(target, cache, filters, SeededRNG([(settings.seed_of(number), sample)]))
            outputs[-1].append((yield from _generate_row(verifier, draft, row, is_done)))
    return outputs


def _generate_row(
    verifier: "_Verifier", draft: Draft, row: SearchRow, is_done: IsDone | None
) -> Generator[NewToken, None, GenerationOutput]:
    """Yield one text, proposal by proposal; it ends within a proposal where it would have ended without one."""
    settings = verifier.filters.settings
    longest = min(settings.max_new_tokens, row.max_new)
    while True:
        # Propose; one more token follows the accepted ones.
        max_new = longest - len(row.ids) - 1
        tokens, q = draft.propose(row, max_new, verifier.rng) if max_new else ([], None)
        _check_proposal(tokens, q, max_new, verifier.filters.vocab_size)
        draft.stats.passes += 1
        draft.stats.proposed += len(tokens)
        # Verify in one pass over all draft tokens, up to the first that is rejected.
        for index, logits in enumerate(verifier.feed(row, tokens)):
            proposed = tokens[index] if index < len(tokens) else None
            proposed_q = None if q is None or proposed is None else q[index]
            token, score, is_accepted = verifier.next(logits, row, proposed, proposed_q)
            row.add(token, score)
            draft.stats.tokens += 1
            draft.stats.accepted += is_accepted
            yield token
            ended = row.ended(settings, is_done)
            if ended is not None:
                return row.output(ended)
            if not is_accepted:
                break


@dataclass
class _Verifier:
    """The model that generates, and its cache, which holds all tokens of a text but the last."""

    decoder: Decoder
    cache: KVCache
    filters: Filters
    rng: SeededRNG

    def feed(self, row: SearchRow, draft: Sequence[int]) -> Float[Tensor, "G1 V"]:
        """Return the logits after the last token and after each draft token that follows it."""
        self.cache.crop(len(row.history) - 1)  # rejected tokens leave the cache
        ids = torch.tensor([[row.history[-1], *draft]], device=self.decoder.device)  # (1, 1 + G)
        return self.decoder.step(ids, self.cache, tail=ids.shape[1])[0]

    def next(
        self, logits: Float[Tensor, "V"], row: SearchRow, draft: int | None, q: Float[Tensor, "V"] | None
    ) -> tuple[NewToken, float, bool]:
        """Return the next token of a row, the score it was chosen by, and whether it is the draft token.

        Rules are applied here, not to all draft tokens at once, since they depend on the accepted history.
        """
        wide = upcast(logits.unsqueeze(0))  # (1, V)
        check_logits(wide)
        has_processors = self.filters.has_processors
        scores = self.filters.process(wide, [row.history], len(row.ids)) if has_processors else wide
        is_accepted, token = self._choose(probs(self.filters.warp(scores)), draft, q)
        log_probs = wide - wide.logsumexp(-1, keepdim=True)
        others = alternatives(log_probs, self.filters.settings.top_alternatives)[0]
        result = NewToken(row.prompt, row.sample, token, float(log_probs[0, token]), others)
        return result, float(scores[0, token]), is_accepted

    def _choose(self, p: Float[Tensor, "1 V"], draft: int | None, q: Float[Tensor, "V"] | None) -> tuple[bool, int]:
        if draft is None:
            return False, int(draw(p, self.rng.uniform([0])))
        drafts = torch.tensor([draft], device=p.device)
        q = F.one_hot(drafts, p.shape[-1]).to(p.dtype) if q is None else q.unsqueeze(0).to(p.device)
        is_accepted, token = accept(p, q, drafts, self.rng.uniform([0, 0]).unsqueeze(0))
        return bool(is_accepted), int(token)


def _check_proposal(tokens: Sequence[int], q: Tensor | None, max_new: int, vocab_size: int) -> None:
    if len(tokens) > max_new:
        raise ValueError(f"a draft proposed {len(tokens)} tokens where at most {max_new} fit.")
    if any(not 0 <= token < vocab_size for token in tokens):
        raise ValueError(f"a draft proposed {list(tokens)}, but the vocabulary has {vocab_size} tokens.")
    if q is not None and q.shape != (len(tokens), vocab_size):
        raise ValueError(
            f"a draft's probabilities are (tokens, vocabulary) = {(len(tokens), vocab_size)}, got {tuple(q.shape)}."
        )


# --- drafts ----------------------------------------------------------------------------------------------------------


class ModelDraft:
    """Proposes what a smaller model generates under the same settings.

    Past the end of its own positions it proposes nothing: the text is then the same, and as slow as without it.

    Args:
        model: a decoder, or an encoder-decoder for the same source, with the same vocabulary.
        length: tokens proposed at a time.
        path: of attention, ``sdpa`` or ``eager``.
    """

    def __init__(self, model: nn.Module, length: int = 5, *, path: AttentionPath = "sdpa") -> None:
        check_positive_integer(length=length)
        self.model, self.length, self.path = transformer_of(model), length, path
        self.stats = DraftStats()
        self._cache: KVCache | None = None
        self._cached: list[int] = []  # the ids whose keys and values the cache holds

    def begin(self, settings: GenerationSettings, vocab_size: int, source: Sequence[int] | None) -> None:
        """Forget the previous text; with an encoder, encode the source."""
        if self.model.config.vocab != vocab_size:
            raise ValueError(
                f"a draft must share the vocabulary of the model: it has {self.model.config.vocab} "
                f"tokens, the model {vocab_size}. Choose a draft with the same tokenizer."
            )
        if self.model.encoder is None:
            source = None
        elif source is None:
            raise ValueError("the draft is an encoder-decoder and the model a decoder, which has no source to encode.")
        device = next(self.model.parameters()).device
        ids = None if source is None else torch.tensor([list(source)], device=device)
        self._decoder = Decoder(evaluation_view(self.model, detached=True), ids, path=self.path)
        self._filters = Filters(settings, vocab_size, device)
        self._cache, self._cached = None, []

    def propose(self, row: SearchRow, max_new: int, rng: SeededRNG) -> Proposal:
        """Return the next tokens, each sampled after those before it, and the probabilities they were sampled from."""
        max_length = self.model.config.max_length
        if max_length is not None:
            max_new = min(max_new, max_length - len(row.history) + 1)  # the last draft token is not fed
        if max_new <= 0:
            return [], None
        return self._sample(row, min(max_new, self.length), rng)

    def _sample(self, row: SearchRow, max_new: int, rng: SeededRNG) -> Proposal:
        # Sample until the draft is full, ends, or the processors leave no token.
        logits = self._catch_up(row)
        draft: list[int] = []
        q_of_each = []
        while (q := self._probs(logits, row, draft)) is not None:
            draft.append(int(draw(q, rng.uniform([0]))))
            q_of_each.append(q)
            if len(draft) == max_new or draft[-1] in self._filters.settings.eos:
                break
            logits = self._step(draft[-1:])
        return draft, torch.cat(q_of_each) if q_of_each else None

    def _catch_up(self, row: SearchRow) -> Float[Tensor, "1 V"]:
        """Feed the text as it now is, after removing rejected tokens from the cache."""
        if self._cache is None:
            ids = torch.tensor([row.history], device=self._decoder.device)
            max_new = min(self._filters.settings.max_new_tokens, row.max_new)
            self._cache, hidden = self._decoder.prefill(ids, None, max_new, evicts=False)
            self._cached = list(row.history)
            return self._decoder.apply_head(hidden[:, -1:])[:, -1]
        # Keep the part of the cache that still agrees with the text, and feed the rest.
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(self._cached, row.history, strict=False))))
        same = min(same, len(row.history) - 1)  # the last token is always fed, for its logits
        self._cache.crop(same)
        del self._cached[same:]
        return self._step(row.history[same:])

    def _step(self, ids: Sequence[int]) -> Float[Tensor, "1 V"]:
        assert self._cache is not None
        self._cached += ids
        return self._decoder.step(torch.tensor([list(ids)], device=self._decoder.device), self._cache)[:, -1]

    def _probs(self, logits: Float[Tensor, "1 V"], row: SearchRow, draft: Sequence[int]) -> Float[Tensor, "1 V"] | None:
        """Return the probabilities after some draft tokens, after all filters.

        None if these leave no token.
        """
        scores = upcast(logits)
        check_logits(scores)
        if self._filters.has_processors:
            try:
                scores = self._filters.process(scores, [[*row.history, *draft]], len(row.ids) + len(draft))
            except NothingLeftError:  # the draft may be rejected; if it is accepted, the model raises this error
                return None
        return probs(self._filters.warp(scores))


class PromptLookup:
    """Proposes what followed the last tokens earlier in the text (Saxena 2023).

    Costs almost nothing; useful where a text repeats its prompt or itself, or an output its source.

    Args:
        ngram: how many last tokens to find, then one fewer, and so on; the latest occurrence counts.
        length: tokens proposed at a time.
    """

    def __init__(self, ngram: int = 3, length: int = 10) -> None:
        check_positive_integer(ngram=ngram, length=length)
        self.ngram, self.length = ngram, length
        self.stats = DraftStats()
        self._source: list[int] = []

    def begin(self, settings: GenerationSettings, vocab_size: int, source: Sequence[int] | None) -> None:
        """Also search the source."""
        del settings, vocab_size
        self._source = list(source or [])

    def propose(self, row: SearchRow, max_new: int, rng: SeededRNG) -> Proposal:
        """Return the tokens that followed, each certain."""
        del rng
        max_new, history = min(max_new, self.length), row.history
        for size in range(min(self.ngram, len(history)), 0, -1):
            after = _last_end(history[:-1], history[-size:])
            if after is not None:
                return _continued(history, after, max_new), None
            after = _last_end(self._source[:-1], history[-size:])
            if after is not None:
                return self._source[after : after + max_new], None
        return [], None


def _last_end(ids: Sequence[int], run: Sequence[int]) -> int | None:
    """Return the index after the last occurrence of ``run``."""
    size = len(run)
    ends = range(len(ids), size - 1, -1)
    return next((end for end in ends if ids[end - size : end] == run), None)


def _continued(ids: Sequence[int], after: int, count: int) -> list[int]:
    """Copy ``count`` ids from ``after`` on; past the end the copy itself is copied, so that a repetition continues."""
    longer = list(ids)
    for index in range(after, after + count):
        longer.append(longer[index])
    return longer[len(ids) :]
