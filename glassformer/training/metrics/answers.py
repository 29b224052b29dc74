"""Exact match and F1 of answers by the rules of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018); shares from 0 to 1.

Answers are compared after normalisation: lower case, no punctuation, no articles, single spaces. Exact match: are they
the same? F1: how many words do they share? The best over all gold answers counts. No answer is the empty text, and is
right for a question that has none.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassformer.config.checks import check_choice
from glassformer.training.metrics.base import F1Score, check_aligned, check_strings, mean

Version = Literal["1.1", "2.0"]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True)
class AnswerScores:
    """For each question: whether the answer matches exactly, the F1 of its words, whether there is an answer."""

    exact: tuple[bool, ...]
    word_f1: tuple[float, ...]
    has_answer: tuple[bool, ...]

    @property
    def exact_match(self) -> float:
        """The share of questions whose answer is exactly a gold answer."""
        return mean(self.exact)

    @property
    def f1(self) -> float:
        """The mean over questions of the F1 of words."""
        return mean(self.word_f1)

    def only(self, *, has_answer: bool) -> "AnswerScores | None":
        """The questions that have an answer, or those that have none; None if there is no such question."""
        indices = [index for index, has in enumerate(self.has_answer) if has == has_answer]
        if not indices:
            return None
        return AnswerScores(
            exact=tuple(self.exact[index] for index in indices),
            word_f1=tuple(self.word_f1[index] for index in indices),
            has_answer=(has_answer,) * len(indices),
        )

    def metrics(self) -> dict[str, float]:
        """Exact match and F1, from 0 to 1; if some questions have no answer, also for both sorts separately.

        For unanswerable questions F1 equals the exact match and is left out.
        """
        metrics = {"exact match": self.exact_match, "answer f1": self.f1}
        answerable, unanswerable = self.only(has_answer=True), self.only(has_answer=False)
        if unanswerable is not None:
            metrics["exact match of unanswerable"] = unanswerable.exact_match
            if answerable is not None:
                metrics["exact match of answerable"] = answerable.exact_match
                metrics["answer f1 of answerable"] = answerable.f1
        return metrics


def score_answers(predicted: Sequence[str], gold: Sequence[Sequence[str]], *, version: Version = "2.0") -> AnswerScores:
    """Compare answers.

    The two versions differ where normalisation leaves nothing of an answer, such as "A": 2.0 counts that as no answer
    and drops it from the gold ones; in 1.1 it matches itself exactly but shares no word, and every question has an
    answer.

    Args:
        predicted: what a model answered; the empty text for no answer.
        gold: for each question all correct answers; none if it has none.
        version: which of the two programs of SQuAD to agree with.
    """
    check_choice("version", version, ("1.1", "2.0"))
    check_aligned(predicted, gold, "predicted answers", "lists of gold answers")
    check_strings("predicted answer", predicted)
    for number, answers in enumerate(gold):
        if isinstance(answers, str):
            raise TypeError(f"gold answers of question {number} must be a list, got the single text {answers!r:.60}.")
        check_strings(f"question {number}: gold answer", answers)
        if not answers and version == "1.1":
            raise ValueError(f"question {number} has no gold answer, which version 2.0 allows and 1.1 does not.")
    pairs = list(zip(predicted, (_gold(answers, version) for answers in gold), strict=True))
    return AnswerScores(
        exact=tuple(normalise(answer) in map(normalise, answers) for answer, answers in pairs),
        word_f1=tuple(max(_word_f1(answer, other, version) for other in answers) for answer, answers in pairs),
        has_answer=tuple(map(bool, gold)),
    )


def normalise(answer: str) -> str:
    """An answer as it is compared. Removing punctuation joins words: ``well-known`` is ``wellknown``."""
    plain = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _gold(answers: Sequence[str], version: Version) -> Sequence[str]:
    if version == "1.1":
        return answers
    return [answer for answer in answers if normalise(answer)] or [""]


def _word_f1(predicted: str, gold: str, version: Version) -> float:
    """The F1 of the words of two answers."""
    words, gold_words = normalise(predicted).split(), normalise(gold).split()
    if version == "2.0" and not (words and gold_words):
        return float(words == gold_words)
    return F1Score((Counter(words) & Counter(gold_words)).total(), len(words), len(gold_words)).f1
