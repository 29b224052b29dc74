"""Read safetensors files and pickles safely; ``saving`` writes them.

A safetensors file is the length of the header (eight bytes), a JSON header with the offsets of each tensor, and the
bytes of the tensors without gaps. All of it is checked before a tensor is created. A pickle can run code when it is
opened, so it is opened only on request, and only its tensors are loaded.
"""

import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from glassformer.config.checks import Setting, SettingError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool, "U8": torch.uint8,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
}  # fmt: skip
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SHARD = r"-\d{5}-of-\d{5}\.safetensors"
_LONGEST_HEADER = 100_000_000  # bytes; the limit of the format
_CHUNK = 2**20  # bytes copied before the mapped pages are released; a multiple of every item size
_AGAIN = "The file is damaged or incomplete: download or save it again."


class WeightsError(SettingError):
    """A weights file that cannot be read, or tensors that cannot be written."""


@dataclass(frozen=True)
class Stored:
    """One tensor on disk, before it is read."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path

    @property
    def nbytes(self) -> int:
        """The size of its values in bytes."""
        return prod(self.shape) * self.dtype.itemsize


OpenedFile = tuple[dict[str, str], list[tuple[Stored, Callable[[], Tensor]]]]  # metadata; tensors, each with a reader


class WeightFiles:
    """The tensors of one file or of several shards; created by ``open_weights``, used in a ``with`` statement."""

    def __init__(self, files: Iterable[OpenedFile], opened: ExitStack, *, check_finite: bool = False) -> None:
        self.entries: dict[str, Stored] = {}  # in the order on disk
        self.metadata: dict[str, str] = {}  # of all headers; if two differ, the later shard's
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self._opened = opened
        self._check_finite = check_finite
        self._scratch: Tensor | None = None
        for metadata, tensors in files:
            self.metadata |= metadata
            self.entries |= {stored.name: stored for stored, _ in tensors}
            self._readers |= {stored.name: reader for stored, reader in tensors}
        self.shapes = {name: stored.shape for name, stored in self.entries.items()}
        self.dtypes = {name: stored.dtype for name, stored in self.entries.items()}

    def read(self, name: str) -> Tensor:
        """Return a new tensor with the values of ``name``, on the CPU and in its stored dtype."""
        if name not in self.entries:
            files = some({str(stored.file) for stored in self.entries.values()})
            raise WeightsError(f"{files}: there is no tensor {name!r}. The names are in .entries.")
        if name not in self._readers:
            raise WeightsError(f"{self.entries[name].file}: closed. Read {name!r} inside the with statement.")
        tensor = self._readers[name]()
        if self._check_finite:
            check_finite(name, tensor, self.entries[name].file)
        return tensor

    def copy_into(self, name: str, out: Tensor) -> None:
        """Copy a tensor into ``out``, which has its shape and any dtype and device, in chunks if the file is mapped."""
        reader = self._readers.get(name)
        if isinstance(reader, _Mapped) and not self._check_finite:
            reader.copy_into(out)
        else:
            out.copy_(self.read(name))

    def borrow(self, name: str) -> Tensor:
        """Like ``read``, but the next ``borrow`` overwrites the tensor.

        A single buffer keeps the peak low: the allocator may not return freed memory to the system at once.
        """
        stored = self.entries[name]
        if self._scratch is None or self._scratch.numel() < stored.nbytes:
            self._scratch = None  # free the smaller buffer first
            self._scratch = torch.empty(stored.nbytes, dtype=torch.uint8)
        tensor = self._scratch[: stored.nbytes].view(stored.dtype).view(stored.shape)
        self.copy_into(name, tensor)
        return tensor

    def close(self) -> None:
        """Close files and mappings; tensors that were read stay valid."""
        self._readers.clear()
        self._scratch = None
        self._opened.close()

    def __enter__(self) -> "WeightFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_weights(path: Path, *, allow_pickle: bool = False, check_finite: bool = False) -> WeightFiles:
    """Open the weights of a folder, a file or an index.

    Args:
        path: a folder, a safetensors file or a pickle, or the index of shards.
        allow_pickle: open pickles, too.
        check_finite: raise if a tensor that is read has NaN or infinite values.
    """
    path = _find(path) if path.is_dir() else path
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file. Name a weights file, or a folder that holds one.")
    # The names of the shards, each with the tensors that the index lists; one file without an index.
    shards: Mapping[str, set[str] | None] = _read_index(path) if path.suffix == ".json" else {path.name: None}
    # Open all shards; an error closes those that are open.
    with ExitStack() as opened:
        files = []
        for shard, names in shards.items():
            file, pickled = path.parent / shard, Path(shard).suffix.lower() in _PICKLES
            files.append(_open_pickle(file, allow_pickle) if pickled else _open_safetensors(file, opened))
            if names is not None:
                _check_shard(file, names, {stored.name for stored, _ in files[-1][1]})
        return WeightFiles(files, opened.pop_all(), check_finite=check_finite)


def check_finite(name: str, tensor: Tensor, file: Path) -> None:
    """Raise if a tensor that was read from ``file`` has NaN or infinite values."""
    # Count in chunks: isfinite allocates a mask, and does not support eight-bit floats.
    nans = infinite = 0
    for part in tensor.detach().reshape(-1).tensor_split(1 + tensor.numel() // 2**22):
        part = part.float() if part.dtype.itemsize == 1 else part
        if not part.isfinite().all():
            nans += int(part.isnan().sum())
            infinite += int(part.isinf().sum())
    if nans or infinite:
        fault = f"tensor {name!r} has {nans} NaN and {infinite} infinite values among {tensor.numel()}"
        raise WeightsError(f"{file}: {fault}. Download it again, or use a checkpoint from before training diverged.")


def _find(folder: Path) -> Path:
    """Return the file or index to open in a folder; safetensors before pickle, an index before a single file."""
    safe = [folder / "model.safetensors.index.json", folder / "model.safetensors"]
    pickles = [folder / "pytorch_model.bin.index.json", folder / "pytorch_model.bin"]
    others = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("."))
    # The first that exists; several files without an index are ambiguous.
    present = [path for path in (*safe, *others, *pickles) if path.is_file()]
    if not present:
        expected = ", ".join(path.name for path in (*safe, folder / "*.safetensors", *pickles))
        raise WeightsError(f"{folder}: no weights here (looked for {expected}). Name the folder or file that has them.")
    if present[0] in others and present[0] not in safe and (len(others) > 1 or re.search(SHARD, others[0].name)):
        fault = f"found {some(p.name for p in others)}, but no {safe[0].name} that lists which belong together"
        raise WeightsError(f"{folder}: {fault}. Download the index too, or name one file.")
    return present[0]


def _open_pickle(path: Path, allowed: bool) -> OpenedFile:
    if not allowed:
        fault = "a pickle, which can run code when it is opened; look for the same weights as safetensors"
        template = f"{{}}: {fault}. If you trust its source, set {{}}: only its tensors are loaded."
        raise WeightsError(template, str(path), Setting("allow_pickle", True))
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"  # files older than the zip format cannot be mapped
    try:
        loaded = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # torch raises many kinds; none of them is a reason to try a less safe way
        fault = f"not a pickle of tensors only ({type(error).__name__}); its other objects could run code."
        raise _damaged(path, fault, "Save it as safetensors where it was created, or download it again.") from error
    tensors = _state_dict(path, loaded)
    copy = partial(torch.clone, memory_format=torch.contiguous_format)
    return {}, [(Stored(n, t.dtype, tuple(t.shape), path), partial(copy, t.detach())) for n, t in tensors.items()]


def _open_safetensors(path: Path, opened: ExitStack) -> OpenedFile:
    with path.open("rb") as file:
        # The header: its length in 8 bytes, then JSON.
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            fault = f"the header should have {length} bytes; the file has {max(size - 8, 0)} more"
            raise _damaged(path, f"{fault}, and the limit is {_LONGEST_HEADER}.")
        header = _parse_json(path, file.read(length), "header")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise _damaged(path, f"__metadata__ must map names to text, found {metadata!r:.200}.")
        # The tensors: offsets that fill the rest of the file, read from a memory map.
        tensors = _parse_header(path, header, data_size=size - 8 - length)
        mapping = opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return metadata, [(stored, _Mapped(mapping, 8 + length + start, stored)) for stored, start in tensors]


@dataclass(frozen=True, eq=False)
class _Mapped:
    """A tensor in a memory-mapped file."""

    mapping: mmap.mmap
    start: int
    stored: Stored

    def __call__(self) -> Tensor:
        """Return a new tensor with its values."""
        tensor = torch.empty(self.stored.shape, dtype=self.stored.dtype, device="cpu")
        self.copy_into(tensor)
        return tensor

    def copy_into(self, out: Tensor) -> None:
        """Copy its values in chunks; mapped pages are released after each, not kept beside the copy."""
        stored, flat, filled = self.stored, out.view(-1), 0
        for offset in range(0, stored.nbytes, _CHUNK):
            stop = min(offset + _CHUNK, stored.nbytes)
            raw = torch.frombuffer(bytearray(self.mapping[self.start + offset : self.start + stop]), dtype=torch.uint8)
            if stored.dtype == torch.bool and (raw > 1).any():
                raise _damaged(stored.file, f"booleans are bytes 0 and 1, and tensor {stored.name!r} has others.")
            chunk = raw.view(stored.dtype)
            flat[filled : filled + chunk.numel()].copy_(chunk)
            filled += chunk.numel()
            if hasattr(self.mapping, "madvise"):  # not on Windows; the whole mapping, since neighbours are mapped too
                self.mapping.madvise(mmap.MADV_DONTNEED)


def _read_index(path: Path) -> dict[str, set[str]]:
    """Return the names of the tensors of each shard, from an index file; raise if a shard is missing."""
    weight_map = _parse_json(path, path.read_bytes(), "index").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise _damaged(path, "the index needs a weight_map from names of tensors to names of files.")
    # Group the names by shard. A shard with a folder in its name could be any file of the system: refuse it.
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if shard in ("", "..") or PureWindowsPath(shard).name != shard:  # Windows rules: both kinds of slash
            fault = f"{name!r} is in {shard!r} by the index, but a shard must be a plain file name beside its index"
            raise WeightsError(f"{path}: {fault}. Do not trust it: download the weights from a source that you trust.")
        shards.setdefault(shard, set()).add(name)
    missing = [shard for shard in shards if not os.path.isfile(path.parent / shard)]
    if missing:
        raise WeightsError(f"{path}: {len(missing)} of {len(shards)} shards are missing. Download {some(missing)}.")
    return shards


def _check_shard(shard: Path, expected: set[str], actual: set[str]) -> None:
    """Raise unless a shard has exactly the tensors that its index lists; so no tensor is in two shards."""
    for names, fault in ((expected - actual, "lacks"), (actual - expected, "also holds")):
        if names:
            fault = f"unlike its index, this shard {fault} {some(names)}"
            raise WeightsError(
                f"{shard}: {fault}. Index and shard are from different saves: download or save all again."
            )


def _parse_json(path: Path, raw: bytes, section: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the {section} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise _damaged(path, f"the {section} must be a JSON object, found {type(value).__name__}.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise if two keys are equal, of which Python would take the last."""
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"it names {some(twice)} twice")
    return dict(pairs)


