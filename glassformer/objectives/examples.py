"""From the rows of files to tokenised examples, for several objectives.

* Plain text: token files of all documents (``token_file``), rows of whole sentences (``SentenceRows``).
* Task heads: rows with special tokens around, truncated exactly as in ``glassformer.tasks`` (``row_tokens``), so that a
  model is trained on what it reads later. Only special tokens in the data are read as plain text (``as_trained``).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64
from torch import Tensor

from glassformer.config import TaskHead
from glassformer.data.loader import Dataset
from glassformer.data.readers.base import RowStats
from glassformer.data.records import BadRowError, Origin, TextRecord
from glassformer.data.token_files import TokenFile, encoded, open_tokens, tokenizer_fingerprint, write_tokens
from glassformer.hub import Loaded
from glassformer.objectives.base import TokenRow
from glassformer.objectives.job import Job, RunContext, as_loaded
from glassformer.recipes.rows import Records
from glassformer.tasks.batches import TaskRow, TextTokens, text_tokens
from glassformer.text.plain_text import By, cut_sentences
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.saving import write_text

E = TypeVar("E")
R = TypeVar("R")
NoteCounts = Counter[str]  # rows by what happened to them
MakeExamples = Callable[[R, NoteCounts], Sequence[E]]
BATCH_SIZE = 64  # rows per batch when a model is evaluated on tasks
CUT = "cut"


class EncodedExamples(Generic[E]):
    """Examples in memory with their lengths.

    ``fingerprint`` is that of the rows they were made from; ``cut`` is the number of truncated examples.
    """

    def __init__(self, examples: Sequence[E], lengths: Sequence[int], fingerprint: str, *, cut: int = 0) -> None:
        if not examples:
            raise ValueError("no examples are left; the rows are too short, or too long, for this job.")
        self._examples = examples
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.fingerprint = fingerprint
        self.cut = cut

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> E:
        return self._examples[number]


class PlainTextJob(Job[TextRecord]):
    """Base of the jobs that learn from plain text."""

    def texts(self, row: TextRecord) -> Iterable[str]:
        """Return the text."""
        return (row.text,)


def token_file(
    folder: Path,
    part: str,
    texts: Iterable[str],
    source: str,
    tokenizer: Tokenizer,
    *,
    start: int | None = None,
    end: int | None = None,
) -> TokenFile:
    """Return all texts as a token file, each a document between ``start`` and ``end``; written once for the same rows.

    ``source`` is the fingerprint of the rows of the texts.
    """
    path, note = folder / f"{part}.bin", folder / f"{part}.source.json"
    made_of = {"rows": source, "tokenizer": tokenizer_fingerprint(tokenizer), "start": start, "end": end}
    if path.is_file() and read_note(note) == made_of:
        return open_tokens(path, tokenizer=str(made_of["tokenizer"]))
    folder.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    # Encode and write the documents, and then the note on what they were made of.
    before = [] if start is None else [start]
    documents = ([*before, *ids] for ids in encoded(texts, tokenizer, end=end) if ids)  # white space may have no token
    written = write_tokens(path, documents, vocab_size=tokenizer.vocab_size, tokenizer=str(made_of["tokenizer"]))
    write_text(note, json.dumps(made_of) + "\n")
    return written


def read_note(note: Path) -> Any:
    """Return the contents of a JSON file; None if it is missing or damaged."""
    try:
        return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else None
    except ValueError:
        return None


def texts_of(rows: Records[Any]) -> Iterable[str]:
    """Return the text of each row."""
    return (row.text for row in rows)


class DatasetSlice(Generic[E]):
    """The rows of a data set from number ``first`` up to, not including, ``last``."""

    def __init__(self, rows: Dataset[E], first: int, last: int, fingerprint: str | None) -> None:
        self._rows, self._first, self._last, self.fingerprint = rows, first, last, fingerprint

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, number: int) -> E:
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self):,} rows, numbered from 0; got {number}.")
        return self._rows[self._first + number]


class Mapped(Generic[E]):
    """Examples made on access from the items of another data set.

    ``cut`` is the number of truncated examples.
    """

    def __init__(
        self, inner: Dataset[Any], make: Any, lengths: Sequence[int] | Int64[np.ndarray, "N"], *, cut: int = 0
    ) -> None:
        self._inner, self._make = inner, make
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.fingerprint = getattr(inner, "fingerprint", None)
        self.cut = cut

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, number: int) -> E:
        example: E = self._make(self._inner[number])
        return example


def sentences_of(tokenizer: Tokenizer, text: str, by: By) -> list[list[int]]:
    """Return the ids of each sentence of a text, without special tokens."""
    return tokenizer.encode_batch(cut_sentences(text, by), special=False, allow_special=False)


class SentenceRows:
    """Rows of whole sentences, by number: as many sentences as fit, in their order; a longer sentence is cut.

    All tokens are in memory, four bytes each.

    Args:
        documents: the ids of the sentences of each document.
        longest: the most tokens of a row.
        across: a row may continue with the next document.
        source: the fingerprint of the rows of the documents.
    """

    def __init__(
        self, documents: Iterable[Sequence[Sequence[int]]], longest: int, *, across: bool, source: str
    ) -> None:
        pieces: list[np.ndarray] = []
        firsts, used = list[int](), longest
        # Fill rows with sentences; ``firsts`` has the first piece of each row.
        for sentences in documents:
            used = used if across else longest  # a full row, so that the next sentence starts a new one
            for ids in (part for sentence in sentences for part in _cut(sentence, longest)):
                if used + len(ids) > longest:
                    firsts.append(len(pieces))
                    used = 0
                used += len(ids)
                pieces.append(ids)
        if not pieces:
            raise ValueError("there is no text to corrupt; the rows are empty.")
        # All tokens in one array, with the end of each piece.
        self._tokens = torch.from_numpy(np.concatenate(pieces))
        self._ends = np.cumsum([0, *map(len, pieces)])
        self._firsts = [*firsts, len(pieces)]
        self.lengths = np.diff(self._ends[self._firsts]) + 2
        self.fingerprint = source

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> list[Int[Tensor, "_"]]:
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self):,} rows, numbered from 0; got {number}.")
        bounds = self._ends[self._firsts[number] : self._firsts[number + 1] + 1].tolist()
        return list(torch.split(self._tokens[bounds[0] : bounds[-1]], np.diff(bounds).tolist()))


def _cut(sentence: Sequence[int], longest: int) -> list[Int32[np.ndarray, "_"]]:
    """Return a sentence in parts of at most ``longest`` tokens; none for an empty sentence."""
    ids = np.asarray(sentence, dtype=np.int32)
    return [ids[start : start + longest] for start in range(0, len(ids), longest)]


class EncodedRows(EncodedExamples[E], Generic[E]):
    """Examples with ``notes`` for the user on their rows: how many were skipped or changed."""

    def __init__(self, examples: Sequence[E], fingerprint: str, stats: RowStats, counts: NoteCounts) -> None:
        lengths = [len(example.text.ids) for example in cast(Sequence[Any], examples)]
        super().__init__(examples, lengths, fingerprint, cut=counts[CUT])
        self.notes = [str(stats)] if stats.bad else []
        self.notes += [f"{count:,} {what}" for what, count in counts.items() if what != CUT]


def encode_rows(run: RunContext, rows: Records[R], make: MakeExamples[R, E]) -> EncodedRows[E]:
    """Return the examples that ``make`` returns for each row.

    Bad rows stop the run or are skipped, as the recipe says.
    """
    examples: list[E] = []
    stats, counts = RowStats(), NoteCounts()
    for row in rows:
        try:
            examples.extend(make(row, counts))
            stats.good += 1
        except BadRowError as error:
            if run.recipe.data.on_bad_row == "stop":
                raise
            stats.count(error)
    if not examples and stats.bad:
        raise ValueError(f"no examples are left: {stats}")
    return EncodedRows(examples, rows.fingerprint, stats, counts)


def readable_rows(run: RunContext, rows: Sequence[R], read: Callable[[RunContext, R], object]) -> list[R]:
    """Return the rows for which ``read`` raises no BadRowError; all rows if a bad one stops the run anyway."""
    if run.recipe.data.on_bad_row == "stop":
        return list(rows)

    def is_good(row: R) -> bool:
        try:
            read(run, row)
        except BadRowError:
            return False
        return True

    return [row for row in rows if is_good(row)]


def max_row_tokens(run: RunContext) -> int:
    """Return the most tokens of a row."""
    length, longest = run.recipe.batch.length, run.facts.max_length
    if longest is not None and length > longest:
        raise ValueError(f"this model takes {longest} tokens; set batch.length={longest} or less.")
    return length


def row_tokens(run: RunContext, origin: Origin, text: str, second: str | None = None) -> TextTokens:
    """Return a text or a pair with the tokenizer's special tokens around; a text without a token is a bad row."""
    try:
        return text_tokens(run.tokenizer.without_specials(), text, second, name=str(origin))
    except ValueError as error:
        texts = " and ".join(f"{part!r:.60}" for part in (text, second) if part is not None)
        raise BadRowError(origin, "no token", texts, "Take the row out") from error


def as_trained(loaded: Loaded) -> Loaded:
    """Return the model with a tokenizer that reads special tokens in texts as plain text, as in training."""
    return as_loaded(loaded.model, loaded.tokenizer.without_specials(), loaded.path)


def task_token_row(run: RunContext, row: TaskRow, words: Iterable[int] | None = None) -> TokenRow:
    """Return the row of a task as a TokenRow, with segments if the model has them."""
    return TokenRow(
        torch.tensor(row.ids, dtype=torch.int32),
        segments=torch.tensor(row.segments, dtype=torch.int32) if run.facts.embed.segments else None,
        words=None if words is None else torch.tensor([*words], dtype=torch.int32),
    )


def label_id(run: RunContext, label: str, origin: Origin) -> int:
    """Return the number of a label in the model's head.

    A label that no training row has is an error even if bad rows are skipped: skipped, it would improve the metrics.
    """
    head = run.facts.head
    assert isinstance(head, TaskHead)
    if label not in head.labels:
        raise ValueError(
            f"{origin}: the label {label!r} is none of those that are learned, {', '.join(head.labels)}. Correct it, "
            f"or train on rows that have it."
        )
    return head.labels.index(label)
