"""Beam search with all bookkeeping on the device; the same texts and scores as ``beam.beam_search``.

The rules are those of ``beam``, for a single group without constraints. The device keeps the scores of the live beams
and the best texts that ended; each step also writes, for every new beam, its parent and its token. Python fetches
these once, at the end; after each step only a flag that says whether the search is over for every prompt.

Shapes: ``A`` prompts, ``k`` beams, ``V`` vocabulary, ``R`` rows: A · k, ``N`` steps, ``c`` candidates per prompt.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from glassformer.config.checks import Setting, SettingError
from glassformer.generation.beam import length_divisor
from glassformer.generation.decoder import Decoder
from glassformer.generation.device_search import Pending, chooses_on_device
from glassformer.generation.filters import Filters, NothingLeftError, check_logits
from glassformer.generation.search import Alternative, GenerationOutput, IsDone, ending, largest, rectangle
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.steps import WARM_UP, StepRunner, StepState
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.norm import upcast

IN_FLIGHT = 2  # steps that are launched before Python learns whether the oldest of them was the last
BLOCK = 64  # the slots of a prompt, the same in all its beams, are not reordered: as many as are a multiple of this


def beams_on_device(settings: GenerationSettings) -> bool:
    """Whether the device alone can keep the beams."""
    return settings.beam_groups == 1 and chooses_on_device(settings)


class BeamState(StepState):
    """A step that ends with the live beams of every prompt, and the best texts that ended."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, prompts: int, capacity: int, settings: GenerationSettings, since: int
    ) -> None:
        size = settings.beam_size
        super().__init__(decoder, cache, prompts * size, capacity)
        self.prompts, self.size, self.settings, self.since = prompts, size, settings, since
        device, shape = decoder.device, (prompts, size)
        # One entry of ``history`` per step; the warm-up steps before a capture write into it, too.
        steps = max(min(settings.max_new_tokens, capacity, decoder.model.max_length or capacity), WARM_UP)
        longs: dict[str, Any] = {"dtype": torch.long, "device": device}
        doubles: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.eos = torch.tensor(settings.eos, **longs)
        self.first_row = torch.arange(prompts, **longs).unsqueeze(-1) * size  # A 1
        self.order = torch.arange(size, **longs)  # k
        divisors = [length_divisor(length, settings) for length in range(1, steps + 1)]
        self.divisors = torch.tensor([1.0, *divisors], **doubles)  # by length
        self.longest = torch.zeros(prompts, **longs)  # tokens that fit after each prompt
        self.longest_divisors = torch.ones(prompts, **doubles)
        # Live beams: their scores, and the beam that each continues.
        self.scores = torch.zeros(shape, **doubles)
        self.sources = torch.zeros(prompts * size, **longs)  # rows
        self.length = torch.zeros(1, **longs)
        self.is_over = torch.zeros(prompts, dtype=torch.bool, device=device)
        # The texts that ended, the best first: final score; step, parent beam, token and log-probability of their ends.
        self.finals = torch.zeros(shape, **doubles)
        self.ended = torch.zeros(*shape, 4, **doubles)
        # What each step chose: parent beam, token and log-probability of each new beam.
        self.history = torch.zeros(steps, *shape, 3, **doubles)
        # For Python: whether all searches are over; each row's largest logit, kept from the first that is not finite.
        self.report = torch.zeros(1 + prompts * size, **doubles)

    def start(self, longest: Sequence[int]) -> None:
        """Start with one live beam per prompt: all its beams are still identical."""
        self.longest.copy_(torch.tensor(longest))
        divisors = [length_divisor(length, self.settings) for length in longest]
        self.longest_divisors.copy_(torch.tensor(divisors, dtype=torch.float64))
        self.scores.fill_(-torch.inf)
        self.scores[:, 0] = 0.0
        self.length.zero_()
        self.is_over.zero_()
        self.finals.fill_(-torch.inf)
        self.report.zero_()

    def grow_from(self, smaller: StepState) -> None:
        """Continue from a state with fewer slots."""
        assert isinstance(smaller, BeamState)
        super().grow_from(smaller)
        for name, value in vars(smaller).items():
            if isinstance(value, Tensor) and name not in ("memory", "memory_mask"):
                getattr(self, name)[: len(value)].copy_(value)

    def step(self, model: Transformer) -> None:
        """Reorder the cache so that each row continues its parent beam, feed the new tokens, choose the next ones."""
        self.cache.reorder(self.sources, since=self.since, beams=self.size)
        self.choose(self.feed(model))

    def choose(self, logits: Float[Tensor, "R V"]) -> None:
        """Choose the best continuations: those that end join the ended texts, the others become the live beams."""
        wide = upcast(logits)
        highest = wide.amax(-1).double()
        self.report[1:] = torch.where(self.report[1:].isfinite(), highest, self.report[1:])
        log_probs = torch.log_softmax(wide, -1).view(self.prompts, self.size, -1)  # A k V
        beam, token, scores, own = self._candidates(log_probs)  # each A c
        self.length += 1
        possible = scores > -torch.inf
        too_long = (self.length >= self.longest).unsqueeze(-1)  # A 1
        # Not by torch.isin: with many end tokens it calls unique, which synchronises with the GPU.
        ends = (token.unsqueeze(-1) == self.eos).any(-1) | too_long
        # A continuation that ends counts only if it is among the k best; the k best that do not end stay alive.
        step = (self.length - 1).double().expand_as(scores)
        self._keep_ended(scores, ends & possible, torch.stack((step, beam.double(), token.double(), own), -1))
        self._keep_alive(scores, ~ends & possible, torch.stack((beam.double(), token.double(), own), -1))
        self.report[0] = self.is_over.all()

    def _candidates(
        self, log_probs: Float[Tensor, "A k V"]
    ) -> tuple[Int[Tensor, "A c"], Int[Tensor, "A c"], Float64[Tensor, "A c"], Float64[Tensor, "A c"]]:
        """Return beam, token, score and log-probability of the best continuations, the best first."""
        keep = max(2, 1 + len(self.settings.eos)) * self.size
        values, tokens = largest(log_probs, keep)  # A k keep
        sums = (values + self.scores.unsqueeze(-1)).flatten(1)
        best = sums.topk(min(keep, sums.shape[-1]), dim=-1)
        beam = best.indices // values.shape[-1]
        token = tokens.flatten(1).gather(-1, best.indices)
        return beam, token, best.values, values.flatten(1).gather(-1, best.indices).double()

    def _keep_ended(
        self, scores: Float64[Tensor, "A c"], ends: Bool[Tensor, "A c"], entries: Float64[Tensor, "A c 4"]
    ) -> None:
        """Keep the k best texts that ended; of equals, the earlier first."""
        k = self.size
        is_kept = ends[:, :k] & ~self.is_over.unsqueeze(-1)
        finals = (scores[:, :k] / self.divisors.index_select(0, self.length)).masked_fill(~is_kept, -torch.inf)
        merged = torch.cat((self.finals, finals), -1)  # A 2k
        best, order = merged.sort(dim=-1, descending=True, stable=True)
        ended = torch.cat((self.ended, entries[:, :k]), 1)  # A 2k 4
        self.finals.copy_(best[:, :k])
        self.ended.copy_(ended.gather(1, order[:, :k].unsqueeze(-1).expand(-1, -1, 4)))

    def _keep_alive(
        self, scores: Float64[Tensor, "A c"], alive: Bool[Tensor, "A c"], entries: Float64[Tensor, "A c 3"]
    ) -> None:
        """Make the k best that do not end the live beams; if there are fewer, the first fills up, with score −∞."""
        order = (~alive).long().sort(dim=-1, stable=True).indices[:, : self.size]  # A k, those alive first
        if order.shape[-1] < self.size:
            order = torch.cat((order, order[:, :1].expand(-1, self.size - order.shape[-1])), -1)
        is_used = self.order < alive.sum(-1, keepdim=True)  # A k
        order = torch.where(is_used, order, order[:, :1])
        kept = entries.gather(1, order.unsqueeze(-1).expand(-1, -1, 3))  # A k 3
        self.scores.copy_(scores.gather(-1, order).masked_fill(~is_used, -torch.inf))
        self.history.index_copy_(0, self.length - 1, kept.unsqueeze(0))
        self.sources.copy_((kept[..., 0].long() + self.first_row).flatten())
        self.tokens.copy_(kept[..., 1].long().view(-1, 1))
        self.is_over |= ~is_used[:, 0] | self._cannot_improve()

    def _cannot_improve(self) -> Bool[Tensor, "A"]:
        """Whether no live beam can beat the texts that ended; see ``beam._is_over``."""
        is_full = self.finals[:, -1] > -torch.inf
        if self.settings.early_stopping is True:
            return is_full
        divisors = self.divisors.index_select(0, self.length)
        if self.settings.early_stopping == "never" and self.settings.length_penalty > 0:
            divisors = self.longest_divisors
        return is_full & (self.scores[:, 0] / divisors <= self.finals[:, -1])


