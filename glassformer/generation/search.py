"""Writing one token after the other: greedy search and sampling.

Every row goes on by itself: what it writes depends on its prompt, its seed and the settings, never on its neighbours.
A row that has ended leaves the batch and costs nothing more.

Shapes: ``R`` rows that are still being written, ``V`` vocabulary.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.generation.best import largest, likeliest
from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters, check_logits
from glassformer.generation.record import Alternative, Ended, GenerationOutput, Node, Record
from glassformer.generation.sampling import SeededRNG, draw, probs
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.norm import upcast

IsDone = Callable[[int, Sequence[int]], bool]  # (number of the prompt, its new tokens): whether a stop string came


@dataclass(frozen=True)
class Token:
    """A token as it is written: for which prompt, in which of its samples."""

    prompt: int
    sample: int
    token: int
    log_prob: float
    alternatives: list[Alternative]


@dataclass
class Row:
    """A text that is being written."""

    prompt: int
    sample: int
    history: list[int]  # the prompt and what is written
    room: int  # tokens that fit the model
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    alternatives: list[list[Alternative]] = field(default_factory=list)
    record: Record | None = None

    def add(self, token: Token, scored: float) -> None:
        """Write one token on; ``scored`` is what it was chosen by."""
        self.history.append(token.token)
        self.ids.append(token.token)
        self.log_probs.append(token.log_prob)
        self.alternatives.append(token.alternatives)
        if self.record is not None:
            step = len(self.ids) - 1
            self.record.add(Node(step, step - 1 if step else None, token.token, token.log_prob, scored, "kept"))

    def ended(self, settings: GenerationSettings, is_done: IsDone | None) -> Ended | None:
        """Why this text is at its end; None if it is not."""
        stops = None if is_done is None else partial(is_done, self.prompt, self.ids)
        return ending(self.ids[-1], len(self.ids), self.room, settings, stops)

    def written(self, why: Ended) -> GenerationOutput:
        """The text as it stands."""
        return GenerationOutput(self.ids, self.log_probs, sum(self.log_probs), why, self.alternatives, self.record)


def ending(
    token: int, length: int, room: int, settings: GenerationSettings, has_stopped: Callable[[], bool] | None
) -> Ended | None:
    """Why a text of this length that ends with this token is at its end; None if it is not.

    ``has_stopped``: whether a stop string came, asked only where the token itself does not end the text.
    """
    if token in settings.eos:
        return "eos"
    if has_stopped is not None and has_stopped():
        return "stop"
    if length >= settings.max_new_tokens:
        return "length"
    return "context" if length >= room else None


def write_rows(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    rooms: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
) -> Generator[Token, None, list[list[GenerationOutput]]]:
    """Write on from every prompt; yields each token as it comes and returns the texts, per prompt ``samples`` of them.

    ``rooms``: how many tokens may follow each prompt before the model's positions end.
    """
    ids, mask = rectangle(prompts, decoder.device)
    cache, logits = decoder.begin(ids, mask, min(settings.max_new_tokens, max(rooms)))
    rows = [
        Row(number, sample, list(prompt), rooms[number], record=Record() if settings.record else None)
        for number, prompt in enumerate(prompts)
        for sample in range(settings.samples)
    ]
    if settings.samples > 1:
        decoder.select(cache, [row.prompt for row in rows])
        logits = logits.repeat_interleave(settings.samples, 0)
    choose = Chooser(settings, [(row.prompt, row.sample) for row in rows], logits)
    texts: dict[tuple[int, int], GenerationOutput] = {}
    for written in range(settings.max_new_tokens):
        for row, (token, scored) in zip(rows, choose(logits, rows, written), strict=True):
            row.add(token, scored)
            yield token
        ends = [row.ended(settings, is_done) for row in rows]
        for row, why in zip(rows, ends, strict=True):
            if why is not None:
                texts[row.prompt, row.sample] = row.written(why)
        alive = [number for number, why in enumerate(ends) if why is None]
        if not alive:
            break
        if len(alive) < len(rows):
            rows = [rows[number] for number in alive]
            decoder.select(cache, alive)
        following = torch.tensor([[row.ids[-1]] for row in rows], device=decoder.device)
        logits = decoder.step(following, cache)[:, -1]
    return [[texts[number, sample] for sample in range(settings.samples)] for number in range(len(prompts))]


class Chooser:
    """Chooses the next token of every row, by the settings and each row's own random numbers."""

    def __init__(
        self, settings: GenerationSettings, who: Iterable[tuple[int, int]], logits: Float[Tensor, "R V"]
    ) -> None:
        self.settings = settings
        self.filters = Filters(settings, logits.shape[-1], logits.device)
        self.numbers = {key: number for number, key in enumerate(who)}
        streams = [(settings.seed_of(prompt), sample) for prompt, sample in self.numbers]
        self.rng = SeededRNG(streams) if settings.temperature else None

    def __call__(self, logits: Float[Tensor, "R V"], rows: Sequence[Row], written: int) -> list[tuple[Token, float]]:
        """The next token of each row, and the number it was chosen by."""
        wide = upcast(logits)
        total = wide.logsumexp(-1)
        scores = wide
        if self.filters.has_edits:
            check_logits(wide)  # or the rules would be blamed for NaN
            histories = [row.history for row in rows] if self.filters.needs_histories else []
            scores = self.filters.edit(wide, histories, written)
        chosen = self._pick(scores, rows)
        at = chosen.unsqueeze(-1)
        picked = wide.gather(-1, at).squeeze(-1)
        log_probs = (picked - total).tolist()
        if not all(abs(value) < torch.inf for value in log_probs):  # NaN compares false
            check_logits(wide)
        scored = (picked if scores is wide else scores.gather(-1, at).squeeze(-1)).tolist()
        others: list[list[Alternative]] = [[] for _ in rows]
        if self.settings.top_alternatives:  # else the whole vocabulary would be gone through for nothing
            others = alternatives(wide - total.unsqueeze(-1), self.settings.top_alternatives)
        return [
            (Token(row.prompt, row.sample, token, log_prob, other), score)
            for row, token, log_prob, other, score in zip(rows, chosen.tolist(), log_probs, others, scored, strict=True)
        ]

    def _pick(self, scores: Float[Tensor, "R V"], rows: Sequence[Row]) -> Int[Tensor, "R"]:
        if self.rng is None:
            return likeliest(scores)
        check_logits(scores)  # chances of NaN would be garbage
        rolls = self.rng.roll([self.numbers[row.prompt, row.sample] for row in rows])
        return draw(probs(self.filters.shape(scores)), rolls)


def alternatives(log_probs: Float[Tensor, "R V"], count: int) -> list[list[Alternative]]:
    """The likeliest tokens of each row."""
    if count == 0:
        return [[] for _ in range(len(log_probs))]
    values, tokens = largest(log_probs, count)
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [[Alternative(*pair) for pair in zip(ids, values, strict=True)] for ids, values in pairs]


def rectangle(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "B T"], Tensor | None]:
    """Rows padded on the left, and True at real tokens; no mask where all are equally long."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    if all(len(prompt) == width for prompt in prompts):
        return ids, None
    real = [[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return ids, torch.tensor(real, device=device)
