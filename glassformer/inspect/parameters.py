"""Counting the parameters of a built model, each stored number once.

Counters that add up ``p.numel()`` count tied weights twice as soon as the tie is a shared storage and not one shared
object; this one asks the storage.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from glassformer.nn.linear import Embedding


def num_parameters(model: nn.Module, embeddings: bool = True) -> int:
    """Numbers stored for the parameters of ``model``, shared ones once.

    ``embeddings=False`` leaves out token and position tables, and with them a head that is tied to one.
    """
    total = _stored_numbers(model.parameters())
    if embeddings:
        return total
    return total - _stored_numbers(m.weight for m in model.modules() if isinstance(m, Embedding | nn.Embedding))


def _stored_numbers(tensors: Iterable[Tensor]) -> int:
    """How many places of memory the tensors occupy together."""
    views: dict[int, set[tuple[int, torch.Size, tuple[int, ...]]]] = defaultdict(set)
    for tensor in tensors:
        if tensor.numel():
            view = (int(tensor.storage_offset()), tensor.shape, tuple(tensor.stride()))
            views[tensor.untyped_storage()._cdata].add(view)
    return sum(map(_covered, views.values()))


def _covered(views: set[tuple[int, torch.Size, tuple[int, ...]]]) -> int:
    """Places that at least one of several views into the same storage covers."""
    ends = [
        offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) for offset, shape, stride in views
    ]
    first, last = min(offset for offset, _, _ in views), max(ends)
    [(_, shape, _), *others] = views
    if not others and shape.numel() == last + 1 - first:  # one tensor without gaps: the usual case
        return shape.numel()
    covered = torch.zeros(last + 1 - first, dtype=torch.bool)
    for offset, shape, stride in views:
        covered.as_strided(shape, stride, offset - first).fill_(True)
    return int(covered.sum())
