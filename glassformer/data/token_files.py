"""A corpus as token ids on disk: written once in bounded memory, then memory-mapped and read at any position.

Three files: ``NAME.bin`` has the ids and nothing else, ``NAME.ends.bin`` the end of each document, ``NAME.json`` what
is needed to trust both: data types, counts, the vocabulary, SHA-256 of the tokenizer and of the data.

Shapes: ``N`` tokens of the corpus, ``M`` documents, ``n`` tokens of one.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int, Int64, Integer
from numpy.typing import NDArray
from torch import Tensor

from glassformer.config.checks import check_positive_integer
from glassformer.config.options import Progress
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.saving import naming_file

DocumentIds: TypeAlias = Sequence[int] | Integer[Tensor, "_"] | Integer[np.ndarray, "_"]
_FORMAT = "glassformer tokens, version 1"
_TYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_END = np.dtype("<u8")
_BUFFER = 2**20  # tokens held in memory while writing


class TokenFileError(ValueError):
    """A token file does not match its manifest, its tokenizer or its vocabulary."""


class TokenFile:
    """Documents by number, as ids, from a memory-mapped file; several threads may read at once.

    ``tokenizer`` is the SHA-256 of the tokenizer, ``fingerprint`` that of the data.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.vocab_size: int = manifest["vocab_size"]
        self.tokenizer: str = manifest["tokenizer"]
        self.fingerprint = hashlib.sha256((manifest["sha256"] + manifest["ends_sha256"]).encode()).hexdigest()
        self.tokens: NDArray[Any] = _mapped(path, _TYPES[manifest["dtype"]], manifest["tokens"])
        self.ends: NDArray[Any] = _mapped(_beside(path)[0], _END, manifest["documents"])
        if self.ends[-1] != manifest["tokens"]:
            raise TokenFileError(
                f"{path}: the last document ends at {self.ends[-1]}, the file at {manifest['tokens']}."
            )

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> Int[Tensor, "n"]:
        first, last = self._bounds(number)
        return torch.from_numpy(self.tokens[first:last].astype(np.int64))

    def part(self, number: int, start: int, stop: int) -> Integer[np.ndarray, "n"]:
        """Return the tokens ``[start, stop)`` of a document, in the data type of the file."""
        first, last = self._bounds(number)
        if not 0 <= start <= stop <= last - first:
            raise IndexError(f"document {number} has {last - first} tokens; [{start}, {stop}) is not within them.")
        return self.tokens[first + start : first + stop]

    def _bounds(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path} has {len(self):,} documents, numbered from 0; got {number}.")
        return int(self.ends[number - 1]) if number else 0, int(self.ends[number])

    @property
    def lengths(self) -> Int64[np.ndarray, "M"]:
        """The number of tokens of each document."""
        return np.diff(self.ends.astype(np.int64), prepend=0)


