"""Metrics of task heads: accuracy and F1 of labels, F1 of entities, exact match and F1 of answers; from 0 to 1.

Labels, one for each text, by scikit-learn's definitions. A ratio with a zero denominator is 0: the precision of a
class that was never predicted, the recall of one that never occurs.

Entities by the rules of CoNLL, as the package ``seqeval`` has them: one is correct if its kind, its first and its last
word are. Which words form an entity, also where tags are malformed, is decided by ``glassformer.tasks.entities``: what
is measured is what ``tag`` shows.

Answers by the rules of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), compared in lower case, without punctuation
and articles, with single spaces. The best over all gold answers counts. The empty string stands for "no answer"; it is
correct for a question without gold answers.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from glassformer.config.checks import Item, SettingError, check_choice
from glassformer.metrics.base import F1Score, add_up, check_aligned, check_strings, mean
from glassformer.tasks.entities import BEGINS, ENDS, INSIDE, OUTSIDE, SINGLE, find_entities


@dataclass(frozen=True, kw_only=True)
class LabelScores:
    """The confusion matrix: ``confusion[i][j]`` counts texts of label i for which label j was predicted."""

    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]

    @property
    def accuracy(self) -> float:
        """The share of texts whose label is correct."""
        return self._correct / sum(map(sum, self.confusion))

    @property
    def per_class(self) -> dict[str, F1Score]:
        """Precision, recall and F1 of each label."""
        predicted = [sum(column) for column in zip(*self.confusion, strict=True)]
        return {
            label: F1Score(row[index], predicted[index], sum(row))
            for index, (label, row) in enumerate(zip(self.labels, self.confusion, strict=True))
        }

    @property
    def macro_f1(self) -> float:
        """The mean of the labels' F1: rare labels weigh as much as frequent ones."""
        return mean([score.f1 for score in self.per_class.values()])

    @property
    def _correct(self) -> int:
        return sum(row[index] for index, row in enumerate(self.confusion))

    def metrics(self) -> dict[str, float]:
        """Return accuracy and macro F1, from 0 to 1; the micro F1 would be the accuracy again."""
        return {"accuracy": self.accuracy, "macro f1": self.macro_f1}


def score_labels(predicted: Sequence[str], gold: Sequence[str], *, labels: Sequence[str] | None = None) -> LabelScores:
    """Compare labels by name.

    Args:
        predicted: the label that a model gives each text.
        gold: the correct labels.
        labels: all there are, in the order of the confusion matrix. One that neither occurs nor was predicted has an
            F1 of 0 and lowers the macro F1. By default those that occur or were predicted, in alphabetical order.
    """
    check_aligned(predicted, gold, "predicted labels", "gold labels")
    check_strings("predicted label", predicted)
    check_strings("gold label", gold)
    seen = {*predicted, *gold}
    names = tuple(sorted(seen) if labels is None else labels)
    if len(set(names)) < len(names):
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"labels must differ; these are repeated: {', '.join(map(repr, repeated))}.")
    if unknown := sorted(seen.difference(names)):
        raise ValueError(
            f"labels are {', '.join(map(repr, names))}; there {'is' if len(unknown) == 1 else 'are'} also "
            f"{', '.join(map(repr, unknown))}. Add what is missing, or leave labels out."
        )
    counts = Counter(zip(gold, predicted, strict=True))
    return LabelScores(labels=names, confusion=tuple(tuple(counts[row, column] for column in names) for row in names))


PREFIXES = (BEGINS, INSIDE, ENDS, SINGLE)
NO_KIND = "_"  # the kind of entities whose tags are only a prefix

_Span: TypeAlias = tuple[str, int, int, int]  # kind, sentence, first word, the one after the last


@dataclass(frozen=True, kw_only=True)
class EntityScores:
    """Precision and recall of each kind of entity."""

    per_kind: Mapping[str, F1Score]

    @property
    def overall(self) -> F1Score:
        """All entities together, each counted once whatever its kind; not the mean over kinds."""
        return add_up(self.per_kind.values())

    def metrics(self) -> dict[str, float]:
        """Return precision, recall and F1 of all, and the F1 of each kind; from 0 to 1."""
        overall = self.overall
        metrics = {"entity precision": overall.precision, "entity recall": overall.recall, "entity f1": overall.f1}
        return metrics | {f"entity f1 of {kind}": score.f1 for kind, score in self.per_kind.items()}


