"""Precision, recall and F1 of entities by the rules of CoNLL, as the package ``seqeval`` has them; shares from 0 to 1.

An entity is right if its kind, its first and its last word are. Which words are one entity, also where tags are not
well formed, is the rule of ``glassformer.tasks.entities``: what is measured is what ``tag`` would show.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from glassformer.tasks.entities import BEGINS, ENDS, INSIDE, OUTSIDE, SINGLE, find_entities
from glassformer.training.metrics.base import Found, check_aligned, check_strings, together

LETTERS = (BEGINS, INSIDE, ENDS, SINGLE)
NO_KIND = "_"  # of entities whose tags are the letter alone

_Place: TypeAlias = tuple[str, int, int, int]  # kind, sentence, first word, the one after the last


@dataclass(frozen=True, kw_only=True)
class EntityScores:
    """What was found of each kind of entity."""

    per_kind: Mapping[str, Found]

    @property
    def overall(self) -> Found:
        """All entities together, each counted once whatever its kind; not the mean over kinds."""
        return together(self.per_kind.values())

    def figures(self) -> dict[str, float]:
        """Precision, recall and F1 of all, and the F1 of each kind; from 0 to 1."""
        every = self.overall
        figures = {"entity precision": every.precision, "entity recall": every.recall, "entity f1": every.f1}
        return figures | {f"entity f1 of {kind}": found.f1 for kind, found in self.per_kind.items()}


def score_entities(given: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> EntityScores:
    """Compare the entities of sentences, each a list of tags such as B-PER, I-PER, O, one for each word.

    If there is no entity at all in either, every share is 0.

    Args:
        given: what a model said.
        gold: what is right.
    """
    check_aligned(given, gold, "given sentences", "gold sentences")
    found: tuple[set[_Place], set[_Place]] = (set(), set())
    for number, both in enumerate(zip(given, gold, strict=True)):
        for tags, entities in zip(both, found, strict=True):
            _check_tags(tags, number)
            entities |= {(span.kind or NO_KIND, number, span.first, span.end) for span in find_entities(tags)}
        if len(both[0]) != len(both[1]):
            raise ValueError(
                f"sentence {number} has {len(both[0])} given and {len(both[1])} gold tags; each word has one of each."
            )
    of_model, of_gold = found
    right, model, wanted = (Counter(kind for kind, *_ in some) for some in (of_model & of_gold, of_model, of_gold))
    kinds = sorted({*model, *wanted})
    return EntityScores(per_kind={kind: Found(right[kind], model[kind], wanted[kind]) for kind in kinds})


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
