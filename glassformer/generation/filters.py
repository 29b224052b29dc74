"""Logits processors and warpers: each is a small function, and ``Filters`` applies all of them.

Scores are logits or log-probabilities; −inf forbids a token. There are two kinds of filter, with the names that Hugging
Face gives them: *processors* apply in every search and may use the history (bias, penalties, forbidden and forced
tokens), *warpers* apply only to sampling (temperature, top-k, top-p …). Everything is computed and returned in at least
float32.

Shapes: ``R`` rows (texts being generated), ``V`` vocabulary. A history is the ids of one row so far, including the
prompt.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.config.checks import Setting, SettingError, check_positive_integer
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.attention import softmax
from glassformer.nn.norm import upcast

Scores = Float[Tensor, "R V"]
Histories = Sequence[Sequence[int]]

# The settings of processors, in the order in which they act, and whether each uses the histories.
PROCESSORS = {
    "logit_bias": False,
    "repetition_penalty": True,
    "no_repeat_ngram": True,
    "bad_words": True,
    "min_new_tokens": False,
    "forced_first": False,
    "forced_last": False,
    "suppress": False,
}


class NothingLeftError(ValueError):
    """The constraints forbid every token."""


def check_logits(scores: Scores) -> None:
    """Raise where a row holds NaN or +inf, or only −inf: one reduction, since the maximum shows all three."""
    largest = scores.amax(-1)
    if bool(largest.isfinite().all()):
        return
    row = int((~largest.isfinite()).nonzero()[0])
    what = {"nan": "NaN", "-inf": "only −inf"}.get(str(float(largest[row])), "+inf")
    raise ValueError(
        f"the model's logits hold {what} in row {row}; its weights are damaged, or values overflowed in half "
        "precision: try dtype float32."
    )


# --- warpers ----------------------------------------------------------------------------------------------------------


def temperature(scores: Scores, temperature: float) -> Scores:
    """Divide by ``temperature``: below 1 sharpens the distribution; 0 keeps only the most probable token.

    The largest score of a row is subtracted first: probabilities stay the same, and a tiny value does not overflow.
    """
    if temperature < 0:
        raise ValueError(f"temperature must be 0 (always the most probable token) or above, got {temperature}.")
    wide = upcast(scores)
    if temperature == 0:
        return wide.masked_fill(_all_but(wide, wide.argmax(-1, keepdim=True)), -torch.inf)
    largest = wide.amax(-1, keepdim=True)
    below = wide - largest.masked_fill(largest == -torch.inf, 0.0)
    return below / max(temperature, torch.finfo(torch.float32).tiny)


def top_k(scores: Scores, k: int) -> Scores:
    """Forbid all but the ``k`` most probable tokens (Fan et al. 2018); of equals at the edge, lower ids stay."""
    check_positive_integer(top_k=k)
    wide = upcast(scores)
    edge = wide.topk(min(k, wide.shape[-1]), dim=-1).values[:, -1:]
    above, at_edge = wide > edge, wide == edge
    ties = k - above.sum(-1, keepdim=True)  # how many tokens at the edge stay
    return wide.masked_fill(~(above | (at_edge & (at_edge.cumsum(-1) <= ties))), -torch.inf)


def top_p(scores: Scores, p: float) -> Scores:
    """Forbid all but the nucleus: the smallest set of most probable tokens whose probabilities reach ``p``.

    From Holtzman et al. (2020).
    """
    wide = upcast(scores)
    return _keep_until_sum(wide, order=-wide, p=p)


def min_p(scores: Scores, p: float) -> Scores:
    """Forbid tokens with less than ``p`` times the highest probability (Nguyen et al. 2024)."""
    wide = upcast(scores)
    probs = softmax(wide, -1)
    return wide.masked_fill(probs < p * probs.amax(-1, keepdim=True), -torch.inf)


def typical_p(scores: Scores, p: float) -> Scores:
    """Forbid all but the smallest set of most typical tokens whose probabilities reach ``p`` (Meister et al. 2022).

    A token is typical if its surprisal −log P is near the mean surprisal, the entropy of the row.
    """
    wide = upcast(scores)
    log_probs = wide.log_softmax(-1)
    entropy = -torch.special.xlogy(log_probs.exp(), log_probs.exp()).sum(-1, keepdim=True)
    return _keep_until_sum(wide, order=(-log_probs - entropy).abs(), p=p)


def _keep_until_sum(wide: Scores, order: Float[Tensor, "R V"], p: float) -> Scores:
    """Keep the first tokens by ``order`` until their probabilities add up to ``p``; of equals, lower ids first."""
    if p >= 1:
        return wide  # rounding would drop the rarest
    ranks = order.argsort(dim=-1, stable=True)
    sorted_probs = softmax(wide.double(), -1).gather(-1, ranks)
    reached = sorted_probs.cumsum(-1) >= p
    enough_before = reached.roll(1, dims=-1).index_fill(-1, ranks.new_zeros(1), False)  # the first always stays
    dropped = torch.zeros_like(reached).scatter(-1, ranks, enough_before)
    return wide.masked_fill(dropped, -torch.inf)


# The warpers after temperature by their settings, in the order in which they act.
WARPERS: dict[str, Callable[[Scores, Any], Scores]] = {
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
    "typical_p": typical_p,
}


# --- processors -------------------------------------------------------------------------------------------------------


def repetition_penalty(scores: Scores, histories: Histories, penalty: float) -> Scores:
    """Make tokens of the history less probable: divide positive scores, multiply negative ones (Keskar et al. 2019)."""
    wide = upcast(scores)
    seen = _mark(wide, (set(history) for history in histories))
    return torch.where(seen, torch.where(wide < 0, wide * penalty, wide / penalty), wide)


def no_repeat_ngram(scores: Scores, histories: Histories, size: int) -> Scores:
    """Forbid tokens that would complete an n-gram of ``size`` tokens that the history has (Paulus et al. 2018)."""
    wide = upcast(scores)
    return wide.masked_fill(_mark(wide, (_completions(history, size) for history in histories)), -torch.inf)


def bad_words(scores: Scores, histories: Histories, words: Sequence[Sequence[int]]) -> Scores:
    """Forbid the last token of each of ``words`` where the history ends with the tokens before it."""
    wide = upcast(scores)
    endings = ([word[-1] for word in words if _ends_with(history, word[:-1])] for history in histories)
    return wide.masked_fill(_mark(wide, endings), -torch.inf)


def logit_bias(scores: Scores, bias: Float[Tensor, "V"]) -> Scores:
    """Add a number to each token's score."""
    wide = upcast(scores)
    return wide + bias.to(wide.dtype)


