"""Weights of which every process holds a part: whole ones for a while, whole values in and out.

A sharded tensor is PyTorch's ``DTensor``; every function here leaves plain tensors as they are. All processes must call
them together.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from glassformer.training.processes import rank, world


def is_shard(tensor: Tensor) -> bool:
    """Whether other processes hold the rest of it."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, at every process."""
    full: Tensor = tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return full


def collected(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors at the first process, on the CPU, and nothing at the others: one after the other, so that no
    process but the first ever has more than one of them whole."""
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if rank() == 0:
            found[name] = full.cpu() if is_shard(tensor) else full
    return found


def shared_out(full: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor, as ``like`` is shared out; all of it if ``like`` is a plain tensor."""
    if not is_shard(like):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    here = full.to(like.device)
    return distribute_tensor(here, like.device_mesh, like.placements, src_data_rank=None)  # each has all of it


@torch.no_grad()
def put(full: Tensor, into: Tensor) -> None:
    """Copy a whole tensor into one that may be a shard."""
    into.copy_(shared_out(full, into))


@contextmanager
def gathered_weights(model: nn.Module) -> Iterator[None]:
    """A sharded model with all of its weights at every process, which can then call it without the others.

    For evaluation and for writing texts: processes may have different numbers of batches. The weights must not be
    changed meanwhile.
    """
    if world() == 1:
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    try:
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not parts[0], recurse=False)  # the outermost comes first
