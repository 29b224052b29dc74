"""Speculative decoding: guess several tokens cheaply, let the model judge them all in one pass.

The text has exactly the distribution that the model alone would give it, whatever is guessed (Leviathan et al. 2023,
Chen et al. 2023): a guess x that was drawn with chance q(x) stands with chance min(1, p(x) / q(x)); the first that
falls is replaced by a draw from max(0, p − q), and if none does one more token is drawn from p. Both p and q are the
chances after all rules of the settings. At temperature 0 this means: guesses stand while they are the likeliest token.

A ``Draft`` guesses: ``drafts.ModelDraft`` with a smaller model, ``drafts.PromptLookup`` by looking where the last
tokens stood before. Rows are written one after the other, each with a cache and random numbers of its own.

Shapes: ``R`` rows, ``G`` guesses, ``V`` vocabulary.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters, check_logits
from glassformer.generation.record import GenerationOutput, Record
from glassformer.generation.sampling import SeededRNG, draw, probs
from glassformer.generation.search import IsDone, Row, Token, alternatives
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.cache import KVCache
from glassformer.nn.norm import upcast

# Tokens, and the chances (G, V) that each was drawn by; None: each was certain.
Proposal = tuple[list[int], Float[Tensor, "G V"] | None]


@dataclass
class RowStats:
    """How well the guesses of a draft went, over all texts since it was made."""

    proposed: int = 0
    accepted: int = 0  # of these, written
    passes: int = 0  # of the model over its input, that over the prompt included
    tokens: int = 0  # written


@runtime_checkable
class Draft(Protocol):
    """Guesses how a text goes on."""

    tally: RowStats

    def begin(self, settings: GenerationSettings, vocab_size: int, source: Sequence[int] | None) -> None:
        """A new text begins; ``source``: the ids that an encoder-decoder reads."""

    def propose(self, row: Row, most: int, rng: SeededRNG) -> Proposal:
        """At most ``most`` tokens to follow the row's history, drawn with numbers of ``rng.roll([0])``."""


def accept(
    p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], guesses: Int[Tensor, "R"], uniforms: Float64[Tensor, "R 2"]
) -> tuple[Bool[Tensor, "R"], Int[Tensor, "R"]]:
    """Whether each guess, drawn with the chances ``q``, stands, and the token to write, whose chances are then ``p``.

    ``uniforms``: two random numbers in [0, 1) for each row.
    """
    p, q = (wide / wide.sum(-1, keepdim=True) for wide in (p.double(), q.double()))
    wanted, given = (chance.gather(-1, guesses.unsqueeze(-1)).squeeze(-1) for chance in (p, q))
    if not bool((given > 0).all()):
        raise ValueError(f"a draft proposed {guesses[given <= 0].tolist()}, tokens to which it gives no chance itself.")
    uniforms = uniforms.to(p.device)
    stands = uniforms[:, 0] * given < wanted
    lacking = (p - q).clamp(min=0)
    # Equal chances lack nothing; a guess then falls by rounding alone, and p itself is drawn from.
    lacking = lacking.where(lacking.sum(-1, keepdim=True) > 0, p)
    return stands, guesses.where(stands, draw(lacking, uniforms[:, 1]))


def speculative_rows(
    decoder: Decoder,
    draft: Draft,
    prompts: Sequence[Sequence[int]],
    rooms: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
    sources: Sequence[Sequence[int]] | None = None,
) -> Generator[Token, None, list[list[GenerationOutput]]]:
    """Write on from every prompt; yields each token as it comes and returns the texts, per prompt ``samples`` of them.

    ``rooms``: how many tokens may follow each prompt before the model's positions end; ``sources``: what an
    encoder-decoder reads.
    """
    filters = Filters(settings, decoder.model.config.vocab, decoder.device)
    texts: list[list[GenerationOutput]] = []
    for number, prompt in enumerate(prompts):
        target, source = decoder.alone(number), None if sources is None else sources[number]
        room = min(settings.max_new_tokens, rooms[number])
        ids = torch.tensor([list(prompt)], device=decoder.device)
        cache, _ = target.read(ids, None, room, forgets=False)
        draft.tally.passes += 1
        texts.append([])
        for sample in range(settings.samples):
            draft.begin(settings, filters.vocab_size, source)
            row = Row(number, sample, list(prompt), rooms[number], record=Record() if settings.record else None)
            judge = _Judge(target, cache, filters, SeededRNG([(settings.seed_of(number), sample)]))
            texts[-1].append((yield from _write(judge, draft, row, is_done)))
    return texts