def _parse_header(path: Path, header: dict[str, Any], data_size: int) -> list[tuple[Stored, int]]:
    """Return the tensors with their offsets, in that order; raise unless they fill ``data_size`` bytes without gaps."""
    tensors = [_parse_entry(path, name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor[1], tensor[0].nbytes))
    # No gaps, no overlaps, nothing after the last tensor.
    end = 0
    for stored, start in tensors:
        if start != end:
            fault = "overlaps the one before it" if start < end else "leaves a gap before it"
            raise _damaged(path, f"tensor {stored.name!r} starts at {start}, not {end}: it {fault}.")
        end += stored.nbytes
    if end != data_size:
        raise _damaged(path, f"the header lists {end} bytes of tensors, but the file has {data_size}.")
    return tensors


def _parse_entry(path: Path, name: str, entry: object) -> tuple[Stored, int]:
    """Return an entry of the header, checked: the tensor and its offset."""
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, stop]}:
            valid = all(type(size) is int and size >= 0 for size in (*shape, start, stop))
        case _:
            valid = False
    if not valid:
        raise _damaged(path, f"tensor {name!r} needs dtype, shape and two data_offsets; found {entry!r:.200}.")
    if kind not in DTYPES:
        fault = f"tensor {name!r} has dtype {kind!r:.40}, which is not one of {', '.join(DTYPES)}"
        raise WeightsError(f"{path}: {fault}. Convert it to one of these where it was created.")
    # The offsets must have the size of dtype and shape.
    stored = Stored(name, DTYPES[kind], tuple(shape), path)
    if stop - start != stored.nbytes or prod(size or 1 for size in shape) >= 2**63:  # the limit of torch
        fault = f"tensor {name!r} of {kind} and shape {shape!r:.200} has {stored.nbytes} bytes"
        raise _damaged(path, f"{fault}, but data_offsets {start} to {stop} are {stop - start}.")
    return stored, start


