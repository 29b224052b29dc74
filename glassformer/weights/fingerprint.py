"""The fingerprint of a model: a hash of its facts and weights, by which a run knows the model it started from."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from glassformer.config import Init
from glassformer.models.transformer import unwrapped


def fingerprint(model: nn.Module, exclude: Collection[str] = ()) -> str:
    """Return SHA-256 over the facts of a model and all of its weights, without those named in ``exclude``."""
    inner = unwrapped(model)
    facts = replace(inner.config, init=Init())  # the initialisation is not part of what was trained
    digest = hashlib.sha256(json.dumps(_non_defaults(facts), sort_keys=True).encode())
    for name, tensor in sorted({**dict(inner.named_parameters()), **dict(inner.named_buffers())}.items()):
        if name not in exclude:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            numbers: Any = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
            digest.update(numbers)
    return digest.hexdigest()


def _non_defaults(facts: Any) -> Any:
    """Return facts as plain data, without those at their defaults: facts that are added later change no fingerprint."""
    if isinstance(facts, tuple):
        return [_non_defaults(item) for item in facts]
    if not is_dataclass(facts):
        return facts
    page: dict[str, Any] = {"type": type(facts).__name__}
    for item in fields(facts):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if (value := getattr(facts, item.name)) != default:
            page[item.name] = _non_defaults(value)
    return page
