"""Tensors on disk, read safely; ``saving`` writes them.

A safetensors file is eight bytes that say how long the header is, a JSON header that says where each tensor lies, and
the bytes of the tensors without a gap. All of it is checked before a tensor is made. A pickle can run code when it is
opened, so it is opened only when asked for, and even then for its tensors alone.
"""

import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from glassformer.config.checks import SettingError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool, "U8": torch.uint8,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
}  # fmt: skip
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SHARD = r"-\d{5}-of-\d{5}\.safetensors"
_LONGEST_HEADER = 100_000_000  # bytes; the limit of the format
_CHUNK = 2**20  # bytes, a multiple of every item size, copied before the mapped pages are given back
_AGAIN = "The file is damaged or came only in part: download or save it again."


class WeightsError(SettingError):
    """A weights file that cannot be used, or tensors that cannot be written; the message says why and what to do."""


@dataclass(frozen=True)
class Stored:
    """One tensor on disk, before it is read."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path

    @property
    def nbytes(self) -> int:
        """The bytes its values take."""
        return prod(self.shape) * self.dtype.itemsize


_Opened = tuple[dict[str, str], list[tuple[Stored, Callable[[], Tensor]]]]  # metadata; tensors and how to read each


class WeightFiles:
    """The tensors of one file or of several shards; made by ``open_weights`` and used in a ``with`` statement."""

    def __init__(self, files: Iterable[_Opened], opened: ExitStack) -> None:
        self.entries: dict[str, Stored] = {}  # in the order in which they lie on disk
        self.metadata: dict[str, str] = {}  # of all headers; where two differ, the later shard's
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self._opened = opened
        self._scratch: Tensor | None = None
        for metadata, tensors in files:
            self.metadata |= metadata
            self.entries |= {stored.name: stored for stored, _ in tensors}
            self._readers |= {stored.name: reader for stored, reader in tensors}

    def read(self, name: str) -> Tensor:
        """The tensor called ``name``, on the CPU in its stored dtype and in memory of its own."""
        if name not in self.entries:
            files = some({str(stored.file) for stored in self.entries.values()})
            raise WeightsError(f"{files}: no tensor is called {name!r}. The names are in .entries.")
        if name not in self._readers:
            raise WeightsError(f"{self.entries[name].file}: closed. Read {name!r} inside the with statement.")
        return self._readers[name]()

    def copy_into(self, name: str, out: Tensor) -> None:
        """Copy a tensor into ``out``, of its shape and of any type and device, a little at a time."""
        _fill(out, self._parts(name))

    def borrow(self, name: str) -> Tensor:
        """Like ``read``, but in memory that the next ``borrow`` writes over: freed memory may not go back at once."""
        stored = self.entries[name]
        if self._scratch is None or self._scratch.numel() <= stored.nbytes:
            self._scratch = None
            self._scratch = torch.empty(stored.nbytes + 8, dtype=torch.uint8)
        lent = self._scratch[: stored.nbytes].view(stored.dtype).view(stored.shape)
        self.copy_into(name, lent)
        return lent

    def _parts(self, name: str) -> Iterator[Tensor]:
        """A tensor's values in order, in pieces; as one where it is in memory anyway."""
        source = self._readers.get(name)
        if isinstance(source, _Mapped):
            yield from source.parts()
        else:
            yield self.read(name).reshape(-1)

    def close(self) -> None:
        """Let go of files and mappings; tensors that were read stay as they are."""
        self._readers.clear()
        self._scratch = None
        self._opened.close()

    def __enter__(self) -> "WeightFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_weights(where: Path, *, allow_pickle: bool = False) -> WeightFiles:
    """Open the weights in a folder, or one file or index; a pickle only if ``allow_pickle``."""
    path = _find(where) if where.is_dir() else where
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file. Name a weights file, or a folder that holds one.")
    shards: Mapping[str, set[str] | None] = _read_index(path) if path.suffix == ".json" else {path.name: None}
    with ExitStack() as opened:
        files = []
        for shard, names in shards.items():
            file, pickled = path.parent / shard, Path(shard).suffix.lower() in _PICKLES
            files.append(_open_pickle(file, allow_pickle) if pickled else _open_safetensors(file, opened))
            if names is not None:
                _check_shard(file, names, {stored.name for stored, _ in files[-1][1]})
        return WeightFiles(files, opened.pop_all())


