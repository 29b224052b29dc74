"""Counting the parameters of a built model, each stored number once.

Counters that add up ``p.numel()`` count tied weights twice as soon as the tie is a shared storage and not one shared
object; this one asks the storage.
"""

from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor, nn

from glassformer.nn.linear import Embedding


def num_parameters(model: nn.Module, embeddings: bool = True) -> int:
    """Numbers stored for the parameters of ``model``, shared ones once.

    ``embeddings=False`` leaves out token and position tables, and with them a head that is tied to one.
    """
    tables = {_key(module.weight) for module in model.modules() if isinstance(module, Embedding | nn.Embedding)}
    counted = model.parameters() if embeddings else (p for p in model.parameters() if _key(p) not in tables)
    return _unique_elements(counted)


def _key(tensor: Tensor) -> tuple[int, int, int]:
    """Which stretch of which storage a tensor occupies: (storage, first element, one past the last)."""
    first = int(tensor.storage_offset())
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage()._cdata, first, first + (span + 1 if tensor.numel() else 0)


def _unique_elements(tensors: Iterable[Tensor]) -> int:
    stretches: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for tensor in tensors:
        storage, first, end = _key(tensor)
        stretches[storage].append((first, end))
    total = 0
    for parts in stretches.values():
        reached = 0
        for first, end in sorted(parts):
            total += max(0, end - max(first, reached))
            reached = max(reached, end)
    return total
