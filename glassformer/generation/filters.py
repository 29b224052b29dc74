"""From scores to scores: each rule of writing a small function, all of them together in ``Filters``.

Scores are logits or log-probabilities; −inf forbids a token. Two kinds of rule: *edits* say what may be written at all
(penalties, forbidden and forced tokens), *shapes* change how likely the rest is drawn (temperature, top-k, top-p …).
Everything is computed in at least float32 and answers in it.

Shapes: ``R`` rows (texts that are being written), ``V`` vocabulary. A history is the ids of one row so far, prompt
included.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.config.checks import check_positive
from glassformer.generation.settings import GenerationSettings
from glassformer.nn.attention import softmax
from glassformer.nn.norm import upcast

Scores = Float[Tensor, "R V"]
Histories = Sequence[Sequence[int]]

# The settings that edit scores, in the order in which they act.
EDITS = (
    "logit_bias",
    "repetition_penalty",
    "no_repeat_ngram",
    "bad_words",
    "min_new_tokens",
    "forced_first",
    "forced_last",
    "suppress",
)


class NothingLeftError(ValueError):
    """The rules in force forbid every token."""


def check_logits(scores: Scores) -> None:
    """Raise where a row holds NaN or +inf, or nothing but −inf: one reduction, since the largest shows all three."""
    largest = scores.amax(-1)
    if bool(largest.isfinite().all()):
        return
    row = int((~largest.isfinite()).nonzero()[0])
    what = {"nan": "NaN", "-inf": "nothing but −inf"}.get(str(float(largest[row])), "+inf")
    raise ValueError(
        f"the model's logits hold {what} in row {row}; its weights are at fault, or its numbers overflowed in half "
        "precision: try dtype float32."
    )


# --- shapes ----------------------------------------------------------------------------------------------------------


def temperature(scores: Scores, degree: float) -> Scores:
    """Divide by ``degree``: below 1 the likely become likelier; 0 leaves but the likeliest token (of equals the first).

    The largest score of a row is taken off first: that changes no chance and keeps a tiny degree from overflowing.
    """
    if degree < 0:
        raise ValueError(f"temperature must be 0 (always the likeliest token) or above, got {degree}.")
    wide = upcast(scores)
    if degree == 0:
        return wide.masked_fill(_all_but(wide, wide.argmax(-1, keepdim=True)), -torch.inf)
    largest = wide.amax(-1, keepdim=True)
    below = wide - largest.masked_fill(largest == -torch.inf, 0.0)
    return below / max(degree, torch.finfo(torch.float32).tiny)


def top_k(scores: Scores, k: int) -> Scores:
    """Forbid all but the ``k`` likeliest tokens (Fan et al. 2018); of equals at the edge, those with lower ids stay."""
    check_positive(top_k=k)
    wide = upcast(scores)
    edge = wide.topk(min(k, wide.shape[-1]), dim=-1).values[:, -1:]
    above, at_edge = wide > edge, wide == edge
    room = k - above.sum(-1, keepdim=True)
    return wide.masked_fill(~(above | (at_edge & (at_edge.cumsum(-1) <= room))), -torch.inf)


def top_p(scores: Scores, p: float) -> Scores:
    """Forbid all but the nucleus, the fewest likeliest tokens that have ``p`` together (Holtzman et al. 2020)."""
    wide = upcast(scores)
    return _fewest(wide, order=-wide, p=p)


def min_p(scores: Scores, p: float) -> Scores:
    """Forbid tokens with less than ``p`` times the likeliest one's chance (Nguyen et al. 2024)."""
    wide = upcast(scores)
    probs = softmax(wide, -1)
    return wide.masked_fill(probs < p * probs.amax(-1, keepdim=True), -torch.inf)


