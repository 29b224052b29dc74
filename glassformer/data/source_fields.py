"""From a row with named or numbered fields to a record: which field is what, each checked.

A field is a name, or a number (from 0) in files whose columns have none; ``translation.en`` is ``en`` inside
``translation``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from glassformer.data.records import Labelled, Origin, Pair, Question, Tagged, Text
from glassformer.data.source_rows import BadRowError

Field: TypeAlias = str | int
Fields: TypeAlias = Mapping[Any, Any]
R_co = TypeVar("R_co", covariant=True)


@runtime_checkable
class Make(Protocol[R_co]):
    """What a row becomes."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields it needs."""

    def __call__(self, row: Fields, origin: Origin, /) -> R_co:
        """The record, or BadRowError."""


@dataclass(frozen=True)
class AsText:
    """Rows become Text."""

    text: Field = "text"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields it needs."""
        return (self.text,)

    def __call__(self, row: Fields, origin: Origin) -> Text:
        """The record, or BadRowError."""
        return Text(text_of(row, self.text, origin), origin)


@dataclass(frozen=True)
class AsPair:
    """Rows become Pair; the languages, where they matter, are the same for all rows."""

    source: Field = "source"
    target: Field = "target"
    source_language: str | None = None
    target_language: str | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields it needs."""
        return self.source, self.target

    def __call__(self, row: Fields, origin: Origin) -> Pair:
        """The record, or BadRowError."""
        source, target = (text_of(row, field, origin) for field in self.fields)
        return Pair(source, target, self.source_language, self.target_language, origin)


@dataclass(frozen=True)
class AsLabelled:
    """Rows become Labelled. ``labels`` are all the names there are, in order: a number stands for its name."""

    text: Field = "text"
    label: Field = "label"
    second: Field | None = None
    labels: Sequence[str] | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields it needs."""
        return (self.text, self.label) if self.second is None else (self.text, self.label, self.second)

    def __call__(self, row: Fields, origin: Origin) -> Labelled:
        """The record, or BadRowError."""
        second = None if self.second is None else text_of(row, self.second, origin)
        label = label_of(value_of(row, self.label, origin), self.labels, origin)
        return Labelled(text_of(row, self.text, origin), label, second, origin)


@dataclass(frozen=True)
class AsTagged:
    """Rows with a list of words and a list of tags become Tagged; ``labels`` as in AsLabelled."""

    words: Field = "tokens"
    tags: Field = "ner_tags"
    labels: Sequence[str] | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields it needs."""
        return self.words, self.tags

    def __call__(self, row: Fields, origin: Origin) -> Tagged:
        """The record, or BadRowError."""
        words, tags = (_list_of(row, field, origin) for field in self.fields)
        if len(words) != len(tags):
            found = f"{len(words)} words and {len(tags)} tags"
            raise BadRowError(origin, "words and tags do not match", found, "Give each word one tag")
        checked = tuple(checked_text(word, f"word {n}", origin) for n, word in enumerate(words))
        return Tagged(checked, tuple(label_of(tag, self.labels, origin) for tag in tags), origin)


@dataclass(frozen=True)
class AsQuestion:
    """Rows become Question.

    ``answers`` is a list of ``{"text": …, "answer_start": …}``, or one such object that holds two lists.
    """

    id: Field = "id"
    question: Field = "question"
    context: Field = "context"
    answers: Field = "answers"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields it needs."""
        return self.id, self.question, self.context, self.answers

    def __call__(self, row: Fields, origin: Origin) -> Question:
        """The record, or BadRowError."""
        name, question, context = (text_of(row, field, origin) for field in self.fields[:3])
        answers = value_of(row, self.answers, origin)
        if isinstance(answers, Mapping):
            texts, starts = (_list_of(answers, field, origin) for field in ("text", "answer_start"))
            if len(texts) != len(starts):
                found = f"{len(texts)} texts and {len(starts)} starts"
                raise BadRowError(origin, "answers and starts do not match", found, "Give each answer its start")
            answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        if not _is_list(answers) or not all(isinstance(one, Mapping) for one in answers):
            raise BadRowError(
                origin, "wrong type", f"answers is {_short(answers)}", 'Write [{"text": …, "answer_start": …}]'
            )
        return Question(name, question, context, tuple(_answer(one, context, name, origin) for one in answers), origin)


def value_of(row: Fields, field: Field, origin: Origin) -> Any:
    """A field's value; missing or null is a bad row."""
    value = row.get(field)
    if field not in row and isinstance(field, str) and "." in field:
        value = row
        for part in field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        found = f"no {field!r} among {', '.join(map(repr, row)) or 'no fields'}"
        raise BadRowError(origin, "missing field", found, "Name the right field, or fill it in")
    return value


def text_of(row: Fields, field: Field, origin: Origin) -> str:
    """A field that must be a text with something in it."""
    return checked_text(value_of(row, field, origin), f"{field!r}", origin)


def checked_text(value: object, name: str, origin: Origin) -> str:
    """A value that must be a text with something in it, and of whole characters."""
    if not isinstance(value, str):
        raise BadRowError(origin, "wrong type", f"{name} is {_short(value)}, not a text", "Write it as a text")
    if not value.strip():
        raise BadRowError(origin, "empty text", f"{name} is {value!r}", "Fill it in or take the row out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        found = f"{name} has {value[error.start]!a} in {_short(value)}"
        raise BadRowError(origin, "half a character", found, "Write both halves, or the character itself") from error
    return value


def label_of(value: object, labels: Sequence[str] | None, origin: Origin) -> str:
    """The name of a class: the value itself, or what the number stands for; without names also any finite number."""
    if isinstance(value, int) and not isinstance(value, bool):
        if labels is None:
            return str(value)
        if 0 <= value < len(labels):
            return labels[value]
    elif isinstance(value, float) and isfinite(value) and labels is None:
        return repr(value)
    elif isinstance(value, str) and value and (labels is None or value in labels):
        return value
    if labels is None:
        raise BadRowError(origin, "unknown label", f"{value!r}; labels are names or finite numbers", "Correct it")
    near = get_close_matches(str(value), labels, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    known = f"{value!r}{hint}; known are {', '.join(labels)}"
    raise BadRowError(origin, "unknown label", known, "Correct it, or add it to labels=")


def _answer(one: Fields, context: str, name: str, origin: Origin) -> tuple[str, int]:
    text, start = text_of(one, "text", origin), value_of(one, "answer_start", origin)
    if not isinstance(start, int) or isinstance(start, bool):
        raise BadRowError(origin, "wrong type", f"answer_start of {name!r} is {start!r}", "Write a whole number")
    if start < 0 or context[start : start + len(text)] != text:
        place = context.find(text)
        where = "does not stand in the context" if place < 0 else f"stands at {place}"
        found = f"{_short(text)} of question {name!r} is not at character {start} but {where}"
        raise BadRowError(origin, "answer not at its offset", found, "Count characters, not bytes, from 0")
    return text, start


def _list_of(row: Fields, field: Field, origin: Origin) -> Sequence[Any]:
    value = value_of(row, field, origin)
    if not _is_list(value):
        raise BadRowError(origin, "wrong type", f"{field!r} is {_short(value)}, not a list", "Write a list")
    return list(value)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
