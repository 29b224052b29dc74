"""Write tensors and texts atomically: to a temporary file, flushed, and only then renamed."""

import json
import os
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from glassformer.config.checks import check_positive_integer
from glassformer.weights.files import DTYPES, SHARD, WeightsError, is_dense, some

LEFTOVER = 3600.0  # seconds after which a temporary file is not being written any more


def write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
    shard_bytes: int = 5 * 2**30,
    file_name: str = "model.safetensors",
) -> list[Path]:
    """Write one safetensors file, or shards and their index, and return their paths, the index last.

    Files are written in a hidden folder and then renamed, so that an earlier save stays complete until the new one is.
    Equal tensors give equal bytes.
    """
    check_positive_integer(shard_bytes=shard_bytes)
    if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
        raise WeightsError(f"{folder}: file_name must be a plain name that ends in .safetensors; got {file_name!r}.")
    metadata = {"format": "pt", **(metadata or {})}  # required by other readers
    _check_writable(folder / file_name, tensors, metadata)
    # File names: model.safetensors, or model-00001-of-00002.safetensors … and their index.
    shards = _split(tensors, shard_bytes)
    stem, index = file_name.removesuffix(".safetensors"), f"{file_name}.index.json"
    names = [f"{stem}-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    files = dict(zip(names, shards, strict=True)) if len(shards) > 1 else {file_name: shards[0]}
    # Write to a hidden folder, then publish all files.
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as staging:
        for name, shard in files.items():
            with naming_file(folder / name, Path(staging, name)):
                write_safetensors(Path(staging, name), shard, metadata)
        if len(files) > 1:
            total = sum(tensor.nbytes for tensor in tensors.values())
            weight_map = {tensor: name for name, shard in files.items() for tensor in shard}
            text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2, sort_keys=True)
            with naming_file(folder / index, Path(staging, index)):
                Path(staging, index).write_text(text, encoding="utf-8")
        names = [*files, index] if len(files) > 1 else [*files]
        _publish(Path(staging), folder, names, stem)
    return [folder / name for name in names]


def _check_writable(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    good = {name for name, tensor in tensors.items() if is_dense(tensor) and tensor.dtype in DTYPES.values()}
    wrong = {*tensors} - good | {"__metadata__"} & {*tensors}
    wrong |= {text for text in (*tensors, *metadata, *metadata.values()) if not isinstance(text, str)}
    if wrong:
        rule = f"a file holds named dense tensors of {', '.join(DTYPES)}, and metadata of strings"
        raise WeightsError(f"{path}: {rule}; not {some(map(str, wrong))}. Convert it, rename it or leave it out.")


def _split(tensors: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """Return tensors by name in shards of at most ``limit`` bytes; a larger tensor has its own shard."""
    shards: list[dict[str, Tensor]] = [{}]
    available = limit
    for name in sorted(tensors):
        if shards[-1] and tensors[name].nbytes > available:
            shards.append({})
            available = limit
        shards[-1][name] = tensors[name]
        available -= tensors[name].nbytes
    return shards


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] = MappingProxyType({"format": "pt"})
) -> None:
    """Write one safetensors file; the format has no views, so tensors that share memory are copied."""
    # Contiguous tensors on the CPU; those that share memory are copied.
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    shared = Counter(tensor.untyped_storage().data_ptr() for tensor in own.values())
    own = {n: t.clone() if shared[t.untyped_storage().data_ptr()] > 1 else t for n, t in own.items()}
    try:
        save_file(own, path, metadata=dict(metadata))
    except SafetensorError as error:  # a full disk is an OSError
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number.group(1))
        raise OSError(code, os.strerror(code), str(path)) from error
    # save_file lets only the owner read: use the permissions of a plain file.
    plain = path.with_suffix(".mode")
    plain.touch()
    path.chmod(plain.stat().st_mode)
    plain.unlink()
    # save_file writes metadata in random order: sort it.
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length)) | {"__metadata__": dict(sorted(metadata.items()))}
        file.seek(8)
        file.write(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(length))


def _publish(staging: Path, folder: Path, names: list[str], stem: str) -> None:
    """Move finished files to the folder, then remove those of an earlier save: no reader sees a mixture."""
    # Flush, then rename; the index comes last.
    for name in names:
        sync(staging / name)
    if any((folder / name).exists() for name in names[:-1]):
        (folder / names[-1]).unlink(missing_ok=True)  # no index for a moment, rather than one of mixed shards
    for name in names:
        os.replace(staging / name, folder / name)
    sync(folder)
    # Remove shards and index of an earlier save.
    ours = re.compile(rf"{re.escape(stem)}({SHARD}|\.safetensors|\.safetensors\.index\.json)")
    old = [path for path in folder.iterdir() if ours.fullmatch(path.name) and path.name not in names]
    for path in sorted(old, key=lambda path: path.suffix != ".json"):  # the index before its shards
        path.unlink()
    sync(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: readers see the old content or the new."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file to write, which replaces ``path`` at the end; it is removed after an error.

    Devices and pipes such as ``/dev/stdout``, and files in folders that take no new ones, are written directly. A
    temporary file that a killed process left is removed by the first save after an hour.
    """
    if path.parent == Path("/dev") or (path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK))):
        with naming_file(path):
            yield path
        return
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    with naming_file(path, new):
        _create(new)
    try:
        _remove_leftovers(path)
        with naming_file(path, new):
            yield new
            sync(new)
            os.replace(new, path)
            sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.new")
    for old in path.parent.iterdir():
        if ours.fullmatch(old.name):
            with suppress(OSError):  # another process may be faster, or another user's
                if old.lstat().st_mtime < time.time() - LEFTOVER:
                    old.unlink()


def _create(path: Path) -> None:
    """Create an empty file; never follow a link or write into a file that others put there."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666))


@contextmanager
def naming_file(path: Path, written: Path | None = None) -> Iterator[None]:
    """Let an OSError name ``path``, not the temporary file ``written`` or no file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (written is not None and error.filename not in (None, str(written))):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk; Windows cannot open folders."""
    if path.is_file() or os.name == "posix":
        handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