def forbid(scores: Scores, tokens: Bool[Tensor, "V"]) -> Scores:
    """Forbid ``tokens`` in every row: suppressed ones, or end tokens while the text is too short."""
    return upcast(scores).masked_fill(tokens, -torch.inf)


def force(scores: Scores, token: int) -> Scores:
    """Allow only ``token``: its score is 0, even if it was forbidden before."""
    forced = torch.full_like(upcast(scores), -torch.inf)
    forced[:, token] = 0.0
    return forced


def _completions(history: Sequence[int], size: int) -> set[int]:
    """Return tokens that followed the last ``size − 1`` tokens of the history earlier in it."""
    ids = list(history)
    begin = len(ids) - size + 1  # index of the unfinished n-gram
    unfinished = ids[begin:] if begin >= 0 else []
    return {ids[i + size - 1] for i in range(begin) if ids[i : i + size - 1] == unfinished}


def _ends_with(history: Sequence[int], ending: Sequence[int]) -> bool:
    return list(history[len(history) - len(ending) :]) == list(ending)  # a shorter history is never equal


def _all_but(scores: Scores, kept: Tensor) -> Bool[Tensor, "R V"]:
    return torch.ones_like(scores, dtype=torch.bool).scatter(-1, kept, False)


def _mark(scores: Scores, tokens: Iterable[Iterable[int]]) -> Bool[Tensor, "R V"]:
    """True at ``tokens`` of each row; ids beyond the vocabulary cannot be generated and are ignored."""
    rows, vocabulary = scores.shape
    flat = [row * vocabulary + token for row, ids in enumerate(tokens) for token in ids if token < vocabulary]
    marks = torch.zeros(rows * vocabulary, dtype=torch.bool, device=scores.device)
    marks[torch.tensor(flat, dtype=torch.long, device=scores.device)] = True
    return marks.view(rows, vocabulary)


# --- all together ----------------------------------------------------------------------------------------------------


def active_processors(settings: GenerationSettings) -> set[str]:
    """Return the names of the settings of processors that differ from their defaults."""
    default = GenerationSettings()
    names = {name for name in PROCESSORS if getattr(settings, name) != getattr(default, name)}
    return names if settings.eos else names - {"min_new_tokens"}


