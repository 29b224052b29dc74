"""The doors to data: each function reads one kind of file and gives a ``Source`` of records.

A ``Source`` is walked through (``for row in source``) and holds nothing; ``source.index()`` reads it once and gives its
rows by number. Files may be compressed (.gz); where several are given (a list, a folder, a pattern) their rows follow
each other by name. Text is UTF-8, strictly; a byte order mark is dropped and ``\\r\\n`` is a line end like ``\\n``.

A bad row stops the reading with an error that names its file and line; ``on_bad_row="skip"`` leaves it out and counts
it in ``source.tally``.
"""

from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from glassformer.config.checks import check_choice
from glassformer.data.records import Pair, Question, Tagged, Text
from glassformer.data.source_fields import AsLabelled as AsLabelled
from glassformer.data.source_fields import AsPair as AsPair
from glassformer.data.source_fields import AsQuestion as AsQuestion
from glassformer.data.source_fields import AsTagged as AsTagged
from glassformer.data.source_fields import AsText as AsText
from glassformer.data.source_fields import Make
from glassformer.data.source_files import Paths, by_blank_line, by_line, by_marker, find_files, whole
from glassformer.data.source_formats import Columns, Conll, Format, JsonLines, Plain
from glassformer.data.source_objects import (
    SquadReader,
    TableReader,
    check_columns,
    find_table,
    load_folder,
    with_class_names,
)
from glassformer.data.source_readers import FileReader, ParallelReader
from glassformer.data.source_rows import BadRowError as BadRowError
from glassformer.data.source_rows import Indexed as Indexed
from glassformer.data.source_rows import OnBadRow, Source, SourceError
from glassformer.data.source_rows import RowStats as RowStats

R = TypeVar("R")
Documents = Literal["line", "blank line", "marker", "file"]


def read_text(
    paths: Paths, *, documents: Documents, marker: str | None = None, on_bad_row: OnBadRow = "stop"
) -> Source[Text]:
    """Plain text. ``documents`` says what ends one: its line, a blank line, a ``marker``, or the file.

    The line ends around a marker belong to it, not to the documents.
    """
    check_choice("documents", documents, ("line", "blank line", "marker", "file"))
    if (documents == "marker") != bool(marker):
        raise SourceError(f'marker= goes with documents="marker"; got documents={documents!r}, marker={marker!r}.')
    cuts = {"line": by_line, "blank line": by_blank_line, "file": whole}
    cut = partial(by_marker, marker=marker.encode()) if marker else cuts[documents]
    return _from_files(paths, Plain(cut), on_bad_row)


def read_jsonl(paths: Paths, make: Make[R], *, on_bad_row: OnBadRow = "stop") -> Source[R]:
    """One JSON object per line; ``make`` (AsText, AsPair, …) says which fields become what."""
    return _from_files(paths, JsonLines(make), on_bad_row)


def read_columns(
    paths: Paths, make: Make[R], *, separator: str, quoted: bool, header: bool = True, on_bad_row: OnBadRow = "stop"
) -> Source[R]:
    """Columns: CSV with ``separator=","`` and ``quoted=True``, TSV with ``separator="\\t"`` and mostly unquoted.

    ``make`` (AsText, AsPair, …) names columns by the ``header``, the first line of each file, or by number from 0.
    ``quoted``: a column that begins with ``"`` goes to the next one, may hold separators and line ends, and ``""`` in
    it is one quote; otherwise quotes are letters.
    """
    if not separator or separator in '"\r\n' or (quoted and len(separator) > 1):
        raise SourceError(f"separator must be one letter that is no quote or line end; got {separator!r}.")
    named = [field for field in make.fields if isinstance(field, str)]
    if named and not header:
        raise SourceError(f"without a header columns have numbers, from 0, not names such as {named[0]!r}.")
    return _from_files(paths, Columns(make, separator, header, quoted), on_bad_row)


def read_parallel(
    sources: Paths,
    targets: Paths,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    on_bad_row: OnBadRow = "stop",
) -> Source[Pair]:
    """Aligned files: line n of a source file belongs to line n of its target file.

    Files of unequal length are an error whatever ``on_bad_row`` says: any line of them may be displaced.
    """
    ours, theirs = find_files(sources), find_files(targets)
    if len(ours) != len(theirs):
        raise SourceError(
            f"{len(ours)} source files cannot pair with {len(theirs)} target files; name as many of each."
        )
    languages = source_language, target_language
    return Source(lambda by_number: ParallelReader(ours, theirs, languages, by_number), on_bad_row)


def read_conll(
    paths: Paths,
    *,
    words: int = 0,
    tags: int = -1,
    separator: str | None = "\t",
    prefix: str = "",
    ignored: tuple[str, ...] = (),
    on_bad_row: OnBadRow = "stop",
) -> Source[Tagged]:
    """Tagged words, one per line, a blank line after each sentence.

    ``words`` and ``tags`` are numbers of columns (−1 is the last), ``separator=None`` is any white space. ``prefix``
    (``en:``) is taken off each word; lines that begin with one of ``ignored`` (``#``, ``-DOCSTART-``) do not count.
    """
    if separator == "":
        raise SourceError("separator must be a text between columns, or None for any white space; got ''.")
    return _from_files(paths, Conll(words, tags, separator, prefix, tuple(ignored)), on_bad_row)


def read_squad(paths: Paths, *, on_bad_row: OnBadRow = "stop") -> Source[Question]:
    """Questions in SQuAD's JSON form, 1.1 or 2.0; every answer is checked to stand where it says."""
    files = find_files(paths)
    return Source(lambda by_number: SquadReader(files, by_number), on_bad_row)


def read_dataset(
    dataset: object | str | Path,
    make: Make[R],
    *,
    split: str | None = None,
    name: str = "dataset",
    on_bad_row: OnBadRow = "stop",
) -> Source[R]:
    """A ``Dataset`` of Hugging Face's ``datasets``, one ``split`` of a ``DatasetDict``, or a folder of either.

    ``make`` (AsText, AsPair, …) names the columns; numbered classes have the names that the data set gives them.
    ``name`` is how rows call a data set that is no folder.
    """
    if isinstance(dataset, str | Path):
        dataset, name = load_folder(Path(dataset)), str(dataset)
    table, name = find_table(dataset, split, name)
    check_columns(table, make, name)
    named = with_class_names(make, table)

    def open_reader(by_number: bool) -> TableReader[R]:  # noqa: ARG001
        return TableReader(table, named, name)

    return Source(open_reader, on_bad_row)


def _from_files(paths: Paths, kind: Format[R], on_bad_row: OnBadRow) -> Source[R]:
    files = find_files(paths)
    return Source(lambda by_number: FileReader(files, kind, by_number), on_bad_row)
