"""Load a model from a folder, a file or a Hugging Face name; save one.

``load`` returns a ``Loaded``: ``.model``, ``.config`` (the facts), ``.tokenizer``, ``.report``, and a method for each
task that the model supports.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from glassformer import __version__, pretrained
from glassformer.config import Head, ModelConfig, shapes, to_dict
from glassformer.config.checks import Setting, check_choice
from glassformer.config.options import ModelOptions, StrPath, with_listed_options
from glassformer.families import lineage_of, lineages
from glassformer.loaded import Loaded as Loaded
from glassformer.loaded import LoadReport as LoadReport
from glassformer.models.initialise import initialise
from glassformer.models.quantize import is_quantized, quantize
from glassformer.models.transformer import Transformer, transformer_of
from glassformer.text.pieces import TokenizerError
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.convert import (
    FLOATS,
    LoadOptions,
    check_sizes,
    copy_weights,
    plain_names,
    plan,
    plan_ours,
    prevailing_dtype,
    to_theirs,
    untie_if_different,
)
from glassformer.weights.files import WeightsError, some
from glassformer.weights.lineage import WITHOUT_WEIGHTS, Lineage, choose_kind, choose_own_head, head_kind
from glassformer.weights.reader import EVERYWHERE, OWN_CONFIG, ConfigError, prefix_errors, read_own
from glassformer.weights.saving import replacing, write_weights
from glassformer.weights.source import ModelSource, find_model, open_config_and_weights, open_source

JOB = "glassformer_job.json"  # beside a model that a recipe trained: its objective and how it was evaluated
COMPANIONS = ("generation_config.json", JOB)  # files that are copied with a model
DEVICES = ("cpu", "cuda", "mps", "xpu")


@with_listed_options
def load(
    name_or_path: StrPath | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    **options: Unpack[ModelOptions],
) -> Loaded:
    """Load a model.

    Args:
        name_or_path: a folder as Hugging Face or we write it, the name of a shipped model, a GGUF or llama2.c file, or
            a name in the local Hugging Face cache. Or None, with ``config`` and ``weights`` among the options.
        dtype: of the weights in memory, or its name (``"bfloat16"``); None: as stored, or float32 for a shipped model.
        device: of the weights; None: torch's default device.
        options: see below.

    Every weight is accounted for: missing and unknown weights, and weights of the wrong shape, raise an error that
    lists them. Unknown keys of config.json are reported (``.report``), or an error with ``strict``.
    """
    for name in options:
        check_choice("an option of load", name, ModelOptions.__annotations__)
    dtype, target = _dtype(dtype), _device(device)
    if dtype is None and isinstance(name_or_path, str | os.PathLike) and pretrained.is_named(name_or_path):
        dtype = torch.float32  # shipped weights are stored in half precision only to save space
    with (
        _open(name_or_path, options) as source,
        prefix_errors(source.path, ConfigError, WeightsError),
        torch.inference_mode(False),
    ):
        # Read the config, and plan which stored tensor fills which weight.
        weights = source.weights
        matching = LoadOptions(_names(options.get("ignore_keys", ())), _names(options.get("fresh", ())))
        if source.is_ours:
            facts, lineage, report = read_own(source.config), source.config.get("lineage"), LoadReport()
            facts = choose_own_head(facts, options.get("head", facts.head))
            if options.get("lineage") is not None:  # the one that it is saved as
                lineage = lineage_of({}, options["lineage"]).name
            planned = plan_ours(facts, weights.shapes, matching)
        else:
            facts, lineage, kind, report = _read_facts(source, options)
            planned = plan(lineages()[lineage], facts, kind, weights.shapes, matching)
        check_sizes(planned, facts, weights.shapes)
        used = [planned.file_names[name] for rule in planned.rules for name in rule.theirs]
        stored_dtype = prevailing_dtype(weights.shapes, weights.dtypes, used)
        report.unused, report.fresh = planned.unused, planned.fresh
        report.cast = {name: str(weights.dtypes[name]) for name in used if weights.dtypes[name] != stored_dtype}
        # Build the model without memory, allocate and copy weight by weight, initialise new parts.
        with torch.device("meta"):
            model = Transformer(facts)
        copy_weights(planned, model, weights, dtype or stored_dtype, target)
        initialise(model, facts, planned.fresh)  # a bias missing beside a filled weight stays zero
        if options.get("quantize") is not None:
            quantize(model, options["quantize"])
        loaded = Loaded(model.eval(), facts, lineage, report, source.path, source.metadata)
        loaded.tokenizer_kind = options.get("tokenizer_kind")
        if options.get("tokenizer") is not None:
            loaded.tokenizer_path = Path(options["tokenizer"])
        return loaded


def save(
    loaded: Loaded | nn.Module,
    folder: StrPath,
    *,
    to: str = "glassformer",
    lineage: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a folder with the config, the weights as safetensors, and the tokenizer if there is one.

    Args:
        loaded: a loaded model, or a model.
        folder: the folder to write. An earlier save in it is replaced; its tokenizer stays if there is no new one.
        to: ``"glassformer"``: the facts and our own parameter names; ``"hf"``: readable by Hugging Face.
        lineage: the model type to write for Hugging Face; None: that of the loaded model.
        tokenizer: None: that of the loaded model.
    """
    check_choice("to", to, ("glassformer", "hf"))
    model = transformer_of(loaded.model if isinstance(loaded, Loaded) else loaded)
    if isinstance(loaded, Loaded):
        lineage = loaded.lineage if lineage is None else lineage
        tokenizer = _tokenizer_of(loaded) if tokenizer is None else tokenizer
    folder = _checked_folder(folder)
    weights = _checked_weights(model)
    # The config and the weights in the format that is asked for.
    if to == "hf":
        target = _hf_lineage(lineage)
        config: dict[str, Any] = _hf_config(target, model)
        weights = to_theirs(target, model.config, target.kind_of(model.config), weights)
        config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    else:
        config = {"glassformer": __version__, "format": 1, "lineage": lineage, "model": to_dict(model.config)}
    # Write them so that both change together, then the files beside them.
    name, other = ("config.json", OWN_CONFIG) if to == "hf" else (OWN_CONFIG, "config.json")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / name) as new:
        new.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_weights(folder, weights)
    (folder / other).unlink(missing_ok=True)  # a folder has one format
    if tokenizer is not None:
        tokenizer.save(folder)
    _copy_companions(loaded.folder if isinstance(loaded, Loaded) else None, folder)
    return folder


