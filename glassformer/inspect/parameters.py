"""Counts the parameters of a model, tied ones once.

A sum of ``p.numel()`` counts tied weights twice if they share a storage but not the tensor object; this compares
storages.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from glassformer.nn.linear import Embedding


def num_parameters(model: nn.Module, embeddings: bool = True) -> int:
    """Return the number of parameters of ``model``, shared ones once.

    ``embeddings=False`` excludes token and position embeddings, and a head that is tied to one of them.
    """
    total = _stored_elements(model.parameters())
    if embeddings:
        return total
    return total - _stored_elements(m.weight for m in model.modules() if isinstance(m, Embedding | nn.Embedding))


def _stored_elements(tensors: Iterable[Tensor]) -> int:
    """Return the number of elements in memory that the tensors cover together."""
    views: dict[int, set[tuple[int, torch.Size, tuple[int, ...]]]] = defaultdict(set)
    for tensor in tensors:
        if tensor.numel():
            view = (int(tensor.storage_offset()), tensor.shape, tuple(tensor.stride()))
            views[tensor.untyped_storage()._cdata].add(view)
    return sum(map(_covered, views.values()))


def _covered(views: set[tuple[int, torch.Size, tuple[int, ...]]]) -> int:
    """Return the number of elements that several views of the same storage cover together."""
    ends = [
        offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) for offset, shape, stride in views
    ]
    first, last = min(offset for offset, _, _ in views), max(ends)
    [(_, shape, _), *others] = views
    if not others and shape.numel() == last + 1 - first:  # a single tensor without gaps: the usual case
        return shape.numel()
    # Overlapping views: mark the elements of each.
    covered = torch.zeros(last + 1 - first, dtype=torch.bool)
    for offset, shape, stride in views:
        covered.as_strided(shape, stride, offset - first).fill_(True)
    return int(covered.sum())
