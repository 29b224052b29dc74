"""The front door: load a model from a folder, a file or a name; save one.

``load`` gives an object with ``.model``, ``.config`` (the page of facts), ``.tokenizer`` and ``.report``.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from glassformer import __version__
from glassformer.config import Head, Model, from_dict, shapes, to_dict
from glassformer.config.checks import check_choice
from glassformer.families import by_model_type, lineages
from glassformer.models.transformer import Transformer
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.convert import carry, plan, put_into, settle_tie, to_theirs
from glassformer.weights.files import WeightsError
from glassformer.weights.lineage import EVERYWHERE, OWN_CONFIG, ConfigError, Lineage, choose_kind, head_kind
from glassformer.weights.saving import write_weights
from glassformer.weights.source import Source, open_parts, open_source

Where = str | os.PathLike[str]


class Options(TypedDict, total=False):
    """What may be asked of ``load`` besides where, dtype and device."""

    config: Where | Mapping[str, Any]  # a config.json that lies elsewhere, or what it would say; with ``weights``
    weights: Where
    head: str | Head | None  # another head than the folder's own: lm, classify, none … or its facts
    ignore_keys: Iterable[str]  # names of weights to pass over; * matches anything
    strict: bool  # refuse keys of config.json that the lineage does not know
    allow_pickle: bool  # open .bin, .pt and .pth files
    check_finite: bool  # refuse NaN and infinities
    download: bool  # fetch a Hugging Face name that is not in the local cache


@dataclass
class Report:
    """What was passed over while loading, with the reasons."""

    spare: dict[str, str] = field(default_factory=dict)  # weights
    foreign: dict[str, Any] = field(default_factory=dict)  # keys of config.json that the lineage does not know


@dataclass
class Loaded:
    """A model with all that belongs to it."""

    model: Transformer
    config: Model
    lineage: str | None
    report: Report
    place: Path
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder or file; read when first asked for."""
        if "tokenizer.ggml.model" in self.metadata:
            return Tokenizer.from_gguf(self.metadata)
        folder = self.place if self.place.is_dir() else self.place.parent
        beside = sorted(folder.glob("tok*.bin"))  # what llama2.c calls them
        if self.place.suffix == ".bin" and len(beside) == 1:
            return Tokenizer.from_llama2c(beside[0])
        return Tokenizer.load(folder)


def load(
    where: Where | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **options: Unpack[Options],
) -> Loaded:
    """Load a model.

    Args:
        where: a folder as Hugging Face or we write it, a GGUF or llama2.c file, or a name in the local Hugging Face
            cache. Or None, with ``config`` and ``weights`` among the options.
        dtype: of the weights in memory; as stored unless given.
        device: where to put them.
        options: see ``Options``.

    Every weight is accounted for: a missing, unknown or misshapen one raises an error that lists them.
    """
    target = torch.device(device) if device is not None else torch.get_default_device()
    with _open(where, options) as source:
        if source.is_ours:
            return _load_ours(source, dtype, target)
        lineage = by_model_type(source.config)
        kind, head = _choose_head(lineage, source.config, options)
        facts = lineage.facts(source.config, kind)
        facts = settle_tie(lineage, facts, kind, source.shapes, source.read)
        facts = facts if head is None else replace(facts, head=head)
        report = Report(foreign=_foreign_keys(lineage, source.config, kind))
        if report.foreign and options.get("strict", False):
            raise ConfigError(
                f"{source.place}: strict=True, and these keys of config.json are unknown to {lineage.name}: "
                f"{', '.join(sorted(report.foreign))}."
            )
        planned = plan(lineage, facts, kind, source.shapes, options.get("ignore_keys", ()))
        report.spare = planned.spare
        model = _unfilled(facts)
        carry(planned, facts, source.read, put_into(model, dtype, target), source.shapes)
        return Loaded(model.eval(), facts, lineage.name, report, source.place, source.metadata)