def write_tokens(
    path: Path | str,
    documents: Iterable[DocumentIds],
    *,
    vocab_size: int,
    tokenizer: str,
    progress: Progress | None = None,
) -> TokenFile:
    """Write the ids of documents; an earlier file of this name is replaced only when the new one is complete.

    Args:
        path: ends in ``.bin``; the other two files get their names from it.
        documents: the ids of each, at least one; an id outside the vocabulary is an error.
        vocab_size: below 65,536 an id takes two bytes, else four.
        tokenizer: ``tokenizer_fingerprint`` of what made the ids.
        progress: called now and then with the documents and tokens written so far.
    """
    check_positive_integer(vocab_size=vocab_size)
    path = _checked(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "uint16" if vocab_size < 2**16 else "uint32"
    # Write ids and ends into temporary files.
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as staging:
        ids = _Column(Path(staging, "ids"), _TYPES[kind], path)
        ends = _Column(Path(staging, "ends"), _END, _beside(path)[0])
        with ids, ends:
            for number, document in enumerate(documents):
                ids.add(_checked_ids(document, number, vocab_size))
                ends.add(np.array([ids.count]))
                if progress is not None and not ids.held:
                    progress(number + 1, ids.count)
        if not ends.count:
            raise TokenFileError(f"{path}: there are no documents to write.")
        if progress is not None:
            progress(ends.count, ids.count)
        # Rename both once the manifest is complete.
        manifest = {"format": _FORMAT, "dtype": kind, "tokens": ids.count, "documents": ends.count}
        manifest |= {"vocab_size": vocab_size, "tokenizer": tokenizer}
        manifest |= {"sha256": ids.digest.hexdigest(), "ends_sha256": ends.digest.hexdigest()}
        with naming_file(path):
            _publish(path, ids.path, ends.path, manifest)
    return TokenFile(path, manifest)


def open_tokens(
    path: Path | str, *, tokenizer: str | None = None, vocab_size: int | None = None, verify: bool = False
) -> TokenFile:
    """Open a file of ``write_tokens``; incomplete or damaged files are errors.

    Args:
        path: the ``.bin`` file.
        tokenizer: the fingerprint of the reader's tokenizer; a file made with another is refused.
        vocab_size: likewise.
        verify: read everything and compare its SHA-256 with the manifest's.
    """
    path = _checked(path)
    manifest = _read_manifest(path)
    for name, expected in (("tokenizer", tokenizer), ("vocab_size", vocab_size)):
        if expected is not None and manifest[name] != expected:
            raise TokenFileError(
                f"{path} was written with {name} {manifest[name]}, not {expected}: its ids mean other tokens. "
                f"Write it again from the text."
            )
    opened = TokenFile(path, manifest)
    if verify:
        for name, part in (("sha256", path), ("ends_sha256", _beside(path)[0])):
            with part.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != manifest[name]:
                    raise TokenFileError(f"{part} has changed since it was written ({name} differs); write it again.")
    return opened


def encoded(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    *,
    end: int | None = None,
    allow_special: bool = False,
    chunk: int = 1024,
) -> Iterator[list[int]]:
    """Yield the ids of each text, followed by ``end`` if there is one; ``chunk`` texts are encoded at a time.

    No framing tokens are added, and special tokens in a text are read as plain text unless ``allow_special``.
    """
    check_positive_integer(chunk=chunk)
    if end is not None and not 0 <= end < tokenizer.vocab_size:
        raise ValueError(f"end must be an id of the vocabulary, 0 to {tokenizer.vocab_size - 1}; got {end}.")
    rest = iter(texts)
    while batch := list(islice(rest, chunk)):
        for ids in tokenizer.encode_batch(batch, special=False, allow_special=allow_special):
            yield ids if end is None else [*ids, end]


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Return SHA-256 of everything that determines the ids of a text."""
    facts = {"backend": json.loads(tokenizer.backend.to_str()), "special": tokenizer.special}
    facts["vocab_size"] = tokenizer.vocab_size
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class _Column:
    """Numbers written to a file in large pieces, and their SHA-256; errors name the file ``name``."""

    def __init__(self, path: Path, kind: np.dtype[Any], name: Path) -> None:
        self.path, self.name = path, name
        self.count = 0
        self.held = 0  # not written yet
        self.digest = hashlib.sha256()
        self._kind = kind
        self._pieces: list[NDArray[Any]] = []

    def __enter__(self) -> "_Column":
        self._file = self.path.open("wb")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with naming_file(self.name), self._file:
            if kind is None:
                self._write()
                os.fsync(self._file.fileno())

    def add(self, numbers: NDArray[Any]) -> None:
        self._pieces.append(numbers.astype(self._kind))
        self.count += len(numbers)
        self.held += len(numbers)
        if self.held >= _BUFFER:
            self._write()

    def _write(self) -> None:
        data = b"".join(piece.tobytes() for piece in self._pieces)
        with naming_file(self.name):
            self._file.write(data)
            self._file.flush()
        self.digest.update(data)
        self._pieces, self.held = [], 0


def _checked(path: Path | str) -> Path:
    path = Path(path)
    if path.suffix != ".bin" or path.name.endswith(".ends.bin"):
        raise TokenFileError(f"{path}: a file of tokens is named NAME.bin; NAME.ends.bin and NAME.json lie beside it.")
    return path


def _checked_ids(document: DocumentIds, number: int, vocab_size: int) -> NDArray[Any]:
    ids = np.asarray(document)
    if ids.ndim != 1 or not ids.size:
        raise TokenFileError(f"document {number} must be a list of at least one id; got shape {ids.shape}.")
    if ids.dtype.kind not in "iu":
        raise TokenFileError(f"document {number} must hold integers; got {ids.dtype}.")
    if ids.min() < 0 or ids.max() >= vocab_size:
        index = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise TokenFileError(
            f"document {number} has id {ids[index]} at position {index}, outside the vocabulary of {vocab_size}; "
            f"state the size of the tokenizer that made it."
        )
    return ids


def _publish(path: Path, ids: Path, ends: Path, manifest: dict[str, Any]) -> None:
    """Move finished files to their final paths, the manifest last: without it nobody reads the others."""
    ends_path, manifest_path = _beside(path)
    staged = ids.with_name("manifest")
    staged.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    manifest_path.unlink(missing_ok=True)
    for source, target in ((ids, path), (ends, ends_path), (staged, manifest_path)):
        os.replace(source, target)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(".ends.bin"), path.with_suffix(".json")


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest_path = _beside(path)[1]
    if not manifest_path.is_file():
        raise TokenFileError(f"{path} has no manifest {manifest_path.name} beside it; write_tokens makes both.")
    try:
        manifest = json.loads(manifest_path.read_bytes())
    except ValueError as error:
        raise TokenFileError(f"{manifest_path} is not JSON ({error}); write the tokens again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise TokenFileError(f"{manifest_path} is no manifest of tokens: it lacks {_FORMAT!r}; write the tokens again.")
    expected = {"tokens": int, "documents": int, "vocab_size": int, "tokenizer": str, "sha256": str, "ends_sha256": str}
    wrong = [name for name, kind in expected.items() if type(manifest.get(name)) is not kind]
    if wrong or manifest.get("dtype") not in _TYPES:
        names = ", ".join(wrong or ["dtype"])
        raise TokenFileError(f"{manifest_path} lacks or garbles {names}; write the tokens again.")
    return manifest


def _mapped(path: Path, kind: np.dtype[Any], count: int) -> NDArray[Any]:
    if not path.is_file():
        raise TokenFileError(f"{path} is missing, but its manifest exists; write the tokens again.")
    size = path.stat().st_size
    if size != count * kind.itemsize or not count:
        raise TokenFileError(
            f"{path} has {size:,} bytes where its manifest lists {count:,} numbers of {kind.itemsize} bytes; "
            f"it was cut off or belongs to another manifest. Write the tokens again."
        )
    return np.memmap(path, dtype=kind, mode="r", shape=(count,))
