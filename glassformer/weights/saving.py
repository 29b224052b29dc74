"""Tensors and texts to disk, all or nothing: written beside their place, flushed, and only then renamed."""

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from glassformer.config.checks import check_positive
from glassformer.weights.files import DTYPES, SHARD, WeightsError, is_dense, some


def write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
    shard_bytes: int = 5 * 2**30,
    file_name: str = "model.safetensors",
) -> list[Path]:
    """Write all or nothing, as one file or as shards and their index; return what was written, the index last.

    Everything is first written in a hidden folder beside its place and then renamed, so that an earlier save stays
    whole until the new one is. Equal tensors give equal bytes.
    """
    check_positive(shard_bytes=shard_bytes)
    if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
        raise WeightsError(f"{folder}: file_name must be a plain name that ends in .safetensors; got {file_name!r}.")
    facts = {"format": "pt", **(metadata or {})}  # other readers refuse a file that does not say so
    _check_writable(folder / file_name, tensors, facts)
    shards = _split(tensors, shard_bytes)
    stem, index = file_name.removesuffix(".safetensors"), f"{file_name}.index.json"
    names = [f"{stem}-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    files = dict(zip(names, shards, strict=True)) if len(shards) > 1 else {file_name: shards[0]}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as staging:
        for name, shard in files.items():
            with naming_file(folder / name, Path(staging, name)):
                _write_file(Path(staging, name), shard, facts)
        if len(files) > 1:
            total = sum(tensor.nbytes for tensor in tensors.values())
            homes = {tensor: name for name, shard in files.items() for tensor in shard}
            text = json.dumps({"metadata": {"total_size": total}, "weight_map": homes}, indent=2, sort_keys=True)
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
        rule = f"a file holds named dense tensors of {', '.join(DTYPES)}, and metadata of text"
        raise WeightsError(f"{path}: {rule}; not so {some(map(str, wrong))}. Convert it, rename it or leave it out.")


def _split(tensors: Mapping[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """Tensors by name in groups of at most ``limit`` bytes; one that is larger is a group of its own."""
    shards: list[dict[str, Tensor]] = [{}]
    room = limit
    for name in sorted(tensors):
        if shards[-1] and tensors[name].nbytes > room:
            shards.append({})
            room = limit
        shards[-1][name] = tensors[name]
        room -= tensors[name].nbytes
    return shards


def _write_file(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """One safetensors file; the format has no views, so tensors that share memory here become independent."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    shared = Counter(tensor.untyped_storage().data_ptr() for tensor in own.values())
    own = {n: t.clone() if shared[t.untyped_storage().data_ptr()] > 1 else t for n, t in own.items()}
    try:
        save_file(own, path, metadata=metadata)
    except SafetensorError as error:  # a full disk is an error of the system, whoever meets it first
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number.group(1))
        raise OSError(code, os.strerror(code), str(path)) from error
    plain = path.with_suffix(".mode")
    plain.touch()
    path.chmod(plain.stat().st_mode)  # save_file lets only the owner read; a plain file shows what is usual here
    with path.open("r+b") as file:  # save_file writes metadata in another order every time: sort it
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length)) | {"__metadata__": dict(sorted(metadata.items()))}
        file.seek(8)
        file.write(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(length))


def _publish(staging: Path, folder: Path, names: list[str], stem: str) -> None:
    """Move finished files to their places, then remove what an earlier save left: nobody ever reads half of each."""
    for name in names:
        sync(staging / name)
    if any((folder / name).exists() for name in names[:-1]):
        (folder / names[-1]).unlink(missing_ok=True)  # better no index for a moment than one over mixed shards
    for name in names:
        os.replace(staging / name, folder / name)
    sync(folder)
    ours = re.compile(rf"{re.escape(stem)}({SHARD}|\.safetensors|\.safetensors\.index\.json)")
    old = [path for path in folder.iterdir() if ours.fullmatch(path.name) and path.name not in names]
    for path in sorted(old, key=lambda path: path.suffix != ".json"):  # the index while its shards are still there
        path.unlink()
    sync(folder)


def write_text(path: Path, text: str) -> None:
    """A text file, all or nothing: whoever reads it finds what stood there before, or all of this."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of ``path`` at the end; after a failure nothing of it is left."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with naming_file(path, beside):
            yield beside
            sync(beside)
            os.replace(beside, path)
            sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def naming_file(path: Path, written: Path | None = None) -> Iterator[None]:
    """Let errors of the system name the file that was to be, not the one ``written`` in its stead or none at all."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (written is not None and error.filename not in (None, str(written))):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, would last through a power cut; Windows opens no folders."""
    if path.is_file() or os.name == "posix":
        handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