def typical_p(scores: Scores, p: float) -> Scores:
    """Forbid all but the most typical tokens that together have ``p`` (Meister et al. 2022).

    Typical is a token whose surprise −log P is near the average surprise, the entropy of the row.
    """
    wide = upcast(scores)
    log_chances = wide.log_softmax(-1)
    entropy = -torch.special.xlogy(log_chances.exp(), log_chances.exp()).sum(-1, keepdim=True)
    return _fewest(wide, order=(-log_chances - entropy).abs(), p=p)


def _fewest(wide: Scores, order: Float[Tensor, "R V"], p: float) -> Scores:
    """Keep the first tokens by ``order`` until their chances reach ``p``; equals by lower id."""
    if p >= 1:
        return wide  # rounding would drop the rarest
    ranks = order.argsort(dim=-1, stable=True)
    sorted_chances = softmax(wide.double(), -1).gather(-1, ranks)
    reached = sorted_chances.cumsum(-1) >= p
    enough_before = reached.roll(1, dims=-1).index_fill(-1, ranks.new_zeros(1), False)  # the first always stays
    dropped = torch.zeros_like(reached).scatter(-1, ranks, enough_before)
    return wide.masked_fill(dropped, -torch.inf)


# --- edits -----------------------------------------------------------------------------------------------------------


def repetition_penalty(scores: Scores, histories: Histories, penalty: float) -> Scores:
    """Make tokens of the history less likely: divide a positive score, multiply a negative one (Keskar et al. 2019)."""
    wide = upcast(scores)
    seen = _mark(wide, (set(history) for history in histories))
    return torch.where(seen, torch.where(wide < 0, wide * penalty, wide / penalty), wide)


def no_repeat_ngram(scores: Scores, histories: Histories, size: int) -> Scores:
    """Forbid tokens that would complete a run of ``size`` tokens already in the history (Paulus et al. 2018)."""
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
    """Forbid ``tokens`` in every row: those never wanted, or the end of the text while it is too short."""
    return upcast(scores).masked_fill(tokens, -torch.inf)


def force(scores: Scores, token: int) -> Scores:
    """Allow ``token`` alone: its score is 0, whatever was forbidden before."""
    forced = torch.full_like(upcast(scores), -torch.inf)
    forced[:, token] = 0.0
    return forced


def _completions(history: Sequence[int], size: int) -> set[int]:
    """Tokens that followed the last ``size − 1`` tokens of the history earlier in it."""
    ids = list(history)
    begin = len(ids) - size + 1  # where the unfinished run begins
    unfinished = ids[begin:] if begin >= 0 else []
    return {ids[i + size - 1] for i in range(begin) if ids[i : i + size - 1] == unfinished}


def _ends_with(history: Sequence[int], ending: Sequence[int]) -> bool:
    return list(history[len(history) - len(ending) :]) == list(ending)  # a shorter history is never equal


def _all_but(scores: Scores, kept: Tensor) -> Bool[Tensor, "R V"]:
    return torch.ones_like(scores, dtype=torch.bool).scatter(-1, kept, False)


def _mark(scores: Scores, tokens: Iterable[Iterable[int]]) -> Bool[Tensor, "R V"]:
    """True at the given tokens of each row; ids that the scores do not reach cannot be written and need no mark."""
    rows, vocabulary = scores.shape
    flat = [row * vocabulary + token for row, some in enumerate(tokens) for token in some if token < vocabulary]
    marks = torch.zeros(rows * vocabulary, dtype=torch.bool, device=scores.device)
    marks[torch.tensor(flat, dtype=torch.long, device=scores.device)] = True
    return marks.view(rows, vocabulary)


# --- all together ----------------------------------------------------------------------------------------------------


