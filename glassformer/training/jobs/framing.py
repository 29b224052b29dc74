"""Rows as the tokens that a task head reads: framed and cut exactly as ``glassformer.tasks`` frames and cuts them.

What a model is trained on is then what it is asked with later, but for letters of special tokens: in rows these stay
letters (``as_trained``). Rows that cannot be read stop the run, or are left out and counted, as ``data.on_bad_row``
says.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

import torch

from glassformer.config import TaskHead
from glassformer.data.objectives.rows import Text
from glassformer.data.records import Origin
from glassformer.data.source_rows import BadRowError, RowStats
from glassformer.hub import Loaded
from glassformer.tasks.batches import Row
from glassformer.tasks.texts import Framed, frame
from glassformer.training.jobs.base import Encoded, RunContext, as_loaded
from glassformer.training.reading import Records

E = TypeVar("E")
R = TypeVar("R")
Counts = Counter[str]  # rows of which something is to be told, by what
Make = Callable[[R, Counts], Sequence[E]]
ASKED = 64  # rows that a model is asked about at a time
CUT = "cut"


class Counted(Encoded[E], Generic[E]):
    """Examples, with what is to be told of the rows that they were made of: which were left out, or changed."""

    def __init__(self, examples: Sequence[E], fingerprint: str, tally: RowStats, counts: Counts) -> None:
        lengths = [len(example.text.ids) for example in cast(Sequence[Any], examples)]
        super().__init__(examples, lengths, fingerprint, cut=counts[CUT])
        self.notes = [str(tally)] if tally.bad else []
        self.notes += [f"{count:,} {what}" for what, count in counts.items() if what != CUT]


def read_rows(kit: RunContext, rows: Records[R], make: Make[R, E]) -> Counted[E]:
    """The examples that ``make`` gives for each row; each has a framed ``text``."""
    found: list[E] = []
    tally, counts = RowStats(), Counts()
    for row in rows:
        try:
            found.extend(make(row, counts))
            tally.good += 1
        except BadRowError as error:
            if kit.recipe.data.on_bad_row == "stop":
                raise
            tally.count(error)
    if not found and tally.bad:
        raise ValueError(f"no examples are left: {tally}")
    return Counted(found, rows.fingerprint, tally, counts)


def readable(kit: RunContext, rows: Sequence[R], read: Callable[[RunContext, R], object]) -> list[R]:
    """The rows whose input can be read, where those that cannot are to be left out: ``read`` raises BadRowError."""
    if kit.recipe.data.on_bad_row == "stop":
        return list(rows)

    def is_good(row: R) -> bool:
        try:
            read(kit, row)
        except BadRowError:
            return False
        return True

    return [row for row in rows if is_good(row)]


def longest_row(kit: RunContext) -> int:
    """The tokens that a row may have."""
    length, longest = kit.recipe.batch.length, kit.facts.longest
    if longest is not None and length > longest:
        raise ValueError(f"this model takes {longest} tokens; say batch.length={longest}, or less than that.")
    return length


def frame_row(kit: RunContext, origin: Origin, text: str, second: str | None = None) -> Framed:
    """A text, or two, in the tokenizer's own frame; one without a token is a bad row."""
    try:
        return frame(kit.tokenizer.without_specials(), text, second, name=str(origin))
    except ValueError as error:
        texts = " and ".join(f"{one!r:.60}" for one in (text, second) if one is not None)
        raise BadRowError(origin, "no token", texts, "Take the row out") from error


def as_trained(loaded: Loaded) -> Loaded:
    """A model to be asked about rows as it was trained on them: letters of special tokens are letters there."""
    return as_loaded(loaded.model, loaded.tokenizer.without_specials(), loaded.place)


def as_text(kit: RunContext, row: Row, words: Iterable[int] | None = None) -> Text:
    """A row as objectives take it, with the segments of its tokens where the model has such."""
    return Text(
        torch.tensor(row.ids, dtype=torch.int32),
        segments=torch.tensor(row.segments, dtype=torch.int32) if kit.facts.embed.segments else None,
        words=None if words is None else torch.tensor([*words], dtype=torch.int32),
    )


def label_number(kit: RunContext, label: str, origin: Origin) -> int:
    """The place of a label in the model's head. One that no training row has is an error, whatever is to be done with
    bad rows: left out, it would make the figures better than they are."""
    head = kit.facts.head
    assert isinstance(head, TaskHead)
    if label not in head.labels:
        raise ValueError(
            f"{origin}: the label {label!r} is none of those that are learned, {', '.join(head.labels)}. Correct it, "
            f"or train on rows that have it."
        )
    return head.labels.index(label)
