"""Labels of whole texts, and of words."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

from glassformer.config import Head, Model, TaskHead
from glassformer.config.checks import check_choice, check_probability
from glassformer.data import objectives
from glassformer.data.loader import Dataset
from glassformer.data.objectives import Classify, Tag, TaggedWords
from glassformer.data.records import Labelled, Tagged
from glassformer.data.source_rows import BadRowError
from glassformer.hub import Loaded
from glassformer.tasks.classify import Classified, classify
from glassformer.tasks.entities import find_entities
from glassformer.tasks.tag import tag, take_words
from glassformer.tasks.texts import Framed, fit
from glassformer.training.jobs.base import Job, RunContext
from glassformer.training.jobs.framing import (
    ASKED,
    CUT,
    Counts,
    as_text,
    as_trained,
    frame_row,
    label_number,
    longest_row,
    read_rows,
    readable,
)
from glassformer.training.metrics.base import F1Score, add_up, mean
from glassformer.training.metrics.entities import score_entities
from glassformer.training.metrics.labels import score_labels
from glassformer.training.reading import Records

NUMBER = ("number",)  # the labels of a head that says a number
NAMELESS = ("LABEL_0",)  # and those of one from Hugging Face
Pool = Literal["first", "last", "mean"]


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions:
    """What labels are, and how a new model comes to one answer per text."""

    kind: Literal["one", "several", "number"] = "one"  # a class, several classes (or none) of a text, a number
    between: str = ","  # what stands between ``several``; this alone is none
    smoothing: float = 0.0  # of ``one``
    pool: Pool | None = None  # whose vector speaks for the text; None: as the lineage has it

    def __post_init__(self) -> None:
        check_choice("objective.kind", self.kind, ("one", "several", "number"))
        check_choice("objective.pool", self.pool or "first", ("first", "last", "mean"))
        check_probability(smoothing=self.smoothing)
        if not self.between:
            raise ValueError("objective.between must be what stands between labels; got nothing.")


class Classification(Job[Labelled]):
    """Labels of texts, or of pairs of texts."""

    record = Labelled
    head = "classify"
    options_type = ClassificationOptions

    def check(self) -> None:
        """Raise if a way to pool is said for a model that has one."""
        super().check()
        if self.options.pool is not None and self.recipe.model.start is not None:
            raise ValueError(
                "objective.pool is for new models; that of model.start has a way of its own: say objective.pool=null."
            )

    def texts(self, row: Labelled) -> Iterable[str]:
        """The text, or both."""
        return (row.text,) if row.second is None else (row.text, row.second)

    def labels(self, rows: Iterable[Labelled]) -> tuple[str, ...]:
        """All labels that occur, in alphabetical order."""
        if self.options.kind == "number":
            return NUMBER
        found = tuple(sorted({label for row in rows for label in self._names(row)}))
        if len(found) < (2 if self.options.kind == "one" else 1):
            raise ValueError(
                f"there is nothing to tell apart: the labels of the rows are {', '.join(found) or 'none'}. Is "
                f"data.columns.label the right column?"
            )
        return found

    def keeps(self, head: Head | None, labels: tuple[str, ...]) -> bool:
        """One that has all of these labels, or says a number if that is what is learned."""
        is_number = self.options.kind == "number" and getattr(head, "labels", ()) == NAMELESS
        return super().keeps(head, NAMELESS if is_number else labels)

    def finish(self, facts: Model) -> Model:
        """The head with the pooling that is asked for."""
        head = facts.head
        if self.options.pool is None or not isinstance(head, TaskHead):
            return facts
        return replace(facts, head=replace(head, pool=self.options.pool))

    def export_remedy(self) -> str | None:
        """Models of Hugging Face pool as their lineage does."""
        return None if self.options.pool is None else "With objective.pool=null it can."

    def objective(self, kit: RunContext) -> Classify:
        """Cross-entropy of the class, of each class apart, or the squared error of a number."""
        del kit
        return Classify(kind=self.options.kind, smoothing=self.options.smoothing)

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Labelled]]) -> dict[str, Dataset[Any]]:
        """Framed texts, cut to ``batch.length`` at their end; of a pair the longer one first."""
        return {part: read_rows(kit, rows, partial(self._make, kit)) for part, rows in parts.items()}

    def _make(self, kit: RunContext, row: Labelled, counts: Counts) -> list[objectives.Labelled]:
        framed, longest = self._read(kit, row), longest_row(kit)
        counts[CUT] += len(framed.tokens) > longest
        text = as_text(kit, fit(framed, longest, "right").row)
        return [objectives.Labelled(text, self._label(kit, row))]

    def _read(self, kit: RunContext, row: Labelled) -> Framed:
        if self.options.kind == "number":
            _number(row)
        return frame_row(kit, row.origin, row.text, row.second)

    def _label(self, kit: RunContext, row: Labelled) -> int | float | list[float]:
        if self.options.kind == "number":
            return _number(row)
        numbers = [label_number(kit, name, row.origin) for name in self._names(row)]
        if self.options.kind == "one":
            return numbers[0]
        assert isinstance(kit.facts.head, TaskHead)
        return [float(number in numbers) for number in range(len(kit.facts.head.labels))]

    def _names(self, row: Labelled) -> list[str]:
        if self.options.kind == "one":
            return [row.label]
        names = (name.strip() for name in row.label.split(self.options.between))
        return [name for name in names if name]

    def _ask(self, loaded: Loaded, rows: Sequence[Labelled]) -> list[Classified]:
        texts = [row.text if row.second is None else (row.text, row.second) for row in rows]
        several = self.options.kind != "one"
        return classify(as_trained(loaded), texts, several=several, truncate="right", batch_size=ASKED)

    def figures(self, kit: RunContext, loaded: Loaded, rows: Sequence[Labelled]) -> dict[str, float]:
        """Accuracy and macro F1; of several labels micro and macro F1; of numbers their correlation with the right."""
        rows = readable(kit, rows, self._read)
        found = self._ask(loaded, rows)
        if self.options.kind == "number":
            return {"correlation": _correlation([one.labels[0].score for one in found], [_number(row) for row in rows])}
        if self.options.kind == "one":
            return score_labels([one.labels[0].name for one in found], [row.label for row in rows]).metrics()
        return _score_several([_likely(one) for one in found], [{*self._names(row)} for row in rows])

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Labelled]) -> list[str]:
        """A text, what the model says of it and how sure it is, and what is right."""
        rows = readable(kit, rows, self._read)
        shown = []
        for row, found in zip(rows, self._ask(loaded, rows), strict=True):
            best = found.labels[0]
            said = f"{best.name} ({best.probability:.0%})"
            if self.options.kind == "several":
                likely = [label for label in found.labels if label.probability > 0.5]
                said = ", ".join(f"{label.name} ({label.probability:.0%})" for label in likely) or "none"
            elif self.options.kind == "number":
                said = f"{best.score:.3g}"
            shown.append(f"{' | '.join(self.texts(row))}\n  → {said}\n  = {row.label}")
        return shown


def _number(row: Labelled) -> float:
    try:
        found = float(row.label)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise BadRowError(row.origin, "no number", f"the label is {row.label!r:.60}", "Write a number")
    return found


def _correlation(given: Sequence[float], gold: Sequence[float]) -> float:
    """Pearson's; 0 where either is the same for all rows, or there are none to compare."""
    if len(given) < 2:
        return 0.0
    apart = [[number - mean(some) for number in some] for some in (given, gold)]
    lengths = [math.sqrt(math.fsum(number * number for number in some)) for some in apart]
    product = math.fsum(a * b for a, b in zip(*apart, strict=True))
    return product / (lengths[0] * lengths[1]) if all(lengths) else 0.0


