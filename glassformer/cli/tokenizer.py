"""``glassformer tokenizer train`` and ``show``: learn a vocabulary, and show one."""

import atexit
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import typer
from rich.table import Table
from rich.text import Text as Styled

from glassformer.cli.console import (
    note,
    print_json,
    print_table,
    print_truncated,
    read_whole,
    stderr_on_terminal,
    stdout_console,
    visible,
)
from glassformer.cli.errors import InputError
from glassformer.cli.options import AsJson, Command, CommandGroup, InputOptions, as_command, help_text, setting
from glassformer.config.options import ModelOptions
from glassformer.text.plain_text import counted

if TYPE_CHECKING:
    from glassformer.data.readers.base import RowSource, RowStats
    from glassformer.data.records import TextRecord
    from glassformer.text.tokenizer import Encoded, Tokenizer
    from glassformer.text.training import Special

SAMPLE_CHARACTERS = 1_000_000  # characters on which compression is measured
BLOCK_CHARACTERS = 2**14  # characters of a file that are read together
DEFAULT_SIZE = 8000
KIND_NAMES = {"bytes": "bytes", "bpe": "byte-level BPE", "wordpiece": "WordPiece", "unigram": "Unigram"}
MAX_LISTED = 8  # further special tokens that are listed one by one
COLOURS = ("green", "yellow")  # of neighbouring tokens
T = TypeVar("T")

tokenizer = typer.Typer(
    cls=CommandGroup,
    help="Train a tokenizer, or show one.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files are read.

    Args:
        documents: read a file as one text with its line ends (whole), or split it into texts at line ends or blank
            lines.
        jsonl_field: read JSON lines, with the text in this field.
        on_bad_row: what to do with a row that is not UTF-8, not JSON or empty: stop, or skip it.
    """

    panel: ClassVar[str] = "Files"
    documents: Literal["whole", "line", "blank-line"] = "whole"
    jsonl_field: str | None = setting(None, metavar="FIELD")
    on_bad_row: Literal["stop", "skip"] = "stop"


class Corpus:
    """The texts of files, read once; keeps a sample of the beginning and counts the skipped rows."""

    def __init__(self, files: Sequence[Path], reading: FileOptions) -> None:
        from glassformer.data.readers.base import RowStats

        self.files, self.reading, self.stats = files, reading, RowStats()
        self.sample: list[str] = []
        self.bytes = 0  # read so far
        self.is_read = False
        self.stop = Event()  # set to stop reading
        self.when_read: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[str]:
        kept = 0
        for text in self._texts():
            if self.stop.is_set():
                raise KeyboardInterrupt
            if kept < SAMPLE_CHARACTERS:
                self.sample.append(text[: SAMPLE_CHARACTERS - kept])
                kept += len(text)
            yield text
        self.is_read = True
        self.when_read()

    def _texts(self) -> Iterator[str]:
        from glassformer.data.readers.json_files import read_jsonl
        from glassformer.data.readers.text import read_text
        from glassformer.data.records import AsText

        on_bad_row = self.reading.on_bad_row
        if self.reading.jsonl_field is not None:
            yield from self._rows(read_jsonl(self.files, AsText(self.reading.jsonl_field), on_bad_row=on_bad_row))
        elif self.reading.documents == "line":
            yield from self._rows(read_text(self.files, documents="line", on_bad_row=on_bad_row))
        elif self.reading.documents == "blank-line":
            yield from self._rows(read_text(self.files, documents="blank line", on_bad_row=on_bad_row))
        else:
            for path in self.files:
                yield from _blocks(path, self.stats, skip=on_bad_row == "skip")

    def _rows(self, source: "RowSource[TextRecord]") -> Iterator[str]:
        for row in source:
            yield row.text
        self.stats = source.stats


def _blocks(path: Path, stats: "RowStats", *, skip: bool) -> Iterator[str]:
    """Yield a file in blocks of lines; a line that is not UTF-8 is an error, or skipped and counted."""
    from glassformer.data.readers.base import decode, read_lines
    from glassformer.data.records import BadRowError, Origin

    lines, size = list[str](), 0
    for line in read_lines(path, path):
        try:
            lines.append(decode(line.data, Origin(str(path), line.line)))
        except BadRowError as error:
            if not skip:
                raise
            stats.count(error)
            continue
        stats.good += 1
        size += len(lines[-1])
        if size >= BLOCK_CHARACTERS:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


def _find(files: Sequence[Path] | None, kind: str, reading: FileOptions) -> list[Path]:
    """Return the files to read; none for bytes, which are not learned."""
    from glassformer.data.readers.base import find_files

    if kind == "bytes":
        if files:
            raise InputError("--kind bytes needs no training files; leave them out.")
        return []
    if not files:
        raise InputError("name the files to learn from.")
    paths = find_files(files)
    json_lines = [path for path in paths if ".jsonl" in path.suffixes]
    if json_lines and reading.jsonl_field is None:
        raise InputError(f"{json_lines[0]} needs the field that holds the text, for instance --jsonl-field text.")
    if reading.jsonl_field is not None and reading.documents != "whole":
        raise InputError("--documents does not apply to JSON lines, where each line is one text; leave it out.")
    return paths


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The vocabulary to learn.

    Args:
        kind: the kind of tokens; bytes and bpe can encode any text.
        vocab_size: the number of tokens, special ones included; fixed for bytes.
        style: the special tokens, and which of them surround a text.
        special: a further special token. Repeatable.
        lowercase: convert texts to lower case.
        min_frequency: minimum frequency of a token in the files.
    """

    panel: ClassVar[str] = "Vocabulary"
    kind: Literal["bytes", "bpe", "wordpiece", "unigram"] = "bpe"
    vocab_size: int | None = setting(None, min=1, show_default=str(DEFAULT_SIZE))
    style: Literal["gpt", "bert", "roberta", "t5", "bart", "translation"] = "gpt"
    special: list[str] | None = setting(None, metavar="TOKEN")
    lowercase: bool = False
    min_frequency: int = setting(2, min=1)

    def tokens(self) -> "Special":
        """Return the special tokens."""
        from glassformer.text.training import STYLES

        return STYLES[self.style].with_further(*self.special or ())


@tokenizer.command("train", cls=Command)
@as_command
def train(
    options: TrainingOptions,
    reading: FileOptions,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to write; created if it does not exist.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES", help="Files (also .gz), folders, or patterns such as 'a/*.txt'."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a tokenizer in FOLDER.")] = False,
) -> None:
    """Learn a vocabulary from files and write tokenizer files that Hugging Face can read too."""
    _check_folder(out, force)
    began = time.monotonic()
    special = options.tokens()
    corpus = Corpus(_find(files, options.kind, reading), reading)
    trained = _train(corpus, options, special)
    trained.save(out)
    _report(trained, options, out, corpus, time.monotonic() - began)


