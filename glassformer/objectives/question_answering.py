"""Question answering: where in a context the answer starts and ends (Devlin et al., 2018, sections 4.2 and 4.3).

A question without an answer has the first token of its row as both. Padding takes no part in the softmax over
positions. A context that does not fit beside its question is read in overlapping windows, as
``glassformer.tasks.answer`` does.

Shapes: ``B`` rows, ``T`` tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from glassformer.config import TaskHead
from glassformer.config.checks import check_choice, check_positive_integer
from glassformer.data.loader import Dataset
from glassformer.data.records import BadRowError, QuestionRecord
from glassformer.hub import Loaded
from glassformer.metrics.tasks import score_answers
from glassformer.nn.norm import upcast
from glassformer.objectives.base import (
    Batch,
    Ids,
    Loss,
    LossTerm,
    ModelRequirement,
    Padding,
    TokenRow,
    as_token_row,
    head_output,
    token_cross_entropy,
)
from glassformer.objectives.examples import (
    BATCH_SIZE,
    NoteCounts,
    as_trained,
    encode_rows,
    max_row_tokens,
    readable_rows,
    row_tokens,
    task_token_row,
)
from glassformer.objectives.job import Job, RunContext
from glassformer.recipes.rows import Records
from glassformer.tasks.answer import Answered, answer
from glassformer.tasks.batches import TextTokens, TokenTuple, Window, sliding, trim

NEEDS = ModelRequirement("QuestionAnswering", TaskHead, ("span",))
WIDER = "answers begin or end inside a token, and are learned with the whole token"


@dataclass(frozen=True, eq=False)
class AnswerExample:
    """A question and its context with special tokens; the answer is its first and last token."""

    text: Ids | TokenRow
    answer: tuple[int, int] | None  # None: the context has none

    def __post_init__(self) -> None:
        length = len(self.text.ids if isinstance(self.text, TokenRow) else self.text)
        if self.answer is not None and not 0 <= self.answer[0] <= self.answer[1] < length:
            raise ValueError(
                f"an answer from token {self.answer[0]} to {self.answer[1]} does not lie in {length} tokens."
            )


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering:
    """Half the cross-entropy of the first token of the answer, and half that of its last."""

    padding: Padding = field(default_factory=Padding)

    def prepare(self, examples: Sequence[AnswerExample], generator: torch.Generator) -> Batch:
        """Return questions with the positions of their answers; nothing is random."""
        del generator
        texts = [as_token_row(example.text) for example in examples]
        inputs = self.padding.inputs(texts)
        width = inputs["ids"].shape[-1]
        skipped = torch.tensor([width - len(text.ids) if self.padding.side == "left" else 0 for text in texts])
        positions = torch.tensor([example.answer or (0, 0) for example in examples]) + skipped[:, None]  # B 2
        return Batch(
            inputs=inputs,
            labels={"start": positions[:, 0], "end": positions[:, 1]},
            counts={"start": len(texts), "end": len(texts)},
            tokens=sum(len(text.ids) for text in texts),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return two terms, ``start`` and ``end``, over the rows."""
        NEEDS.check(model)
        scores = upcast(head_output(model, batch.inputs))  # B T 2
        if (mask := batch.inputs.get("mask")) is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        count = batch.counts["start"]
        logits = dict(zip(("start", "end"), scores.unbind(-1), strict=True))  # B T each
        terms = {
            name: LossTerm(token_cross_entropy(logits[name], batch.labels[name]).total, count, 0.5) for name in logits
        }
        right = [logits[name].argmax(-1) == batch.labels[name] for name in logits]
        return Loss(terms, {"exact": ((right[0] & right[1]).sum(), count)})


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringOptions:
    """How long contexts are read, and what an answer may be."""

    stride: int | None = None  # tokens from one window to the next; None: half of a window
    without: Literal["none", "leave out"] = "none"  # windows without the answer: learn that there is none, or skip them
    max_answer_tokens: int = 30  # of the model's answers in evaluation
    no_answer: bool | None = (
        None  # whether it may answer nothing; None: if some question of the evaluation has no answer
    )

    def __post_init__(self) -> None:
        check_choice("objective.without", self.without, ("none", "leave out"))
        check_positive_integer(
            max_answer_tokens=self.max_answer_tokens, stride=1 if self.stride is None else self.stride
        )


