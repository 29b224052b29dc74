"""The registry of lineages, the named kinds of checkpoint (GPT-2, BERT, T5 …; a ``model_type`` of Hugging Face).

Each module of this package describes one or two lineages; this one lists them all, and their published sizes, the
*presets*. (``ModelConfig.family`` is something else: encoder, decoder or encoder-decoder.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from glassformer.config import ModelConfig, count
from glassformer.config.checks import Setting, check_choice
from glassformer.weights.lineage import Lineage, Paper, choose_kind, class_names
from glassformer.weights.reader import ConfigError

_REGISTRY = {
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
    """Return every lineage by name."""
    known = {}
    for module, names in _REGISTRY.items():
        for name in names.split():
            lineage: Lineage = getattr(import_module(f"glassformer.families.{module}"), name)
            known[lineage.name] = lineage
    return known


@dataclass(frozen=True)
class Preset:
    """A published size of a lineage, such as gpt2-xl: the config.json keys that differ from the lineage's defaults."""

    name: str
    lineage: Lineage
    config: Mapping[str, Any]  # the keys of config.json that differ from the lineage's defaults

    @cached_property
    def facts(self) -> ModelConfig:
        """The facts of the model, with its published head."""
        return self.lineage.facts(self.config, choose_kind(self.lineage, self.config))

    @property
    def paper(self) -> Paper:
        """The paper that published the model."""
        return self.lineage.paper

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return count(self.facts)


@cache
def presets() -> Mapping[str, Preset]:
    """Return every published model by name."""
    return {
        name: Preset(name, lineage, config) for lineage in lineages().values() for name, config in lineage.sizes.items()
    }


def preset(name: str) -> ModelConfig:
    """Return the facts (config values) of a published model; ``Transformer(preset("gpt2"))`` has new weights."""
    if name not in presets():
        near = get_close_matches(name, presets(), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "glassformer info lists them all."
        raise ValueError(f"no published model is called {name!r}; {hint}")
    return presets()[name].facts


def lineage_of(config: Mapping[str, Any], name: str | None = None) -> Lineage:
    """Return the lineage that reads a config.json: the one called ``name``, or the one of the file's model_type."""
    if name is None:
        return lineage_by_model_type(config)
    check_choice("lineage", name, lineages())
    return lineages()[name]


def lineage_by_model_type(config: Mapping[str, Any]) -> Lineage:
    """Return the lineage of a config.json, by its model_type, or by the class of older files that have none."""
    name = config.get("model_type")
    known = {lineage.model_type: lineage for lineage in lineages().values() if lineage.model_type is not None}
    if name is None:
        classes = class_names(config)
        for lineage in known.values():
            if any(form.architecture in classes for form in lineage.heads.values()):
                return lineage
        missing = f"no model_type, and architectures={classes!r} is no known class"
        raise ConfigError(
            "config.json has {}, so the kind of model is unknown. "
            f"If you know it, set {{}} to one of: {', '.join(lineages())}.",
            missing if classes else "neither model_type nor architectures",
            Setting("lineage"),
        )
    if not isinstance(name, str) or name not in known:
        near = get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"config.json has model_type={{}}, which is not supported. Known: {', '.join(sorted(known))}.{hint} "
            f"If it is built like one of them, set {{}} to its name: {', '.join(lineages())}.",
            repr(name),
            Setting("lineage"),
        )
    return known[name]