def _train(corpus: Corpus, options: TrainingOptions, special: "Special") -> "Tokenizer":
    from glassformer.text.training import train_tokenizer

    kind = options.kind
    size = options.vocab_size or (None if kind == "bytes" else DEFAULT_SIZE)
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

        return _in_thread(work, corpus)


def _in_thread(work: Callable[[], T], corpus: Corpus) -> T:
    """Run ``work`` in a thread: the tokenizers library ignores Ctrl-C while it trains, but this thread does not."""
    done: list[T] = []
    failed: list[BaseException] = []
    ended = Event()  # not Thread.join, which after an interrupt may take a running thread for a finished one

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # raised in the waiting thread
            failed.append(error)
        finally:
            ended.set()

    try:
        Thread(target=run, daemon=True).start()
        ended.wait()
    except KeyboardInterrupt:
        corpus.stop.set()
        if not ended.wait(1.0 if corpus.is_read else None):
            # The library trains on, and an interpreter that shuts down under it would abort.
            atexit.register(_exit_at_once)
        raise
    if failed:
        raise failed[0]
    return done[0]


def _exit_at_once() -> None:
    """Exit with the code of an interrupt, without waiting for threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


@contextmanager
def _bar(corpus: Corpus) -> Iterator[Callable[[int], None]]:
    """A progress bar by bytes read; the total is unknown where files are compressed."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from glassformer.data.readers.base import is_gzip

    total = None if any(map(is_gzip, corpus.files)) else sum(path.stat().st_size for path in corpus.files)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    is_shown = stderr_on_terminal() and bool(corpus.files)
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_shown) as shown:
        task = shown.add_task("reading", total=total)

        def progress(done: int) -> None:
            corpus.bytes = done
            shown.update(task, completed=done)

        corpus.when_read = lambda: shown.update(task, description="training", total=None)
        yield progress


