"""Words with labels, and the entities that labels such as B-PER and I-PER mark (CoNLL 2002 and 2003, section 1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

BEGINS, GOES_ON, ENDS, SINGLE = "B", "I", "E", "S"
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
    """Neighbouring words that are one thing, at the characters [start, end) of the text."""

    kind: str
    text: str
    start: int
    end: int
    probability: float  # the mean of its words'


@dataclass(frozen=True)
class Span:
    """The words [first, end) of a sentence, which are one entity."""

    kind: str
    first: int
    end: int


def join_entities(text: str, words: Sequence[Word]) -> tuple[Entity, ...]:
    """The entities that the labels of neighbouring words mark; ``find_entities`` is the rule."""
    found = []
    for span in find_entities([word.label for word in words]):
        group = words[span.first : span.end]
        start, end = group[0].start, group[-1].end
        probability = sum(word.probability for word in group) / len(group)
        found.append(Entity(span.kind, text[start:end], start, end, probability))
    return tuple(found)


def find_entities(labels: Sequence[str]) -> tuple[Span, ...]:
    """The entities that the labels of a sentence's words mark, as seqeval counts them by default.

    A word goes on with the entity before it if it says I or E of the same kind, and the word before says B or I.
    Every other word that is not O begins one, be it an I after O or after another kind. A label without such a letter
    is a kind of its own, and neighbours with the same label are one entity.
    """
    spans: list[Span] = []
    before, kind_before = OUTSIDE, ""
    for place, label in enumerate(labels):
        letter, kind = split_label(label)
        if letter in (GOES_ON, ENDS) and kind == kind_before and before in (BEGINS, GOES_ON):
            spans[-1] = replace(spans[-1], end=place + 1)
        elif letter != OUTSIDE:
            spans.append(Span(kind, place, place + 1))
        before, kind_before = letter, kind
    return tuple(spans)


def split_label(label: str) -> tuple[str, str]:
    """(letter, kind) of a label: B-PER is B of PER, B alone is B of nothing said, NOUN is I of NOUN."""
    letter, _, kind = label.partition("-")
    if label == OUTSIDE or letter in (BEGINS, GOES_ON, ENDS, SINGLE):
        return letter, kind
    return GOES_ON, label