class QuestionAnsweringJob(Job[QuestionRecord]):
    """Questions on a context; of several right answers the first is learned."""

    head = "span"
    options_type = QuestionAnsweringOptions

    def texts(self, row: QuestionRecord) -> Iterable[str]:
        """Return question and context."""
        return row.question, row.context

    def objective(self, run: RunContext) -> QuestionAnswering:
        """Return the objective: cross-entropy of the answer's first and last token."""
        del run
        return QuestionAnswering()

    def examples(self, run: RunContext, parts: Mapping[str, Records[QuestionRecord]]) -> dict[str, Dataset[Any]]:
        """Return one example per window. The ``notes`` of a data set count answers that are not whole tokens."""
        return {part: encode_rows(run, rows, partial(self._make, run)) for part, rows in parts.items()}

    def _make(self, run: RunContext, row: QuestionRecord, counts: NoteCounts) -> list[AnswerExample]:
        encoded, windows = self._read(run, row)
        span = answer_tokens(encoded.second, row) if row.answers else None
        begin = len(encoded.before + encoded.first + encoded.between)
        examples = []
        for window in windows:
            text = task_token_row(run, replace(encoded, second=encoded.second[window.start : window.end]).row)
            if span is not None and window.start <= span[0] and span[1] < window.end:
                positions = span[0] - window.start + begin, span[1] - window.start + begin
                examples.append(AnswerExample(text, positions))
            elif span is None or self.options.without == "none":
                examples.append(AnswerExample(text, None))
        self._check(row, encoded, examples)
        if span is not None and _text(encoded.second, span, row.context) != row.answers[0][0].strip():
            counts[WIDER] += 1
        return examples

    def _check(self, row: QuestionRecord, encoded: TextTokens, examples: Sequence[AnswerExample]) -> None:
        if row.answers and all(example.answer is None for example in examples):
            text = f"{row.answers[0][0]!r:.60} of question {row.id!r}"
            remedy = "Lower objective.stride or raise batch.length"
            raise BadRowError(row.origin, "an answer that no window holds", text, remedy)
        if not encoded.before and any(example.answer is None for example in examples):
            raise ValueError(
                f"{row.origin}: a window without an answer has the token before the question as its answer, and this "
                f"tokenizer puts none there. Set objective.without='leave out', and remove questions without answers."
            )

    def _read(self, run: RunContext, row: QuestionRecord) -> tuple[TextTokens, list[Window]]:
        """Return question and context, and the windows over the context."""
        encoded, longest = row_tokens(run, row.origin, row.question, row.context), max_row_tokens(run)
        window = longest - encoded.special_count - len(encoded.first)  # tokens of the context
        if window < 1:
            problem = f"{len(encoded.first)} tokens leave no space for the context in batch.length={longest}"
            raise BadRowError(row.origin, "a question that is too long", problem, "Shorten it, or raise batch.length")
        stride = max(1, window // 2) if self.options.stride is None else self.options.stride
        if stride > window:
            problem = f"objective.stride={stride} would skip tokens: beside the question, {window} of the context fit"
            raise BadRowError(row.origin, "a question that is too long", problem, "Lower it, or raise batch.length")
        return encoded, sliding(len(encoded.second), window, stride)

    def _predict(self, loaded: Loaded, rows: Sequence[QuestionRecord]) -> list[Answered]:
        no_answer = self.options.no_answer
        return answer(
            as_trained(loaded),
            [(row.question, row.context) for row in rows],
            max_answer_tokens=self.options.max_answer_tokens,
            no_answer=any(not row.answers for row in rows) if no_answer is None else no_answer,
            stride=self.options.stride,
            batch_size=BATCH_SIZE,
        )

    def metrics(self, run: RunContext, loaded: Loaded, rows: Sequence[QuestionRecord]) -> dict[str, float]:
        """Return exact match and F1, by the rules of SQuAD 1.1, or of 2.0 if a question has no answer."""
        rows = readable_rows(run, rows, self._read)
        predicted = [best_answer(answered) for answered in self._predict(loaded, rows)]
        gold = [[text for text, _ in row.answers] for row in rows]
        return score_answers(predicted, gold, version="1.1" if all(gold) else "2.0").metrics()

    def samples(self, run: RunContext, loaded: Loaded, rows: Sequence[QuestionRecord]) -> list[str]:
        """Return a question, the predicted answer, and the right ones."""
        rows = readable_rows(run, rows, self._read)
        shown = []
        for row, answered in zip(rows, self._predict(loaded, rows), strict=True):
            right = " / ".join(dict.fromkeys(text for text, _ in row.answers))
            shown.append(f"{row.question}\n  → {best_answer(answered) or 'no answer'}\n  = {right or 'no answer'}")
        return shown


def best_answer(answered: Answered) -> str:
    """Return the most likely answer; empty if having no answer is more likely."""
    if not answered.answers or (answered.no_answer or 0.0) > answered.answers[0].probability:
        return ""
    return answered.answers[0].text


def answer_tokens(tokens: TokenTuple, row: QuestionRecord) -> tuple[int, int]:
    """Return the first and the last token of the first answer: the shortest span with all of its characters.

    An answer whose first or last character is in no token is a bad row: the neighbouring tokens would be a wrong label.
    """
    text, offset = row.answers[0]
    start, end = trim(row.context, offset, offset + len(text))
    holding = [number for number, token in enumerate(tokens) if token.start < end and token.end > start]
    if not holding or tokens[holding[0]].start > start or tokens[holding[-1]].end < end:
        remedy = "Correct the answer, or use a tokenizer that keeps all characters"
        raise BadRowError(row.origin, "an answer without a token", f"{text!r:.60} of question {row.id!r}", remedy)
    return holding[0], holding[-1]


def _text(tokens: TokenTuple, span: tuple[int, int], context: str) -> str:
    start, end = trim(context, tokens[span[0]].start, tokens[span[1]].end)
    return context[start:end]
