"""Words with labels, and the entities that labels such as B-PER and I-PER mark (CoNLL 2002 and 2003, section 1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

BEGINS, INSIDE, ENDS, SINGLE = "B", "I", "E", "S"
OUTSIDE = "O"


@dataclass(frozen=True)
class Word:
    """A word at the characters [start, end) of its text, with its best label."""

    text: str
    start: int
    end: int
    label: str
    probability: float


@dataclass(frozen=True)
class Entity:
    """Neighbouring words that name one entity, at the characters [start, end) of the text."""

    kind: str
    text: str
    start: int
    end: int
    probability: float  # mean of the probabilities of its words


@dataclass(frozen=True)
class Span:
    """The words [first, end) of a sentence that are one entity."""

    kind: str
    first: int
    end: int


def join_entities(text: str, words: Sequence[Word]) -> tuple[Entity, ...]:
    """Return the entities that the labels of neighbouring words mark, by the rule of ``find_entities``."""
    entities = []
    for span in find_entities([word.label for word in words]):
        group = words[span.first : span.end]
        start, end = group[0].start, group[-1].end
        probability = sum(word.probability for word in group) / len(group)
        entities.append(Entity(span.kind, text[start:end], start, end, probability))
    return tuple(entities)


def find_entities(labels: Sequence[str]) -> tuple[Span, ...]:
    """Return the entities that the labels of a sentence's words mark, as seqeval counts them by default.

    A word continues the entity before it if its prefix is I or E, its kind is the same, and the prefix of the word
    before is B or I. Every other word that is not O begins an entity, including an I after O or after another kind. A
    label without a prefix is a kind of its own, and neighbours with the same label are one entity.
    """
    spans: list[Span] = []
    before, kind_before = OUTSIDE, ""
    for index, label in enumerate(labels):
        prefix, kind = split_label(label)
        if prefix in (INSIDE, ENDS) and kind == kind_before and before in (BEGINS, INSIDE):
            spans[-1] = replace(spans[-1], end=index + 1)
        elif prefix != OUTSIDE:
            spans.append(Span(kind, index, index + 1))
        before, kind_before = prefix, kind
    return tuple(spans)


def split_label(label: str) -> tuple[str, str]:
    """(prefix, kind) of a label: B-PER is (B, PER), B alone is B of an empty kind, NOUN is I of NOUN."""
    prefix, _, kind = label.partition("-")
    if label == OUTSIDE or prefix in (BEGINS, INSIDE, ENDS, SINGLE):
        return prefix, kind
    return INSIDE, label
