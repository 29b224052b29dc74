"""Where a model comes from: a folder, a file of another program, or a config and weights that lie apart.

Whatever the place, the answer is one thing: what the config says, which tensors there are, and how to read each.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.weights.files import WeightsError, check_finite, open_weights
from glassformer.weights.foreign import ForeignModel
from glassformer.weights.gguf import read_gguf
from glassformer.weights.lineage import OWN_CONFIG, read_config
from glassformer.weights.llama2c import looks_like_llama2c, read_llama2c


@dataclass
class Source:
    """An opened model: use it in a ``with`` statement, or close it."""

    place: Path
    config: dict[str, Any]  # as config.json, or for our own format as glassformer.json
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    is_ours: bool = False  # facts and part names of our own
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what else a single file says
    opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()


def open_source(place: Path, *, allow_pickle: bool = False, finite: bool = False) -> Source:
    """Open a folder, a GGUF file or a llama2.c file. ``finite`` checks every tensor for NaN and infinities."""
    if place.is_dir():
        own = place / OWN_CONFIG
        config = own if own.is_file() else place / "config.json"
        return open_parts(config, place, allow_pickle=allow_pickle, finite=finite)
    if not place.exists():
        raise WeightsError(f"{place}: there is no such folder or file.")
    if place.suffix.lower() == ".gguf":
        return _foreign(read_gguf(place), finite)
    if place.suffix.lower() == ".bin" and looks_like_llama2c(place):
        return _foreign(read_llama2c(place), finite)
    config = place.parent / "config.json"
    if not config.is_file():
        raise WeightsError(
            f"{place}: weights alone do not say what model they are of. Load their folder, or hand in the config as "
            f"well: load(config=..., weights=...)."
        )
    return open_parts(config, place, allow_pickle=allow_pickle, finite=finite)


def open_parts(
    config: Path | Mapping[str, Any], weights: Path, *, allow_pickle: bool = False, finite: bool = False
) -> Source:
    """Open a config and weights that may lie apart; ``config`` is a file or what it would say."""
    said = dict(config) if isinstance(config, Mapping) else read_config(config)
    files = open_weights(weights, allow_pickle=allow_pickle)

    def read(name: str) -> Tensor:
        tensor = files.read(name)
        if finite:
            check_finite(name, tensor, files.entries[name].file)
        return tensor

    source = Source(weights, said, {name: entry.shape for name, entry in files.entries.items()}, read)
    source.is_ours = "glassformer" in said
    source.opened.callback(files.close)
    return source


def _foreign(model: ForeignModel, finite: bool) -> Source:
    def read(name: str) -> Tensor:
        tensor = model.read(name)
        if finite:
            check_finite(name, tensor, model.file)
        return tensor

    return Source(model.file, dict(model.config), model.shapes, read, metadata=model.metadata)
