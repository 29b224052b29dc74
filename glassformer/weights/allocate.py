"""Memory for the weights of a model that has none yet."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from glassformer.config.shapes import Shape


def allocate(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Callable[[str, Shape], Tensor]:
    """Something that makes room in the model for the parameter of a name, and hands it out to be filled."""

    def room(name: str, shape: Shape) -> Tensor:
        owner, _, leaf = name.rpartition(".")
        fresh = torch.empty(shape, dtype=dtype, device=device)
        module = model.get_submodule(owner)
        setattr(module, leaf, fresh if leaf in dict(module.named_buffers(recurse=False)) else nn.Parameter(fresh))
        return fresh

    return room
