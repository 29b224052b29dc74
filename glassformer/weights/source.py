"""Find and open a model: a folder, a single file of another program, or a config and weights in two paths.

The result is always a ``ModelSource``: the config, and the tensors, which are read on request.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import pretrained
from glassformer.config.checks import Setting
from glassformer.weights.files import Stored, WeightFiles, WeightsError, open_weights
from glassformer.weights.gguf import read_gguf
from glassformer.weights.llama2c import begins_like_llama2c, looks_like_llama2c, read_llama2c
from glassformer.weights.reader import OWN_CONFIG, read_config
from glassformer.weights.single_file import SingleFileModel

SMALLEST = 28  # bytes: the header of a llama2.c file; every other kind needs more


@dataclass
class ModelSource:
    """An opened model; use it in a ``with`` statement."""

    path: Path
    config: dict[str, Any]  # the content of config.json, or in our own format of glassformer.json
    weights: WeightFiles
    metadata: Mapping[str, Any] = field(default_factory=dict)  # key/values of a GGUF file

    @property
    def is_ours(self) -> bool:
        """Whether config and parameter names are in our own format."""
        return "glassformer" in self.config

    def __enter__(self) -> "ModelSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.weights.close()


# Files to download from the Hugging Face hub: weights, configs and tokenizers, no code and no copies of the weights.
SAFE = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
PICKLED = ["*.bin", "*.pt", "*.pth"]
COPIES = ["consolidated*", "original/*", "onnx/*", "openvino/*"]


def find_model(name_or_path: str | os.PathLike[str], *, download: bool = False, allow_pickle: bool = False) -> Path:
    """Return the folder or file of a path, of a shipped model, or of a Hugging Face name in the local cache."""
    path = pretrained.resolve(name_or_path).expanduser()
    if path.exists():
        return path
    # A Hugging Face name has at most one slash.
    name = str(name_or_path)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise WeightsError(f"{path}: there is no such folder or file.")
    shipped = f"nor a shipped model ({', '.join(pretrained.names())})"
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise WeightsError(
            f"{name} is neither a file or folder here {shipped}. To look the name up in the Hugging Face cache, "
            f"pip install 'glassformer[hub]'."
        ) from None
    if download:
        return download_model(name, allow_pickle=allow_pickle)
    try:  # with the patterns of a download: other files may be missing
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=SAFE, ignore_patterns=COPIES))
    except (LocalEntryNotFoundError, ValueError) as error:
        raise WeightsError(
            f"{name} is neither a file or folder here {shipped} nor a name in the local Hugging Face cache. "
            f"Download it with: glassformer download {name} (in Python: load(..., download=True))."
        ) from error


def download_model(name: str, *, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """Download a model from the Hugging Face hub into the local cache.

    Args:
        name: as on the hub, such as ``openai-community/gpt2``.
        revision: a branch, a tag or a commit; None is the main branch.
        allow_pickle: download .bin, .pt and .pth files where there are no safetensors.

    Returns:
        The folder in the cache; without a connection the one that is there already, if it is complete.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise WeightsError(f"{name}: downloads need huggingface_hub: pip install 'glassformer[hub]'.") from None
    # Safetensors; pickles only if there are none.
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
        missing = WeightsError(f"{name} has no safetensors on the hub.")
        if allow_pickle:
            raise missing
        raise missing.suffixed(" Pickled weights are downloaded with {}.", Setting("allow_pickle", True))
    return folder


def open_source(path: Path, *, allow_pickle: bool = False, check_finite: bool = False) -> ModelSource:
    """Open a folder, a GGUF file or a llama2.c file; ``check_finite`` checks every tensor for NaN and infinities."""
    if path.is_dir():
        single = None if _config_in(path).is_file() else _only_llama2c(path)
        if single is not None:
            return _open_single_file(read_llama2c(single), check_finite)
        return open_config_and_weights(_config_in(path), path, allow_pickle=allow_pickle, check_finite=check_finite)
    if not path.exists():
        raise WeightsError(f"{path}: there is no such folder or file.")
    # Single files with a config of their own.
    if path.suffix.lower() == ".gguf":
        return _open_single_file(read_gguf(path), check_finite)
    if path.suffix.lower() == ".bin" and looks_like_llama2c(path):
        return _open_single_file(read_llama2c(path), check_finite)
    # Weights with a config beside them.
    config = _config_in(path.parent)
    if not config.is_file():
        if begins_like_llama2c(path):
            read_llama2c(path)  # called for its exception: it names the number of missing bytes
        if path.stat().st_size < SMALLEST:
            raise WeightsError(f"{path} has only {path.stat().st_size} bytes: it is incomplete. Download it again.")
        raise WeightsError(
            f"{path}: there is no config beside these weights. Name the folder that has both (in Python: or "
            f"load(config=..., weights=...))."
        )
    return open_config_and_weights(config, path, allow_pickle=allow_pickle, check_finite=check_finite)


def open_config_and_weights(
    config: Path | Mapping[str, Any], weights: Path, *, allow_pickle: bool = False, check_finite: bool = False
) -> ModelSource:
    """Open a config and weights from two paths; ``config`` may also be the content of a config.json."""
    if not isinstance(config, Mapping):
        config = read_config(_config_in(config) if config.is_dir() else config)
    return ModelSource(
        weights, dict(config), open_weights(weights, allow_pickle=allow_pickle, check_finite=check_finite)
    )


def _only_llama2c(folder: Path) -> Path | None:
    """Return the llama2.c model of a folder, complete or not; None if there is none, or several."""
    models = [path for path in sorted(folder.glob("*.bin")) if path.is_file() and begins_like_llama2c(path)]
    return models[0] if len(models) == 1 else None


def _config_in(folder: Path) -> Path:
    """Return the path of a folder's glassformer.json if it has one, else of its config.json."""
    own = folder / OWN_CONFIG
    return own if own.is_file() else folder / "config.json"


def _open_single_file(model: SingleFileModel, check_finite: bool) -> ModelSource:
    tensors: list[tuple[Stored, Callable[[], Tensor]]] = [
        (Stored(name, torch.float32, shape, model.file), partial(model.read, name))
        for name, shape in model.shapes.items()
    ]
    weights = WeightFiles([({}, tensors)], ExitStack(), check_finite=check_finite)
    return ModelSource(model.file, dict(model.config), weights, model.metadata)