def score_entities(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> EntityScores:
    """Compare the entities of sentences, each a list of tags such as B-PER, I-PER, O, one for each word.

    If there is no entity at all in either, every metric is 0.

    Args:
        predicted: tags from a model.
        gold: correct tags.
    """
    check_aligned(predicted, gold, "predicted sentences", "gold sentences")
    spans: tuple[set[_Span], set[_Span]] = (set(), set())
    for number, both in enumerate(zip(predicted, gold, strict=True)):
        for tags, entities in zip(both, spans, strict=True):
            _check_tags(tags, number)
            entities |= {(span.kind or NO_KIND, number, span.first, span.end) for span in find_entities(tags)}
        if len(both[0]) != len(both[1]):
            raise ValueError(
                f"sentence {number} has {len(both[0])} predicted and {len(both[1])} gold tags; they must match."
            )
    of_model, of_gold = spans
    correct, model, expected = (Counter(kind for kind, *_ in s) for s in (of_model & of_gold, of_model, of_gold))
    kinds = sorted({*model, *expected})
    return EntityScores(per_kind={kind: F1Score(correct[kind], model[kind], expected[kind]) for kind in kinds})


def _check_tags(tags: Sequence[str], number: int) -> None:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise TypeError(f"sentence {number} must be a list of tags, got {tags!r:.60}.")
    check_strings(f"sentence {number}: tag", tags)
    for tag in tags:
        prefix, dash, _ = tag.partition("-")
        if not tag or (dash and len(prefix) == 1 and prefix not in PREFIXES):
            raise ValueError(
                f"sentence {number} has the tag {tag!r}; known prefixes before a dash are {', '.join(PREFIXES)}, and "
                f"{OUTSIDE} alone. Of BILOU and BMES, write L as {ENDS}, U as {SINGLE} and M as {INSIDE}."
            )


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
        """Return the questions that have an answer, or those that have none; None if there is no such question."""
        indices = [index for index, has in enumerate(self.has_answer) if has == has_answer]
        if not indices:
            return None
        return AnswerScores(
            exact=tuple(self.exact[index] for index in indices),
            word_f1=tuple(self.word_f1[index] for index in indices),
            has_answer=(has_answer,) * len(indices),
        )

    def metrics(self) -> dict[str, float]:
        """Return exact match and F1, from 0 to 1; if some questions have no answer, also with and without an answer.

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

    The versions differ in answers that normalisation makes empty, such as "A". In 2.0 such a prediction is "no answer",
    and such a gold answer is dropped. In 1.1 it matches itself exactly, but its F1 is 0 because it has no words; every
    question must have a gold answer.

    Args:
        predicted: the answers of a model; the empty string for "no answer".
        gold: all correct answers to each question; an empty list if it cannot be answered.
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
            template = "{} has no gold answer, which version 2.0 allows and 1.1 does not."
            raise SettingError(template, Item("question", number))
    pairs = list(zip(predicted, (_gold(answers, version) for answers in gold), strict=True))
    return AnswerScores(
        exact=tuple(normalise(answer) in map(normalise, answers) for answer, answers in pairs),
        word_f1=tuple(max(_word_f1(answer, other, version) for other in answers) for answer, answers in pairs),
        has_answer=tuple(map(bool, gold)),
    )


def normalise(answer: str) -> str:
    """Return an answer as it is compared. Removing punctuation joins words: ``well-known`` is ``wellknown``."""
    plain = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _gold(answers: Sequence[str], version: Version) -> Sequence[str]:
    if version == "1.1":
        return answers
    return [answer for answer in answers if normalise(answer)] or [""]


def _word_f1(predicted: str, gold: str, version: Version) -> float:
    """Return the F1 of the words of two answers."""
    words, gold_words = normalise(predicted).split(), normalise(gold).split()
    if version == "2.0" and not (words and gold_words):
        return float(words == gold_words)
    return F1Score((Counter(words) & Counter(gold_words)).total(), len(words), len(gold_words)).f1
