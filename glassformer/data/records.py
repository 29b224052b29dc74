"""What a row of a data set is, whatever file it comes from, and how it is made from a row with fields.

Each record has its ``Origin``, so that errors name the file and line. ``AsText``, ``AsPair`` … say which field of a
row is which part of the record, and check each value. A field is a name, or a number (from 0) in files whose columns
have no names; ``translation.en`` is the field ``en`` inside ``translation``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from glassformer.config.checks import Setting, SettingError

Field: TypeAlias = str | int
Fields: TypeAlias = Mapping[Any, Any]
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row comes from: the file and its line, counted from 1 (the row number, if there are no lines)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


# Two records are equal if their contents are, wherever they come from: ``origin`` is not compared.
_MEMORY = Origin("memory", 0)


@dataclass(frozen=True, slots=True)
class TextRecord:
    """One document."""

    text: str
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PairRecord:
    """A source text and its target: a translation, a summary, an answer."""

    source: str
    target: str
    source_language: str | None = None
    target_language: str | None = None
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LabelledRecord:
    """A text or a pair of texts, and the name of its class."""

    text: str
    label: str
    second: str | None = None
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TaggedRecord:
    """The words of a sentence and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """A question on a context; each answer is a span of the context and its offset in characters.

    No answers: the context does not answer the question.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    origin: Origin = field(default=_MEMORY, compare=False, repr=False)


AnyRecord: TypeAlias = TextRecord | PairRecord | LabelledRecord | TaggedRecord | QuestionRecord


class SourceError(SettingError):
    """A file or a setting is wrong, not a single row; it is never skipped."""


class BadRowError(SourceError):
    """One row is wrong: its origin, the kind of error (``reason``), the problem in detail and the remedy.

    ``settings`` fill the ``{}`` in the remedy, if it has any.
    """

    def __init__(self, origin: Origin, reason: str, problem: str, remedy: str, *settings: Setting) -> None:
        self.detail = f"{origin}: {reason}: {problem}. {remedy.format(*settings) if settings else remedy}"
        values = (*settings, Setting("on_bad_row", "skip"))
        if not settings:
            remedy = remedy.replace("{", "{{").replace("}", "}}")
        template = f"{{}}: {{}}: {{}}. {remedy}, or leave such rows out with {{}}."
        super().__init__(template, str(origin), reason, problem, *values)
        self.origin = origin
        self.reason = reason


@runtime_checkable
class RecordMaker(Protocol[R_co]):
    """Makes a record from a row with named or numbered fields (a JSON object, the columns of a line)."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that a row must have."""

    def __call__(self, row: Fields, origin: Origin, /) -> R_co:
        """Return the record; raise BadRowError if the row is invalid."""


@dataclass(frozen=True)
class AsText:
    """Makes a ``TextRecord`` of each row."""

    text: Field = "text"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that a row must have."""
        return (self.text,)

    def __call__(self, row: Fields, origin: Origin) -> TextRecord:
        """Return the record; raise BadRowError if the row is invalid."""
        return TextRecord(text_of(row, self.text, origin), origin)


@dataclass(frozen=True)
class AsPair:
    """Makes a ``PairRecord`` of each row; the languages are the same for all rows."""

    source: Field = "source"
    target: Field = "target"
    source_language: str | None = None
    target_language: str | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that a row must have."""
        return self.source, self.target

    def __call__(self, row: Fields, origin: Origin) -> PairRecord:
        """Return the record; raise BadRowError if the row is invalid."""
        source, target = (text_of(row, field, origin) for field in self.fields)
        return PairRecord(source, target, self.source_language, self.target_language, origin)


@dataclass(frozen=True)
class AsLabelled:
    """Makes a ``LabelledRecord`` of each row.

    ``labels`` are the names of all classes in order, for rows that have numbers.
    """

    text: Field = "text"
    label: Field = "label"
    second: Field | None = None
    labels: Sequence[str] | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that a row must have."""
        return (self.text, self.label) if self.second is None else (self.text, self.label, self.second)

    def __call__(self, row: Fields, origin: Origin) -> LabelledRecord:
        """Return the record; raise BadRowError if the row is invalid."""
        second = None if self.second is None else text_of(row, self.second, origin)
        label = label_of(value_of(row, self.label, origin), self.labels, origin)
        return LabelledRecord(text_of(row, self.text, origin), label, second, origin)


@dataclass(frozen=True)
class AsTagged:
    """Makes a ``TaggedRecord`` of each row, from a list of words and a list of tags; ``labels`` as in AsLabelled."""

    words: Field = "tokens"
    tags: Field = "ner_tags"
    labels: Sequence[str] | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that a row must have."""
        return self.words, self.tags

    def __call__(self, row: Fields, origin: Origin) -> TaggedRecord:
        """Return the record; raise BadRowError if the row is invalid."""
        words, tags = (_list_of(row, field, origin) for field in self.fields)
        if len(words) != len(tags):
            problem = f"{len(words)} words and {len(tags)} tags"
            raise BadRowError(origin, "words and tags do not match", problem, "Give each word one tag")
        checked = tuple(checked_text(word, f"word {n}", origin) for n, word in enumerate(words))
        return TaggedRecord(checked, tuple(label_of(tag, self.labels, origin) for tag in tags), origin)


