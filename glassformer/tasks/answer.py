"""Extractive question answering: the span of a context that answers a question.

Shapes: ``B`` windows, ``T`` tokens, ``N`` tokens of a context, ``L`` lengths that an answer may have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import Setting, SettingError, check_positive_integer
from glassformer.generation.prompts import check_can, check_texts
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import (
    Pair,
    Progress,
    TaskBatch,
    TextTokens,
    Window,
    all_text_tokens,
    batch_tokens,
    check_pair,
    head_input,
    run_in_batches,
    sliding,
    trim,
)


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


@overload
def answer(
    loaded: Loaded,
    questions: Pair,
    *,
    top: int = 1,
    max_answer_tokens: int = 30,
    no_answer: bool = False,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Answered: ...


@overload
def answer(
    loaded: Loaded,
    questions: Sequence[Pair],
    *,
    top: int = 1,
    max_answer_tokens: int = 30,
    no_answer: bool = False,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Answered]: ...


def answer(
    loaded: Loaded,
    questions: Pair | Sequence[Pair],
    *,
    top: int = 1,
    max_answer_tokens: int = 30,
    no_answer: bool = False,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Answered | list[Answered]:
    """Return the best answers to a question, or to a list of questions in their order.

    An answer is a span of at most ``max_answer_tokens`` tokens of the context; its score is the start logit of its
    first token plus the end logit of its last token. A context that does not fit is read in windows, each with the
    whole question; for an answer in two windows, the higher score counts. The probability of an answer is the softmax
    of the scores over all such spans of all windows. With ``no_answer``, "no answer" is one more choice, scored by the
    start and end logits of the first token; of several windows the lowest counts (Devlin et al., 2018, section 4.3).

    Args:
        loaded: a model with a head of the kind span, and its tokenizer.
        questions: one pair (question, context), or a list of them.
        top: how many answers per question; fewer if the context has no more.
        max_answer_tokens: the longest answer.
        no_answer: whether the context may hold no answer; only for models that were trained with such questions.
        stride: tokens of the context by which each window advances; None: half of what fits. (In transformers,
            ``doc_stride`` is the overlap instead.) Answers longer than the overlap of two windows may be missed.
        batch_size: windows per batch; None: by their tokens, see ``tasks.batches``.
        progress: called with the number done and the total.
    """
    check_can(loaded, "answer")
    if isinstance(questions, tuple) and len(questions) == 2 and isinstance(questions[0], str):
        options = {"top": top, "max_answer_tokens": max_answer_tokens, "no_answer": no_answer, "stride": stride}
        return answer(loaded, [questions], batch_size=batch_size, progress=progress, **cast(Any, options))[0]
    check_texts(loaded, questions := cast(Sequence[Pair], questions), _check_question, "question")
    check_positive_integer(top=top, max_answer_tokens=max_answer_tokens, stride=1 if stride is None else stride)
    model = loaded.model
    # Tokens of every question with its context, split into windows that fit the model.
    encoded = all_text_tokens(loaded.tokenizer, questions, "question")
    if no_answer and any(not question.before for question in encoded):
        raise ValueError("no_answer reads the token before the question, and this tokenizer puts none there.")
    windows = [_windows(question, model.config.max_length, stride) for question in encoded]
    rows = [
        replace(question, second=question.second[window.start : window.end]).row
        for question, own_windows in zip(encoded, windows, strict=True)
        for window in own_windows
    ]

    def run(model: Transformer, batch: TaskBatch) -> list[Float[Tensor, "T 2"]]:
        scores = upcast(model.apply_head(*head_input(model, batch))).cpu()  # (B, T, 2): start and end logits
        return list(scores)

    # Scores of all windows, then the best spans of each question.
    scores = iter(run_in_batches(model, rows, run, batch_size, progress, tokens=batch_tokens(model)))
    limits = _Limits(top, max_answer_tokens, no_answer)
    return [
        _answered(*pair, question, [(window, next(scores)) for window in own_windows], limits)
        for pair, question, own_windows in zip(questions, encoded, windows, strict=True)
    ]


def _check_question(name: str, value: object) -> None:
    check_pair(name, value, "a pair (question, context)")


def _windows(encoded: TextTokens, longest: int | None, stride: int | None) -> list[Window]:
    """Return windows over the context, each as large as fits beside the question."""
    if longest is None:
        return [Window(0, 0, len(encoded.second))]
    size = longest - encoded.special_count - len(encoded.first)
    if size < 1:
        raise SettingError(
            f"{{}} has {len(encoded.first)} tokens and leaves no tokens for its context: this model takes "
            f"{longest}, {encoded.special_count} of them special. Shorten the question.",
            encoded.name,
        )
    step = max(1, size // 2) if stride is None else stride
    if step > size:
        template = f"{{}} would skip tokens: beside {{}}, {size} of its context fit."
        raise SettingError(template, Setting("stride", step), encoded.name)
    return sliding(len(encoded.second), size, step)


def _answered(
    question: str,
    context: str,
    encoded: TextTokens,
    windows: Sequence[tuple[Window, Float[Tensor, "T 2"]]],
    limits: _Limits,
) -> Answered:
    # Scores of all spans, by first token and length: the highest of all windows.
    longest = min(limits.tokens, len(encoded.second))
    table = torch.full((len(encoded.second), longest), -torch.inf, dtype=windows[0][1].dtype)  # (N, L)
    begin = len(encoded.before + encoded.first + encoded.between)
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
        start, end = trim(context, encoded.second[first].start, encoded.second[first + more].end)
        if start < end and (start, end) not in answers:
            answers[start, end] = Answer(context[start:end], start, end, float(choices[index]), float(probs[index]))
    return Answered(question, context, tuple(answers.values()), float(probs[-1]) if limits.no_answer else None)


def _span_scores(scores: Float[Tensor, "T 2"], longest: int) -> Float[Tensor, "T L"]:
    """start[i] + end[i + l] for every first token i and length l + 1; −inf where the span leaves the window."""
    starts, ends = scores.unbind(-1)
    padded = torch.cat((ends, ends.new_full((longest - 1,), -torch.inf)))
    return starts[:, None] + padded.unfold(0, longest, 1)
