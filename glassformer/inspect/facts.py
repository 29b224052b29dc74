"""The page of facts of whatever a user names: a published model, a folder, a file. Folders are read without torch."""

from pathlib import Path

from glassformer.config import Model, from_dict
from glassformer.families import by_model_type, preset
from glassformer.weights.lineage import choose_kind
from glassformer.weights.reader import OWN_CONFIG, read_config


def facts_of(name: str | Path) -> Model:
    """The facts of a published model, of a model's folder, or of a GGUF or llama2.c file."""
    if not isinstance(name, str | Path):
        raise TypeError(f"a model is named by a text or a path, or described by a config.Model; got {name!r:.80}.")
    place = Path(name)
    if len(place.parts) > 1 and not place.exists():
        raise ValueError(f"there is no folder or file {place}; published models are listed by: glassformer info.")
    if place.is_file():
        return _facts_of_file(place)
    if not place.is_dir():
        return preset(str(name))
    if (place / OWN_CONFIG).is_file():
        return from_dict(Model, read_config(place / OWN_CONFIG)["model"])
    config = read_config(place / "config.json")
    lineage = by_model_type(config)
    return lineage.facts(config, choose_kind(lineage, config))


def _facts_of_file(path: Path) -> Model:
    """The facts that a file of weights states; these are not read, but for whether the head is tied."""
    from glassformer.weights.convert import settle_tie
    from glassformer.weights.source import open_source

    with open_source(path) as source:
        if source.is_ours:
            return from_dict(Model, source.config["model"])
        lineage = by_model_type(source.config)
        kind = choose_kind(lineage, source.config)
        return settle_tie(lineage, lineage.facts(source.config, kind), kind, source.shapes, source.read)
