"""Rules that convert weights between our parameter names and another library's, both ways and bit for bit.

A rule maps one or more of our names (``ours``) to one or more of the other library's (``theirs``), with the conversion
of the tensors. ``{i}`` in a name is the number of a layer. Rules are data: torch is imported only when a conversion
needs it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from glassformer.config import ModelConfig

Tensors = Sequence[Any]


@runtime_checkable
class Conversion(Protocol):
    """An invertible conversion of tensors; ``facts`` has the number of heads, if it needs it."""

    def ours(self, theirs: Tensors, facts: ModelConfig) -> Tensors:
        """Return our tensors from theirs."""
        ...

    def theirs(self, ours: Tensors, facts: ModelConfig) -> Tensors:
        """Return their tensors from ours."""
        ...


@dataclass(frozen=True)
class Same:
    """Equal tensors on both sides."""

    def ours(self, theirs: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """Unchanged."""
        return theirs

    def theirs(self, ours: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """Unchanged."""
        return ours


@dataclass(frozen=True)
class Transposed:
    """A matrix that they store as (in, out); a bias is unchanged."""

    def ours(self, theirs: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """(out, in)."""
        return [tensor.T for tensor in theirs]

    def theirs(self, ours: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """(in, out)."""
        return [tensor.T for tensor in ours]


@dataclass(frozen=True)
class Concatenated:
    """Several of our tensors concatenated in one of theirs: along the rows, or the columns if transposed."""

    transposed: bool = False
    parts: int = 3

    def ours(self, theirs: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """Split."""
        (whole,) = theirs
        whole = whole.T if self.transposed else whole
        return whole.chunk(self.parts, 0)

    def theirs(self, ours: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """Concatenate."""
        import torch

        whole = torch.cat(list(ours), 0)
        return [whole.T if self.transposed else whole]


@dataclass(frozen=True)
class ConcatenatedByHead:
    """Like ``Concatenated``, but interleaved by head: the parts of the first head, then those of the second …"""

    heads: Callable[[ModelConfig], int]
    parts: int = 3

    def ours(self, theirs: Tensors, facts: ModelConfig) -> Tensors:
        """Gather the rows of each part."""
        (whole,) = theirs
        rows = whole.reshape(self.heads(facts), self.parts, -1, *whole.shape[1:])
        return [rows[:, part].reshape(-1, *whole.shape[1:]) for part in range(self.parts)]

    def theirs(self, ours: Tensors, facts: ModelConfig) -> Tensors:
        """Interleave the rows by head."""
        import torch

        heads = self.heads(facts)
        rows = torch.stack([part.reshape(heads, -1, *part.shape[1:]) for part in ours], 1)
        return [rows.reshape(-1, *ours[0].shape[1:])]


@dataclass(frozen=True)
class RowMatrix:
    """A vector that they store as a matrix of one row."""

    def ours(self, theirs: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """Return the row."""
        return [tensor.reshape(-1) for tensor in theirs]

    def theirs(self, ours: Tensors, facts: ModelConfig) -> Tensors:  # noqa: ARG002
        """Return the matrix."""
        return [tensor.reshape(1, -1) for tensor in ours]


@dataclass(frozen=True)
class Rule:
    """Our names, their names, and the conversion.

    ``also``: other names of a tied tensor; a file may have any of them, and all that it has must be equal. Only
    ``theirs`` is written. ``zeros``: a file may lack it, and then it is zero.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    how: Conversion = field(default_factory=Same)
    also: tuple[str, ...] = ()
    zeros: bool = False

    def with_prefix(self, prefix: str) -> "Rule":
        """Return the rule with a prefix before each of their names."""
        return replace(self, theirs=tuple(map(prefix.__add__, self.theirs)), also=tuple(map(prefix.__add__, self.also)))

    def of_layer(self, number: int) -> "Rule":
        """Return the rule of one layer: its number in place of ``{i}``."""
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
    """Their names that a model does not need, with the reason; ``{i}`` is any number, ``*`` anything."""

    theirs: str
    reason: str


def same(ours: str, theirs: str, *also: str, how: Conversion | None = None) -> Rule:
    """Return the rule of a tensor that differs only in its name, or also by ``how``."""
    return Rule((ours,), (theirs,), how or Same(), also)


def modules(table: Mapping[str, str], *, how: Conversion | None = None) -> tuple[Rule, ...]:
    """Return two rules, weight and bias, for each pair of modules; rules for weights that a model lacks are unused."""
    return tuple(_modules(table, how or Same()))


def _modules(table: Mapping[str, str], how: Conversion) -> Iterator[Rule]:
    for ours, theirs in table.items():
        yield Rule((f"{ours}.weight",), (f"{theirs}.weight",), how)
        yield Rule((f"{ours}.bias",), (f"{theirs}.bias",), Same())


def concatenated(ours: Sequence[str], theirs: str, how: Conversion) -> tuple[Rule, ...]:
    """Return rules for several of our modules that are one of theirs, weights and biases."""
    bias = Concatenated(parts=len(ours)) if isinstance(how, Concatenated) else how
    return (
        Rule(tuple(f"{name}.weight" for name in ours), (f"{theirs}.weight",), how),
        Rule(tuple(f"{name}.bias" for name in ours), (f"{theirs}.bias",), bias),
    )