def _report(trained: "Tokenizer", options: TrainingOptions, out: Path, corpus: Corpus, seconds: float) -> None:
    """Print the kind, size and compression of the vocabulary."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("kind", f"{KIND_NAMES[options.kind]}, style {options.style}")
    table.add_row("vocabulary", f"{trained.vocab_size:,} tokens, {len(_special(trained)):,} of them special")
    if corpus.sample:
        tokens = sum(map(len, trained.encode_batch(corpus.sample, special=False)))
        size = sum(len(text.encode()) for text in corpus.sample)
        table.add_row("compression", f"{size / max(1, tokens):.2f} bytes per token, on the first {_bytes(size)}")
        table.add_row("time", f"{seconds:.1f} s for {_bytes(corpus.bytes)} of text")
    typer.echo(f"wrote {out / 'tokenizer.json'}")  # never wrapped
    print_table(table)
    # Notes where the result is not what was set.
    wanted = options.vocab_size or (trained.vocab_size if options.kind == "bytes" else DEFAULT_SIZE)
    if trained.vocab_size < wanted:
        note(
            f"the texts yield only {trained.vocab_size:,} tokens, not {wanted:,}; "
            "use more text" + (", or a lower --min-frequency." if options.min_frequency > 1 else ".")
        )
    if corpus.stats.bad:
        note(str(corpus.stats))


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count:,} bytes"


def _check_folder(folder: Path, force: bool) -> None:
    """Raise if the folder holds a tokenizer or cannot be written, before the training."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; name a folder to write to.")
    held = [name for name in ("tokenizer.json", "tokenizer_config.json") if (folder / name).exists()]
    if held and not force:
        raise InputError(
            f"{folder} already holds a tokenizer ({held[0]}); name another folder, or overwrite it with --force."
        )
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--out {folder}: permission to write to {existing} is denied.")


# ---- show


