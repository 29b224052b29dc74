"""Adapters to disk and back: a few megabytes beside the model that they belong to.

A folder holds ``adapters.safetensors`` (A and B, and what else learned) and ``adapters.json``: rank, alpha, dropout,
the names of the maps, and a fingerprint of the frozen weights, without which A and B mean nothing.

The names are ours, and maps that other libraries keep as one matrix (queries, keys and values, say) are adapted one by
one; so these are not PEFT's files, and no renaming would make them so. For other libraries, merge first.
"""

import copy
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.config import Init
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.training.adapters import adapted, add_adapters, merged
from glassformer.weights.files import WeightsError, open_weights, some
from glassformer.weights.saving import replacing, write_weights

FACTS, TENSORS = "adapters.json", "adapters.safetensors"
KEYS = {"format", "rank", "alpha", "dropout", "targets", "also", "base"}


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """What an adapted model learns, by name: A and B of every adapter, and the parameters that learn besides."""
    inner = unwrapped(model)
    if not adapted(inner):
        raise ValueError("this model has no adapters; add_adapters gives it some.")
    return {name: parameter.detach() for name, parameter in inner.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def restore_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put what ``adapter_state`` gave into a model with the same adapters; all or nothing."""
    here = adapter_state(model)
    _check_shapes("these adapters", {n: t.shape for n, t in tensors.items()}, {n: t.shape for n, t in here.items()})
    for name, tensor in tensors.items():
        here[name].copy_(tensor)


def fingerprint(model: nn.Module, but: Collection[str] = ()) -> str:
    """SHA-256 over the facts of a model and over its weights, trained or not, those called in ``but`` left out."""
    inner = unwrapped(model)
    facts = replace(inner.config, init=Init())  # where training starts says nothing of what was trained
    digest = hashlib.sha256(json.dumps(_stated(facts), sort_keys=True).encode())
    for name, tensor in sorted({**dict(inner.named_parameters()), **dict(inner.named_buffers())}.items()):
        if name not in but:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            numbers: Any = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
            digest.update(numbers)
    return digest.hexdigest()


def _stated(facts: Any) -> Any:
    """Facts as plain data, without those at their defaults: one that comes later changes no fingerprint."""
    if isinstance(facts, tuple):
        return [_stated(one) for one in facts]
    if not is_dataclass(facts):
        return facts
    page: dict[str, Any] = {"type": type(facts).__name__}
    for item in fields(facts):
        usual = item.default if item.default_factory is MISSING else item.default_factory()
        if (value := getattr(facts, item.name)) != usual:
            page[item.name] = _stated(value)
    return page


def save_adapters(model: nn.Module, folder: Path, *, base: str | None = None) -> None:
    """Write what an adapted model has learned; ``base`` is the fingerprint of its frozen weights, if it is known."""
    tensors, parts = adapter_state(model), adapted(unwrapped(model))
    first = next(iter(parts.values()))
    own = {f"{name}.{leaf}" for name in parts for leaf in ("lora_a", "lora_b")}
    said = {
        "format": 1,
        "rank": first.rank,
        "alpha": first.alpha,
        "dropout": first.dropout.p,
        "targets": list(parts),
        "also": [name for name in tensors if name not in own],
        "base": fingerprint(model, tensors.keys()) if base is None else base,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FACTS) as beside:  # ready before the tensors change, so that the two change together
        beside.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        write_weights(folder, tensors, file_name=TENSORS)


def load_adapters(model: nn.Module, folder: Path, *, any_base: bool = False) -> list[str]:
    """Give a plain model the adapters in a folder; return the names of the maps that have them now.

    The model must be the one they were trained on, to the bit; with ``any_base`` another will do, the same in half
    precision, say. Nothing is changed before everything fits.
    """
    inner, said, tensors = unwrapped(model), _read(folder / FACTS), _tensors(folder)
    parameters = dict(inner.named_parameters())
    wanted = {name: parameters[name].shape for name in said["also"] if name in parameters}
    for name in said["targets"]:
        rows, columns = getattr(parameters.get(f"{name}.weight"), "shape", (0, 0))
        wanted |= {f"{name}.lora_a": torch.Size((said["rank"], columns))}
        wanted |= {f"{name}.lora_b": torch.Size((rows, said["rank"]))}
    _check_shapes(str(folder), {name: tensor.shape for name, tensor in tensors.items()}, wanted)
    if not any_base and fingerprint(inner, said["also"]) != said["base"]:
        raise WeightsError(
            f"{folder}: these adapters were trained on other weights than this model has. Load the model that they "
            f"were trained on, in the same precision, or say any_base=True if it is the same one after all."
        )
    chosen = add_adapters(inner, **{key: said[key] for key in ("rank", "alpha", "dropout", "targets", "also")})
    restore_adapters(inner, tensors)
    return chosen


@torch.no_grad()
def merged_with(model: nn.Module, folders: Sequence[Path]) -> Transformer:
    """A plain copy of an adapted model, with the adapters of a folder merged in place of its own.

    Of several folders it is the mean of the models that they make, summed in float64 as ``averaging`` does.
    """
    twin = copy.deepcopy(unwrapped(model))
    names = [*adapter_state(twin), *(f"{name}.weight" for name in adapted(twin))]
    restore_adapters(twin, _tensors(folders[0]))
    result = merged(twin)
    weights = {name: one for name, one in result.named_parameters() if name in names}
    totals = {name: one.double() for name, one in weights.items()}
    for folder in folders[1:]:
        restore_adapters(twin, _tensors(folder))
        other = dict(merged(twin).named_parameters())
        for name, total in totals.items():
            total += other[name]
    for name, one in weights.items():
        one.copy_(totals[name] / len(folders))
    return result


def _tensors(folder: Path) -> dict[str, Tensor]:
    with open_weights(folder / TENSORS) as stored:
        return {name: stored.read(name) for name in stored.entries}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise WeightsError(f"{path}: there is no such file. Name a folder that save_adapters wrote.")
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        missing = KEYS - said.keys()
    except (ValueError, AttributeError, TypeError) as error:
        raise WeightsError(f"{path} is damaged: {error}. Save the adapters again.") from error
    if missing or said["format"] != 1:
        raise WeightsError(f"{path} must say format 1 and {', '.join(sorted(KEYS))}; this one is of another version.")
    return said


def _check_shapes(what: str, found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size]) -> None:
    if other := found.keys() ^ wanted.keys():
        raise WeightsError(f"{what}: they do not fit this model; {some(other)} are on one side only.")
    if wrong := [f"{name} {tuple(found[name])}" for name in wanted if found[name] != wanted[name]]:
        raise WeightsError(f"{what}: they do not fit the sizes of this model: {some(wrong)}.")