class Filters:
    """The processors and warpers of some ``GenerationSettings``, built once for a vocabulary and a device."""

    def __init__(self, settings: GenerationSettings, vocab_size: int, device: torch.device | str = "cpu"):
        _check_known(settings, vocab_size)
        self.settings = settings
        self.vocab_size = vocab_size
        self._ends = self._tokens(settings.eos, device)
        self._suppressed = self._tokens(settings.suppress, device)
        bias = dict(settings.logit_bias)
        self._bias = torch.zeros(vocab_size, dtype=torch.float64, device=device)
        self._bias[list(bias)] = torch.tensor(list(bias.values()), dtype=torch.float64, device=device)

    def _tokens(self, ids: Sequence[int], device: torch.device | str) -> Bool[Tensor, "V"]:
        marks = torch.zeros(self.vocab_size, dtype=torch.bool, device=device)
        marks[list(ids)] = True
        return marks

    @property
    def has_processors(self) -> bool:
        """Whether ``process`` can change anything."""
        return bool(self._active)

    @property
    def needs_histories(self) -> bool:
        """Whether ``process`` uses the histories; if not, they may be empty."""
        return any(PROCESSORS[name] for name in self._active)

    @cached_property
    def _active(self) -> set[str]:
        return active_processors(self.settings)

    def process(self, scores: Scores, histories: Histories, step: int, *, check: bool = True) -> Scores:
        """Apply the processors, in the order in which Hugging Face applies them.

        ``histories`` are the ids of each row so far, ``step`` how many of them are new, the same for all rows. With
        ``check``, a row without any allowed token raises an error.
        """
        if scores.shape[-1] != self.vocab_size:
            raise ValueError(
                f"these filters were built for a vocabulary of {self.vocab_size} tokens, but the scores have "
                f"{scores.shape[-1]} columns."
            )
        if self.needs_histories and len(histories) != len(scores):
            raise ValueError(f"{len(scores)} rows of scores need as many histories, got {len(histories)}.")
        settings, active = self.settings, self._active
        # Adjust scores.
        if "logit_bias" in active:
            scores = logit_bias(scores, self._bias)
        if "repetition_penalty" in active:
            scores = repetition_penalty(scores, histories, settings.repetition_penalty)
        # Forbid tokens.
        if "no_repeat_ngram" in active:
            scores = no_repeat_ngram(scores, histories, settings.no_repeat_ngram)
        if "bad_words" in active:
            scores = bad_words(scores, histories, settings.bad_words)
        if step < settings.min_new_tokens:
            scores = forbid(scores, self._ends)
        # Force a token, even a forbidden one; suppressed tokens stay suppressed, which can leave none.
        if settings.forced_first is not None and step == 0:
            scores = force(scores, settings.forced_first)
        if settings.forced_last is not None and step == settings.max_new_tokens - 1:
            scores = force(scores, settings.forced_last)
        if "suppress" in active:
            scores = forbid(scores, self._suppressed)
        if active and check:
            self._check_something_left(scores)
        return upcast(scores)

    def _check_something_left(self, scores: Scores) -> None:
        empty = scores.amax(-1) == -torch.inf  # NaN comes from the model, not from a processor: see check_logits
        if bool(empty.any()):
            active = ", ".join(f"{name}={getattr(self.settings, name)}" for name in PROCESSORS if name in self._active)
            raise NothingLeftError(
                f"no token is left to generate in row {int(empty.nonzero()[0])}; the constraints forbid all "
                f"{self.vocab_size}: {active}. Loosen one of them."
            )

    def warp(self, scores: Scores) -> Scores:
        """Apply temperature, then ``WARPERS``, each to what the previous one kept.

        At temperature 0 only the most probable token is left. For beam and contrastive search the scores are returned
        unchanged.
        """
        settings = self.settings
        wide = upcast(scores)
        if settings.mode in ("beam", "contrastive"):
            return wide
        if settings.temperature != 1:
            wide = temperature(wide, settings.temperature)
        for name, warper in WARPERS.items():
            if (value := getattr(settings, name)) is not None:
                wide = warper(wide, value)
        return wide


def unknown_tokens(settings: GenerationSettings, vocab_size: int) -> dict[str, list[int]]:
    """Return the token ids outside the vocabulary, by the names of the settings that hold them."""
    biases: dict[int, float] = dict(settings.logit_bias)
    named: dict[str, Iterable[int | None]] = {
        "eos": settings.eos,
        "suppress": settings.suppress,
        "bad_words": [token for word in settings.bad_words for token in word],
        "logit_bias": biases,
        "forced_first": [settings.forced_first],
        "forced_last": [settings.forced_last],
    }
    unknown = {
        name: [token for token in tokens if token is not None and token >= vocab_size] for name, tokens in named.items()
    }
    return {name: tokens for name, tokens in unknown.items() if tokens}


def _check_known(settings: GenerationSettings, vocab_size: int) -> None:
    """Raise unless the vocabulary holds every token that the settings name."""
    for name, tokens in unknown_tokens(settings, vocab_size).items():
        raise SettingError(
            f"{{}} names {', '.join(map(str, tokens))}, but the vocabulary has {vocab_size} tokens "
            f"(0 to {vocab_size - 1}).",
            Setting(name),
        )
