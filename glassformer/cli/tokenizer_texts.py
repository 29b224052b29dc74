"""The texts that a tokenizer is trained on: files, read once and never held."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from glassformer.cli.errors import InputError
from glassformer.config.checks import check_choice

if TYPE_CHECKING:
    from glassformer.data.readers.base import RowStats, Source
    from glassformer.data.records import Text

SAMPLE = 1_000_000  # letters of text that are kept, to measure on
BLOCK = 2**14  # letters of a file that are handed on together
FILES = "Files"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    documents: Annotated[
        str,
        typer.Option(
            metavar="whole|line|blank-line",
            help="whole: as it stands, line ends too. line, blank-line: what ends a text, and is not part of it.",
            rich_help_panel=FILES,
        ),
    ] = "whole"
    jsonl_field: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="The files are JSON lines; this field is the text.", rich_help_panel=FILES),
    ] = None
    on_bad_row: Annotated[
        str,
        typer.Option(metavar="stop|skip", help="Rows that are not UTF-8, not JSON or empty.", rich_help_panel=FILES),
    ] = "stop"


class Corpus:
    """The texts of files, read once; the first of them are kept, and rows that were left out counted."""

    def __init__(self, files: Sequence[Path], reading: Reading) -> None:
        from glassformer.data.readers.base import RowStats

        self.files, self.reading, self.tally = files, reading, RowStats()
        self.sample: list[str] = []
        self.bytes = 0  # of text, so far
        self.read = False  # to the end
        self.stop = Event()  # set by whoever wants no more
        self.when_read: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[str]:
        kept = 0
        for text in self._texts():
            if self.stop.is_set():
                raise KeyboardInterrupt
            if kept < SAMPLE:
                self.sample.append(text[: SAMPLE - kept])
                kept += len(text)
            yield text
        self.read = True
        self.when_read()

    def _texts(self) -> Iterator[str]:
        from glassformer.data.readers.jsonl import read_jsonl
        from glassformer.data.readers.text import read_text
        from glassformer.data.records import AsText

        on_bad_row = cast(Literal["stop", "skip"], self.reading.on_bad_row)
        if self.reading.jsonl_field is not None:
            yield from self._rows(read_jsonl(self.files, AsText(self.reading.jsonl_field), on_bad_row=on_bad_row))
        elif self.reading.documents == "line":
            yield from self._rows(read_text(self.files, documents="line", on_bad_row=on_bad_row))
        elif self.reading.documents == "blank-line":
            yield from self._rows(read_text(self.files, documents="blank line", on_bad_row=on_bad_row))
        else:
            for path in self.files:
                yield from _blocks(path, self.tally, skip=on_bad_row == "skip")

    def _rows(self, source: "Source[Text]") -> Iterator[str]:
        for row in source:
            yield row.text
        self.tally = source.tally


def _blocks(path: Path, tally: "RowStats", *, skip: bool) -> Iterator[str]:
    """A file as it stands, some lines at a time; a line that is not UTF-8 is an error, or left out and counted."""
    from glassformer.data.readers.base import decode, read_lines
    from glassformer.data.records import BadRowError, Origin

    held, letters = list[str](), 0
    for line in read_lines(path, path):
        try:
            held.append(decode(line.data, Origin(str(path), line.line)))
        except BadRowError as error:
            if not skip:
                raise
            tally.count(error)
            continue
        tally.good += 1
        letters += len(held[-1])
        if letters >= BLOCK:
            yield "".join(held)
            held, letters = [], 0
    yield "".join(held)


def find(files: Sequence[Path] | None, kind: str, reading: Reading) -> list[Path]:
    """The files that are meant; none for bytes, which learn nothing."""
    from glassformer.data.readers.base import find_files
    from glassformer.text.training import KINDS

    check_choice("--kind", kind, KINDS)
    if kind == "bytes":
        if files:
            raise InputError("--kind bytes learns nothing; leave out the files.")
        return []
    if not files:
        raise InputError("name the files to learn from.")
    found = find_files(files)
    lines = [path for path in found if ".jsonl" in path.suffixes]
    if lines and reading.jsonl_field is None:
        raise InputError(f"{lines[0]}: which field of its lines is the text? Say it, for instance --jsonl-field text.")
    if reading.jsonl_field is not None and reading.documents != "whole":
        raise InputError("each line of a JSON lines file is a text; leave out --documents.")
    return found