class Filters:
    """All the rules of some ``GenerationSettings``, for one vocabulary on one device; made once, used at every step."""

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
    def has_edits(self) -> bool:
        """Whether ``edit`` can change anything."""
        return bool(self._rules)

    @property
    def needs_histories(self) -> bool:
        """Whether ``edit`` looks at what was written; if not, it may be given no histories."""
        return not self._rules.isdisjoint(("repetition_penalty", "no_repeat_ngram", "bad_words"))

    @cached_property
    def _rules(self) -> set[str]:
        """Names of the settings that edit scores and were set."""
        usual = GenerationSettings()
        names = {name for name in EDITS if getattr(self.settings, name) != getattr(usual, name)}
        return names if self.settings.eos else names - {"min_new_tokens"}

    def edit(self, scores: Scores, histories: Histories, written: int, *, check: bool = True) -> Scores:
        """Apply the rules about what may be written, in the order in which Hugging Face applies them.

        ``histories`` are the ids of each row so far, ``written`` how many of them are new, the same for all rows. A row
        in which nothing is left is an error, unless the caller lets such rows die (``check=False``).
        """
        if scores.shape[-1] != self.vocab_size:
            raise ValueError(f"these filters are for {self.vocab_size} tokens, but the scores are {scores.shape[-1]}.")
        if self.needs_histories and len(histories) != len(scores):
            raise ValueError(f"{len(scores)} rows of scores need as many histories, got {len(histories)}.")
        asked, rules = self.settings, self._rules
        if "logit_bias" in rules:
            scores = logit_bias(scores, self._bias)
        if "repetition_penalty" in rules:
            scores = repetition_penalty(scores, histories, asked.repetition_penalty)
        if "no_repeat_ngram" in rules:
            scores = no_repeat_ngram(scores, histories, asked.no_repeat_ngram)
        if "bad_words" in rules:
            scores = bad_words(scores, histories, asked.bad_words)
        if written < asked.min_new_tokens:
            scores = forbid(scores, self._ends)
        if asked.forced_first is not None and written == 0:
            scores = force(scores, asked.forced_first)
        if asked.forced_last is not None and written == asked.max_new_tokens - 1:
            scores = force(scores, asked.forced_last)
        if "suppress" in rules:
            scores = forbid(scores, self._suppressed)
        if rules and check:
            self._check_something_left(scores)
        return upcast(scores)

    def _check_something_left(self, scores: Scores) -> None:
        empty = scores.amax(-1) == -torch.inf  # NaN is the model's fault, not that of the rules: see check_logits
        if bool(empty.any()):
            rules = ", ".join(f"{name}={getattr(self.settings, name)}" for name in EDITS if name in self._rules)
            raise NothingLeftError(
                f"no token is left to write in row {int(empty.nonzero()[0])}; the rules in force forbid all "
                f"{self.vocab_size}: {rules}. Loosen one of them."
            )

    def shape(self, scores: Scores) -> Scores:
        """Temperature, then top-k, top-p, min-p, typical-p, each on what the one before has left.

        At temperature 0 only the likeliest token is left. For searches that choose for themselves (beam, contrastive)
        the scores come back as they are.
        """
        asked = self.settings
        wide = upcast(scores)
        if asked.mode in ("beam", "contrastive"):
            return wide
        if asked.temperature != 1:
            wide = temperature(wide, asked.temperature)
        if asked.top_k is not None:
            wide = top_k(wide, asked.top_k)
        if asked.top_p is not None:
            wide = top_p(wide, asked.top_p)
        if asked.min_p is not None:
            wide = min_p(wide, asked.min_p)
        if asked.typical_p is not None:
            wide = typical_p(wide, asked.typical_p)
        return wide


def _check_known(settings: GenerationSettings, vocab_size: int) -> None:
    """Raise unless the vocabulary holds every token that the settings name."""
    named = {
        "eos": settings.eos,
        "suppress": settings.suppress,
        "bad_words": [token for word in settings.bad_words for token in word],
        "logit_bias": dict(settings.logit_bias),
        "forced_first": [settings.forced_first],
        "forced_last": [settings.forced_last],
    }
    for name, tokens in named.items():
        outside = [token for token in tokens if token is not None and token >= vocab_size]
        if outside:
            raise ValueError(
                f"{name} names {', '.join(map(str, outside))}, but the vocabulary has {vocab_size} tokens "
                f"(0 to {vocab_size - 1})."
            )
