"""Beam search in plain Python, from the rules alone, for tests: one text at a time, nothing remembered.

The rules: of all continuations of the live texts the best (1 + number of end tokens, at least 2) · k are looked at. One
that ends, by an end token or because no more may follow, counts if it is among the first k; the best k others live on.
The k best ended texts are kept, by score / length^penalty, end token counted, prompt not. Over when nothing lives;
else, once k texts have ended: at once (early stopping), or when the best live text, scored at its present length (or,
"never", at the length that is best for it), is no better than the worst of them. Groups take turns at each step; a
token costs ``diversity`` for each text of an earlier group that goes on with it (or was cut after it) at this step.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from glassformer.generation.settings import GenerationSettings


@dataclass(frozen=True)
class Text:
    """New tokens and what they are ranked by."""

    ids: tuple[int, ...]
    score: float


def penalised(total: float, length: int, asked: GenerationSettings) -> float:
    if asked.length_rule == "gnmt":
        return total / ((5 + length) ** asked.length_penalty / 6**asked.length_penalty)
    return total / length**asked.length_penalty


def edited(log_probs: Sequence[float], history: Sequence[int], written: int, asked: GenerationSettings) -> list[float]:
    """The rules about what may be written, one token at a time."""
    scores = list(log_probs)
    for token, bias in dict(asked.logit_bias).items():
        scores[token] += bias
    for token in set(history):
        scores[token] *= asked.repetition_penalty if scores[token] < 0 else 1 / asked.repetition_penalty
    for token in range(len(scores)):
        longer = [*history, token]
        size = asked.no_repeat_ngram
        runs = [tuple(longer[at : at + size]) for at in range(len(longer) - size + 1)]
        if size and len(runs) > 1 and runs[-1] in runs[:-1]:
            scores[token] = -inf
        if any(tuple(longer[-len(word) :]) == word for word in asked.bad_words):
            scores[token] = -inf
        if token in asked.eos and written < asked.min_new_tokens:
            scores[token] = -inf
    for when, forced in ((0, asked.forced_first), (asked.max_new_tokens - 1, asked.forced_last)):
        if forced is not None and written == when:
            scores = [0.0 if token == forced else -inf for token in range(len(scores))]
    return [-inf if token in asked.suppress else score for token, score in enumerate(scores)]


def naive_beam(
    log_probs: Callable[[tuple[int, ...]], Sequence[float]],
    history: Sequence[int],
    asked: GenerationSettings,
    *,
    longest: int | None = None,
    is_done: Callable[[tuple[int, ...]], bool] = lambda _: False,
) -> list[Text]:
    """All texts that are left at the end, the best first."""
    longest = asked.max_new_tokens if longest is None else min(longest, asked.max_new_tokens)
    size = asked.beam_size // asked.beam_groups
    live: list[list[Text]] = [[Text((), 0.0)] for _ in range(asked.beam_groups)]
    ended: list[list[Text]] = [[] for _ in range(asked.beam_groups)]
    over = [False] * asked.beam_groups
    for length in range(1, longest + 1):
        chosen: Counter[int] = Counter()
        for group in range(asked.beam_groups):
            if over[group]:
                continue
            continuations = []
            for text in live[group]:
                scores = edited(log_probs(text.ids), [*history, *text.ids], length - 1, asked)
                for token, score in enumerate(scores):
                    if score > -inf:
                        total = text.score + score - asked.diversity * chosen[token]
                        continuations.append(Text((*text.ids, token), total))
            continuations.sort(key=lambda text: -text.score)
            going, cut = [], []
            for rank, text in enumerate(continuations[: max(2, 1 + len(asked.eos)) * size]):
                at_end = text.ids[-1] in asked.eos
                if at_end or is_done(text.ids) or length == longest:
                    if rank < size:
                        ended[group].append(Text(text.ids, penalised(text.score, length, asked)))
                        cut += [] if at_end else [text]
                elif len(going) < size:
                    going.append(text)
            chosen.update(text.ids[-1] for text in going + cut)
            ended[group] = sorted(ended[group], key=lambda text: -text.score)[:size]
            live[group] = going
            full = len(ended[group]) == size
            over[group] = not going or (full and _enough(going[0], ended[group][-1], length, longest, asked))
    return sorted((text for texts in ended for text in texts), key=lambda text: -text.score)


def _enough(best: Text, worst: Text, length: int, longest: int, asked: GenerationSettings) -> bool:
    if asked.early_stopping is True:
        return True
    lengths = [length]
    if asked.early_stopping == "never":
        lengths = list(range(length, longest + 1))
    return max(penalised(best.score, at, asked) for at in lengths) <= worst.score