@dataclass(frozen=True)
class AsQuestion:
    """Makes a ``QuestionRecord`` of each row.

    ``answers`` is a list of ``{"text": …, "answer_start": …}``, or one such object that holds two lists.
    """

    id: Field = "id"
    question: Field = "question"
    context: Field = "context"
    answers: Field = "answers"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that a row must have."""
        return self.id, self.question, self.context, self.answers

    def __call__(self, row: Fields, origin: Origin) -> QuestionRecord:
        """Return the record; raise BadRowError if the row is invalid."""
        name, question, context = (text_of(row, field, origin) for field in self.fields[:3])
        answers = value_of(row, self.answers, origin)
        if isinstance(answers, Mapping):
            texts, starts = (_list_of(answers, field, origin) for field in ("text", "answer_start"))
            if len(texts) != len(starts):
                problem = f"{len(texts)} texts and {len(starts)} starts"
                raise BadRowError(origin, "answers and starts do not match", problem, "Give each answer its start")
            answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        if not _is_list(answers) or not all(isinstance(answer, Mapping) for answer in answers):
            raise BadRowError(
                origin, "wrong type", f"answers is {_short(answers)}", 'Write [{"text": …, "answer_start": …}]'
            )
        return QuestionRecord(
            name, question, context, tuple(_answer(answer, context, name, origin) for answer in answers), origin
        )


def no_column(file: str, make: RecordMaker[Any], name: Field, columns: str, names: Sequence[str]) -> SourceError:
    """Return the error for a file whose columns, described by ``columns``, lack the one called ``name``.

    It says which setting names the column, with a value where one of ``names`` is likely meant.
    """
    problem = f"{file} has no column {name!r}; {columns}."
    own: list[str] = (
        [entry.name for entry in fields(make) if getattr(make, entry.name) == name] if is_dataclass(make) else []
    )
    if not own:
        return SourceError(problem)
    near = own if own[0] in names else get_close_matches(str(name), names, n=1)
    setting = Setting(own[0], near[0] if near else ..., external_name=f"data.columns.{own[0]}")
    return SourceError("{} Set {}{}.", problem, setting, "" if near else " to one of them")


def value_of(row: Fields, field: Field, origin: Origin) -> Any:
    """Return a field's value; raise BadRowError if it is missing or null."""
    value = row.get(field)
    if field not in row and isinstance(field, str) and "." in field:
        value = row
        for part in field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        problem = f"no {field!r} among {', '.join(map(repr, row)) or 'no fields'}"
        raise BadRowError(origin, "missing field", problem, "Name the right field, or fill it in")
    return value


def text_of(row: Fields, field: Field, origin: Origin) -> str:
    """Return a field that must be a non-empty string."""
    return checked_text(value_of(row, field, origin), f"{field!r}", origin)


def checked_text(value: object, name: str, origin: Origin) -> str:
    """Return a value that must be a non-empty string without lone surrogates."""
    if not isinstance(value, str):
        raise BadRowError(origin, "wrong type", f"{name} is {_short(value)}, not a text", "Write it as a text")
    if not value.strip():
        raise BadRowError(origin, "empty text", f"{name} is {value!r}", "Fill it in or take the row out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"{name} has {value[error.start]!a} in {_short(value)}"
        raise BadRowError(origin, "half a character", problem, "Write both halves, or the character itself") from error
    return value


def label_of(value: object, labels: Sequence[str] | None, origin: Origin) -> str:
    """Return the name of a class: the value itself, or the label with this number; without labels any finite number."""
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
    raise BadRowError(
        origin,
        "unknown label",
        known,
        "Correct it, or add it to {}",
        Setting("labels", external_name="data.columns.labels"),
    )


def _answer(answer: Fields, context: str, name: str, origin: Origin) -> tuple[str, int]:
    text, start = text_of(answer, "text", origin), value_of(answer, "answer_start", origin)
    if not isinstance(start, int) or isinstance(start, bool):
        raise BadRowError(origin, "wrong type", f"answer_start of {name!r} is {start!r}", "Write an integer")
    if start < 0 or context[start : start + len(text)] != text:
        actual = context.find(text)
        where = "does not occur in the context" if actual < 0 else f"occurs at {actual}"
        problem = f"{_short(text)} of question {name!r} is not at character {start} but {where}"
        raise BadRowError(origin, "answer not at its offset", problem, "Count characters, not bytes, from 0")
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