def _checked_folder(folder: StrPath) -> Path:
    """Return the folder to write to; raise if it cannot be created."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder must be a path, got {folder!r:.80}.")
    if not os.fspath(folder):
        raise WeightsError("folder is an empty name; the current folder is '.'.")
    folder = Path(folder).expanduser()
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if nearest.exists() and not nearest.is_dir():
        raise WeightsError(f"{nearest} is a file, and a model is saved to a folder; name another.")
    return folder


def _copy_companions(source: Path | None, folder: Path) -> None:
    """Copy the files of ``COMPANIONS`` from the model's folder; remove those of an earlier model."""
    for name in COMPANIONS:
        new = folder / name
        old = None if source is None else source / name
        if old is None or not old.is_file():
            new.unlink(missing_ok=True)
        elif not new.exists() or not old.samefile(new):
            with replacing(new) as copy:
                shutil.copyfile(old, copy)


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if isinstance(dtype, str):
        dtypes = {str(known).removeprefix("torch."): known for known in FLOATS}
        check_choice("dtype", dtype.removeprefix("torch."), dtypes)
        return dtypes[dtype.removeprefix("torch.")]
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"dtype must be a floating type such as torch.bfloat16, got {dtype!r}.")
    return dtype


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.get_default_device()
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be a name such as 'cuda' or a torch.device, got {device!r}.")
    check_device(str(device))
    return torch.device(device)


def check_device(name: str, *, option: str = "device") -> None:
    """Raise unless tensors can be created on this device; ``option`` is the name of the setting in errors."""
    if name.partition(":")[0] not in DEVICES:
        raise ValueError(f"{option} {name} cannot be used here: choose cpu, cuda, cuda:1, mps or xpu.")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{option} {name} cannot be used here: {reason}. The CPU always can: {option} cpu.") from error


