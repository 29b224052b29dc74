"""``glassformer tokenizer show``: what a vocabulary is, and what it makes of texts."""

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from glassformer.cli.errors import InputError
from glassformer.cli.inputs import read_whole
from glassformer.cli.options import AsJson, Reading, verb
from glassformer.cli.outputs import people, print_json, print_table, visible
from glassformer.text.visible import counted

if TYPE_CHECKING:
    from glassformer.text.tokenizer import Encoded, Tokenizer

KIND_NAMES = {"bytes": "bytes", "bpe": "byte-level BPE", "wordpiece": "WordPiece", "unigram": "Unigram"}
FEW = 8  # further special tokens that are named one by one
COLOURS = ("green", "yellow")  # of neighbouring tokens


@verb
def show(
    model: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder with tokenizer files, or a tokenizer.json.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts to cut; else --file, or what is piped in, one per line."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="What older files are where they do not say it: t5, llama, albert …"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Texts from a file, one per line.")
    ] = None,
    vocab: Annotated[bool, typer.Option("--vocab", help="List every token with its number.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a tokenizer: its kind, size, special tokens and frame; with texts, the tokens of each."""
    if vocab and (texts or file is not None):
        raise InputError("--vocab lists the vocabulary, texts are cut by it; ask for one of them.")
    lines = [] if vocab else _texts(texts, file)
    loaded = _load(model, kind)
    if vocab:
        _list(loaded, as_json)
    elif as_json:
        for row in [_facts(loaded)] if not lines else [_row(loaded, line) for line in lines]:
            print_json(row)
    else:
        _describe(loaded)
        for line in lines:
            _tabulate(loaded, line)


def number_of_special(tokenizer: "Tokenizer") -> int:
    """How many special tokens a vocabulary has."""
    return len(_special(tokenizer))


def _load(model: Path, kind: str | None) -> "Tokenizer":
    from glassformer.text.tokenizer import Tokenizer, TokenizerError

    try:
        return Tokenizer.load(model, kind)
    except TokenizerError as error:
        raise InputError(error.spell(lambda setting: f"--{setting.name}")) from error


def _piped() -> bool:
    """Whether standard input is a pipe or a file; a terminal, or nothing at all, holds no texts."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or no real file
        return sys.stdin is not None and not sys.stdin.closed
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _texts(texts: list[str] | None, file: Path | None) -> list[str]:
    """The texts, or the lines of a file or of what is piped in; empty ones have no tokens and are left out."""
    if texts:
        if file is not None:
            raise InputError("texts are given both as arguments and by --file; give them once.")
        return texts
    if file is None and not _piped():
        return []
    lines = read_whole(None, Reading(file=file)).split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]


# ---- the vocabulary


def _facts(tokenizer: "Tokenizer") -> dict[str, Any]:
    """What the vocabulary is, for machines."""
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
    """What is put around a text A, or around a pair A B."""
    found = tokenizer.backend.encode("a", "b" if pair else None)
    parts: list[str] = []
    for token, sequence in zip(found.tokens, found.sequence_ids, strict=True):
        part = token if sequence is None else "AB"[sequence]
        if sequence is None or parts[-1:] != [part]:
            parts.append(part)
    return " ".join(parts)


def _describe(tokenizer: "Tokenizer") -> None:
    facts = _facts(tokenizer)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("kind", facts["kind"])
    table.add_row("vocabulary", counted(facts["vocab_size"], "token"))
    for role, said in facts["roles"].items():
        table.add_row(role, Text.assemble((visible(said["token"], keep=""), "cyan"), f"  {said['id']:,}"))
    if facts["further"]:
        table.add_row("further", Text(_further(facts["further"])))
    table.add_row("a text", Text(visible(facts["frame"], keep="")))
    table.add_row("a pair", Text(visible(facts["pair"], keep="")))
    people().print(table)


def _further(tokens: dict[str, int]) -> str:
    named = [f"{visible(token, keep='')} {number:,}" for token, number in tokens.items()]
    if len(named) <= FEW:
        return ", ".join(named)
    return f"{', '.join(named[: FEW - 1])} … {named[-1]} ({len(named)} in all)"


def _list(tokenizer: "Tokenizer", as_json: bool) -> None:
    """Every token, by number."""
    special = _special(tokenizer)
    vocab = tokenizer.backend.get_vocab(with_added_tokens=True)
    for token, number in sorted(vocab.items(), key=lambda item: item[1]):
        if number >= tokenizer.vocab_size:
            continue
        if as_json:
            print_json({"id": number, "token": token, "special": number in special})
        else:
            sys.stdout.write(f"{number}\t{visible(token, keep='')}\n")


# ---- texts


def _row(tokenizer: "Tokenizer", text: str) -> dict[str, Any]:
    """What becomes of a text, for machines."""
    found = tokenizer.analyse(text)
    tokens = tokenizer.tokens(found.ids)
    return {"text": text, "tokens": tokens, "ids": found.ids, "offsets": found.offsets, "bytes": len(text.encode())}


def _tabulate(tokenizer: "Tokenizer", text: str) -> None:
    """Each token with its number, the letters that it covers and where they stand."""
    found = tokenizer.analyse(text)
    table = Table(box=None, pad_edge=False)
    for name in ("id", "letters"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("token", no_wrap=True)
    table.add_column("text", no_wrap=True)
    special = _special(tokenizer)
    for place, (number, (start, end)) in enumerate(zip(found.ids, found.offsets, strict=True)):
        style = "cyan" if number in special else COLOURS[place % len(COLOURS)]
        token = Text(visible(tokenizer.tokens([number])[0], keep=""), style)
        covered = Text(visible(text[start:end], keep=""), style)
        table.add_row(str(number), f"{start}–{end}" if end > start else "", token, covered)
    people().print()
    print_table(table)
    people().print(_counts(found, text), style="dim", markup=False)


def _counts(found: "Encoded", text: str) -> str:
    tokens, size = len(found.ids), len(text.encode())
    rate = f", {size / tokens:.2f} bytes per token" if tokens else ""
    return f"{counted(tokens, 'token')}, {counted(size, 'byte')}{rate}"