def check_finite(name: str, tensor: Tensor, file: Path) -> None:
    """Raise if a tensor read from ``file`` holds NaN or infinite values, saying how many."""
    nans = infinite = 0
    for part in tensor.detach().reshape(-1).tensor_split(1 + tensor.numel() // 2**22):  # the tests take memory too
        part = part.float() if part.dtype.itemsize == 1 else part  # and do not know eight-bit floats
        if not part.isfinite().all():
            nans += int(part.isnan().sum())
            infinite += int(part.isinf().sum())
    if nans or infinite:
        found = f"tensor {name!r} holds {nans} NaN and {infinite} infinite values among {tensor.numel()}"
        raise WeightsError(f"{file}: {found}. Download it again, or take a save from before training diverged.")


def _find(folder: Path) -> Path:
    """The file or index to open in a folder; safetensors before pickle, an index before a single file."""
    safe = [folder / "model.safetensors.index.json", folder / "model.safetensors"]
    pickles = [folder / "pytorch_model.bin.index.json", folder / "pytorch_model.bin"]
    others = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("."))
    there = [path for path in (*safe, *others, *pickles) if path.is_file()]
    if not there:
        looked = ", ".join(path.name for path in (*safe, folder / "*.safetensors", *pickles))
        raise WeightsError(f"{folder}: no weights here (looked for {looked}). Name the folder or file that has them.")
    if there[0] in others and there[0] not in safe and (len(others) > 1 or re.search(SHARD, others[0].name)):
        fault = f"found {some(p.name for p in others)}, and no {safe[0].name} that says which belong together"
        raise WeightsError(f"{folder}: {fault}. Download the index too, or name one file.")
    return there[0]


def _open_pickle(path: Path, allowed: bool) -> _Opened:
    if not allowed:
        fault = "a pickle, which can run code when it is opened; look for the same weights as safetensors"
        remedy = "If you trust its source, say allow_pickle=True: only its tensors are loaded"
        raise WeightsError(f"{path}: {fault}. {remedy}.")
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"  # files older than the zip format cannot be mapped
    try:
        loaded = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # torch raises many kinds; none of them is a reason to try a less safe way
        fault = f"not a pickle of tensors alone ({type(error).__name__}), and what else it holds could run code."
        raise _damaged(path, fault, "Save it as safetensors where it was made, or download it again.") from error
    tensors = _state_dict(path, loaded)
    copy = partial(torch.clone, memory_format=torch.contiguous_format)
    return {}, [(Stored(n, t.dtype, tuple(t.shape), path), partial(copy, t.detach())) for n, t in tensors.items()]


def _open_safetensors(path: Path, opened: ExitStack) -> _Opened:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            fault = f"the header promises to be {length} bytes long, but there are {max(size - 8, 0)} bytes after that"
            raise _damaged(path, f"{fault} (and {_LONGEST_HEADER} is the most that is allowed).")
        header = _parse_json(path, file.read(length), "header")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise _damaged(path, f"__metadata__ must map names to text, found {metadata!r:.200}.")
        placed = _lay_out(path, header, room=size - 8 - length)
        mapping = opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return metadata, [(stored, _Mapped(mapping, 8 + length + start, stored)) for stored, start in placed]


def _fill(out: Tensor, parts: Iterable[Tensor]) -> None:
    """Put values in order into ``out``, piece by piece."""
    flat, at = out.view(-1), 0
    for part in parts:
        flat[at : at + part.numel()].copy_(part)
        at += part.numel()


@dataclass(frozen=True, eq=False)
class _Mapped:
    """A tensor in a mapped file."""

    mapping: mmap.mmap
    start: int
    stored: Stored

    def __call__(self) -> Tensor:
        """The tensor in memory of its own."""
        tensor = torch.empty(self.stored.shape, dtype=self.stored.dtype, device="cpu")
        _fill(tensor, self.parts())
        return tensor

    def parts(self) -> Iterator[Tensor]:
        """Its values in order, in pieces; mapped pages are given back at once, not held beside the copy."""
        stored = self.stored
        for at in range(0, stored.nbytes, _CHUNK):
            stop = min(at + _CHUNK, stored.nbytes)
            part = torch.frombuffer(bytearray(self.mapping[self.start + at : self.start + stop]), dtype=torch.uint8)
            if stored.dtype == torch.bool and (part > 1).any():
                raise _damaged(stored.file, f"booleans are bytes 0 and 1, and tensor {stored.name!r} has others.")
            yield part.view(stored.dtype)
            if hasattr(self.mapping, "madvise"):  # not on Windows; all of it, since the system maps pages around too
                self.mapping.madvise(mmap.MADV_DONTNEED)


