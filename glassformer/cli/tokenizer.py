"""``glassformer tokenizer train`` and ``show``: make a vocabulary, and look at one."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast

import typer
from rich.table import Table

from glassformer.cli.errors import InputError
from glassformer.cli.options import verb
from glassformer.cli.outputs import note, people, somebody_sees_notes
from glassformer.cli.tokenizer_show import KIND_NAMES, number_of_special, show
from glassformer.config.checks import check_choice

if TYPE_CHECKING:
    from glassformer.data.readers.base import RowStats, Source
    from glassformer.data.records import Text
    from glassformer.text.special_tokens import Special
    from glassformer.text.tokenizer import Tokenizer
    from glassformer.text.training import Kind

SAMPLE = 1_000_000  # characters of text that are kept, to measure on
BLOCK = 2**14  # characters of a file that are handed on together
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


T = TypeVar("T")
USUAL_SIZE = 8000
WISHES = "Vocabulary"

tokenizer = typer.Typer(
    help="Train a tokenizer, or look at one.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What the vocabulary shall be."""

    kind: Annotated[
        str,
        typer.Option(
            metavar="bytes|bpe|wordpiece|unigram",
            help="The kind of pieces; bytes and bpe write every text.",
            rich_help_panel=WISHES,
        ),
    ] = "bpe"
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"All tokens together; {USUAL_SIZE} unless given. Bytes have a number of their own.",
            rich_help_panel=WISHES,
        ),
    ] = None
    style: Annotated[
        str,
        typer.Option(
            metavar="gpt|bert|roberta|t5|bart|translation",
            help="Special tokens, and what is put around a text.",
            rich_help_panel=WISHES,
        ),
    ] = "gpt"
    special: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN", help="One more special token. Repeatable.", rich_help_panel=WISHES),
    ] = None
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Every text in small letters.", rich_help_panel=WISHES)
    ] = False
    min_frequency: Annotated[int, typer.Option(min=1, help="A piece must occur so often.", rich_help_panel=WISHES)] = 2

    def tokens(self) -> "Special":
        """The special tokens."""
        from glassformer.text.special_tokens import STYLES

        check_choice("--style", self.style, STYLES)
        return STYLES[self.style].with_further(*self.special or ())


@tokenizer.command("train")
@verb
def train(
    options: TrainingOptions,
    reading: Reading,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write; made if it is not there.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES", help="Files, compressed (.gz) or not, folders, or patterns such as 'a/*.txt'."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a tokenizer that FOLDER holds already.")] = False,
) -> None:
    """Learn a vocabulary from files and write it to FOLDER, for this program and for Hugging Face."""
    check_choice("--documents", reading.documents, ("whole", "line", "blank-line"))
    check_choice("--on-bad-row", reading.on_bad_row, ("stop", "skip"))
    _check_folder(out, force)
    began = time.monotonic()
    with _spelt():
        special = options.tokens()
        corpus = Corpus(find(files, options.kind, reading), reading)
        made = _trained(corpus, options, special)
    made.save(out)
    _report(made, options, out, corpus, time.monotonic() - began)


tokenizer.command("show")(show)


def _trained(corpus: Corpus, options: TrainingOptions, special: "Special") -> "Tokenizer":
    from glassformer.text.training import train_tokenizer

    kind = cast("Kind", options.kind)
    size = options.vocab_size or (None if kind == "bytes" else USUAL_SIZE)
    with _bar(corpus) as progress:

        def work() -> "Tokenizer":
            return train_tokenizer(
                corpus,
                kind=kind,
                vocab_size=size,
                special=special,
                lowercase=options.lowercase,
                min_frequency=options.min_frequency,
                progress=progress,
            )

        return _apart(work, corpus)


def _apart(work: Callable[[], T], corpus: Corpus) -> T:
    """Do it in a thread of its own: the library does not hear Ctrl-C while it learns, but whoever waits for it does."""
    done: list[T] = []
    failed: list[BaseException] = []
    ended = Event()  # not Thread.join: interrupted, it may take a thread that still runs for one that has ended

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # to be raised where it is waited for
            failed.append(error)
        finally:
            ended.set()

    try:
        Thread(target=run, daemon=True).start()
        ended.wait()
    except KeyboardInterrupt:
        corpus.stop.set()
        if not ended.wait(1.0 if corpus.read else None):
            # the library learns on and hears nobody; an interpreter that ends under it aborts
            atexit.register(_leave)
        raise
    if failed:
        raise failed[0]
    return done[0]


def _leave() -> None:
    """End at once, as after any other interrupt."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


@contextmanager
def _bar(corpus: Corpus) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal by bytes read; their whole is not known where files are compressed."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from glassformer.data.readers.base import is_gzip

    whole = None if any(map(is_gzip, corpus.files)) else sum(path.stat().st_size for path in corpus.files)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    seen = somebody_sees_notes() and bool(corpus.files)
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not seen) as shown:
        task = shown.add_task("reading", total=whole)

        def progress(done: int) -> None:
            corpus.bytes = done
            shown.update(task, completed=done)

        corpus.when_read = lambda: shown.update(task, description="learning", total=None)
        yield progress


def _report(made: "Tokenizer", options: TrainingOptions, out: Path, corpus: Corpus, seconds: float) -> None:
    """What was made, and how well it does on the texts' beginning."""
    special = number_of_special(made)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("kind", f"{KIND_NAMES[options.kind]}, style {options.style}")
    table.add_row("vocabulary", f"{made.vocab_size:,} tokens, {special:,} of them special")
    if corpus.sample:
        tokens = sum(map(len, made.encode_batch(corpus.sample, special=False)))
        size = sum(len(text.encode()) for text in corpus.sample)
        table.add_row("compression", f"{size / max(1, tokens):.2f} bytes per token, on the first {_bytes(size)}")
        table.add_row("time", f"{seconds:.1f} s for {_bytes(corpus.bytes)} of text")
    typer.echo(f"wrote {out / 'tokenizer.json'}")  # in one piece, however long
    people().print(table)
    wanted = options.vocab_size or (made.vocab_size if options.kind == "bytes" else USUAL_SIZE)
    if made.vocab_size < wanted:
        note(
            f"the texts hold pieces for a vocabulary of {made.vocab_size:,}, not of {wanted:,}; "
            "with more text it can grow" + (", or with a lower --min-frequency." if options.min_frequency > 1 else ".")
        )
    if corpus.tally.bad:
        note(str(corpus.tally))


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count:,} bytes"


def _check_folder(folder: Path, force: bool) -> None:
    """Raise where a tokenizer would be lost or cannot be written; before the work, not after."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; name a folder to write to.")
    held = [name for name in ("tokenizer.json", "tokenizer_config.json") if (folder / name).exists()]
    if held and not force:
        raise InputError(
            f"{folder} holds a tokenizer already ({held[0]}); name another folder, or write over it: --force."
        )
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"--out {folder}: {place} may not be written to.")


@contextmanager
def _spelt() -> Iterator[None]:
    """The library's names in errors as the options of this verb."""
    names = (
        ("vocab_size", "--vocab-size"), ("kind=", "--kind "), ('on_bad_row="skip"', "--on-bad-row skip"),
    )  # fmt: skip
    try:
        yield
    except ValueError as error:
        said = str(error)
        for name, option in names:
            said = said.replace(name, option)
        raise InputError(said) from error
