"""Greedy search and sampling, one token after the other; their output, and what all searches share.

Rows are independent: the text of a row depends on its prompt, its seed and the settings, never on the other rows. A row
that has ended leaves the batch. Outputs are plain data that ``dataclasses.asdict`` turns into JSON; on request they
hold every step of the search.

Sampling has two steps so that it can be reproduced anywhere: ``SeededRNG`` gives one number per text from a stream of
that text's own, ``draw`` turns numbers and probabilities into tokens without any randomness of its own.

Shapes: ``...`` batch axes, ``B`` prompts, ``R`` rows that are still being generated, ``V`` vocabulary, ``T`` tokens,
``C`` tokens of a piece of the vocabulary, ``P`` pieces, ``n`` tokens wanted.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Literal

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from glassformer.generation import filters
from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters, check_logits
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.steps import LogitsSteps
from glassformer.nn.attention import softmax
from glassformer.nn.cache import KVCache
from glassformer.nn.kernels import step_kernels
from glassformer.nn.norm import upcast

# (index of the prompt, its new tokens) → whether a stop string was reached
IsDone = Callable[[int, Sequence[int]], bool]
PIECE = 128  # tokens of a piece of the vocabulary
# Why a text ended: an end token, a stop string, max_new_tokens, the end of the model's positions.
Ended = Literal["eos", "stop", "length", "context"]
Status = Literal["kept", "ended", "dropped"]


# --- output -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alternative:
    """A possible next token and its log-probability under the model."""

    token: int
    log_prob: float


@dataclass(frozen=True)
class Node:
    """One continuation that a search considered.

    ``parent`` is the index, in ``Record.nodes``, of the node that it continues (None: the prompt); ``score`` is what it
    was ranked by: the sum of log-probabilities so far, including penalties of processors and groups. ``final`` is the
    score of a beam that ended, divided by the length penalty.
    """

    step: int
    parent: int | None
    token: int
    log_prob: float
    score: float
    status: Status
    group: int = 0
    final: float | None = None


@dataclass
class Record:
    """All continuations that a search considered for one prompt, in the order of the steps."""

    nodes: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> int:
        """Add a node and return its index."""
        self.nodes.append(node)
        return len(self.nodes) - 1


@dataclass(frozen=True)
class GenerationOutput:
    """One generated text as tokens.

    ``log_probs`` are the model's own, before temperature, penalties and filters. ``score`` is their sum or, for a beam,
    the final score that beams are ranked by: after the processors, and divided by the length penalty.
    """

    ids: list[int]  # the new tokens, including the end token
    log_probs: list[float]
    score: float
    ended: Ended
    alternatives: list[list[Alternative]] = field(default_factory=list)  # per token, if requested
    record: Record | None = None


# --- greedy search and sampling ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewToken:
    """A new token of one sample of one prompt."""

    prompt: int
    sample: int
    token: int
    log_prob: float
    alternatives: list[Alternative]


@dataclass
class SearchRow:
    """A text that is being generated."""

    prompt: int
    sample: int
    history: list[int]  # the ids of the prompt and the new tokens
    max_new: int  # new tokens that fit the model
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    alternatives: list[list[Alternative]] = field(default_factory=list)
    record: Record | None = None

    def add(self, token: NewToken, score: float) -> None:
        """Append a token; ``score`` is what it was chosen by."""
        self.history.append(token.token)
        self.ids.append(token.token)
        self.log_probs.append(token.log_prob)
        self.alternatives.append(token.alternatives)
        if self.record is not None:
            step = len(self.ids) - 1
            self.record.add(Node(step, step - 1 if step else None, token.token, token.log_prob, score, "kept"))

    def ended(self, settings: GenerationSettings, is_done: IsDone | None) -> Ended | None:
        """Return why this text has ended; None if it has not."""
        has_stopped = None if is_done is None else partial(is_done, self.prompt, self.ids)
        return ending(self.ids[-1], len(self.ids), self.max_new, settings, has_stopped)

    def output(self, ended: Ended) -> GenerationOutput:
        """Return the text as it is now."""
        return GenerationOutput(self.ids, self.log_probs, sum(self.log_probs), ended, self.alternatives, self.record)


def ending(
    token: int, length: int, max_new: int, settings: GenerationSettings, has_stopped: Callable[[], bool] | None
) -> Ended | None:
    """Return why a text of this length with this last token has ended; None if it has not.

    ``has_stopped``: whether a stop string was reached, called only if the token itself does not end the text.
    """
    if token in settings.eos:
        return "eos"
    if has_stopped is not None and has_stopped():
        return "stop"
    if length >= settings.max_new_tokens:
        return "length"
    return "context" if length >= max_new else None


def search_rows(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Continue every prompt; yields each token as it comes and returns the outputs, ``samples`` per prompt.

    ``max_new``: how many tokens may follow each prompt before the model's positions end.
    """
    cache, logits, rows = prefill_prompts(decoder, prompts, max_new, settings)
    max_steps = min(settings.max_new_tokens, max(max_new))
    with closing(LogitsSteps(decoder, cache, logits, max_steps)) as steps:
        return (yield from _search_rows(steps, logits, rows, len(prompts), settings, is_done))