@tokenizer.command("show", cls=Command)
@as_command
def show(
    model: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder with tokenizer files, a tokenizer.json, or a shipped model."),
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="Texts to tokenize; if none are given, they are read from --file or from piped standard input.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", "--tokenizer-kind", metavar="KIND", help=help_text(ModelOptions, "tokenizer_kind")),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read texts from a file, one per line.")
    ] = None,
    vocab: Annotated[bool, typer.Option("--vocab", help="List every token with its id.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the kind, size and special tokens of a tokenizer; with texts, the tokens of each."""
    if vocab and (texts or file is not None):
        raise InputError("--vocab lists the vocabulary and tokenizes no texts; leave out --vocab or the texts.")
    lines = [] if vocab else _texts(texts, file)
    from glassformer.text.tokenizer import Tokenizer

    loaded = Tokenizer.load(model, kind)
    if vocab:
        _list(loaded, as_json)
    elif as_json:
        for row in [_summary(loaded)] if not lines else [_row(loaded, line) for line in lines]:
            print_json(row)
    else:
        _describe(loaded)
        for line in lines:
            _tabulate(loaded, line)


def _piped() -> bool:
    """Whether standard input is a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or no real file
        return sys.stdin is not None and not sys.stdin.closed
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _texts(texts: list[str] | None, file: Path | None) -> list[str]:
    """Return the arguments, or the lines of a file or of standard input; empty lines are skipped."""
    if texts:
        if file is not None:
            raise InputError("texts come both from arguments and from --file; use one of them.")
        return texts
    if file is None and not _piped():
        return []
    lines = read_whole(None, InputOptions(file=file)).split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]


def _summary(tokenizer: "Tokenizer") -> dict[str, Any]:
    """Return the vocabulary as data."""
    roles = {role: {"token": token, "id": tokenizer.id_of(token)} for role, token in tokenizer.special.items()}
    further = {
        token: number for number, token in _special(tokenizer).items() if token not in tokenizer.special.values()
    }
    frames = {"frame": _frame(tokenizer, pair=False), "pair": _frame(tokenizer, pair=True)}
    return {"kind": _kind(tokenizer), "vocab_size": tokenizer.vocab_size, "roles": roles, "further": further, **frames}


def _special(tokenizer: "Tokenizer") -> dict[int, str]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return {number: str(token.content) for number, token in sorted(added.items()) if token.special}


def _kind(tokenizer: "Tokenizer") -> str:
    backend = tokenizer.backend
    kind = type(backend.model).__name__
    if kind != "BPE" or "ByteLevel" not in repr(backend.pre_tokenizer):
        return kind
    return KIND_NAMES["bytes" if backend.get_vocab_size(with_added_tokens=False) == 256 else "bpe"]


def _frame(tokenizer: "Tokenizer", *, pair: bool) -> str:
    """Return the special tokens around a text A, or around a pair A B."""
    encoding = tokenizer.backend.encode("a", "b" if pair else None)
    parts: list[str] = []
    for token, sequence in zip(encoding.tokens, encoding.sequence_ids, strict=True):
        part = token if sequence is None else "AB"[sequence]
        if sequence is None or parts[-1:] != [part]:
            parts.append(part)
    return " ".join(parts)


def _describe(tokenizer: "Tokenizer") -> None:
    summary = _summary(tokenizer)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("kind", summary["kind"])
    table.add_row("vocabulary", counted(summary["vocab_size"], "token"))
    for role, token in summary["roles"].items():
        table.add_row(role, Styled.assemble((visible(token["token"], keep=""), "cyan"), f"  {token['id']:,}"))
    if summary["further"]:
        table.add_row("further", Styled(_further(summary["further"])))
    table.add_row("a text", Styled(visible(summary["frame"], keep="")))
    table.add_row("a pair", Styled(visible(summary["pair"], keep="")))
    print_table(table)


def _further(tokens: dict[str, int]) -> str:
    named = [f"{visible(token, keep='')} {number:,}" for token, number in tokens.items()]
    if len(named) <= MAX_LISTED:
        return ", ".join(named)
    return f"{', '.join(named[: MAX_LISTED - 1])} … {named[-1]} ({len(named)} in total)"


def _list(tokenizer: "Tokenizer", as_json: bool) -> None:
    """Print every token by id."""
    special = _special(tokenizer)
    vocab = tokenizer.backend.get_vocab(with_added_tokens=True)
    for token, number in sorted(vocab.items(), key=lambda item: item[1]):
        if number >= tokenizer.vocab_size:
            continue
        if as_json:
            print_json({"id": number, "token": token, "special": number in special})
        else:
            sys.stdout.write(f"{number}\t{visible(token, keep='')}\n")


def _row(tokenizer: "Tokenizer", text: str) -> dict[str, Any]:
    """Return the tokens of a text as data."""
    encoded = tokenizer.analyse(text)
    tokens = tokenizer.tokens(encoded.ids)
    return {"text": text, "tokens": tokens, "ids": encoded.ids, "offsets": encoded.offsets, "bytes": len(text.encode())}


def _tabulate(tokenizer: "Tokenizer", text: str) -> None:
    """Print each token with its id, its text and the range of characters in the input."""
    encoded = tokenizer.analyse(text)
    table = Table(box=None, pad_edge=False)
    for name in ("id", "characters"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("token", no_wrap=True)
    table.add_column("text", no_wrap=True)
    special = _special(tokenizer)
    for index, (number, (start, end)) in enumerate(zip(encoded.ids, encoded.offsets, strict=True)):
        style = "cyan" if number in special else COLOURS[index % len(COLOURS)]
        token = Styled(visible(tokenizer.tokens([number])[0], keep=""), style)
        covered = Styled(visible(text[start:end], keep=""), style)
        table.add_row(str(number), f"{start}–{end}" if end > start else "", token, covered)
    stdout_console().print()
    print_truncated(table)
    stdout_console().print(_counts(encoded, text), style="dim", markup=False)


def _counts(encoded: "Encoded", text: str) -> str:
    tokens, size = len(encoded.ids), len(text.encode())
    rate = f", {size / tokens:.2f} bytes per token" if tokens else ""
    return f"{counted(tokens, 'token')}, {counted(size, 'byte')}{rate}"
