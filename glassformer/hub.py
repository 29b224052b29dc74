"""The front door: load a model from a folder, a file or a name; save one.

``load`` returns a ``Loaded``: ``.model``, ``.config`` (the facts), ``.tokenizer``, ``.report``, and a method for
everything that the model can do.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from glassformer import __version__
from glassformer.config import Head, Model, shapes, to_dict
from glassformer.config.checks import Setting, check_choice
from glassformer.families import lineage_of, lineages
from glassformer.loaded import Loaded as Loaded
from glassformer.loaded import Report as Report
from glassformer.models.initialise import initialise
from glassformer.models.transformer import Transformer, transformer_of
from glassformer.text.pieces import TokenizerError
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.allocate import allocate
from glassformer.weights.convert import (
    FLOATS,
    check_sizes,
    copy_weights,
    plain_names,
    plan,
    plan_ours,
    prevailing_dtype,
    settle_tie,
    to_theirs,
)
from glassformer.weights.devices import check_device
from glassformer.weights.files import WeightsError, some
from glassformer.weights.lineage import WITHOUT_WEIGHTS, Lineage, choose_kind, choose_own_head, head_kind
from glassformer.weights.matching import LoadOptions
from glassformer.weights.reader import EVERYWHERE, OWN_CONFIG, ConfigError, naming, read_own
from glassformer.weights.saving import replacing, write_weights
from glassformer.weights.source import Source, find_place, open_parts, open_source

Where = str | os.PathLike[str]
JOB = "glassformer_job.json"  # beside a model that was trained by a recipe: what for, and how it was judged
ADVICE = ("generation_config.json", JOB)  # what goes along with a model


class Options(TypedDict, total=False):
    """What may be asked of ``load`` besides where, dtype and device."""

    config: Where | Mapping[str, Any]  # a config.json that lies elsewhere, or what it would say; with ``weights``
    weights: Where
    lineage: str  # the kind of model, where config.json does not state it or states one that is not known here
    head: str | Head | None  # another head than the folder's own: lm, classify, none … or its facts
    ignore_keys: Iterable[str]  # names of weights to pass over; * matches anything
    fresh: Iterable[str]  # our names of parts that start anew where they are missing or of another size, as ["head.*"]
    strict: bool  # refuse keys of config.json that the lineage does not know
    allow_pickle: bool  # open .bin, .pt and .pth files
    check_finite: bool  # refuse NaN and infinities
    tokenizer: Where  # another folder's tokenizer, or a tokenizer.json
    tokenizer_kind: str  # what its older files are where they do not state it: see text.tokenizer_kinds.KINDS
    download: bool  # fetch a Hugging Face name that is not in the local cache


def load(
    where: Where | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    **options: Unpack[Options],
) -> Loaded:
    """Load a model.

    Args:
        where: a folder as Hugging Face or we write it, a GGUF or llama2.c file, or a name in the local Hugging Face
            cache. Or None, with ``config`` and ``weights`` among the options.
        dtype: of the weights in memory, or its name (``"bfloat16"``); as stored unless given.
        device: where to put them.
        options: see ``Options``.

    Every weight is accounted for: a missing, unknown or misshapen one raises an error that lists them.
    """
    for name in options:
        check_choice("an option of load", name, Options.__annotations__)
    dtype, target = _dtype(dtype), _device(device)
    with _open(where, options) as source, naming(source.place, ConfigError, WeightsError), torch.inference_mode(False):
        matching = LoadOptions(_names(options.get("ignore_keys", ())), _names(options.get("fresh", ())))
        if source.is_ours:
            facts, lineage, report = _own_facts(source, options), source.config.get("lineage"), Report()
            if options.get("lineage") is not None:  # what it is saved as
                lineage = lineage_of({}, options["lineage"]).name
            planned = plan_ours(facts, source.shapes, matching)
        else:
            facts, lineage, kind, report = _their_facts(source, options)
            planned = plan(lineages()[lineage], facts, kind, source.shapes, matching)
        check_sizes(planned, facts, source.shapes)
        used = [planned.stored[name] for rule in planned.rules for name in rule.theirs]
        common = prevailing_dtype(source.shapes, source.dtypes, used)
        report.spare, report.fresh = planned.spare, planned.fresh
        report.cast = {name: str(source.dtypes[name]) for name in used if source.dtypes[name] != common}
        with torch.device("meta"):  # without memory for its weights: they are put in one by one
            model = Transformer(facts)
        copy_weights(planned, facts, source, allocate(model, dtype or common, target), source.shapes)
        initialise(model, facts, planned.fresh)  # a bias missing beside a filled weight stays zero
        found = Loaded(model.eval(), facts, lineage, report, source.place, source.metadata)
        found.tokenizer_kind = options.get("tokenizer_kind")
        if options.get("tokenizer") is not None:
            found.tokenizer_place = Path(options["tokenizer"])
        return found


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
    model = transformer_of(loaded.model if isinstance(loaded, Loaded) else loaded)
    if isinstance(loaded, Loaded):
        lineage = loaded.lineage if lineage is None else lineage
        tokenizer = _tokenizer_of(loaded) if tokenizer is None else tokenizer
    place = _folder_for(folder)
    weights = _checked_weights(model)
    if to == "hf":
        known = _known_lineage(lineage)
        said: dict[str, Any] = known.config(model.config)
        weights = to_theirs(known, model.config, known.kind_of(model.config), weights)
        said["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    else:
        said = {"glassformer": __version__, "format": 1, "lineage": lineage, "model": to_dict(model.config)}
    name, other = ("config.json", OWN_CONFIG) if to == "hf" else (OWN_CONFIG, "config.json")
    place.mkdir(parents=True, exist_ok=True)
    with replacing(place / name) as beside:  # ready before the weights change, so that the two change together
        beside.write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_weights(place, weights)
    (place / other).unlink(missing_ok=True)  # one folder, one format
    if tokenizer is not None:
        tokenizer.save(place)
    _carry_advice(loaded.folder if isinstance(loaded, Loaded) else None, place)
    return place


def _folder_for(folder: Where) -> Path:
    """The folder to write to; raise before any work where there cannot be one."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder must be a path, got {folder!r:.80}.")
    place = Path(folder).expanduser()
    nearest = next((one for one in (place, *place.parents) if one.exists()), place)
    if nearest.exists() and not nearest.is_dir():
        raise WeightsError(f"{place}: {nearest} is a file, and a model is saved to a folder; name another.")
    return place


