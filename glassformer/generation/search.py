"""Greedy search and sampling, one token after the other.

Rows are independent: the text of a row depends on its prompt, its seed and the settings, never on the other rows. A row
that has ended leaves the batch.

Shapes: ``R`` rows that are still being generated, ``V`` vocabulary.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters, check_logits
from glassformer.generation.record import Alternative, Ended, GenerationOutput, Node, Record
from glassformer.generation.sampling import SeededRNG, draw, largest, most_probable, probs
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.norm import upcast

# (index of the prompt, its new tokens) → whether a stop string was reached
IsDone = Callable[[int, Sequence[int]], bool]


@dataclass(frozen=True)
class Token:
    """A new token of one sample of one prompt."""

    prompt: int
    sample: int
    token: int
    log_prob: float
    alternatives: list[Alternative]


@dataclass
class Row:
    """A text that is being generated."""

    prompt: int
    sample: int
    history: list[int]  # the ids of the prompt and the new tokens
    max_new: int  # new tokens that fit the model
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    alternatives: list[list[Alternative]] = field(default_factory=list)
    record: Record | None = None

    def add(self, token: Token, score: float) -> None:
        """Append a token; ``score`` is what it was chosen by."""
        self.history.append(token.token)
        self.ids.append(token.token)
        self.log_probs.append(token.log_prob)
        self.alternatives.append(token.alternatives)
        if self.record is not None:
            step = len(self.ids) - 1
            self.record.add(Node(step, step - 1 if step else None, token.token, token.log_prob, score, "kept"))

    def ended(self, settings: GenerationSettings, is_done: IsDone | None) -> Ended | None:
        """Why this text has ended; None if it has not."""
        has_stopped = None if is_done is None else partial(is_done, self.prompt, self.ids)
        return ending(self.ids[-1], len(self.ids), self.max_new, settings, has_stopped)

    def output(self, ended: Ended) -> GenerationOutput:
        """The text as it is now."""
        return GenerationOutput(self.ids, self.log_probs, sum(self.log_probs), ended, self.alternatives, self.record)


def ending(
    token: int, length: int, max_new: int, settings: GenerationSettings, has_stopped: Callable[[], bool] | None
) -> Ended | None:
    """Why a text of this length with this last token has ended; None if it has not.

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
) -> Generator[Token, None, list[list[GenerationOutput]]]:
    """Continue every prompt; yields each token as it comes and returns the outputs, ``samples`` per prompt.

    ``max_new``: how many tokens may follow each prompt before the model's positions end.
    """
    # Read the prompts, then repeat each of them for its samples.
    ids, mask = rectangle(prompts, decoder.device)  # (B, T)
    cache, logits = decoder.begin(ids, mask, min(settings.max_new_tokens, max(max_new)))  # logits (B, V)
    rows = [
        Row(number, sample, list(prompt), max_new[number], record=Record() if settings.record else None)
        for number, prompt in enumerate(prompts)
        for sample in range(settings.samples)
    ]
    if settings.samples > 1:
        decoder.select(cache, [row.prompt for row in rows])
        logits = logits.repeat_interleave(settings.samples, 0)  # (R, V)
    choose = Chooser(settings, [(row.prompt, row.sample) for row in rows], logits)
    outputs: dict[tuple[int, int], GenerationOutput] = {}
    for step in range(settings.max_new_tokens):
        # Choose the next token of every row.
        for row, (token, score) in zip(rows, choose(logits, rows, step), strict=True):
            row.add(token, score)
            yield token
        # Take out the rows that have ended.
        ends = [row.ended(settings, is_done) for row in rows]
        for row, ended in zip(rows, ends, strict=True):
            if ended is not None:
                outputs[row.prompt, row.sample] = row.output(ended)
        alive = [number for number, ended in enumerate(ends) if ended is None]
        if not alive:
            break
        if len(alive) < len(rows):
            rows = [rows[number] for number in alive]
            decoder.select(cache, alive)
        # Read the new tokens.
        last = torch.tensor([[row.ids[-1]] for row in rows], device=decoder.device)  # (R, 1)
        logits = decoder.step(last, cache)[:, -1]  # (R, V)
    return [[outputs[number, sample] for sample in range(settings.samples)] for number in range(len(prompts))]


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

    def __call__(self, logits: Float[Tensor, "R V"], rows: Sequence[Row], step: int) -> list[tuple[Token, float]]:
        """The next token of each row, and the score it was chosen by."""
        wide = upcast(logits)
        total = wide.logsumexp(-1)
        scores = wide
        if self.filters.has_edits:
            check_logits(wide)  # before the rules, whose errors would not name NaN
            histories = [row.history for row in rows] if self.filters.needs_histories else []
            scores = self.filters.edit(wide, histories, step)
        # The chosen tokens, with their log-probabilities under the model and their scores after the rules.
        chosen = self._pick(scores, rows)  # (R,)
        index = chosen.unsqueeze(-1)
        picked = wide.gather(-1, index).squeeze(-1)
        log_probs = (picked - total).tolist()
        if not all(abs(value) < torch.inf for value in log_probs):  # NaN compares false
            check_logits(wide)
        chosen_scores = (picked if scores is wide else scores.gather(-1, index).squeeze(-1)).tolist()
        others: list[list[Alternative]] = [[] for _ in rows]
        if self.settings.top_alternatives:  # a pass over the whole vocabulary
            others = alternatives(wide - total.unsqueeze(-1), self.settings.top_alternatives)
        return [
            (Token(row.prompt, row.sample, token, log_prob, other), score)
            for row, token, log_prob, other, score in zip(
                rows, chosen.tolist(), log_probs, others, chosen_scores, strict=True
            )
        ]

    def _pick(self, scores: Float[Tensor, "R V"], rows: Sequence[Row]) -> Int[Tensor, "R"]:
        if self.rng is None:
            return most_probable(scores)
        check_logits(scores)  # NaN has no probabilities
        rolls = self.rng.roll([self.numbers[row.prompt, row.sample] for row in rows])
        return draw(probs(self.filters.shape(scores)), rolls)


def alternatives(log_probs: Float[Tensor, "R V"], count: int) -> list[list[Alternative]]:
    """The most probable tokens of each row."""
    if count == 0:
        return [[] for _ in range(len(log_probs))]
    values, tokens = largest(log_probs, count)
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [[Alternative(*pair) for pair in zip(ids, values, strict=True)] for ids, values in pairs]


def rectangle(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "B T"], Tensor | None]:
    """Rows padded on the left, and a mask that is True at real tokens; None where all have the same length."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    if all(len(prompt) == width for prompt in prompts):
        return ids, None
    is_real = [[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return ids, torch.tensor(is_real, device=device)
