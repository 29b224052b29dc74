"""Numbers in a pass on fake tensors, where they follow from what was given and from constants.

Fake tensors have shapes alone. A model that looks at numbers (whether a mask hides anything, how long the longest row
is) needs them, and they are known where nothing but inputs, constants and shapes went into them. How they come about is
noted operator by operator; they are computed, for real, once somebody asks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from glassformer.inspect.account.storages import address

LARGEST = 2**24  # numbers of a tensor that are computed
FROM_SHAPES = {
    f"aten.{name}" for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class View:
    """A tensor as part of the numbers of a storage."""

    numbers: "Numbers"
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, numbers: "Numbers") -> "View":
        """The part that a tensor shows."""
        return cls(numbers, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    def compute(self) -> Tensor:
        """The real tensor."""
        return self.numbers.compute().as_strided(self.shape, self.stride, self.offset)


class Numbers:
    """All numbers of a storage between two writes to it, computed when first asked for."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size, self.dtype = size, dtype
        self._flat: Tensor | None = None

    def compute(self) -> Tensor:
        """The real numbers, as one row. What they are made from comes first, however long that chain is."""
        waiting: list[Numbers] = [self]
        while waiting:
            one = waiting[-1]
            missing = [each for each in one.sources() if each._flat is None]
            waiting += missing
            if not missing:
                waiting.pop()
                one._flat = one.fill(torch.zeros(one.size, dtype=one.dtype)) if one._flat is None else one._flat
        assert self._flat is not None
        return self._flat

    def sources(self) -> Iterator["Numbers"]:
        """What must be known first."""
        return iter(())

    def fill(self, flat: Tensor) -> Tensor:
        """Write the numbers; of these, nothing but their type is known."""
        return flat


class Given(Numbers):
    """Numbers that were there before the pass."""

    def __init__(self, tensor: Tensor, values: Tensor) -> None:
        super().__init__(tensor.untyped_storage().nbytes() // tensor.dtype.itemsize, tensor.dtype)
        self._view, self._values = View.of(tensor, self), values

    def fill(self, flat: Tensor) -> Tensor:
        """A copy of them."""
        flat.as_strided(self._view.shape, self._view.stride, self._view.offset).copy_(self._values)
        return flat


class Computed(Numbers):
    """Numbers that an operator makes from known ones; ``before``: it writes over some of those."""

    def __init__(self, result: Tensor, operator: OpOverload, given: Any, place: int, before: Numbers | None) -> None:
        super().__init__(result.untyped_storage().nbytes() // result.dtype.itemsize, result.dtype)
        self._view, self._operator, self._given, self._place = View.of(result, self), operator, given, place
        self._before = before

    def fill(self, flat: Tensor) -> Tensor:
        """Run the operator."""
        if self._before is not None:
            flat.copy_(self._before.compute())
        args, kwargs = tree_map(_real, self._given)
        if self._before is not None:
            args = (self._own(flat), *args[1:])
        out = [one for one in tree_leaves(self._operator(*args, **kwargs)) if isinstance(one, Tensor)]
        if self._before is None:
            self._own(flat).copy_(out[self._place])
        return flat

    def _own(self, flat: Tensor) -> Tensor:
        return flat.as_strided(self._view.shape, self._view.stride, self._view.offset)

    def sources(self) -> Iterator[Numbers]:
        """The operands, and what is written over."""
        if self._before is not None:
            yield self._before
        yield from (one.numbers for one in tree_leaves(self._given) if isinstance(one, View))


def _real(one: Any) -> Any:
    return one.compute() if isinstance(one, View) else one


class KnownValues:
    """What is known of the storages of fake tensors."""

    def __init__(self) -> None:
        self._numbers: dict[int, Numbers] = {}

    def give(self, tensor: Tensor, values: Tensor) -> None:
        """A fake tensor stands for a real one."""
        self._numbers[address(tensor)] = Given(tensor, values)

    def forget(self, storage: int) -> None:
        """A storage is gone, or something unknown was written to it."""
        self._numbers.pop(storage, None)

    def get(self, tensor: Tensor) -> Tensor | None:
        """The numbers of a fake tensor; None if they are not known."""
        numbers = self._numbers.get(address(tensor))
        if numbers is None or numbers.dtype != tensor.dtype or numbers.size > LARGEST:
            return None
        with _disable_current_modes(), torch.no_grad():
            return View.of(tensor, numbers).compute()

    def scalar(self, tensor: Tensor) -> Any:
        """The number that a fake tensor of one element holds; None if it is not known."""
        values = self.get(tensor)
        if values is None:
            return None
        with _disable_current_modes():
            return values.item()

    def nonzero(self, tensor: Tensor, shape: Sequence[int] | None = None) -> Tensor | None:
        """Where a fake tensor, repeated to fill a shape, is not 0; None if that is not known."""
        values = self.get(tensor)
        if values is None:
            return None
        with _disable_current_modes():
            return values.expand(tensor.shape if shape is None else shape).nonzero()

    def results(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor] | None:
        """What an operator makes of fake tensors; None if that is not known."""
        given = self._known(operator, args, kwargs)
        views = [one for one in tree_leaves(given) if isinstance(one, View)]
        if given is None or any(one.numbers.size > LARGEST for one in views):
            return None
        with _disable_current_modes(), torch.no_grad():
            real, named = tree_map(_real, given)
            return [one for one in tree_leaves(operator(*real, **named)) if isinstance(one, Tensor)]

    def without_boolean_indices(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of an indexing operator with known booleans written as the positions that they choose."""
        indices: list[Any] = []
        for index in args[1]:
            is_mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            chosen = self.nonzero(index) if is_mask else None
            if chosen is None:
                indices.append(index)
            else:
                indices += [torch.empty(len(chosen), dtype=torch.long) for _ in range(index.ndim)]
        return (args[0], indices, *args[2:])

    def follow(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> None:
        """Note how the results of an operator come about."""
        if operator.is_view or not results:
            return
        given = self._known(operator, args, kwargs)
        if operator._schema.is_mutable:
            for target in _mutated(operator, args, kwargs):
                before = self._numbers.get(address(target))
                if given is None or before is None or target is not args[0]:
                    self.forget(address(target))
                else:
                    self._numbers[address(target)] = Computed(target, operator, given, 0, before)
        elif given is not None:
            for place, result in enumerate(results):
                self._numbers[address(result)] = Computed(result, operator, given, place, None)

    def _known(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments with what is known in place of fake tensors; None where something is not."""
        if torch.Tag.nondeterministic_seeded in operator.tags and kwargs.get("generator") is None:
            return None  # it would draw from the program's own random numbers
        if str(operator.overloadpacket) in FROM_SHAPES:
            blank = View(Numbers(1, args[0].dtype), tuple(args[0].shape), (0,) * args[0].ndim, 0)
            return ((blank, *args[1:]), kwargs)
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor):
                numbers = self._numbers.get(address(one))
                if numbers is None or numbers.dtype != one.dtype:
                    return None
        return tree_map(lambda one: self._view(one) if isinstance(one, Tensor) else one, (args, kwargs))

    def _view(self, tensor: Tensor) -> View:
        return View.of(tensor, self._numbers[address(tensor)])


def _mutated(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operator writes to."""
    for number, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (one for one in tree_leaves(given) if isinstance(one, Tensor))
