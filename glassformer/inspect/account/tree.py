"""The parts of a model as a tree with their costs: modules, and the operators that a module runs itself.

Operators that a module with children runs itself form parts beside the children: ``scores``, ``weighted_sum`` and
``kernel`` for attention, the parameter's name for a product with a parameter, else the kind of operator.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import NamedTuple

from glassformer.inspect.account.counts import ExactPairs, OpCount, Product

AMOUNTS = (
    "parameters", "flops", "backward_flops", "recomputed", "elementwise", "bytes_moved", "backward_bytes",
    "activation_bytes",
)  # fmt: skip
GRADIENTS = "gradients"  # the part that accumulates the gradients of weights


class Modules(NamedTuple):
    """Paths of the modules that have children, and the number of layer calls of each module list."""

    parents: frozenset[str]
    calls: dict[str, int]


@dataclass(frozen=True)
class Multiplication:
    """A product of the forward pass, the path of its part, and how often it runs."""

    name: str
    product: Product
    runs: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return self.runs * self.product.flops


@dataclass(repr=False)
class PartCost:
    """The cost of one part of a model with everything inside it; the whole model has the path ""."""

    path: str
    parameters: int = 0
    flops: int = 0  # of the forward pass
    backward_flops: int = 0
    recomputed: int = 0  # FLOPs that the backward pass recomputes
    elementwise: int = 0  # element-wise operations of the forward pass
    bytes_moved: int = 0  # read and written in the forward pass
    backward_bytes: int = 0  # the same in the backward pass
    activation_bytes: int = 0  # saved for the backward pass
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    products: list[Multiplication] = field(default_factory=list)
    ops: list[OpCount] = field(default_factory=list)  # of the forward pass, without those of inner parts
    calls: int = 0  # of a module list: how often its layers are called
    layers: int = 0  # of a module list whose layers are folded into one: how many there are
    parts: list["PartCost"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition(".")[2]

    def __repr__(self) -> str:
        return f"<PartCost {self.path or 'model'}: {self.parameters:,} parameters, {self.flops:,} FLOPs forward>"

    def walk(self) -> Iterator["PartCost"]:
        """This part and all inner parts, outermost first."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def called(self, path: str) -> list["PartCost"]:
        """This part and the inner parts whose path is ``path``, or ends with it."""
        return [part for part in self.walk() if f".{part.path}".endswith(f".{path}")]

    @property
    def is_repeated(self) -> bool:
        """Whether it is in a layer after the first, and so equals a part of the first layer."""
        return re.search(r"\.(?!0\b)\d+(\.|$)", self.path) is not None


def build_tree(
    ops: Sequence[OpCount], weights: dict[str, tuple[int, ...]], modules: Modules, exact: ExactPairs | None = None
) -> PartCost:
    """Sum operators and weights by part; parts are in the order in which they run."""
    tree = _Tree(modules, exact)
    for op in ops:
        tree.add(op)
    for name, shape in weights.items():
        tree.add_weight(name, shape)
    for path, calls in modules.calls.items():
        if path in tree.parts:
            tree.parts[path].calls = calls
    return tree.parts[""]


class _Tree:
    """The parts by path, as the tree is built."""

    def __init__(self, modules: Modules, exact: ExactPairs | None) -> None:
        self._modules, self._exact = modules, exact
        self.parts = {"": PartCost("")}

    def add(self, op: OpCount) -> None:
        """Add one operator: each product to its part, the rest to the part of the operator."""
        path = self._path_of(op)
        for product in op.work.products:
            self._add_product(op, product, _join(op.path, product.role) if product.role else path)
        if op.backward:
            role = "scores" if op.kind == "kernel" else ""
            share = 1 if self._exact is None else self._exact.backward_share(op, role)
            amounts = {"backward_bytes": op.moved, "recomputed": int(op.work.recomputed * share)}
        else:
            amounts = {"elementwise": op.work.elementwise, "bytes_moved": op.moved}
        amounts["activation_bytes"] = sum(size for _, size in op.saved)
        if not any(amounts.values()) and not op.work.products:
            return
        parts = self._along(path)
        for name, amount in amounts.items():
            _increase(parts, name, amount)
        if not op.backward:
            parts[-1].ops.append(op)

    def _add_product(self, op: OpCount, product: Product, path: str) -> None:
        parts = self._along(path)
        if op.backward:
            share = 1 if self._exact is None else self._exact.backward_share(op, product.role)
            _increase(parts, "backward_flops", int(product.flops * share))
            return
        product = product if self._exact is None else self._exact.restrict_forward(op, product)
        _increase(parts, "flops", product.flops)
        # Equal products of one part are one entry, with the number of its runs.
        products = parts[-1].products
        equal = next((known for known in products if known.product == product), Multiplication(path, product, 0))
        products[:] = [known for known in products if known is not equal]
        products.append(Multiplication(path, product, equal.runs + 1))

    def add_weight(self, name: str, shape: tuple[int, ...]) -> None:
        """Add one parameter."""
        parts = self._along(_part_of(name))
        _increase(parts, "parameters", prod(shape))
        parts[-1].weights[name] = shape

    def _path_of(self, op: OpCount) -> str:
        """Return the path of the part that an operator belongs to."""
        if op.kind == "kernel" or op.label:
            return _join(op.path, op.label or "kernel")
        if op.path not in self._modules.parents:
            return op.path
        if op.kind != "product":
            return _join(op.path, "elementwise" if op.kind == "free" else op.kind)
        part = _part_of(op.weight)
        return part if part.startswith(f"{op.path}." if op.path else "") and part else _join(op.path, "product")

    def _along(self, path: str) -> list[PartCost]:
        """Return the parts from the root to this path, created where missing."""
        parts, names = [self.parts[""]], path.split(".") if path else []
        for length in range(1, len(names) + 1):
            prefix = ".".join(names[:length])
            if prefix not in self.parts:
                self.parts[prefix] = PartCost(prefix)
                parts[-1].parts.append(self.parts[prefix])
            parts.append(self.parts[prefix])
        return parts


def _part_of(weight: str) -> str:
    """Return the part of a parameter: its module, or for ``in_proj_weight`` its name without the suffix."""
    return re.sub(r"[._]?(weight|bias)$", "", weight)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _increase(parts: Sequence[PartCost], name: str, amount: int) -> None:
    for part in parts:
        setattr(part, name, getattr(part, name) + amount)


def find_part(root: PartCost, path: str) -> PartCost:
    """Return a part by its path, or by the end of it; the error for an unknown part suggests the closest ones."""
    parts = root.called(path)
    if not parts:
        paths = [part.path for part in root.walk() if not part.is_repeated]
        close = get_close_matches(path, paths, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        top = ", ".join(part.name for part in root.parts)
        raise ValueError(f"no part of this model is called {path!r}.{hint} The top-level parts are: {top}.")
    return min(parts, key=lambda part: len(part.path))
