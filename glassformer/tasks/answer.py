"""Where in a text the answer to a question stands, from a head that marks where answers start and end.

Shapes: ``B`` windows, ``T`` tokens, ``N`` tokens of a context, ``L`` lengths that an answer may have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import check_positive
from glassformer.generation.prompts import check_texts
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, ask_in_batches, vectors
from glassformer.tasks.texts import Framed, Pair, check_head, check_pair, frame, trim
from glassformer.tasks.windows import Window, sliding


@dataclass(frozen=True)
class Answer:
    """A part of the context: its characters [start, end)."""

    text: str
    start: int
    end: int
    score: float  # logit of its start + logit of its end
    probability: float


@dataclass(frozen=True)
class Answered:
    """A question with its best answers, the most probable first."""

    question: str
    context: str
    answers: tuple[Answer, ...]
    no_answer: float | None  # the probability that the context has none, if that was asked


@dataclass(frozen=True)
class _Limits:
    """What was asked for."""

    top: int
    tokens: int
    no_answer: bool


def answer(
    loaded: Loaded,
    questions: Sequence[Pair],
    *,
    top: int = 1,
    max_answer_tokens: int = 30,
    no_answer: bool = False,
    stride: int | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> list[Answered]:
    """The best answers to questions, in their order.

    An answer is a run of at most ``max_answer_tokens`` tokens of the context; its score is the logit of its first token
    as a start plus that of its last token as an end. A context that does not fit is read in windows, all with the whole
    question; of an answer that is in two windows, the better score counts. The probability of an answer is the softmax
    of the scores over all such runs of all windows; with ``no_answer``, no answer is one more choice, and its score is
    that of the very first token, taken from the window that thinks least of it (Devlin et al., 2018, section 4.3).

    Args:
        loaded: a model with a head of the kind span, and its tokenizer.
        questions: pairs (question, context).
        top: how many answers to each; fewer where the context has no more.
        max_answer_tokens: the longest answer.
        no_answer: whether the context may hold no answer; only models that were trained to say so can tell.
        stride: how many tokens of the context each window reaches further; half of what fits unless given. Answers
            longer than what the windows share may be missed.
        batch_size: windows at a time.
        progress: called with how many are done, and of how many.
    """
    check_texts(loaded, questions, _check_question, "question")
    check_positive(top=top, max_answer_tokens=max_answer_tokens, stride=1 if stride is None else stride)
    model = loaded.model
    check_head(model.config, ("span",), "answer")
    framed = [frame(loaded.tokenizer, *pair, name=f"question {number}") for number, pair in enumerate(questions)]
    if no_answer and any(not one.before for one in framed):
        raise ValueError("no_answer reads the token before the question, and this tokenizer puts none there.")
    windows = [_windows(one, model.config.longest, stride) for one in framed]
    asked = [(one, window) for one, some in zip(framed, windows, strict=True) for window in some]
    rows = [replace(one, second=one.second[window.start : window.end]).row for one, window in asked]

    def ask(model: Transformer, batch: Batch) -> list[Float[Tensor, "T 2"]]:
        scores = upcast(model.apply_head(*vectors(model, batch))).cpu()  # B T 2
        return list(scores)

    scores = iter(ask_in_batches(model, rows, ask, batch_size, progress))
    limits = _Limits(top, max_answer_tokens, no_answer)
    return [
        _answered(*pair, one, [(window, next(scores)) for window in some], limits)
        for pair, one, some in zip(questions, framed, windows, strict=True)
    ]


def _check_question(name: str, value: object) -> None:
    check_pair(name, value, "a pair (question, context)")


def _windows(framed: Framed, longest: int | None, stride: int | None) -> list[Window]:
    """Windows over the context, each as large as the question leaves room for."""
    if longest is None:
        return [Window(0, 0, len(framed.second))]
    room = longest - framed.frame - len(framed.first)
    if room < 1:
        raise ValueError(
            f"{framed.name} has {len(framed.first)} tokens and leaves no room for its context: this model takes "
            f"{longest}, {framed.frame} of them its own. Shorten the question."
        )
    step = max(1, room // 2) if stride is None else stride
    if step > room:
        raise ValueError(f"stride={step} would pass over tokens: beside {framed.name}, {room} of its context fit.")
    return sliding(len(framed.second), room, step)


def _answered(
    question: str, context: str, framed: Framed, found: Sequence[tuple[Window, Float[Tensor, "T 2"]]], limits: _Limits
) -> Answered:
    longest = min(limits.tokens, len(framed.second))
    table = torch.full((len(framed.second), longest), -torch.inf, dtype=found[0][1].dtype)  # N L
    begin = len(framed.before + framed.first + framed.between)
    for window, scores in found:
        inside = scores[begin : begin + window.end - window.start]
        rows = table[window.start : window.end]
        torch.maximum(rows, _span_scores(inside, longest), out=rows)
    every = table.flatten()
    if limits.no_answer:
        nothing = torch.stack([scores[0].sum() for _, scores in found]).min()
        every = torch.cat((every, nothing[None]))
    probs = every.softmax(-1)
    answers: dict[tuple[int, int], Answer] = {}
    for place in table.flatten().argsort(descending=True, stable=True).tolist():
        first, more = divmod(place, longest)
        if len(answers) == limits.top or every[place] == -torch.inf:
            break
        start, end = trim(context, framed.second[first].start, framed.second[first + more].end)
        if start < end and (start, end) not in answers:  # tokens may be of white space, or share a character
            answers[start, end] = Answer(context[start:end], start, end, float(every[place]), float(probs[place]))
    return Answered(question, context, tuple(answers.values()), float(probs[-1]) if limits.no_answer else None)


def _span_scores(scores: Float[Tensor, "T 2"], longest: int) -> Float[Tensor, "T L"]:
    """start[i] + end[i + l] for every first token i and length l + 1; −∞ where that runs out of the window."""
    starts, ends = scores.unbind(-1)
    padded = torch.cat((ends, ends.new_full((longest - 1,), -torch.inf)))
    return starts[:, None] + padded.unfold(0, longest, 1)
