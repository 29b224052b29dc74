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
from glassformer.training.metrics.base import Found, check_aligned, check_strings, mean

Version = Literal["1.1", "2.0"]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True)
class AnswerScores:
    """What each question was answered with: was it the same, how much was shared, and does it have an answer."""

    exact: tuple[bool, ...]
    shared: tuple[float, ...]
    has_answer: tuple[bool, ...]

    @property
    def exact_match(self) -> float:
        """The share of questions with exactly a gold answer."""
        return mean(self.exact)

    @property
    def f1(self) -> float:
        """The mean over questions of the F1 of words."""
        return mean(self.shared)

    def only(self, *, has_answer: bool) -> "AnswerScores | None":
        """The questions that have an answer, or those that have none; None if there is no such question."""
        places = [place for place, has in enumerate(self.has_answer) if has == has_answer]
        if not places:
            return None
        return AnswerScores(
            exact=tuple(self.exact[place] for place in places),
            shared=tuple(self.shared[place] for place in places),
            has_answer=(has_answer,) * len(places),
        )

    def figures(self) -> dict[str, float]:
        """Exact match and F1, from 0 to 1; if some questions have no answer, also of both sorts apart.

        Where no answer is right, F1 is the exact match and is left out.
        """
        figures = {"exact match": self.exact_match, "answer f1": self.f1}
        answerable, unanswerable = self.only(has_answer=True), self.only(has_answer=False)
        if unanswerable is not None:
            figures["exact match of unanswerable"] = unanswerable.exact_match
            if answerable is not None:
                figures["exact match of answerable"] = answerable.exact_match
                figures["answer f1 of answerable"] = answerable.f1
        return figures


def score_answers(given: Sequence[str], gold: Sequence[Sequence[str]], *, version: Version = "2.0") -> AnswerScores:
    """Compare answers.

    The two versions differ where normalisation leaves nothing of an answer, such as "A": 2.0 takes that for no answer
    and strikes it from the gold ones; 1.1 finds it equal to its like, but without a word to share, and knows no
    question without an answer.

    Args:
        given: what a model answered; the empty text for no answer.
        gold: for each question all answers that are right; none if it has none.
        version: which of the two programs of SQuAD to agree with.
    """
    check_choice("version", version, ("1.1", "2.0"))
    check_aligned(given, gold, "given answers", "lists of gold answers")
    check_strings("given answer", given)
    for number, some in enumerate(gold):
        if isinstance(some, str):
            raise TypeError(f"gold answers of question {number} must be a list, got the single text {some!r:.60}.")
        check_strings(f"question {number}: gold answer", some)
        if not some and version == "1.1":
            raise ValueError(f"question {number} has no gold answer, which version 2.0 knows and 1.1 does not.")
    both = list(zip(given, (_gold(some, version) for some in gold), strict=True))
    return AnswerScores(
        exact=tuple(normalise(answer) in map(normalise, some) for answer, some in both),
        shared=tuple(max(_shared(answer, one, version) for one in some) for answer, some in both),
        has_answer=tuple(map(bool, gold)),
    )


def normalise(answer: str) -> str:
    """An answer as it is compared. Punctuation joins what stood around it: ``well-known`` is ``wellknown``."""
    plain = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _gold(answers: Sequence[str], version: Version) -> Sequence[str]:
    if version == "1.1":
        return answers
    return [answer for answer in answers if normalise(answer)] or [""]


def _shared(given: str, gold: str, version: Version) -> float:
    """The F1 of the words of two answers."""
    words, right = normalise(given).split(), normalise(gold).split()
    if version == "2.0" and not (words and right):
        return float(words == right)
    return Found((Counter(words) & Counter(right)).total(), len(words), len(right)).f1
