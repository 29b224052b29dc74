"""Answers that stand in a text: from their characters to the tokens of windows, and back (Devlin et al., 2018, 4.2).

A context that does not fit beside its question is read in windows that overlap, as ``glassformer.tasks.answer`` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from glassformer.config.checks import check_choice, check_positive
from glassformer.data import objectives
from glassformer.data.loader import Dataset
from glassformer.data.objectives import Answer
from glassformer.data.records import Question
from glassformer.data.source_rows import BadRowError
from glassformer.hub import Loaded
from glassformer.tasks.answer import Answered, answer
from glassformer.tasks.texts import Framed, Tokens, Window, sliding, trim
from glassformer.training.jobs.base import Job, RunContext
from glassformer.training.jobs.framing import (
    ASKED,
    Counts,
    as_text,
    as_trained,
    frame_row,
    longest_row,
    read_rows,
    readable,
)
from glassformer.training.metrics.answers import score_answers
from glassformer.training.reading import Records

WIDER = "answers begin or end inside a token, and are learned with the whole token"


@dataclass(frozen=True, kw_only=True)
class AnsweringOptions:
    """How long texts are read, and what an answer may be."""

    stride: int | None = None  # tokens that each window reaches further; None: half of what fits beside the question
    without: Literal["none", "leave out"] = "none"  # windows that lack the answer: say that there is none, or leave out
    max_answer_tokens: int = 30  # of what the model may answer, when it is judged
    no_answer: bool | None = None  # whether it may answer nothing; None: if some question judged by has no answer

    def __post_init__(self) -> None:
        check_choice("objective.without", self.without, ("none", "leave out"))
        check_positive(max_answer_tokens=self.max_answer_tokens, stride=1 if self.stride is None else self.stride)


class Answering(Job[Question]):
    """Where in a context the answer to a question starts and ends; of several right answers the first is learned."""

    record = Question
    head = "span"
    options_type = AnsweringOptions

    def texts(self, row: Question) -> Iterable[str]:
        """Question and context."""
        return row.question, row.context

    def objective(self, kit: RunContext) -> Answer:
        """Cross-entropy of the first and of the last token of the answer."""
        del kit
        return Answer()

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Question]]) -> dict[str, Dataset[Any]]:
        """One example per window. The ``notes`` of a data set say how many answers are not whole tokens."""
        return {part: read_rows(kit, rows, partial(self._make, kit)) for part, rows in parts.items()}

    def _make(self, kit: RunContext, row: Question, counts: Counts) -> list[objectives.Question]:
        framed, windows = self._read(kit, row)
        span = find_tokens(framed.second, row) if row.answers else None
        begin = len(framed.before + framed.first + framed.between)
        found = []
        for window in windows:
            text = as_text(kit, replace(framed, second=framed.second[window.start : window.end]).row)
            if span is not None and window.start <= span[0] and span[1] < window.end:
                places = span[0] - window.start + begin, span[1] - window.start + begin
                found.append(objectives.Question(text, places))
            elif span is None or self.options.without == "none":
                found.append(objectives.Question(text, None))
        self._check(row, framed, found)
        if span is not None and _text(framed.second, span, row.context) != row.answers[0][0].strip():
            counts[WIDER] += 1
        return found

    def _check(self, row: Question, framed: Framed, found: Sequence[objectives.Question]) -> None:
        if row.answers and all(one.answer is None for one in found):
            text = f"{row.answers[0][0]!r:.60} of question {row.id!r}"
            remedy = "Lower objective.stride or raise batch.length"
            raise BadRowError(row.origin, "an answer that no window holds", text, remedy)
        if not framed.before and any(one.answer is None for one in found):
            raise ValueError(
                f"{row.origin}: a window without an answer has the token before the question as its answer, and this "
                f"tokenizer puts none there. Say objective.without='leave out', and take out questions without answers."
            )

    def _read(self, kit: RunContext, row: Question) -> tuple[Framed, list[Window]]:
        """Question and context, and the windows over the context."""
        framed, longest = frame_row(kit, row.origin, row.question, row.context), longest_row(kit)
        room = longest - framed.frame - len(framed.first)
        if room < 1:
            found = f"{len(framed.first)} tokens leave no room for the context in batch.length={longest}"
            raise BadRowError(row.origin, "a question that is too long", found, "Shorten it, or raise batch.length")
        stride = max(1, room // 2) if self.options.stride is None else self.options.stride
        if stride > room:
            found = f"objective.stride={stride} passes over tokens, for beside the question {room} of the context fit"
            raise BadRowError(row.origin, "a question that is too long", found, "Lower it, or raise batch.length")
        return framed, sliding(len(framed.second), room, stride)

    def _ask(self, loaded: Loaded, rows: Sequence[Question]) -> list[Answered]:
        asked = self.options.no_answer
        return answer(
            as_trained(loaded),
            [(row.question, row.context) for row in rows],
            max_answer_tokens=self.options.max_answer_tokens,
            no_answer=any(not row.answers for row in rows) if asked is None else asked,
            stride=self.options.stride,
            batch_size=ASKED,
        )

    def figures(self, kit: RunContext, loaded: Loaded, rows: Sequence[Question]) -> dict[str, float]:
        """Exact match and F1, by the rules of the version of SQuAD that the rows are like."""
        rows = readable(kit, rows, self._read)
        given = [best(found) for found in self._ask(loaded, rows)]
        gold = [[text for text, _ in row.answers] for row in rows]
        return score_answers(given, gold, version="1.1" if all(gold) else "2.0").figures()

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Question]) -> list[str]:
        """A question, the answer that the model found, and what is right."""
        rows = readable(kit, rows, self._read)
        shown = []
        for row, found in zip(rows, self._ask(loaded, rows), strict=True):
            right = " / ".join(dict.fromkeys(text for text, _ in row.answers))
            shown.append(f"{row.question}\n  → {best(found) or 'no answer'}\n  = {right or 'no answer'}")
        return shown


def best(found: Answered) -> str:
    """The text that a question is answered with; empty if no answer is more likely than any."""
    if not found.answers or (found.no_answer or 0.0) > found.answers[0].probability:
        return ""
    return found.answers[0].text


def find_tokens(tokens: Tokens, row: Question) -> tuple[int, int]:
    """The first and the last token of the first answer: the fewest that hold all of its characters.

    An answer whose first or last character is in no token is a bad row: to point at its neighbours would teach
    something else than was said.
    """
    text, place = row.answers[0]
    start, end = trim(row.context, place, place + len(text))
    holding = [number for number, token in enumerate(tokens) if token.start < end and token.end > start]
    if not holding or tokens[holding[0]].start > start or tokens[holding[-1]].end < end:
        remedy = "Correct the answer, or use a tokenizer that keeps all characters"
        raise BadRowError(row.origin, "an answer without a token", f"{text!r:.60} of question {row.id!r}", remedy)
    return holding[0], holding[-1]


def _text(tokens: Tokens, span: tuple[int, int], context: str) -> str:
    start, end = trim(context, tokens[span[0]].start, tokens[span[1]].end)
    return context[start:end]
