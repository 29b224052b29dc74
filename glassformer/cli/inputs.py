"""Texts from arguments, a file or standard input."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from glassformer.cli.errors import InputError
from glassformer.cli.options import Reading

Pair = tuple[str, str]


def read_texts(texts: Sequence[str] | None, reading: Reading) -> list[str]:
    """The texts to work on: the arguments, or the lines of a file or of standard input."""
    if texts and reading.file is not None:
        raise ValueError("texts are given both as arguments and by --file; give them once.")
    if texts:
        return list(texts)
    _check_somebody_writes(reading)
    where = "standard input" if reading.file is None else str(reading.file)
    found = _lines(_bytes(reading.file), where, reading.skip_empty)
    if not found:
        raise ValueError(f"{where} holds no text.")
    return found


def read_whole(texts: Sequence[str] | None, reading: Reading) -> str:
    """All of a file or of standard input as one text; or the only argument."""
    if texts:
        if reading.file is not None or len(texts) > 1:
            raise ValueError("one text is needed: as one argument, or by --file, or on standard input.")
        return texts[0]
    _check_somebody_writes(reading)
    where = "standard input" if reading.file is None else str(reading.file)
    return _decoded(_bytes(reading.file), where)


def pairs(texts: Sequence[str], seconds: Sequence[str] | None, *, tsv: bool) -> list[str] | list[Pair]:
    """The texts with their partners: from ``--pair``, one each, or after a TAB in each text; else the texts alone."""
    if seconds and tsv:
        raise ValueError("pairs are given both by --pair and by --tsv; give them once.")
    if seconds:
        if len(seconds) != len(texts):
            raise ValueError(f"{len(texts)} texts need as many --pair, got {len(seconds)}.")
        return list(zip(texts, seconds, strict=True))
    if not tsv:
        return list(texts)
    found = []
    for number, text in enumerate(texts, start=1):
        first, tab, second = text.partition("\t")
        if not tab or "\t" in second or not first or not second:
            raise ValueError(f"--tsv: line {number} must be two texts with one TAB between them, got {text!r:.60}.")
        found.append((first, second))
    return found


def check_room(path: Path, name: str) -> None:
    """Raise unless a file can be written there; before a model is loaded, not after its work is done."""
    folder = path.parent
    if path.is_dir():
        raise InputError(f"{name} {path}: this is a folder; name a file in it.")
    if not folder.is_dir():
        raise InputError(f"{name} {path}: there is no folder {folder}.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{name} {path}: this may not be written.")


def _check_somebody_writes(reading: Reading) -> None:
    if reading.file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InputError("no text is given: put it after the model's name, or give --file, or pipe it in.")


def _bytes(path: Path | None) -> bytes:
    return sys.stdin.buffer.read() if path is None else path.read_bytes()


def _lines(data: bytes, where: str, skip_empty: bool) -> list[str]:
    found = []
    lines = _decoded(data, where).split("\n")
    if lines[-1] == "":  # what follows the last line break is no line
        lines.pop()
    for number, line in enumerate((line.removesuffix("\r") for line in lines), start=1):
        if line.strip():
            found.append(line)
        elif not skip_empty:
            raise ValueError(f"line {number} of {where} is empty; fill it, or pass over such lines with --skip-empty.")
    return found


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} of {where} is not UTF-8 text; convert it, for instance with iconv.") from error
