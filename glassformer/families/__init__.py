"""The registry of lineages: each file here is the data of one, and this is the one list of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from glassformer.config import Model, count
from glassformer.config.checks import Setting, check_choice
from glassformer.weights.lineage import Lineage, Paper, choose_kind, class_names
from glassformer.weights.reader import ConfigError

_HOME = {
    "transformer2017": "TRANSFORMER2017",
    "cs336": "CS336",
    "bert": "BERT",
    "roberta": "ROBERTA XLM_ROBERTA",
    "distilbert": "DISTILBERT",
    "albert": "ALBERT",
    "electra": "ELECTRA",
    "deberta": "DEBERTA",
    "deberta_v2": "DEBERTA_V2",
    "xlm": "XLM",
    "bigbird": "BIGBIRD",
    "mpnet": "MPNET",
    "gpt": "GPT",
    "gpt2": "GPT2",
    "gpt3": "GPT3",
    "ctrl": "CTRL",
    "gpt_neo": "GPT_NEO",
    "gptj": "GPTJ",
    "gpt_neox": "GPT_NEOX",
    "bloom": "BLOOM",
    "opt": "OPT",
    "llama": "LLAMA",
    "mistral": "MISTRAL",
    "qwen": "QWEN2",
    "qwen3": "QWEN3",
    "gemma": "GEMMA",
    "t5": "T5",
    "bart": "BART",
    "m2m100": "M2M100",
    "bigbird_pegasus": "BIGBIRD_PEGASUS",
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


@dataclass(frozen=True)
class Preset:
    """A published model: which lineage it is of, and what its config.json says."""

    name: str
    lineage: Lineage
    said: Mapping[str, Any]

    @cached_property
    def facts(self) -> Model:
        """Its page of facts, with the head it was published with."""
        return self.lineage.facts(self.said, choose_kind(self.lineage, self.said))

    @property
    def paper(self) -> Paper:
        """Where it was published."""
        return self.lineage.paper

    @property
    def parameters(self) -> int:
        """How many numbers it has learned."""
        return count(self.facts)


@cache
def presets() -> Mapping[str, Preset]:
    """Every published size by name."""
    return {
        name: Preset(name, lineage, said) for lineage in lineages().values() for name, said in lineage.sizes.items()
    }


def preset(name: str) -> Model:
    """The page of facts of a published model; ``Transformer(preset("gpt2"))`` builds it with fresh weights."""
    if name not in presets():
        near = get_close_matches(name, presets(), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "glassformer info lists them all."
        raise ValueError(f"no published model is called {name!r} here; {hint}")
    return presets()[name].facts


def lineage_of(config: Mapping[str, Any], asked: str | None = None) -> Lineage:
    """The lineage to read a config.json by: the one asked for by name, or the one that the file states."""
    if asked is None:
        return by_model_type(config)
    check_choice("lineage", asked, lineages())
    return lineages()[asked]


def by_model_type(config: Mapping[str, Any]) -> Lineage:
    """The lineage that a config.json belongs to; a file from before there was a model_type says so by its class."""
    name = config.get("model_type")
    known = {lineage.model_type: lineage for lineage in lineages().values() if lineage.model_type is not None}
    if name is None:
        classes = class_names(config)
        for lineage in known.values():
            if any(form.architecture in classes for form in lineage.heads.values()):
                return lineage
        raise ConfigError(
            "config.json has no model_type, and architectures={} names no class known here, so nothing tells what kind "
            f"of model it is. If you know, set {{}} to one of: {', '.join(lineages())}.",
            repr(classes),
            Setting("lineage"),
        )
    if not isinstance(name, str) or name not in known:
        near = get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"config.json says model_type={{}}, which no lineage here reads. Known: {', '.join(sorted(known))}.{hint} "
            f"If it is built like one of them, set {{}} to its name: {', '.join(lineages())}.",
            repr(name),
            Setting("lineage"),
        )
    return known[name]