def _likely(found: Classified) -> set[str]:
    return {label.name for label in found.labels if label.probability > 0.5}


def _score_several(given: Sequence[set[str]], gold: Sequence[set[str]]) -> dict[str, float]:
    counts = []
    for label in sorted(set().union(*given, *gold)):
        has = [(label in ours, label in theirs) for ours, theirs in zip(given, gold, strict=True)]
        counts.append(F1Score(has.count((True, True)), sum(ours for ours, _ in has), sum(theirs for _, theirs in has)))
    right = [ours == theirs for ours, theirs in zip(given, gold, strict=True)]
    every = {"micro f1": add_up(counts).f1, "macro f1": mean([one.f1 for one in counts]) if counts else 0.0}
    return {"subset accuracy": mean(right), **every}


@dataclass(frozen=True, kw_only=True)
class TaggingOptions:
    """What tags are."""

    entities: bool = True  # B-PER, I-PER …, judged by whole entities; False: tags of words, such as parts of speech


class Tagging(Job[Tagged]):
    """A tag for every word, said by its first token."""

    record = Tagged
    head = "tag"
    options_type = TaggingOptions

    def texts(self, row: Tagged) -> Iterable[str]:
        """The words with single spaces between them, as they are read later."""
        return (" ".join(row.words),)

    def labels(self, rows: Iterable[Tagged]) -> tuple[str, ...]:
        """All tags that occur, in alphabetical order."""
        found = tuple(sorted({tag for row in rows for tag in row.tags}))
        if self.options.entities:
            try:
                score_entities([found], [found])
            except ValueError as error:
                raise ValueError(f"{error} If they mark no entities, say objective.entities=false.") from error
        return found

    def objective(self, kit: RunContext) -> Tag:
        """Cross-entropy of the tag of every word."""
        del kit
        return Tag()

    def examples(self, kit: RunContext, parts: Mapping[str, Records[Tagged]]) -> dict[str, Dataset[Any]]:
        """Framed sentences, cut to ``batch.length`` between words."""
        return {part: read_rows(kit, rows, partial(self._make, kit)) for part, rows in parts.items()}

    def _make(self, kit: RunContext, row: Tagged, counts: Counts) -> list[TaggedWords]:
        framed, spans = self._read(kit, row)
        kept = self._kept(kit, framed, spans)
        counts[CUT] += kept < len(spans)
        tokens = tuple(token for span in spans[:kept] for token in span.tokens)
        inside = [number for number, span in enumerate(spans[:kept]) for _ in span.tokens]
        words = [*(-1 for _ in framed.before), *inside, *(-1 for _ in framed.after)]
        text = as_text(kit, replace(framed, first=tokens).row, words)
        return [TaggedWords(text, [label_number(kit, name, row.origin) for name in row.tags[:kept]])]

    def _read(self, kit: RunContext, row: Tagged) -> tuple[Framed, Sequence[Any]]:
        """The frame, and the tokens of each word."""
        framed = frame_row(kit, row.origin, " ".join(row.words))
        try:
            spans = take_words(row.words, framed)
        except ValueError as error:
            raise BadRowError(row.origin, "a word without a token", str(error), "Take the word out") from error
        if not self._kept(kit, framed, spans):
            found = f"the first, {row.words[0]!r:.40}, has {len(spans[0].tokens)} tokens"
            remedy = f"Raise batch.length={longest_row(kit)}, of which {framed.frame} are the frame's"
            raise BadRowError(row.origin, "a word that is too long", found, remedy)
        return framed, spans

    def _kept(self, kit: RunContext, framed: Framed, spans: Sequence[Any]) -> int:
        """How many words fit into a row."""
        room = longest_row(kit) - framed.frame
        return sum(total <= room for total in accumulate(len(span.tokens) for span in spans))

    def _ask(self, loaded: Loaded, rows: Sequence[Tagged]) -> list[list[str]]:
        found = tag(as_trained(loaded), [row.words for row in rows], batch_size=ASKED)
        return [[word.label for word in one.words] for one in found]

    def figures(self, kit: RunContext, loaded: Loaded, rows: Sequence[Tagged]) -> dict[str, float]:
        """Precision, recall and F1 of entities, and the share of words with the right tag."""
        rows = readable(kit, rows, self._read)
        given, gold = self._ask(loaded, rows), [row.tags for row in rows]
        pairs = [pair for both in zip(given, gold, strict=True) for pair in zip(*both, strict=True)]
        entities = score_entities(given, gold).metrics() if self.options.entities else {}
        return {**entities, "tag accuracy": mean([ours == theirs for ours, theirs in pairs])}

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Tagged]) -> list[str]:
        """A sentence as the model marks it, and as is right."""
        rows = readable(kit, rows, self._read)
        shown = zip(rows, self._ask(loaded, rows), strict=True)
        return [f"→ {_marked(row.words, given)}\n  = {_marked(row.words, row.tags)}" for row, given in shown]


def _marked(words: Sequence[str], tags: Sequence[str]) -> str:
    """A sentence with its entities in brackets, each after its kind."""
    parts, done = [], 0
    for span in find_entities(tags):
        parts += [*words[done : span.first], f"[{span.kind}: {' '.join(words[span.first : span.end])}]"]
        done = span.end
    return " ".join([*parts, *words[done:]])
