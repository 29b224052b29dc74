"""The page of facts of whatever a user names: a published model, a folder, a file. Folders are read without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from glassformer.config import Model
from glassformer.config.checks import check_choice
from glassformer.families import lineage_of, preset
from glassformer.weights.lineage import Lineage, choose_kind
from glassformer.weights.reader import OWN_CONFIG, ConfigError, naming, read_config, read_own


class Choices(TypedDict, total=False):
    """How a folder or file is read, as in ``hub.load``."""

    lineage: str | None
    head: str | None
    allow_pickle: bool


def facts_of(name: str | Path, **choices: Unpack[Choices]) -> Model:
    """The facts of a published model, of a model's folder, or of a GGUF or llama2.c file."""
    if not isinstance(name, str | Path):
        raise TypeError(f"a model is named by a text or a path, or described by a config.Model; got {name!r:.80}.")
    place = Path(name)
    if len(place.parts) > 1 and not place.exists():
        raise ValueError(f"there is no folder or file {place}; published models are listed by: glassformer info.")
    if place.is_file():
        return _facts_of_file(place, choices)
    if not place.is_dir():
        return preset(str(name))
    with naming(place, ConfigError):
        if (place / OWN_CONFIG).is_file():
            return read_own(read_config(place / OWN_CONFIG))
        config = read_config(place / "config.json")
        lineage, kind = _chosen(config, choices)
        return lineage.facts(config, kind)


def _chosen(config: Mapping[str, Any], choices: Choices) -> tuple[Lineage, str]:
    """Lineage and kind of head: as asked for, or as the config.json states."""
    lineage, kind = lineage_of(config, choices.get("lineage")), choices.get("head")
    if kind is None:
        return lineage, choose_kind(lineage, config)
    check_choice("head", kind, {*lineage.heads, "none"})
    return lineage, kind


def _facts_of_file(path: Path, choices: Choices) -> Model:
    """The facts that a file of weights states; these are not read, but for whether the head is tied."""
    from glassformer.weights.convert import settle_tie
    from glassformer.weights.files import WeightsError
    from glassformer.weights.source import open_source

    with (
        open_source(path, allow_pickle=choices.get("allow_pickle", False)) as source,
        naming(path, ConfigError, WeightsError),
    ):
        if source.is_ours:
            return read_own(source.config)
        lineage, kind = _chosen(source.config, choices)
        return settle_tie(lineage, lineage.facts(source.config, kind), kind, source.shapes, source.read)