def _read_index(path: Path) -> dict[str, set[str]]:
    """Which tensors each shard holds, from an index file; every shard is there."""
    weight_map = _parse_json(path, path.read_bytes(), "index").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise _damaged(path, "the index needs a weight_map from names of tensors to names of files.")
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if shard in ("", "..") or PureWindowsPath(shard).name != shard:  # the Windows rules know both kinds of slash
            fault = f"{name!r} is said to lie in {shard!r}, but a shard is a plain file name in the folder of its index"
            raise WeightsError(f"{path}: {fault}. Do not trust it: download the weights from a source that you do.")
        shards.setdefault(shard, set()).add(name)
    missing = [shard for shard in shards if not os.path.isfile(path.parent / shard)]
    if missing:
        raise WeightsError(f"{path}: {len(missing)} of {len(shards)} shards are missing. Download {some(missing)}.")
    return shards


def _check_shard(shard: Path, expected: set[str], found: set[str]) -> None:
    """Raise unless a shard holds just the tensors that its index says it does; so no tensor comes twice either."""
    for names, fault in ((expected - found, "lacks"), (found - expected, "also holds")):
        if names:
            fault = f"unlike what the index says, this shard {fault} {some(names)}"
            raise WeightsError(f"{shard}: {fault}. They are from different saves: download or save all again.")


def _parse_json(path: Path, raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the {what} is not JSON that can be relied on: {error}.") from error
    if not isinstance(value, dict):
        raise _damaged(path, f"the {what} must be a JSON object, found {type(value).__name__}.")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names all differ; by itself JSON lets the last of two win."""
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"it names {some(twice)} twice")
    return dict(pairs)


def _lay_out(path: Path, header: dict[str, Any], room: int) -> list[tuple[Stored, int]]:
    """Each tensor with the place where it starts, in that order; together they fill ``room`` bytes exactly."""
    placed = [_place(path, name, facts) for name, facts in header.items()]
    placed.sort(key=lambda tensor: (tensor[1], tensor[0].nbytes))
    end = 0
    for stored, start in placed:
        if start != end:
            fault = "overlaps the one before it" if start < end else "leaves a hole before it"
            raise _damaged(path, f"tensor {stored.name!r} starts at {start}, not {end}: it {fault}.")
        end += stored.nbytes
    if end != room:
        raise _damaged(path, f"the header promises {end} bytes of tensors, but there are {room}.")
    return placed


def _place(path: Path, name: str, facts: object) -> tuple[Stored, int]:
    """One entry of the header, checked: the tensor and where it starts."""
    match facts:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, stop]}:
            whole = all(type(size) is int and size >= 0 for size in (*shape, start, stop))
        case _:
            whole = False
    if not whole:
        raise _damaged(path, f"tensor {name!r} needs dtype, shape and two data_offsets; found {facts!r:.200}.")
    if kind not in DTYPES:
        fault = f"tensor {name!r} has dtype {kind!r:.40}, which is not one of {', '.join(DTYPES)}"
        raise WeightsError(f"{path}: {fault}. Convert it to one of these where it was made.")
    stored = Stored(name, DTYPES[kind], tuple(shape), path)
    if stop - start != stored.nbytes or prod(size or 1 for size in shape) >= 2**63:  # more than torch counts to
        takes = f"tensor {name!r} of {kind} and shape {shape!r:.200} takes {stored.nbytes} bytes"
        raise _damaged(path, f"{takes}, but data_offsets {start} to {stop} give it {stop - start}.")
    return stored, start


def _damaged(path: Path, fault: str, remedy: str = _AGAIN) -> WeightsError:
    """The error for a file that is not what its name says; two well-known cases are told apart."""
    with path.open("rb") as file:
        start = file.read(64).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        fault, remedy = "this is a Git LFS pointer, not the weights:", "run git lfs pull in its repository."
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        fault, remedy = "this is a web page, not the weights:", "log in if need be, and download it again."
    return WeightsError(f"{path}: {fault} {remedy}")


def _state_dict(path: Path, loaded: object) -> dict[str, Tensor]:
    """The state dict in what a pickle gave, taken out of the wrappings that training programs put around it."""
    for wrapping in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapping), Mapping):
            loaded = loaded[wrapping]
    entries: dict[str, Tensor] = dict(loaded) if isinstance(loaded, Mapping) else {}
    wrong = [f"{n} ({type(t).__name__})" for n, t in entries.items() if not (isinstance(n, str) and is_dense(t))]
    if wrong or not isinstance(loaded, Mapping):
        fault = f"a state dict maps names to dense tensors, found {some(wrong) or type(loaded).__name__}"
        raise WeightsError(f"{path}: {fault}. Save model.state_dict() alone.")
    return entries


def some(names: Iterable[str]) -> str:
    """The first few of some names, and how many more."""
    listed = sorted(names)
    return ", ".join(map(repr, listed[:5])) + f" and {len(listed) - 5} more" * (len(listed) > 5)


def is_dense(value: object) -> bool:
    """Whether a file can hold it: a tensor with all of its values."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_quantized)