def save(
    loaded: Loaded | nn.Module,
    folder: Where,
    *,
    to: str = "glassformer",
    lineage: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a folder: the facts and one safetensors file under our part names, or (``to="hf"``) one for Hugging Face.

    ``lineage`` names the kind of model that Hugging Face is to see in it; a loaded model knows its own.
    """
    check_choice("to", to, ("glassformer", "hf"))
    model = _plain(loaded.model if isinstance(loaded, Loaded) else loaded)
    lineage = loaded.lineage if isinstance(loaded, Loaded) and lineage is None else lineage
    place = Path(folder)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if to == "hf":
        known = _known_lineage(lineage)
        said: dict[str, Any] = known.config(model.config)
        weights = to_theirs(known, model.config, known.kind_of(model.config), weights)
        said["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    else:
        said = {"glassformer": __version__, "format": 1, "lineage": lineage, "model": to_dict(model.config)}
    write_weights(place, {name: tensor.cpu() for name, tensor in weights.items()})
    name, other = ("config.json", OWN_CONFIG) if to == "hf" else (OWN_CONFIG, "config.json")
    _write_text(place / name, json.dumps(said, indent=2, ensure_ascii=False) + "\n")
    (place / other).unlink(missing_ok=True)  # one folder, one format
    if tokenizer is not None:
        tokenizer.save(place)
    return place


def _open(where: Where | None, options: Options) -> Source:
    checks = {"allow_pickle": options.get("allow_pickle", False), "finite": options.get("check_finite", False)}
    config, weights = options.get("config"), options.get("weights")
    if where is not None:
        if config is not None or weights is not None:
            raise ValueError("load takes either where, or config and weights; not both.")
        return open_source(_place(where, options.get("download", False)), **checks)
    if config is None or weights is None:
        raise ValueError("load needs where, or config and weights together.")
    return open_parts(config if isinstance(config, Mapping) else Path(config), Path(weights), **checks)


def _place(where: Where, download: bool) -> Path:
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
            f"pip install huggingface_hub."
        ) from None
    try:
        return Path(
            snapshot_download(name, local_files_only=not download, allow_patterns=_WANTED if download else None)
        )
    except (LocalEntryNotFoundError, ValueError) as error:
        raise WeightsError(
            f"{name}: neither a folder or file here nor a name in the local Hugging Face cache. "
            f"To fetch it from the hub, say download=True."
        ) from error


_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model"]  # no pickles, no code


def _load_ours(source: Source, dtype: torch.dtype | None, device: torch.device) -> Loaded:
    facts = from_dict(Model, source.config["model"])
    wanted = shapes(facts)
    if wrong := [name for name in wanted if source.shapes.get(name) != wanted[name]]:
        raise WeightsError(f"{source.place}: missing or misshapen weights: {', '.join(wrong[:12])}.")
    if unknown := sorted(set(source.shapes) - set(wanted)):
        raise WeightsError(f"{source.place}: unknown weights: {', '.join(unknown[:12])}.")
    model = _unfilled(facts)
    put = put_into(model, dtype, device)
    for name in sorted(wanted, key=lambda n: -torch.Size(wanted[n]).numel()):
        put(name, source.read(name))
    return Loaded(model.eval(), facts, source.config.get("lineage"), Report(), source.place)


def _unfilled(facts: Model) -> Transformer:
    """A model without memory for its weights: they are put in one by one."""
    with torch.device("meta"):
        return Transformer(facts)


def _choose_head(lineage: Lineage, config: Mapping[str, Any], options: Options) -> tuple[str, Head | None]:
    """The kind of head, and its facts where the caller brought them: as asked, or as the folder says."""
    if "head" in options:
        asked = options["head"]
        if asked is None or isinstance(asked, str):
            kind = asked or "none"
            check_choice("head", kind, [*lineage.heads, "none"])
            return kind, None
        return head_kind(asked), asked
    return choose_kind(lineage, config), None


def _foreign_keys(lineage: Lineage, config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    reader = lineage.reader(config)
    lineage.read(reader)
    lineage.form(kind).head(reader)
    known = {*reader.used, *lineage.keys, *lineage.ignored, *EVERYWHERE}
    return {key: value for key, value in config.items() if key not in known}


def _known_lineage(name: str | None) -> Lineage:
    if name is None:
        raise ConfigError('to write for Hugging Face, say which kind of model it is to see: lineage="gpt2", say.')
    check_choice("lineage", name, lineages())
    lineage = lineages()[name]
    if lineage.model_type is None:
        raise ConfigError(f'{name} is not a kind of model that Hugging Face has; save it with to="glassformer".')
    return lineage


def _plain(model: nn.Module) -> Transformer:
    """The model itself, out of the wrappers of compilation and distribution."""
    while not isinstance(model, Transformer):
        inside = getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inside, nn.Module):
            raise TypeError(f"a Transformer can be saved; this is a {type(model).__name__}.")
        model = inside
    return model


def _write_text(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