def device_beam_search(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: Sequence[int],
    settings: GenerationSettings,
    is_done: IsDone | None = None,
) -> list[list[GenerationOutput]]:
    """Return the ``top_beams`` best continuations of every prompt, the best first; ``is_done`` must be None."""
    assert is_done is None
    assert beams_on_device(settings)
    ids, mask = rectangle(prompts, decoder.device)  # (B, T)
    max_steps = min(settings.max_new_tokens, max(max_new))
    cache, logits = decoder.begin(ids, mask, max_steps)
    size, count = settings.beam_size, len(prompts)
    decoder.select(cache, [row for row in range(count) for _ in range(size)], range(count))
    logits = logits.repeat_interleave(size, 0)  # (R, V)
    Filters(settings, logits.shape[-1])  # checks that the vocabulary has the end tokens
    since = cache.length // BLOCK * BLOCK
    steps = StepRunner(
        decoder,
        ("beam", count, logits.dtype, settings, since),
        lambda like, capacity: BeamState(decoder, like, count, capacity, settings, since),
    )
    with closing(steps):
        steps.begin(cache, max_steps).start([min(settings.max_new_tokens, limit) for limit in max_new])
        del cache  # its slots are in the static cache
        steps.state.choose(logits)
        pending = deque([Pending(steps.state.report)])
        for _ in range(max_steps - 1):
            steps.run()
            pending.append(Pending(steps.state.report))
            if len(pending) == IN_FLIGHT and bool(pending.popleft().get()[0]):
                break
        check_logits(steps.state.report[1:].unsqueeze(-1))
        state = steps.state
        finals, ended, history = (x.tolist() for x in (state.finals, state.ended, state.history[:max_steps]))
    return [
        _best(number, prompts[number], max_new[number], finals[number], ended[number], history, settings)
        for number in range(count)
    ]