def _carry_advice(source: Path | None, place: Path) -> None:
    """Take along what a folder says of writing, and of what it was trained for; what another's said does not stay."""
    for name in ADVICE:
        new = place / name
        old = None if source is None else source / name
        if old is None or not old.is_file():
            new.unlink(missing_ok=True)
        elif not new.exists() or not old.samefile(new):
            with replacing(new) as beside:
                shutil.copyfile(old, beside)


def _dtype(given: torch.dtype | str | None) -> torch.dtype | None:
    if isinstance(given, str):
        names = {str(one).removeprefix("torch."): one for one in FLOATS}
        check_choice("dtype", given.removeprefix("torch."), names)
        return names[given.removeprefix("torch.")]
    if given is not None and given not in FLOATS:
        raise TypeError(f"dtype must be a floating type such as torch.bfloat16, got {given!r}.")
    return given


def _device(given: torch.device | str | None) -> torch.device:
    if given is None:
        return torch.get_default_device()
    if not isinstance(given, str | torch.device):
        raise TypeError(f"device must be a name such as 'cuda' or a torch.device, got {given!r}.")
    check_device(str(given))
    return torch.device(given)


def _open(where: Where | None, options: Options) -> Source:
    checks = {"allow_pickle": options.get("allow_pickle", False), "finite": options.get("check_finite", False)}
    config, weights = options.get("config"), options.get("weights")
    for name, given in (("where", where), ("weights", weights)):
        if given is not None and not isinstance(given, str | os.PathLike):
            raise TypeError(f"{name} must be a path or a name, got {given!r:.80}. A model is loaded from its folder.")
    if config is not None and not isinstance(config, str | os.PathLike | Mapping):
        raise TypeError(f"config must be a path or what config.json would say, got {config!r:.80}.")
    if where is not None:
        if config is not None or weights is not None:
            raise ValueError("load takes either where, or config and weights; not both.")
        found = find_place(where, download=options.get("download", False), allow_pickle=checks["allow_pickle"])
        return open_source(found, **checks)
    if config is None or weights is None:
        raise ValueError("load needs where, or config and weights together.")
    return open_parts(config if isinstance(config, Mapping) else Path(config), Path(weights), **checks)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _own_facts(source: Source, options: Options) -> Model:
    """The page of facts of a folder of ours, with another head if one is asked for."""
    facts = read_own(source.config)
    return choose_own_head(facts, options.get("head", facts.head))


