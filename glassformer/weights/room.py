"""Memory for the weights of a model that has none yet, laid out so that they can be used quickly."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from glassformer.config.shapes import Shape

NEIGHBOURS = (("q", "k", "v"), ("gate", "up"))  # maps that read the same vector: side by side they can be one product


def room_in(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Callable[[str, Shape], Tensor]:
    """Something that makes room in the model for the parameter of a name, and hands it out to be filled."""
    made: dict[str, Tensor] = {}

    def room(name: str, shape: Shape) -> Tensor:
        owner, _, leaf = name.rpartition(".")
        if name not in made:
            rows = _neighbours(model, name) or {name: shape[0]}
            block = torch.empty(sum(rows.values()), *shape[1:], dtype=dtype, device=device)
            made.update(zip(rows, torch.split(block, list(rows.values())), strict=True))
        fresh = made.pop(name)
        module = model.get_submodule(owner)
        setattr(module, leaf, fresh if leaf in dict(module.named_buffers(recurse=False)) else nn.Parameter(fresh))
        return fresh

    return room


def _neighbours(model: nn.Module, name: str) -> dict[str, int]:
    """The weights that are to lie side by side with this one, in their order, and how many rows each has."""
    whole, _, part = name.removesuffix(".weight").rpartition(".")
    group = next((group for group in NEIGHBOURS if part in group), ())
    members = {f"{whole}.{member}.weight": getattr(model.get_submodule(whole), member, None) for member in group}
    return {path: len(member.weight) for path, member in members.items() if member is not None}
