"""Rules that carry weights between our part names and another library's, both ways and bit for bit.

A rule joins some of our names with some of theirs and says how the tensors turn into each other. ``{i}`` in a name
stands for the number of a layer. Rules are data: this module does not import a tensor library.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from glassformer.config import Model

Tensors = Sequence[Any]


@runtime_checkable
class How(Protocol):
    """A change of form that can be undone. ``facts`` tells it the number of heads, if it must know."""

    def ours(self, theirs: Tensors, facts: Model) -> Tensors:
        """Our tensors from theirs."""
        ...

    def theirs(self, ours: Tensors, facts: Model) -> Tensors:
        """Their tensors from ours."""
        ...


@dataclass(frozen=True)
class Same:
    """One tensor, the same on both sides."""

    def ours(self, theirs: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """Unchanged."""
        return theirs

    def theirs(self, ours: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """Unchanged."""
        return ours


@dataclass(frozen=True)
class Transposed:
    """A matrix that they store as (in, out); a bias stays as it is."""

    def ours(self, theirs: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """(out, in)."""
        return [tensor.T for tensor in theirs]

    def theirs(self, ours: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """(in, out)."""
        return [tensor.T for tensor in ours]


@dataclass(frozen=True)
class Fused:
    """Several of ours lie one after the other in one of theirs: along the rows, or the columns if transposed."""

    transposed: bool = False
    parts: int = 3

    def ours(self, theirs: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """Cut apart."""
        (whole,) = theirs
        whole = whole.T if self.transposed else whole
        return whole.chunk(self.parts, 0)

    def theirs(self, ours: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """Put together."""
        import torch

        whole = torch.cat(list(ours), 0)
        return [whole.T if self.transposed else whole]


@dataclass(frozen=True)
class FusedByHead:
    """Like ``Fused``, but head by head: the parts of the first head, then those of the second, and so on."""

    heads: Callable[[Model], int]
    parts: int = 3

    def ours(self, theirs: Tensors, facts: Model) -> Tensors:
        """Gather the rows of each part."""
        (whole,) = theirs
        rows = whole.reshape(self.heads(facts), self.parts, -1, *whole.shape[1:])
        return [rows[:, part].reshape(-1, *whole.shape[1:]) for part in range(self.parts)]

    def theirs(self, ours: Tensors, facts: Model) -> Tensors:
        """Deal the rows out to the heads."""
        import torch

        heads = self.heads(facts)
        rows = torch.stack([part.reshape(heads, -1, *part.shape[1:]) for part in ours], 1)
        return [rows.reshape(-1, *ours[0].shape[1:])]


@dataclass(frozen=True)
class Row:
    """A vector that they store as a matrix of one row."""

    def ours(self, theirs: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """The row."""
        return [tensor.reshape(-1) for tensor in theirs]

    def theirs(self, ours: Tensors, facts: Model) -> Tensors:  # noqa: ARG002
        """The matrix."""
        return [tensor.reshape(1, -1) for tensor in ours]


@dataclass(frozen=True)
class Rule:
    """Our names, their names, and how the tensors turn into each other.

    ``also``: other names under which they may store the same tensor, for tied weights; any of them will do, and all
    that are there must be equal. Only ``theirs`` is written. ``zeros``: a file may lack it, and then it is zero.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    how: How = field(default_factory=Same)
    also: tuple[str, ...] = ()
    zeros: bool = False

    def with_prefix(self, prefix: str) -> "Rule":
        """The same with a prefix before each of their names."""
        return replace(self, theirs=tuple(map(prefix.__add__, self.theirs)), also=tuple(map(prefix.__add__, self.also)))

    def of_layer(self, number: int) -> "Rule":
        """The same with the number of a layer in place of ``{i}``."""
        ours, theirs, also = (
            tuple(name.replace("{i}", str(number)) for name in names) for names in (self.ours, self.theirs, self.also)
        )
        return replace(self, ours=ours, theirs=theirs, also=also)

    @property
    def is_per_layer(self) -> bool:
        """Whether the rule is for each layer."""
        return any("{i}" in name for name in self.ours)


@dataclass(frozen=True)
class Ignored:
    """Names of theirs that carry nothing a model needs, with the reason; ``{i}`` is any number, ``*`` anything."""

    theirs: str
    reason: str


def same(ours: str, theirs: str, *also: str, how: How | None = None) -> Rule:
    """One tensor under another name."""
    return Rule((ours,), (theirs,), how or Same(), also)


def modules(table: Mapping[str, str], *, how: How | None = None) -> tuple[Rule, ...]:
    """Two rules, weight and bias, for each pair of modules; what a model does not have is passed over."""
    return tuple(_modules(table, how or Same()))


def _modules(table: Mapping[str, str], how: How) -> Iterator[Rule]:
    for ours, theirs in table.items():
        yield Rule((f"{ours}.weight",), (f"{theirs}.weight",), how)
        yield Rule((f"{ours}.bias",), (f"{theirs}.bias",), Same())


def fused(ours: Sequence[str], theirs: str, how: How) -> tuple[Rule, ...]:
    """Several of our modules in one of theirs, weights and biases."""
    bias = Fused(parts=len(ours)) if isinstance(how, Fused) else how
    return (
        Rule(tuple(f"{name}.weight" for name in ours), (f"{theirs}.weight",), how),
        Rule(tuple(f"{name}.bias" for name in ours), (f"{theirs}.bias",), bias),
    )