def _their_facts(source: Source, options: Options) -> tuple[Model, str, str, Report]:
    """Facts, lineage and kind of head of a folder that another library wrote, and what its config has besides."""
    if "quantization_config" in source.config:
        raise ConfigError(
            "config.json says that the weights are quantised (quantization_config), which is not read here. Save the "
            "model in float16 or bfloat16 with the library that quantised it, or load a GGUF file of it."
        )
    lineage = lineage_of(source.config, options.get("lineage"))
    kind, head = _choose_head(lineage, source.config, options)
    facts = settle_tie(lineage, lineage.facts(source.config, kind), kind, source.shapes, source.read)
    facts = facts if head is None else replace(facts, head=head)
    report = Report(foreign=_foreign_keys(lineage, source.config, kind))
    if report.foreign and options.get("strict", False):
        unknown = ", ".join(sorted(report.foreign))
        raise ConfigError(f"strict=True, and these keys of config.json are unknown to {lineage.name}: {unknown}.")
    return facts, lineage.name, kind, report


def _choose_head(lineage: Lineage, config: Mapping[str, Any], options: Options) -> tuple[str, Head | None]:
    """The kind of head, and its facts where the caller brought them: as asked, or as the folder says."""
    if "head" in options:
        asked = options["head"]
        if asked is None or isinstance(asked, str):
            kind = asked or "none"
            check_choice("head", kind, {*lineage.heads, "none"})
            return kind, None
        check_choice(
            f"the kind of head of a {lineage.name} model", head_kind(asked), {*lineage.heads, *WITHOUT_WEIGHTS}
        )
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
        known = ", ".join(name for name, one in lineages().items() if one.model_type is not None)
        template = f"to write for Hugging Face, the kind of model must be known; set {{}} to one of: {known}."
        raise ConfigError(template, Setting("lineage"))
    check_choice("lineage", name, lineages())
    lineage = lineages()[name]
    if lineage.model_type is None:
        template = f"{name} is not a kind of model that Hugging Face has; save it with {{}}."
        raise ConfigError(template, Setting("to", "glassformer"))
    return lineage


def _checked_weights(model: Transformer) -> dict[str, torch.Tensor]:
    """The weights under plain names, on the CPU; raise unless they are those that the facts describe."""
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    weights = {short: state[name] for short, name in plain_names(state).items()}
    wanted = shapes(model.config)
    wrong = {
        name for name in {*weights, *wanted} if name not in weights or tuple(weights[name].shape) != wanted.get(name)
    }
    if wrong:
        raise WeightsError(
            f"the model is not what its config says, so it could not be loaded again: {some(wrong)}. "
            f"Change the facts (glassformer.config.change) and build it anew."
        )
    if any(tensor.is_meta for tensor in weights.values()):
        raise WeightsError("the model has no values yet: its weights are on the meta device.")
    return {name: tensor.cpu() for name, tensor in weights.items()}


def _tokenizer_of(loaded: Loaded) -> Tokenizer | None:
    try:
        return loaded.tokenizer
    except TokenizerError:
        if loaded.tokenizer_place is not None:  # one that was asked for
            raise
        return None
