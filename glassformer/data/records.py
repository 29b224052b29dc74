"""What a row of a data set is, whatever file it came from, and where it came from."""

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row stands: the file, and its line counted from 1 (the row, in what has no lines)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


# Two rows are equal if they say the same, wherever they stand: ``origin`` takes no part in comparisons.
_MEMORY = Origin("memory", 0)


@dataclass(frozen=True, slots=True)
class Text:
    """One document."""

    text: str
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and what it shall become: a translation, a summary, an answer."""

    source: str
    target: str
    source_language: str | None = None
    target_language: str | None = None
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text, or two that belong together, and the name of its class."""

    text: str
    label: str
    second: str | None = None
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words of a sentence and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Question:
    """A question on a text; each answer is a piece of the text and the character at which it starts there.

    No answers: the text does not answer the question.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


Record: TypeAlias = Text | Pair | Labelled | Tagged | Question