def _damaged(path: Path, fault: str, remedy: str = _AGAIN) -> WeightsError:
    """Return the error for a damaged file; Git LFS pointers and web pages are recognised."""
    with path.open("rb") as file:
        start = file.read(64).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        fault, remedy = "this is a Git LFS pointer, not the weights:", "run git lfs pull in its repository."
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        fault, remedy = "this is a web page, not the weights:", "log in if need be, and download it again."
    return WeightsError(f"{path}: {fault} {remedy}")


def _state_dict(path: Path, loaded: object) -> dict[str, Tensor]:
    """Return the state dict of a loaded pickle, itself or under the key that a training program stores it under."""
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    entries: dict[str, Tensor] = dict(loaded) if isinstance(loaded, Mapping) else {}
    wrong = [f"{n} ({type(t).__name__})" for n, t in entries.items() if not (isinstance(n, str) and is_dense(t))]
    if wrong or not isinstance(loaded, Mapping):
        fault = f"a state dict maps names to dense tensors, found {some(wrong) or type(loaded).__name__}"
        raise WeightsError(f"{path}: {fault}. Save only model.state_dict().")
    return entries


def some(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    listed = sorted(names)
    return ", ".join(map(repr, listed[:5])) + f" and {len(listed) - 5} more" * (len(listed) > 5)


def is_dense(value: object) -> bool:
    """Whether this is a dense tensor with values, which a file can hold."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_quantized)