def _best(
    number: int,
    prompt: Sequence[int],
    max_new: int,
    finals: Sequence[float],
    ended: Sequence[Sequence[float]],
    history: Sequence[Sequence[Sequence[Sequence[float]]]],
    settings: GenerationSettings,
) -> list[GenerationOutput]:
    """Follow the best texts of one prompt back to their first tokens."""
    texts = [(final, entry) for final, entry in zip(finals, ended, strict=True) if final > -torch.inf]
    if not texts:
        raise NothingLeftError(f"no token is left to generate after {list(prompt)}.")
    if len(texts) < settings.top_beams:
        raise SettingError(
            f"the prompt {list(prompt)} has only {len(texts)} possible continuations under these settings, and "
            "{} were requested; set {}, or allow more tokens.",
            Setting("top_beams", settings.top_beams),
            Setting("top_beams", len(texts)),
        )
    outputs = []
    for final, (step, beam, token, log_prob) in texts[: settings.top_beams]:
        tokens, log_probs, parent = [int(token)], [log_prob], int(beam)
        for earlier in range(int(step) - 1, -1, -1):
            grandparent, token, log_prob = history[earlier][number][parent]
            tokens.append(int(token))
            log_probs.append(log_prob)
            parent = int(grandparent)
        why = ending(tokens[0], len(tokens), max_new, settings, None)
        assert why is not None
        none: list[list[Alternative]] = [[] for _ in tokens]  # alternatives
        outputs.append(GenerationOutput(tokens[::-1], log_probs[::-1], final, why, none))
    return outputs
