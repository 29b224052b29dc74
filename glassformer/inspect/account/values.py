"""Lazily computes the real values of fake tensors, where a model's Python code needs them.

Is a mask all true? How long is the longest row? Values can be computed if they depend only on inputs, constants and
shapes. Each operator is noted, and run for real on first use of its result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from glassformer.inspect.account.memory import address

MAX_ELEMENTS = 2**24  # most elements that are computed for real
FROM_SHAPES = {
    f"aten.{name}" for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class StridedView:
    """A tensor as a view of the values of a storage."""

    values: "Values"
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, values: "Values") -> "StridedView":
        """Return the view that a tensor has."""
        return cls(values, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    def of_flat(self, flat: Tensor) -> Tensor:
        """Return the same view of another flat tensor."""
        return flat.as_strided(self.shape, self.stride, self.offset)

    def compute(self) -> Tensor:
        """Return the real tensor."""
        return self.of_flat(self.values.compute())


class Values:
    """All values of a storage between two writes to it, computed on first use; zeros in this base class."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size, self.dtype = size, dtype
        self._flat: Tensor | None = None

    def compute(self) -> Tensor:
        """Return the real values as a flat tensor, iteratively, since a chain may exceed Python's recursion limit."""
        pending: list[Values] = [self]
        while pending:
            values = pending[-1]
            missing = [source for source in values.sources() if source._flat is None]
            pending += missing
            if not missing:
                pending.pop()
                if values._flat is None:
                    values._flat = values.fill(torch.zeros(values.size, dtype=values.dtype))
        assert self._flat is not None
        return self._flat

    def sources(self) -> Iterator["Values"]:
        """Return the values to compute first."""
        return iter(())

    def fill(self, flat: Tensor) -> Tensor:
        """Write the values into ``flat``."""
        return flat


class InputValues(Values):
    """Values of a tensor that exists before the pass."""

    def __init__(self, tensor: Tensor, real: Tensor) -> None:
        super().__init__(tensor.untyped_storage().nbytes() // tensor.dtype.itemsize, tensor.dtype)
        self._view, self._real = StridedView.of(tensor, self), real

    def fill(self, flat: Tensor) -> Tensor:
        """Copy them."""
        self._view.of_flat(flat).copy_(self._real)
        return flat


class ComputedValues(Values):
    """Values that an operator computes from known ones; ``before``: the values that an in-place operator changes."""

    def __init__(self, result: Tensor, operator: OpOverload, arguments: Any, index: int, before: Values | None) -> None:
        super().__init__(result.untyped_storage().nbytes() // result.dtype.itemsize, result.dtype)
        self._view = StridedView.of(result, self)
        self._operator, self._arguments, self._index = operator, arguments, index
        self._before = before

    def fill(self, flat: Tensor) -> Tensor:
        """Run the operator."""
        args, kwargs = tree_map(_compute, self._arguments)
        if self._before is not None:  # in place, on a copy
            flat.copy_(self._before.compute())
            self._operator(self._view.of_flat(flat), *args[1:], **kwargs)
            return flat
        results = [leaf for leaf in tree_leaves(self._operator(*args, **kwargs)) if isinstance(leaf, Tensor)]
        self._view.of_flat(flat).copy_(results[self._index])
        return flat

    def sources(self) -> Iterator[Values]:
        """Yield the operands, and the values that are changed in place."""
        if self._before is not None:
            yield self._before
        yield from (leaf.values for leaf in tree_leaves(self._arguments) if isinstance(leaf, StridedView))


def _compute(leaf: Any) -> Any:
    return leaf.compute() if isinstance(leaf, StridedView) else leaf


class KnownValues:
    """The known values of the storages of fake tensors."""

    def __init__(self) -> None:
        self._values: dict[int, Values] = {}

    def set(self, tensor: Tensor, real: Tensor) -> None:
        """Note that a fake tensor has the values of a real one."""
        self._values[address(tensor)] = InputValues(tensor, real)

    def forget(self, storage: int) -> None:
        """Forget the values of a storage that is freed, or overwritten with unknown values."""
        self._values.pop(storage, None)

    def get(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a fake tensor; None if unknown."""
        values = self._values.get(address(tensor))
        if values is None or values.dtype != tensor.dtype or values.size > MAX_ELEMENTS:
            return None
        with _disable_current_modes(), torch.no_grad():
            return StridedView.of(tensor, values).compute()

    def scalar(self, tensor: Tensor) -> Any:
        """Return the number in a fake tensor of one element; None if unknown."""
        values = self.get(tensor)
        if values is None:
            return None
        with _disable_current_modes():
            return values.item()

    def nonzero(self, tensor: Tensor, shape: Sequence[int] | None = None) -> Tensor | None:
        """Return the indices of the nonzero elements of a fake tensor, expanded to ``shape``; None if unknown."""
        values = self.get(tensor)
        if values is None:
            return None
        with _disable_current_modes():
            return values.expand(tensor.shape if shape is None else shape).nonzero()

    def results(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor] | None:
        """Return the real results of an operator on fake tensors; None if unknown."""
        arguments = self._known(operator, args, kwargs)
        views = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, StridedView)]
        if arguments is None or any(view.values.size > MAX_ELEMENTS for view in views):
            return None
        with _disable_current_modes(), torch.no_grad():
            real_args, real_kwargs = tree_map(_compute, arguments)
            return [leaf for leaf in tree_leaves(operator(*real_args, **real_kwargs)) if isinstance(leaf, Tensor)]

    def without_boolean_indices(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace each known boolean mask in an indexing call by integer indices of the right length."""
        indices: list[Any] = []
        for index in args[1]:
            is_mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            selected = self.nonzero(index) if is_mask else None
            if selected is None:
                indices.append(index)
            else:
                indices += [torch.empty(len(selected), dtype=torch.long) for _ in range(index.ndim)]
        return (args[0], indices, *args[2:])

    def note_results(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> None:
        """Note how the results of an operator are computed."""
        if operator.is_view or not results:
            return
        arguments = self._known(operator, args, kwargs)
        if operator._schema.is_mutable:
            for target in _mutated(operator, args, kwargs):
                before = self._values.get(address(target))
                if arguments is None or before is None or target is not args[0]:
                    self.forget(address(target))
                else:
                    self._values[address(target)] = ComputedValues(target, operator, arguments, 0, before)
        elif arguments is not None:
            for index, result in enumerate(results):
                self._values[address(result)] = ComputedValues(result, operator, arguments, index, None)

    def _known(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments with views of known values instead of fake tensors; None if some are unknown."""
        if torch.Tag.nondeterministic_seeded in operator.tags and kwargs.get("generator") is None:
            return None  # running it would draw from the global random generator
        if str(operator.overloadpacket) in FROM_SHAPES:
            blank = StridedView(Values(1, args[0].dtype), tuple(args[0].shape), (0,) * args[0].ndim, 0)
            return ((blank, *args[1:]), kwargs)
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                values = self._values.get(address(leaf))
                if values is None or values.dtype != leaf.dtype:
                    return None
        return tree_map(lambda leaf: self._view(leaf) if isinstance(leaf, Tensor) else leaf, (args, kwargs))

    def _view(self, tensor: Tensor) -> StridedView:
        return StridedView.of(tensor, self._values[address(tensor)])


def _mutated(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that an operator writes to."""
    for number, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
