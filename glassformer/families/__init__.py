"""The registry of lineages: each file here is the data of one, and this is the one list of them."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from glassformer.config import Model
from glassformer.config.checks import check_choice
from glassformer.weights.lineage import ConfigError, Lineage

_HOME = {
    "bert": "BERT",
    "gpt2": "GPT2",
}  # module: its lineages


@cache
def lineages() -> Mapping[str, Lineage]:
    """Every lineage by name."""
    known = {}
    for module, names in _HOME.items():
        for name in names.split():
            lineage: Lineage = getattr(import_module(f"glassformer.families.{module}"), name)
            known[lineage.name] = lineage
    return known


@cache
def presets() -> Mapping[str, tuple[Lineage, Mapping[str, Any]]]:
    """Every published size by name: its lineage and what its config.json says."""
    return {name: (lineage, said) for lineage in lineages().values() for name, said in lineage.sizes.items()}


def preset(name: str) -> Model:
    """The page of facts of a published model."""
    check_choice("preset", name, presets())
    lineage, said = presets()[name]
    return lineage.facts(said, next(iter(lineage.heads)))


def by_model_type(config: Mapping[str, Any]) -> Lineage:
    """The lineage that a config.json belongs to."""
    name = config.get("model_type")
    known = {lineage.model_type: lineage for lineage in lineages().values() if lineage.model_type is not None}
    if name not in known:
        raise ConfigError(
            f"config.json says model_type={name!r}, which no lineage here reads. Known: {', '.join(sorted(known))}."
        )
    return known[name]
