"""Extractive question answering: the span of a context that answers a question.

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
from glassformer.loaded import check_ability
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, head_input, run_in_batches
from glassformer.tasks.texts import Framed, Pair, Window, check_pair, frame, sliding, trim


@dataclass(frozen=True)
class Answer:
    """A span of the context: its characters [start, end)."""

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
    no_answer: float | None  # the probability that the context has no answer, if requested


@dataclass(frozen=True)
class _Limits:
    """How many answers, how long, and whether there may be none."""

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

    An answer is a span of at most ``max_answer_tokens`` tokens of the context; its score is the start logit of its
    first token plus the end logit of its last token. A context that does not fit is read in windows, each with the
    whole question; for an answer in two windows, the higher score counts. The probability of an answer is the softmax
    of the scores over all such spans of all windows; with ``no_answer``, no answer is one more choice, and its score is
    that of the very first token, the lowest of all windows (Devlin et al., 2018, section 4.3).

    Args:
        loaded: a model with a head of the kind span, and its tokenizer.
        questions: pairs (question, context).
        top: how many answers per question; fewer if the context has no more.
        max_answer_tokens: the longest answer.
        no_answer: whether the context may hold no answer; only for models that were trained with such questions.
        stride: tokens of the context between the ends of two windows; None: half of what fits. Answers longer than the
            overlap of two windows may be missed.
        batch_size: windows per batch.
        progress: called with the number done and the total.
    """
    check_texts(loaded, questions, _check_question, "question")
    check_positive(top=top, max_answer_tokens=max_answer_tokens, stride=1 if stride is None else stride)
    model = loaded.model
    check_ability(model.config, "answer")
    framed = [frame(loaded.tokenizer, *pair, name=f"question {number}") for number, pair in enumerate(questions)]
    if no_answer and any(not question.before for question in framed):
        raise ValueError("no_answer reads the token before the question, and this tokenizer puts none there.")
    windows = [_windows(question, model.config.longest, stride) for question in framed]
    parts = [(question, window) for question, some in zip(framed, windows, strict=True) for window in some]
    rows = [replace(question, second=question.second[w.start : w.end]).row for question, w in parts]

    def run(model: Transformer, batch: Batch) -> list[Float[Tensor, "T 2"]]:
        scores = upcast(model.apply_head(*head_input(model, batch))).cpu()  # (B, T, 2): start and end logits
        return list(scores)

    scores = iter(run_in_batches(model, rows, run, batch_size, progress))
    limits = _Limits(top, max_answer_tokens, no_answer)
    return [
        _answered(*pair, question, [(window, next(scores)) for window in some], limits)
        for pair, question, some in zip(questions, framed, windows, strict=True)
    ]


def _check_question(name: str, value: object) -> None:
    check_pair(name, value, "a pair (question, context)")


def _windows(framed: Framed, longest: int | None, stride: int | None) -> list[Window]:
    """Windows over the context, each as large as fits beside the question."""
    if longest is None:
        return [Window(0, 0, len(framed.second))]
    size = longest - framed.frame - len(framed.first)
    if size < 1:
        raise ValueError(
            f"{framed.name} has {len(framed.first)} tokens and leaves no room for its context: this model takes "
            f"{longest}, {framed.frame} of them special. Shorten the question."
        )
    step = max(1, size // 2) if stride is None else stride
    if step > size:
        raise ValueError(f"stride={step} would skip tokens: beside {framed.name}, {size} of its context fit.")
    return sliding(len(framed.second), size, step)


def _answered(
    question: str, context: str, framed: Framed, windows: Sequence[tuple[Window, Float[Tensor, "T 2"]]], limits: _Limits
) -> Answered:
    # Scores of all spans, by first token and length: the highest of all windows.
    longest = min(limits.tokens, len(framed.second))
    table = torch.full((len(framed.second), longest), -torch.inf, dtype=windows[0][1].dtype)  # (N, L)
    begin = len(framed.before + framed.first + framed.between)
    for window, scores in windows:
        inside = scores[begin : begin + window.end - window.start]
        rows = table[window.start : window.end]
        torch.maximum(rows, _span_scores(inside, longest), out=rows)
    # Probabilities over all spans and, if allowed, no answer.
    choices = table.flatten()  # (N · L,)
    if limits.no_answer:
        null_score = torch.stack([scores[0].sum() for _, scores in windows]).min()
        choices = torch.cat((choices, null_score[None]))
    probs = choices.softmax(-1)
    # The best spans; some tokens are only white space, and several may share a character.
    answers: dict[tuple[int, int], Answer] = {}
    for index in table.flatten().argsort(descending=True, stable=True).tolist():
        first, more = divmod(index, longest)
        if len(answers) == limits.top or choices[index] == -torch.inf:
            break
        start, end = trim(context, framed.second[first].start, framed.second[first + more].end)
        if start < end and (start, end) not in answers:
            answers[start, end] = Answer(context[start:end], start, end, float(choices[index]), float(probs[index]))
    return Answered(question, context, tuple(answers.values()), float(probs[-1]) if limits.no_answer else None)


def _span_scores(scores: Float[Tensor, "T 2"], longest: int) -> Float[Tensor, "T L"]:
    """start[i] + end[i + l] for every first token i and length l + 1; −inf where the span leaves the window."""
    starts, ends = scores.unbind(-1)
    padded = torch.cat((ends, ends.new_full((longest - 1,), -torch.inf)))
    return starts[:, None] + padded.unfold(0, longest, 1)
