"""What one call of an operator did, and where: ``OpCount``. No torch is needed to read it."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["product", "kernel", "normalisation", "activation", "softmax", "elementwise", "copy", "lookup", "free"]


class Product(NamedTuple):
    """``times`` matrix products (m × n) · (n × p) of one operator, by the rule 2 · m · n · p each.

    ``pairs``: how many of the m × p entries are counted, where it is not all of them. ``role``: what a kernel that does
    several products computes with this one.
    """

    m: int
    n: int
    p: int
    times: int = 1
    pairs: int | None = None
    role: str = ""

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.n * (self.m * self.p if self.pairs is None else self.pairs) * self.times


class Work(NamedTuple):
    """What one call of an operator does besides moving memory."""

    products: tuple[Product, ...] = ()
    recomputed: int = 0  # FLOPs of products that were done before, and whose results were not stored
    elementwise: int = 0  # operations on single numbers


@dataclass(slots=True)
class OpCount:
    """One call of an operator."""

    operator: str  # aten.mm
    kind: Kind
    path: str  # of the module that called it
    shape: tuple[int, ...]  # of its largest operand or result
    work: Work = field(default_factory=Work)
    moved: int = 0  # bytes read and written
    backward: bool = False
    weight: str = ""  # the parameter that it multiplies by
    layer: int = 0  # the number of the layer's call among all of the pass, from 1; 0: outside the layers
    label: str = ""  # of a matrix product; see ``products``
    saved: list[tuple[tuple[int, ...], int]] = field(default_factory=list)  # kept for the backward pass: shapes, bytes