def _write(judge: "_Judge", draft: Draft, row: Row, is_done: IsDone | None) -> Generator[Token, None, GenerationOutput]:
    """One text, guess by guess; it ends within the guesses where it would have ended without."""
    settings = judge.filters.settings
    longest = min(settings.max_new_tokens, row.room)
    while True:
        most = longest - len(row.ids) - 1  # and one more token that is no guess
        guesses, q = draft.propose(row, most, judge.rng) if most else ([], None)
        _check_proposal(guesses, q, most, judge.filters.vocab_size)
        draft.tally.passes += 1
        draft.tally.proposed += len(guesses)
        for place, logits in enumerate(judge.read(row, guesses)):
            guess = guesses[place] if place < len(guesses) else None
            token, scored, stands = judge.next(logits, row, guess, None if q is None or guess is None else q[place])
            row.add(token, scored)
            draft.tally.tokens += 1
            draft.tally.accepted += stands
            yield token
            why = row.ended(settings, is_done)
            if why is not None:
                return row.written(why)
            if not stands:
                break


@dataclass
class _Judge:
    """The model whose text it is, and its cache, which holds all tokens of a text but the last."""

    decoder: Decoder
    cache: KVCache
    filters: Filters
    rng: SeededRNG

    def read(self, row: Row, guesses: Sequence[int]) -> Float[Tensor, "G1 V"]:
        """The logits after the last token and after each of the guesses that follow it."""
        self.cache.crop(len(row.history) - 1)  # what was guessed in vain is forgotten
        ids = torch.tensor([[row.history[-1], *guesses]], device=self.decoder.device)
        return self.decoder.step(ids, self.cache, tail=ids.shape[1])[0]

    def next(
        self, logits: Float[Tensor, "V"], row: Row, guess: int | None, q: Float[Tensor, "V"] | None
    ) -> tuple[Token, float, bool]:
        """The next token of a row, the number it was chosen by, and whether it is the guess.

        Rules are applied here, not to all guesses at once: what they say of a history counts only if it comes to be.
        """
        wide = upcast(logits.unsqueeze(0))
        check_logits(wide)
        has_edits = self.filters.has_edits
        scores = self.filters.edit(wide, [row.history], len(row.ids)) if has_edits else wide
        stands, token = self._choose(probs(self.filters.shape(scores)), guess, q)
        log_probs = wide - wide.logsumexp(-1, keepdim=True)
        others = alternatives(log_probs, self.filters.settings.top_alternatives)[0]
        written = Token(row.prompt, row.sample, token, float(log_probs[0, token]), others)
        return written, float(scores[0, token]), stands

    def _choose(self, p: Float[Tensor, "1 V"], guess: int | None, q: Float[Tensor, "V"] | None) -> tuple[bool, int]:
        if guess is None:
            return False, int(draw(p, self.rng.roll([0])))
        guesses = torch.tensor([guess], device=p.device)
        q = F.one_hot(guesses, p.shape[-1]).to(p.dtype) if q is None else q.unsqueeze(0).to(p.device)
        stands, token = accept(p, q, guesses, self.rng.roll([0, 0]).unsqueeze(0))
        return bool(stands), int(token)


def _check_proposal(guesses: Sequence[int], q: Tensor | None, most: int, vocab_size: int) -> None:
    if len(guesses) > most:
        raise ValueError(f"a draft proposed {len(guesses)} tokens where at most {most} have room.")
    if any(not 0 <= guess < vocab_size for guess in guesses):
        raise ValueError(f"a draft proposed {list(guesses)}, but the vocabulary has {vocab_size} tokens.")
    if q is not None and q.shape != (len(guesses), vocab_size):
        raise ValueError(
            f"a draft's chances are (guesses, vocabulary) = {(len(guesses), vocab_size)}, got {tuple(q.shape)}."
        )