def prefill_prompts(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: Sequence[int],
    settings: GenerationSettings,
) -> tuple[KVCache, Float[Tensor, "R V"], list[SearchRow]]:
    """Prefill the prompts, then repeat each of them for its samples: the cache, the logits, and a row for each text."""
    ids, mask = rectangle(prompts, decoder.device)  # (B, T)
    cache, logits = decoder.begin(ids, mask, min(settings.max_new_tokens, max(max_new)))  # logits (B, V)
    rows = [
        SearchRow(number, sample, list(prompt), max_new[number], record=Record() if settings.record else None)
        for number, prompt in enumerate(prompts)
        for sample in range(settings.samples)
    ]
    if settings.samples > 1:
        decoder.select(cache, [row.prompt for row in rows])
        logits = logits.repeat_interleave(settings.samples, 0)  # (R, V)
    return cache, logits, rows


def _search_rows(
    steps: LogitsSteps,
    logits: Float[Tensor, "R V"],
    rows: list[SearchRow],
    prompts: int,
    settings: GenerationSettings,
    is_done: IsDone | None,
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Choose the tokens of all rows in Python, until all of them have ended."""
    choose = Chooser(settings, [(row.prompt, row.sample) for row in rows], logits)
    outputs: dict[tuple[int, int], GenerationOutput] = {}
    for step in range(settings.max_new_tokens):
        # Choose the next token of every row.
        for row, (token, score) in zip(rows, choose(logits, rows, step), strict=True):
            row.add(token, score)
            yield token
        # Remove the rows that have ended.
        ends = [row.ended(settings, is_done) for row in rows]
        for row, ended in zip(rows, ends, strict=True):
            if ended is not None:
                outputs[row.prompt, row.sample] = row.output(ended)
        alive = [number for number, ended in enumerate(ends) if ended is None]
        if not alive:
            break
        if len(alive) < len(rows):
            rows = [rows[number] for number in alive]
            steps.select(alive)
        # Feed the new tokens.
        logits = steps.step([row.ids[-1] for row in rows])  # (R, V)
    return [[outputs[number, sample] for sample in range(settings.samples)] for number in range(prompts)]


class Chooser:
    """Chooses the next token of every row, by the settings and the row's own random numbers."""

    def __init__(
        self, settings: GenerationSettings, samples: Iterable[tuple[int, int]], logits: Float[Tensor, "R V"]
    ) -> None:
        self.settings = settings
        self.filters = Filters(settings, logits.shape[-1], logits.device)
        self.numbers = {key: number for number, key in enumerate(samples)}
        streams = [(settings.seed_of(prompt), sample) for prompt, sample in self.numbers]
        self.rng = SeededRNG(streams) if settings.temperature else None

    def __call__(
        self, logits: Float[Tensor, "R V"], rows: Sequence[SearchRow], step: int
    ) -> list[tuple[NewToken, float]]:
        """Return the next token of each row, and the score it was chosen by."""
        wide = upcast(logits)  # (R, V)
        model_log_probs = torch.log_softmax(wide, -1)  # (R, V), in one pass, unlike logsumexp
        # Apply the filters to the scores.
        scores = wide
        if self.filters.has_processors:
            check_logits(wide)  # before the filters, whose errors would not name NaN
            histories = [row.history for row in rows] if self.filters.needs_histories else []
            scores = self.filters.process(wide, histories, step)
        # The chosen tokens, with their log-probabilities under the model and their scores after the filters.
        chosen = self._pick(scores, rows)  # (R,)
        index = chosen.unsqueeze(-1)
        log_probs = model_log_probs.gather(-1, index).squeeze(-1).tolist()
        if not all(abs(value) < torch.inf for value in log_probs):  # NaN compares false
            check_logits(wide)
        chosen_scores = scores.gather(-1, index).squeeze(-1).tolist()
        others: list[list[Alternative]] = [[] for _ in rows]
        if self.settings.top_alternatives:  # a pass over the whole vocabulary
            others = alternatives(model_log_probs, self.settings.top_alternatives)
        return [
            (NewToken(row.prompt, row.sample, token, log_prob, other), score)
            for row, token, log_prob, other, score in zip(
                rows, chosen.tolist(), log_probs, others, chosen_scores, strict=True
            )
        ]

    def _pick(self, scores: Float[Tensor, "R V"], rows: Sequence[SearchRow]) -> Int[Tensor, "R"]:
        if self.rng is None:
            return most_probable(scores)
        check_logits(scores)  # NaN has no probabilities
        uniforms = self.rng.uniform([self.numbers[row.prompt, row.sample] for row in rows])
        return draw(probs(self.filters.warp(scores)), uniforms)


def alternatives(log_probs: Float[Tensor, "R V"], count: int) -> list[list[Alternative]]:
    """Return the most probable tokens of each row."""
    if count == 0:
        return [[] for _ in range(len(log_probs))]
    values, tokens = largest(log_probs, count)
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [[Alternative(*pair) for pair in zip(ids, values, strict=True)] for ids, values in pairs]


def rectangle(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "B T"], Tensor | None]:
    """Return rows padded on the left, and a mask that is True at real tokens; None where all have the same length."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    if all(len(prompt) == width for prompt in prompts):
        return ids, None
    is_real = [[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return ids, torch.tensor(is_real, device=device)


# --- choosing tokens --------------------------------------------------------------------------------------------------


def probs(scores: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
    """Return probabilities of the tokens, in at least float32; a token whose score is −inf has exactly 0."""
    return softmax(upcast(scores), dim=-1)


class SeededRNG:
    """A stream of random numbers for each text, which does not depend on the rest of the batch.

    The n-th number of a stream is a hash of (seed, sample number, n). Streams are thus independent of each other
    for any seeds, however large or similar, and the same on every machine and device; a ``torch.Generator`` would use
    only the lower 32 bits of a seed.
    """

    def __init__(self, streams: Sequence[tuple[int, int]]):
        self._streams = [f"{seed} {sample}" for seed, sample in streams]
        self._used = [0] * len(self._streams)

    def uniform(self, rows: Sequence[int]) -> Float64[Tensor, "R"]:
        """Return the next number in [0, 1) of each of the streams ``rows``, on the CPU."""
        return torch.tensor([self._next(row) for row in rows], dtype=torch.float64)

    def _next(self, row: int) -> float:
        if not 0 <= row < len(self._streams):
            raise ValueError(f"there is no stream {row}; there are {len(self._streams)}, counted from 0.")
        name = f"{self._streams[row]} {self._used[row]}"
        self._used[row] += 1
        bits = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        return (bits >> 11) * 2.0**-53  # as many bits as a float64 holds, so that no number rounds up to 1


def draw(probs: Float[Tensor, "R V"], uniforms: Float64[Tensor, "R"]) -> Int[Tensor, "R"]:
    """Sample a token for each row by inverting the cumulative distribution at a number in [0, 1).

    Sums are in float64; a token of probability 0 is never sampled, not even by 0 or the largest number below 1.
    """
    if not bool(((uniforms >= 0) & (uniforms < 1)).all()):
        raise ValueError(f"sampling needs numbers of at least 0 and below 1, got {uniforms.tolist()}.")
    tokens, total = inverse_cdf(probs, uniforms.to(probs.device))
    if not bool((total > 0).all()):
        raise ValueError("a row has no token with a probability above 0, or one that is not a number.")
    return tokens


def inverse_cdf(
    probs: Float[Tensor, "R V"], uniforms: Float64[Tensor, "R"]
) -> tuple[Int[Tensor, "R"], Float64[Tensor, "R"]]:
    """Return ``draw``'s tokens and the sum of each row's probabilities, unchecked: a check would wait for a GPU."""
    # A parallel sum may change in its last bit where probabilities are 0: such steps are undone.
    ends = probs.double().cumsum(-1).masked_fill(probs == 0, 0.0).cummax(-1).values
    total = ends.amax(-1, keepdim=True)
    # The largest float64 below 1 is 1 − 2⁻⁵³, whose product with the total rounds to less than the total.
    return torch.searchsorted(ends, uniforms[:, None] * total, right=True).squeeze(-1), total.squeeze(-1)


def largest(scores: Float[Tensor, "... V"], count: int) -> tuple[Float[Tensor, "... n"], Int[Tensor, "... n"]]:
    """Return the ``count`` largest scores (all, if there are fewer) and their tokens, the largest first.

    The same as ``scores.topk``, which on a CPU sorts the whole vocabulary with one thread per row, and on a GPU passes
    over it many times. Here the vocabulary is cut into pieces; only the ``count`` pieces with the largest maxima are
    sorted, since no other can hold a result. On a GPU that pays only where launches cost nothing: in a captured step.
    """
    vocabulary = scores.shape[-1]
    pieces = vocabulary // PIECE
    if pieces <= 2 * count or not (scores.device.type == "cpu" or step_kernels.capturing(scores)):
        top = scores.topk(min(count, vocabulary), dim=-1)
        return top.values, top.indices
    whole = pieces * PIECE
    # Choose the pieces.
    cut = torch.unflatten(scores[..., :whole], -1, (pieces, PIECE))  # ... P C
    chosen = cut.amax(-1).topk(count, dim=-1).indices.unsqueeze(-1)  # ... n 1
    # Scores and tokens of the chosen pieces, and of the tokens after the last piece.
    offsets = torch.arange(PIECE, device=scores.device)
    candidates = cut.gather(-2, chosen.expand(*chosen.shape[:-1], PIECE)).flatten(-2)  # ... n·C
    tokens = (chosen * PIECE + offsets).flatten(-2)  # ... n·C
    rest = torch.arange(whole, vocabulary, device=scores.device).expand(*scores.shape[:-1], -1)
    candidates, tokens = torch.cat((candidates, scores[..., whole:]), -1), torch.cat((tokens, rest), -1)
    top = candidates.topk(count, dim=-1)
    return top.values, tokens.gather(-1, top.indices)


def most_probable(scores: Float[Tensor, "... V"]) -> Int[Tensor, "..."]:
    """Return the token with the largest score, the first of equals: ``scores.argmax``, computed as in ``largest``."""
    pieces = scores.shape[-1] // PIECE
    if pieces <= 2 or scores.device.type != "cpu":
        return scores.argmax(-1)
    whole = pieces * PIECE
    cut = torch.unflatten(scores[..., :whole], -1, (pieces, PIECE))  # ... P C
    piece = cut.amax(-1).argmax(-1, keepdim=True)  # ... 1
    inside = cut.gather(-2, piece.unsqueeze(-1).expand(*piece.shape, PIECE)).squeeze(-2)  # ... C
    index = torch.cat((inside, scores[..., whole:]), -1).argmax(-1, keepdim=True)
    return torch.where(index < PIECE, piece * PIECE + index, whole - PIECE + index).squeeze(-1)


def sample_next(
    logits: Float[Tensor, "R V"], uniforms: Float64[Tensor, "R"], *, temperature: float = 1.0, top_k: int | None = None
) -> Int[Tensor, "R"]:
    """Sample one token per row of ``logits``, by one uniform random number each.

    ``temperature`` divides the logits: below 1 the distribution becomes sharper, 0 takes the most probable token.
    ``top_k`` keeps the k most probable tokens; the others have probability exactly 0.
    """
    scores = filters.temperature(logits, temperature)
    if top_k is not None:
        scores = filters.top_k(scores, top_k)
    return draw(probs(scores), uniforms)


@torch.no_grad()
def sample_stream(
    model: Callable[[Tensor], Tensor],
    prompt: Int[Tensor, "T"],
    *,
    context_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Continue ``prompt`` without end, one token at a time; the model sees the last ``context_length`` tokens."""
    if prompt.numel() == 0:
        raise ValueError("the prompt has no tokens; a model needs at least one to continue from.")
    rng = SeededRNG([(seed, 0)])
    tokens = prompt
    while True:
        logits = model(tokens[None, -context_length:])[:, -1]
        token = sample_next(logits, rng.uniform([0]), temperature=temperature, top_k=top_k)
        tokens = torch.cat((tokens, token))[-context_length:]
        yield int(token)
