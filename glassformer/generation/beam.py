"""Beam search: the best continuations of a prompt, kept side by side.

The rules are those of Hugging Face, so that scores can be compared: of all continuations of the live beams the best
2 · k are considered (more, if there are several end tokens); those that end count if they are among the first k, the
best k others stay alive. A text's score is the sum of its log-probabilities, divided by length^penalty; the length
includes the end token and not the prompt. Groups of beams (Vijayakumar et al., 2016) search side by side; each is
penalised for tokens, except end tokens, that groups before it chose at the same step.

The search of each prompt is independent; when it is over, its rows leave the batch.

Shapes: ``A`` prompts whose search continues, ``k`` beams of one group, ``V`` vocabulary, ``R`` rows: A · all beams.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import Setting, SettingError
from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters, NothingLeftError, check_logits
from glassformer.generation.search import (
    Alternative,
    Ended,
    GenerationOutput,
    IsDone,
    Node,
    Record,
    Status,
    alternatives,
    ending,
    largest,
    rectangle,
)
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.norm import upcast


@dataclass(slots=True)
class Beam:
    """A partial text: its last token and the beam that it continues (None: it is the prompt)."""

    score: float
    row: int  # of its keys and values in the cache, counted within its prompt
    parent: "Beam | None" = None
    token: int = -1
    log_prob: float = 0.0
    alternatives: Sequence[Alternative] = ()
    length: int = 0
    node: int | None = None  # its index in the record
    known_ids: list[int] | None = None  # the tokens so far, computed on first use

    def path(self) -> list["Beam"]:
        """This beam and those that it continues, from the first token on."""
        beams: list[Beam] = []
        beam = self
        while beam.parent is not None:
            beams.append(beam)
            beam = beam.parent
        return beams[::-1]

    @property
    def ids(self) -> list[int]:
        """The tokens so far."""
        if self.parent is None:
            return []
        if self.known_ids is None:
            self.known_ids = [*self.parent.ids, self.token]
        return self.known_ids


class Candidate(NamedTuple):
    """A possible continuation of one of the beams by one token."""

    beam: int
    token: int
    score: float
    log_prob: float


@dataclass
class BeamGroup:
    """Beams of one prompt that compete with each other, and the texts that have ended, the best first."""

    number: int
    beams: list[Beam]
    ended: list[tuple[float, Beam, Ended]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)  # the tokens of this step, without end tokens
    is_over: bool = False


@dataclass
class Search:
    """The search for one prompt."""

    prompt: int
    history: list[int]
    max_new: int
    groups: list[BeamGroup]
    record: Record | None

    @property
    def is_over(self) -> bool:
        """Whether no better text can follow."""
        return all(group.is_over for group in self.groups)


def penalised(score: float, length: int, settings: GenerationSettings) -> float:
    """Return a sum of log-probabilities, divided by the length penalty."""
    return score / length_divisor(length, settings)


def length_divisor(length: int, settings: GenerationSettings) -> float:
    """Return what a text of this length has its score divided by."""
    base = length if settings.length_rule == "power" else (5 + length) / 6
    return float(base) ** settings.length_penalty


def beam_search(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
) -> list[list[GenerationOutput]]:
    """Return the ``top_beams`` best continuations of every prompt, the best first.

    ``max_new``: how many tokens may follow each prompt before the model's positions end.
    """
    # Read the prompts, then repeat each of them for its beams.
    ids, mask = rectangle(prompts, decoder.device)  # (B, T)
    cache, logits = decoder.begin(ids, mask, min(settings.max_new_tokens, max(max_new)))
    size = settings.beam_size
    decoder.select(cache, [row for row in range(len(prompts)) for _ in range(size)], range(len(prompts)))
    logits = logits.repeat_interleave(size, 0)  # (R, V)
    searches = [_start(number, prompt, max_new[number], settings) for number, prompt in enumerate(prompts)]
    live, since = searches, cache.length
    filters = Filters(settings, logits.shape[-1], logits.device)
    for step in range(settings.max_new_tokens):
        _advance(live, logits, filters, step, is_done)
        # Remove the prompts whose search is over.
        alive = [number for number, search in enumerate(live) if not search.is_over]
        if not alive:
            break
        if len(alive) < len(live):
            decoder.select(cache, [number * size + row for number in alive for row in range(size)], alive)
            live = [live[number] for number in alive]
        # Reorder the cache so that each row continues its parent beam, then feed the new tokens.
        beams = [beam for search in live for group in search.groups for beam in group.beams]
        sources = [number // size * size + beam.row for number, beam in enumerate(beams)]
        if sources != list(range(len(sources))):
            cache.reorder(torch.tensor(sources, device=decoder.device), since=since)
        last = [[beam.token if beam.length else 0] for beam in beams]  # (R, 1); 0 where a group ended at its first step
        logits = decoder.step(torch.tensor(last, device=decoder.device), cache)[:, -1]  # (R, V)
    return [_best(search, settings) for search in searches]


def _start(number: int, prompt: Sequence[int], max_new: int, settings: GenerationSettings) -> Search:
    """Return a search with one live beam per group: at first all beams of a prompt are identical."""
    size = settings.beam_size // settings.beam_groups
    groups = []
    for group in range(settings.beam_groups):
        rows = range(group * size, (group + 1) * size)
        groups.append(BeamGroup(group, [Beam(0.0 if i == 0 else -torch.inf, row) for i, row in enumerate(rows)]))
    return Search(number, list(prompt), max_new, groups, Record() if settings.record else None)


def _advance(
    live: Sequence[Search], logits: Float[Tensor, "R V"], filters: Filters, step: int, is_done: IsDone | None
) -> None:
    """One step of all searches, group by group: later groups depend on what earlier ones choose."""
    settings = filters.settings
    wide = upcast(logits)
    beams = settings.beam_size // settings.beam_groups
    raw = torch.log_softmax(wide.view(len(live), settings.beam_groups, beams, -1), -1)  # (A, groups, k, V)
    if bool(raw[..., 0].isnan().any()):  # then the whole row is NaN
        check_logits(wide)
    # Apply the processors to the log-probabilities.
    edited = None
    if filters.has_processors:
        rows = [(search, beam) for search in live for group in search.groups for beam in group.beams]
        histories = [[*search.history, *beam.ids] for search, beam in rows] if filters.needs_histories else []
        edited = filters.process(raw.flatten(0, 2), histories, step, check=False).view_as(raw)
    # Choose continuations group by group, each penalised for the tokens of those before it.
    chosen: list[Counter[int]] = [Counter() for _ in live]
    for group in range(settings.beam_groups):
        running = [[beam.score for beam in search.groups[group].beams] for search in live]
        before = torch.tensor(running, dtype=torch.float64, device=wide.device).unsqueeze(-1)  # (A, k, 1)
        log_probs = raw[:, group]  # (A, k, V)
        scores = log_probs if edited is None else edited[:, group]
        if settings.diversity and group:
            scores = scores - settings.diversity * _counts(chosen, scores)
        others = _alternatives(log_probs, settings.top_alternatives)
        for number, candidates in enumerate(_best_continuations(scores, before, log_probs, settings)):
            state = live[number].groups[group]
            if not state.is_over:
                _choose(live[number], state, candidates, others[number], settings, is_done)
                chosen[number].update(state.chosen)


def _best_continuations(
    scores: Float[Tensor, "A k V"],
    before: Float[Tensor, "A k 1"],
    log_probs: Float[Tensor, "A k V"],
    settings: GenerationSettings,
) -> list[list[Candidate]]:
    """Return the continuations of each prompt with the largest scores + ``before``, the best first.

    ``log_probs`` are the model's own, before processors and penalties.
    """
    beams, vocabulary = scores.shape[1:]
    keep = max(2, 1 + len(settings.eos)) * beams
    # The best tokens of each beam, then the best of all beams together.
    values, tokens = largest(scores, keep)  # (A, k, keep)
    sums = (values + before).flatten(1)  # (A, k · keep)
    best = sums.topk(min(keep, sums.shape[-1]), dim=-1)
    beam = best.indices // values.shape[-1]
    token = tokens.flatten(1).gather(-1, best.indices)
    log_prob = log_probs.flatten(1).gather(-1, beam * vocabulary + token)
    columns = [column.double() for column in (beam, token, best.values, log_prob)]
    table = torch.stack(columns, -1)  # (A, keep, 4), copied from a GPU at once
    return [[Candidate(int(row[0]), int(row[1]), *row[2:]) for row in rows] for rows in table.tolist()]


def _choose(
    search: Search,
    group: BeamGroup,
    candidates: Sequence[Candidate],
    others: Sequence[list[Alternative]],
    settings: GenerationSettings,
    is_done: IsDone | None,
) -> None:
    """Decide which continuations end, which stay alive, and whether the search of this group is over."""
    size = len(group.beams)
    length = group.beams[0].length + 1
    kept: list[Beam] = []
    group.chosen = []
    for rank, candidate in enumerate(candidates):
        if candidate.score == -torch.inf:  # forbidden, or after an unused beam
            break
        # The beam that this continuation would be, and whether it ends.
        parent = group.beams[candidate.beam]
        beam = Beam(
            candidate.score,
            group.number * size + candidate.beam,
            parent,
            candidate.token,
            candidate.log_prob,
            others[candidate.beam],
            length,
        )
        has_stopped = None if is_done is None else lambda beam=beam: is_done(search.prompt, beam.ids)
        ended = ending(beam.token, length, search.max_new, settings, has_stopped)
        # An ended text counts if it is among the first k; the best k others stay alive.
        status: Status = "dropped"
        final = None
        if ended is not None and rank < size:
            status, final = "ended", penalised(beam.score, length, settings)
            group.ended.append((final, beam, ended))
        elif ended is None and len(kept) < size:
            status = "kept"
            kept.append(beam)
        if status != "dropped" and ended != "eos":
            group.chosen.append(beam.token)
        if search.record is not None:
            beam.node = search.record.add(
                Node(length - 1, parent.node, beam.token, beam.log_prob, beam.score, status, group.number, final)
            )
    # Keep the k best ended texts; fill the group up with unused beams.
    group.ended = sorted(group.ended, key=lambda text: -text[0])[:size]
    longest = min(settings.max_new_tokens, search.max_new)
    group.is_over = _is_over(group, kept, length, longest, settings)
    if not group.is_over:
        group.beams = kept + [replace(kept[0], score=-torch.inf)] * (size - len(kept))


def _is_over(group: BeamGroup, kept: Sequence[Beam], length: int, longest: int, settings: GenerationSettings) -> bool:
    """Whether no live beam can beat the texts that ended, or there is nothing left to continue.

    The score that a live beam may reach is estimated at the current length, or with ``early_stopping="never"`` at the
    length that is best for it; only the latter is a bound. A positive bias lets scores rise, so there is no bound.
    """
    if not kept:
        return True
    if settings.early_stopping == "never" and any(bias > 0 for bias in dict(settings.logit_bias).values()):
        return False
    if len(group.ended) < len(group.beams):
        return False
    if settings.early_stopping is True:
        return True
    at_best = longest if settings.early_stopping == "never" and settings.length_penalty > 0 else length
    return penalised(kept[0].score, at_best, settings) <= group.ended[-1][0]


def _best(search: Search, settings: GenerationSettings) -> list[GenerationOutput]:
    ended = sorted((text for group in search.groups for text in group.ended), key=lambda text: -text[0])
    if not ended:
        raise NothingLeftError(
            f"no token is left to generate after {search.history}: the constraints forbid all of them."
        )
    if len(ended) < settings.top_beams:
        raise SettingError(
            f"the prompt {search.history} has only {len(ended)} possible continuations under these settings, and "
            "{} were requested; set {}, or allow more tokens.",
            Setting("top_beams", settings.top_beams),
            Setting("top_beams", len(ended)),
        )
    return [_output(score, beam, why, search.record) for score, beam, why in ended[: settings.top_beams]]


def _output(score: float, beam: Beam, why: Ended, record: Record | None) -> GenerationOutput:
    path = beam.path()
    others = [list(step.alternatives) for step in path]
    return GenerationOutput(beam.ids, [step.log_prob for step in path], score, why, others, record)


def _counts(chosen: Sequence[Counter[int]], like: Float[Tensor, "A k V"]) -> Float[Tensor, "A 1 V"]:
    """Return how often each token was chosen by earlier groups."""
    counts = torch.zeros(len(chosen), 1, like.shape[-1], dtype=like.dtype)
    for number, tokens in enumerate(chosen):
        for token, times in tokens.items():
            counts[number, 0, token] = times
    return counts.to(like.device)


def _alternatives(log_probs: Float[Tensor, "A k V"], count: int) -> list[list[list[Alternative]]]:
    """Return the most probable next tokens of every beam of every prompt."""
    if count == 0:
        return [[[]] * log_probs.shape[1]] * len(log_probs)
    return [alternatives(each, count) for each in log_probs]
