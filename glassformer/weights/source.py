"""Where a model comes from: a folder, a file of another program, or a config and weights that lie apart.

Whatever the place, the answer is one thing: what the config says, which tensors there are, and how to read each.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.weights.files import WeightsError, check_finite, open_weights
from glassformer.weights.foreign import ForeignModel
from glassformer.weights.gguf import read_gguf
from glassformer.weights.llama2c import begins_like_llama2c, looks_like_llama2c, read_llama2c
from glassformer.weights.reader import OWN_CONFIG, read_config


@dataclass
class Source:
    """An opened model: use it in a ``with`` statement, or close it."""

    place: Path
    config: dict[str, Any]  # as config.json, or for our own format as glassformer.json
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    read: Callable[[str], Tensor]  # a tensor in memory of its own
    borrow: Callable[[str], Tensor]  # a tensor in memory that the next one borrowed may write over
    copy_into: Callable[[str, Tensor], None]  # a tensor, to where it is to be
    is_ours: bool = False  # facts and part names of our own
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what else a single file says
    opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()


# What is fetched from the Hugging Face hub: weights, configs and tokenizers, no code and no second copy of the weights.
SAFE = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
PICKLED = ["*.bin", "*.pt", "*.pth"]
COPIES = ["consolidated*", "original/*", "onnx/*", "openvino/*"]


def find_place(where: str | os.PathLike[str], *, download: bool = False, allow_pickle: bool = False) -> Path:
    """The folder or file meant by a path or by a Hugging Face name in the local cache."""
    path = Path(where).expanduser()
    if path.exists():
        return path
    name = str(where)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise WeightsError(f"{path}: there is no such folder or file.")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise WeightsError(
            f"{name}: there is no such folder or file. To look the name up in the Hugging Face cache, "
            f"pip install 'glassformer[hub]'."
        ) from None
    if download:
        return fetch(name, allow_pickle=allow_pickle)
    try:  # with the patterns of a download: other files may be missing
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=SAFE, ignore_patterns=COPIES))
    except (LocalEntryNotFoundError, ValueError) as error:
        raise WeightsError(
            f"{name}: neither a folder or file here nor a name in the local Hugging Face cache. "
            f"Fetch it with: glassformer download {name} (in Python: load(..., download=True))."
        ) from error


def fetch(name: str, *, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """Download a model from the Hugging Face hub into the local cache.

    Args:
        name: as on the hub, such as ``openai-community/gpt2``.
        revision: a branch, a tag or a commit; None is the main branch.
        allow_pickle: fetch .bin, .pt and .pth files where there are no safetensors.

    Returns:
        The folder in the cache; without a connection the one that is there already, if it is complete.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise WeightsError(f"{name}: downloads need huggingface_hub: pip install 'glassformer[hub]'.") from None
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=SAFE, ignore_patterns=COPIES))
        has_weights = any(folder.rglob("*.safetensors"))
        if allow_pickle and not has_weights:
            patterns = [*SAFE, *PICKLED]
            snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=COPIES)
            has_weights = any(file for pattern in PICKLED for file in folder.rglob(pattern))
    except errors.HFValidationError as error:
        raise WeightsError(f"{name!r} is not a name of the hub, such as openai-community/gpt2.") from error
    except errors.GatedRepoError as error:
        raise WeightsError(f"{name}: ask for access on its page, then log in: hf auth login.") from error
    except errors.RepositoryNotFoundError as error:
        raise WeightsError(f"{name}: the hub has no such model, or it is private; to log in: hf auth login.") from error
    except errors.RevisionNotFoundError as error:
        raise WeightsError(f"{name} has no revision {revision!r}.") from error
    except errors.LocalEntryNotFoundError as error:
        raise WeightsError(f"{name}: the hub cannot be reached, and the local cache does not hold it.") from error
    except errors.HfHubHTTPError as error:
        raise WeightsError(f"{name}: the hub answered: {str(error).partition(chr(10))[0]}") from error
    if not has_weights:
        remedy = "" if allow_pickle else " Pickled weights are fetched with allow_pickle=True (--allow-pickle)."
        raise WeightsError(f"{name} has no safetensors on the hub.{remedy}")
    return folder


def open_source(place: Path, *, allow_pickle: bool = False, finite: bool = False) -> Source:
    """Open a folder, a GGUF file or a llama2.c file. ``finite`` checks every tensor for NaN and infinities."""
    if place.is_dir():
        alone = None if _config_in(place).is_file() else _only_llama2c(place)
        if alone is not None:
            return _foreign(read_llama2c(alone), finite)
        return open_parts(_config_in(place), place, allow_pickle=allow_pickle, finite=finite)
    if not place.exists():
        raise WeightsError(f"{place}: there is no such folder or file.")
    if place.suffix.lower() == ".gguf":
        return _foreign(read_gguf(place), finite)
    if place.suffix.lower() == ".bin" and looks_like_llama2c(place):
        return _foreign(read_llama2c(place), finite)
    config = _config_in(place.parent)
    if not config.is_file():
        if begins_like_llama2c(place):
            read_llama2c(place)  # raises, and says how much of it is missing
        raise WeightsError(
            f"{place}: weights alone do not say what model they are of. Load their folder, or hand in the config as "
            f"well: load(config=..., weights=...)."
        )
    return open_parts(config, place, allow_pickle=allow_pickle, finite=finite)


def open_parts(
    config: Path | Mapping[str, Any], weights: Path, *, allow_pickle: bool = False, finite: bool = False
) -> Source:
    """Open a config and weights that may lie apart; ``config`` is a file or what it would say."""
    if not isinstance(config, Mapping):
        config = read_config(_config_in(config) if config.is_dir() else config)
    said = dict(config)
    files = open_weights(weights, allow_pickle=allow_pickle)
    shapes = {name: entry.shape for name, entry in files.entries.items()}
    dtypes = {name: entry.dtype for name, entry in files.entries.items()}
    source = Source(weights, said, shapes, dtypes, files.read, files.borrow, files.copy_into)
    if finite:
        _check_as_read(source, lambda name: files.entries[name].file)
    source.is_ours = "glassformer" in said
    source.opened.callback(files.close)
    return source


def _only_llama2c(folder: Path) -> Path | None:
    """The only model of llama2.c in a folder, whole or cut short; None where there is none, or several."""
    found = [path for path in sorted(folder.glob("*.bin")) if path.is_file() and begins_like_llama2c(path)]
    return found[0] if len(found) == 1 else None


def _config_in(folder: Path) -> Path:
    """Our own page of facts where there is one, else config.json."""
    own = folder / OWN_CONFIG
    return own if own.is_file() else folder / "config.json"


def _foreign(model: ForeignModel, finite: bool) -> Source:
    dtypes = dict.fromkeys(model.shapes, torch.float32)

    def copy_into(name: str, out: Tensor) -> None:
        out.copy_(model.read(name))

    source = Source(
        model.file, dict(model.config), model.shapes, dtypes, model.read, model.read, copy_into, metadata=model.metadata
    )
    if finite:
        _check_as_read(source, lambda _: model.file)
    return source


def _check_as_read(source: Source, file_of: Callable[[str], Path]) -> None:
    """Let every tensor be looked at as it is read."""
    plain = source.read

    def read(name: str) -> Tensor:
        tensor = plain(name)
        check_finite(name, tensor, file_of(name))
        return tensor

    def copy_into(name: str, out: Tensor) -> None:
        out.copy_(read(name))

    source.read, source.borrow, source.copy_into = read, read, copy_into
