"""Precision, recall and F1 of entities by the rules of CoNLL, as the package ``seqeval`` has them; shares from 0 to 1.

An entity is correct if its kind, its first and its last word are. Which words form an entity, also where tags are
malformed, is decided by ``glassformer.tasks.entities``: what is measured is what ``tag`` would show.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from glassformer.tasks.entities import BEGINS, ENDS, INSIDE, OUTSIDE, SINGLE, find_entities
from glassformer.training.metrics.base import F1Score, add_up, check_aligned, check_strings

LETTERS = (BEGINS, INSIDE, ENDS, SINGLE)
NO_KIND = "_"  # of entities whose tags are the letter alone

_Span: TypeAlias = tuple[str, int, int, int]  # kind, sentence, first word, the one after the last


@dataclass(frozen=True, kw_only=True)
class EntityScores:
    """Precision and recall of each kind of entity."""

    per_kind: Mapping[str, F1Score]

    @property
    def overall(self) -> F1Score:
        """All entities add_up, each counted once whatever its kind; not the mean over kinds."""
        return add_up(self.per_kind.values())

    def metrics(self) -> dict[str, float]:
        """Precision, recall and F1 of all, and the F1 of each kind; from 0 to 1."""
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
        letter, dash, _ = tag.partition("-")
        if not tag or (dash and len(letter) == 1 and letter not in LETTERS):
            raise ValueError(
                f"sentence {number} has the tag {tag!r}; known are the letters {', '.join(LETTERS)} before a dash, and "
                f"{OUTSIDE} alone. Of BILOU and BMES, write L as {ENDS}, U as {SINGLE} and M as {INSIDE}."
            )