def _open(name_or_path: StrPath | None, options: ModelOptions) -> ModelSource:
    checks = {"allow_pickle": options.get("allow_pickle", False), "check_finite": options.get("check_finite", False)}
    config, weights = options.get("config"), options.get("weights")
    for name, path in (("name_or_path", name_or_path), ("weights", weights)):
        if path is not None and not isinstance(path, str | os.PathLike):
            raise TypeError(f"{name} must be a path or a name, got {path!r:.80}. A model is loaded from its folder.")
    if config is not None and not isinstance(config, str | os.PathLike | Mapping):
        raise TypeError(f"config must be a path or the content of a config.json, got {config!r:.80}.")
    if name_or_path is not None:
        if config is not None or weights is not None:
            raise ValueError("load takes either name_or_path, or config and weights; not both.")
        path = find_model(name_or_path, download=options.get("download", False), allow_pickle=checks["allow_pickle"])
        return open_source(path, **checks)
    if config is None or weights is None:
        raise ValueError("load needs name_or_path, or config and weights together.")
    return open_config_and_weights(config if isinstance(config, Mapping) else Path(config), Path(weights), **checks)


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _read_facts(source: ModelSource, options: ModelOptions) -> tuple[ModelConfig, str, str, LoadReport]:
    """Return facts, lineage and kind of head of another library's model, and a report of its unknown config keys."""
    if "quantization_config" in source.config:
        raise ConfigError(
            "config.json says that the weights are quantised (quantization_config), which is not supported. Save the "
            "model in float16 or bfloat16 with the library that quantised it, or load a GGUF file of it."
        )
    lineage = lineage_of(source.config, options.get("lineage"))
    kind, head = _choose_head(lineage, source.config, options)
    facts = untie_if_different(lineage, lineage.facts(source.config, kind), kind, source.weights)
    facts = facts if head is None else replace(facts, head=head)
    report = LoadReport(unknown_keys=unknown_keys(lineage, source.config, kind))
    if report.unknown_keys and options.get("strict", False):
        unknown = ", ".join(sorted(report.unknown_keys))
        template = "{} refuses these keys of config.json, which {} does not define: {}."
        raise ConfigError(template, Setting("strict", True), lineage.name, unknown)
    return facts, lineage.name, kind, report


def _choose_head(lineage: Lineage, config: Mapping[str, Any], options: ModelOptions) -> tuple[str, Head | None]:
    """Return the kind of head of the options, with its facts if they have them; else that of the config."""
    if "head" not in options:
        return choose_kind(lineage, config), None
    head = options["head"]
    if head is None or isinstance(head, str):
        kind = head or "none"
        check_choice("head", kind, {*lineage.heads, "none"})
        return kind, None
    kind = head_kind(head)
    check_choice(f"the kind of head of a {lineage.name} model", kind, {*lineage.heads, *WITHOUT_WEIGHTS})
    return kind, head


def unknown_keys(lineage: Lineage, config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the keys of a config.json that the lineage does not know, with their values."""
    reader = lineage.reader(config)
    lineage.read(reader)
    lineage.head_format(kind).head(reader)
    known = {*reader.used, *lineage.keys, *lineage.ignored_keys, *EVERYWHERE}
    return {key: value for key, value in config.items() if key not in known}


def _hf_lineage(name: str | None) -> Lineage:
    if name is None:
        known = ", ".join(name for name, lineage in lineages().items() if lineage.model_type is not None)
        template = f"to write for Hugging Face, the kind of model must be known; set {{}} to one of: {known}."
        raise ConfigError(template, Setting("lineage"))
    check_choice("lineage", name, lineages())
    lineage = lineages()[name]
    if lineage.model_type is None:
        template = f"{name} is not a kind of model that Hugging Face has; save it with {{}}."
        raise ConfigError(template, Setting("to", "glassformer"))
    return lineage


def _hf_config(lineage: Lineage, model: Transformer) -> dict[str, Any]:
    """Return the content of a config.json; raise if it cannot state the model's facts."""
    try:
        return lineage.config(model.config)
    except ConfigError as error:
        raise error.suffixed(" Our own format can: {}.", Setting("to", "glassformer")) from error


def _checked_weights(model: Transformer) -> dict[str, torch.Tensor]:
    """Return the weights under plain names, on the CPU; raise unless names and shapes are those of the facts."""
    if is_quantized(model):
        raise WeightsError("a quantised model cannot be saved; load it again without {}.", Setting("quantize"))
    # Names and shapes as in the config, and values.
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    weights = {short: state[name] for short, name in plain_names(state).items()}
    expected = shapes(model.config)
    wrong = {
        name
        for name in {*weights, *expected}
        if name not in weights or tuple(weights[name].shape) != expected.get(name)
    }
    if wrong:
        raise WeightsError(
            f"these weights do not match the model's config, so it could not be loaded again: {some(wrong)}. "
            f"To change a model, change its config (glassformer.config.change) and build the model from that."
        )
    if any(tensor.is_meta for tensor in weights.values()):
        raise WeightsError("the model has no values yet: its weights are on the meta device.")
    return {name: tensor.cpu() for name, tensor in weights.items()}


def _tokenizer_of(loaded: Loaded) -> Tokenizer | None:
    try:
        return loaded.tokenizer
    except TokenizerError:
        if loaded.tokenizer_path is not None:  # an option of load
            raise
        return None
