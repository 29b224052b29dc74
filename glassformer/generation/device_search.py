"""Greedy search and sampling with the choice of tokens on the device; the same texts as ``search.search_rows``.

A step feeds the last tokens, chooses the next ones and stores what Python fetches: token, log-probability, and the
largest logit, which shows NaN and infinities. Python launches the next step before it fetches the results of the last
one, so that the device never waits. Random numbers come from each text's own stream, uploaded ahead of the steps.

Shapes: ``R`` rows, ``V`` vocabulary, ``N`` numbers computed ahead.
"""

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import WARPERS, Filters, active_processors, check_logits
from glassformer.generation.search import (
    GenerationOutput,
    NewToken,
    SearchRow,
    SeededRNG,
    inverse_cdf,
    most_probable,
    prefill_prompts,
    probs,
)
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.steps import StepRunner, StepState
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.norm import upcast

IN_FLIGHT = 2  # steps that are launched before the results of the oldest of them are fetched
UNIFORMS = 64  # random numbers per row that are uploaded at a time


def chooses_on_device(settings: GenerationSettings) -> bool:
    """Whether the device alone can choose the tokens: no processors, nothing to report besides the text."""
    return not active_processors(settings) and not settings.record and not settings.top_alternatives


class ChoiceState(StepState):
    """A step that ends with the next token of every row."""

    def __init__(self, decoder: Decoder, cache: KVCache, rows: int, capacity: int, filters: Filters) -> None:
        super().__init__(decoder, cache, rows, capacity)
        self.filters = filters
        self.samples = filters.settings.temperature > 0
        device = decoder.device
        self.uniforms = torch.zeros(rows, UNIFORMS, dtype=torch.float64, device=device)
        self.used = torch.zeros(1, dtype=torch.long, device=device)  # how many of ``uniforms`` are used up
        self.results = torch.zeros(rows, 3, dtype=torch.float64, device=device)  # token, log-probability, largest logit

    def grow_from(self, smaller: StepState) -> None:
        """Continue from a state with fewer slots."""
        assert isinstance(smaller, ChoiceState)
        super().grow_from(smaller)
        self.uniforms.copy_(smaller.uniforms)
        self.used.copy_(smaller.used)

    def set_uniforms(self, rng: SeededRNG, count: int) -> None:
        """Upload the next numbers of every row's stream, ``count`` or as many as there is room for."""
        rows = range(self.rows)
        numbers = torch.stack([rng.uniform(rows) for _ in range(min(count, UNIFORMS))], dim=1)  # R N
        numbers = numbers.pin_memory() if self.uniforms.is_cuda else numbers
        self.uniforms[:, : numbers.shape[1]].copy_(numbers, non_blocking=True)
        self.used.zero_()

    def choose(self, logits: Float[Tensor, "R V"]) -> None:
        """Choose the next token of every row."""
        wide = upcast(logits)
        log_probs = torch.log_softmax(wide, -1)
        if self.samples:
            numbers = self.uniforms.index_select(1, self.used).squeeze(1)
            # For a row of NaN the index is out of range; ``check_logits`` reports it when the results are fetched.
            chosen = inverse_cdf(probs(self.filters.warp(wide)), numbers)[0].clamp(max=wide.shape[-1] - 1)
            self.used += 1
        else:
            chosen = most_probable(wide)
        index = chosen.unsqueeze(-1)  # R 1
        self.tokens.copy_(index)
        columns = (index.double(), log_probs.gather(-1, index).double(), wide.amax(-1, keepdim=True).double())
        self.results.copy_(torch.cat(columns, -1))

    def step(self, model: Transformer) -> None:
        """Feed the last token of every row and choose the next."""
        self.choose(self.feed(model))


class Pending:
    """A copy of results that is on its way from the device."""

    def __init__(self, results: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if results.is_cuda:
            self._copy = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
            self._copy.copy_(results, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(results.device))  # which need not be the current device
        else:
            self._copy = results.clone()

    def get(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


def device_rows(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: Sequence[int],
    settings: GenerationSettings,
) -> Generator[NewToken, None, list[list[GenerationOutput]]]:
    """Continue every prompt; yields each token as it comes and returns the outputs, ``samples`` per prompt."""
    cache, logits, rows = prefill_prompts(decoder, prompts, max_new, settings)
    filters = Filters(settings, logits.shape[-1], logits.device)
    rng = None
    if settings.temperature:
        rng = SeededRNG([(settings.seed_of(row.prompt), row.sample) for row in rows])
    # Searches of the same kind share captured steps, so the kind contains every setting that a step depends on.
    kind = ("choice", len(rows), logits.dtype, *(getattr(settings, name) for name in ("temperature", *WARPERS)))
    steps = StepRunner(decoder, kind, lambda like, capacity: ChoiceState(decoder, like, len(rows), capacity, filters))
    max_steps = min(settings.max_new_tokens, max(max_new))
    outputs: dict[tuple[int, int], GenerationOutput] = {}
    with closing(steps):
        steps.begin(cache, max_steps)
        del cache  # its slots are in the static cache
        for values in _results(steps, logits, max_steps, rng):
            chosen = zip(rows, values.tolist(), strict=True)
            live = [(row, numbers) for row, numbers in chosen if (row.prompt, row.sample) not in outputs]
            if not all(abs(log_prob) < torch.inf for _, (_, log_prob, _) in live):  # NaN compares false
                check_logits(torch.tensor([[largest] for _, (_, _, largest) in live], dtype=torch.float64))
            for row, (token, log_prob, _) in live:
                new = NewToken(row.prompt, row.sample, int(token), log_prob, [])
                row.add(new, log_prob)
                yield new
            _collect_ended(rows, outputs, settings)
            if len(outputs) == len(rows):
                break
    return [[outputs[number, sample] for sample in range(settings.samples)] for number in range(len(prompts))]


def _results(
    steps: StepRunner[ChoiceState], logits: Float[Tensor, "R V"], max_steps: int, rng: SeededRNG | None
) -> Generator[Float[Tensor, "R 3"], None, None]:
    """Yield the results of each step, the first from the prompt's logits; launch steps before they are needed."""
    pending: deque[Pending] = deque()
    for step in range(max_steps):
        if rng is not None and step % UNIFORMS == 0:
            steps.state.set_uniforms(rng, max_steps - step)
        if step == 0:
            steps.state.choose(logits)
        else:
            steps.run()
        pending.append(Pending(steps.state.results))
        if len(pending) == IN_FLIGHT:
            yield pending.popleft().get()
    while pending:
        yield pending.popleft().get()


def _collect_ended(
    rows: Sequence[SearchRow], outputs: dict[tuple[int, int], GenerationOutput], settings: GenerationSettings
) -> None:
    """Add the outputs of the rows that have just ended."""
    for row in rows:
        if (row.prompt, row.sample) not in outputs and (ended := row.ended(settings, None)) is not None:
            outputs[row.prompt, row.sample] = row.output(ended)
