"""Facts (config values) of a published model, a model folder or a file of weights. Folders are read without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from glassformer import pretrained
from glassformer.config import ModelConfig
from glassformer.config.checks import Setting, SettingError, check_choice
from glassformer.families import lineage_of, preset
from glassformer.weights.lineage import Lineage, choose_kind, choose_own_head
from glassformer.weights.reader import OWN_CONFIG, ConfigError, prefix_errors, read_config, read_own


class ReadOptions(TypedDict, total=False):
    """How a folder or file is read, as in ``hub.load``."""

    lineage: str | None
    head: str | None
    allow_pickle: bool


def facts_of(name: str | Path, **options: Unpack[ReadOptions]) -> ModelConfig:
    """Return the facts of a published or shipped model, of a model's folder, or of a GGUF or llama2.c file."""
    if not isinstance(name, str | Path):
        raise TypeError(f"a model is a name, a path or a config.ModelConfig; got {name!r:.80}.")
    path = pretrained.resolve(name)
    if len(path.parts) > 1 and not path.exists():
        raise ValueError(f"there is no folder or file {path}; published models are listed by: glassformer info.")
    # A file.
    if path.is_file():
        return _facts_of_file(path, options)
    # A published model, by its name.
    if not path.is_dir():
        try:
            facts = preset(str(name))
        except ValueError as error:
            raise ValueError(f"{error} Shipped models: {', '.join(pretrained.names())}.") from None
        if options.get("lineage") is not None:
            template = "{} is a published model, whose model type is fixed; leave out {}."
            raise SettingError(template, str(name), Setting("lineage"))
        return _with_head(facts, options)
    if not any((path / config).is_file() for config in (OWN_CONFIG, "config.json")) and any(path.glob("*.bin")):
        return _facts_of_file(path, options)  # a llama2.c file is enough
    # A folder, in our own format or Hugging Face's.
    with prefix_errors(path, ConfigError):
        if (path / OWN_CONFIG).is_file():
            return _with_head(read_own(read_config(path / OWN_CONFIG)), options)
        config = read_config(path / "config.json")
        lineage, kind = _lineage_and_head(config, options)
        return lineage.facts(config, kind)


def _with_head(facts: ModelConfig, options: ReadOptions) -> ModelConfig:
    """Return facts with their own head, or without it; another head is an error."""
    kind = options.get("head")
    return facts if kind is None else choose_own_head(facts, kind)


def _lineage_and_head(config: Mapping[str, Any], options: ReadOptions) -> tuple[Lineage, str]:
    """Return the lineage and the kind of head: as chosen, or as in the config.json."""
    lineage, kind = lineage_of(config, options.get("lineage")), options.get("head")
    if kind is None:
        return lineage, choose_kind(lineage, config)
    check_choice("head", kind, {*lineage.heads, "none"})
    return lineage, kind


def _facts_of_file(path: Path, options: ReadOptions) -> ModelConfig:
    """Return the facts in a file of weights, or in the only one of a folder; weights tell whether the head is tied."""
    from glassformer.weights.convert import untie_if_different
    from glassformer.weights.files import WeightsError
    from glassformer.weights.source import open_source

    with (
        open_source(path, allow_pickle=options.get("allow_pickle", False)) as source,
        prefix_errors(path, ConfigError, WeightsError),
    ):
        if source.is_ours:
            return _with_head(read_own(source.config), options)
        lineage, kind = _lineage_and_head(source.config, options)
        return untie_if_different(lineage, lineage.facts(source.config, kind), kind, source.weights)
