"""The parts of a model as a tree, with what was counted in each: modules, and the work that a module does itself.

Work of a module that has children stands under a name of its own beside them: ``scores``, ``weighted_sum`` and
``kernel`` for attention, the parameter's name for a product with one, else the kind of operator.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import NamedTuple

from glassformer.inspect.account.counts import OpCount, Product
from glassformer.inspect.account.pairs import ExactPairs

AMOUNTS = (
    "parameters", "flops", "backward_flops", "recomputed", "elementwise", "bytes_moved", "backward_bytes",
    "activation_bytes",
)  # fmt: skip
GRADIENTS = "gradients"  # what adding up the gradients of weights costs


class Modules(NamedTuple):
    """The paths of the modules of a model that hold others, and how often the layers of each list were called."""

    parents: frozenset[str]
    calls: dict[str, int]


@dataclass(frozen=True)
class Multiplication:
    """A product of the forward pass, by the name of its part, and how often it is done."""

    name: str
    product: Product
    runs: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return self.runs * self.product.flops


@dataclass
class Part:
    """One part of a model and all inside it, the whole model by the path ""; ``flops`` are of one forward pass."""

    path: str
    parameters: int = 0
    flops: int = 0
    backward_flops: int = 0
    recomputed: int = 0  # FLOPs that a backward pass repeats
    elementwise: int = 0  # operations on single numbers in one forward pass
    bytes_moved: int = 0  # read and written in one forward pass
    backward_bytes: int = 0  # the same of a backward pass
    activation_bytes: int = 0  # held for the backward pass
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    products: list[Multiplication] = field(default_factory=list)
    ops: list[OpCount] = field(default_factory=list)  # of the forward pass, its own
    calls: int = 0  # of a list of layers: how often one of them is called
    layers: int = 0  # of a list whose layers are folded into one: how many there are
    parts: list["Part"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last word of the path."""
        return self.path.rpartition(".")[2]

    def walk(self) -> Iterator["Part"]:
        """This part and all parts inside it, from the outside in."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def called(self, path: str) -> list["Part"]:
        """This part and those inside it whose path is this one, or ends so."""
        return [part for part in self.walk() if f".{part.path}".endswith(f".{path}")]

    @property
    def is_repeated(self) -> bool:
        """Whether it is in a later layer, and so like a part of the first one."""
        return re.search(r"\.(?!0\b)\d+(\.|$)", self.path) is not None


def build_tree(
    ops: Sequence[OpCount], weights: dict[str, tuple[int, ...]], modules: Modules, exact: ExactPairs | None = None
) -> Part:
    """Weights and operators put under the parts they belong to, and added up; parts in the order in which they run."""
    tree = _Tree(modules, exact)
    for op in ops:
        tree.add(op)
    for name, shape in weights.items():
        tree.add_weight(name, shape)
    tree.add_calls()
    return tree.root


class _Tree:
    """A tree that grows."""

    def __init__(self, modules: Modules, exact: ExactPairs | None) -> None:
        self._modules, self._exact = modules, exact
        self._known = {"": Part("")}

    @property
    def root(self) -> Part:
        """The whole."""
        return self._known[""]

    def add(self, op: OpCount) -> None:
        """One operator: its products where they belong, the rest of it in one part."""
        place = self._place(op)
        for product in op.work.products:
            self._add_product(op, product, _inside(op.path, product.role) if product.role else place)
        amounts = {"elementwise": op.work.elementwise, "bytes_moved": op.moved, "backward_bytes": 0}
        if op.backward:
            share = 1 if self._exact is None else self._exact.share(op, "scores" if op.kind == "kernel" else "")
            amounts = {"backward_bytes": op.moved, "recomputed": int(op.work.recomputed * share)}
        amounts["activation_bytes"] = sum(size for _, size in op.saved)
        if not any(amounts.values()) and not op.work.products:
            return
        parts = self._along(place)
        for name, amount in amounts.items():
            _raise(parts, name, amount)
        if not op.backward:
            parts[-1].ops.append(op)

    def _add_product(self, op: OpCount, product: Product, path: str) -> None:
        parts = self._along(path)
        if op.backward:
            share = 1 if self._exact is None else self._exact.share(op, product.role)
            _raise(parts, "backward_flops", int(product.flops * share))
            return
        product = product if self._exact is None else self._exact.seen(op, product)
        _raise(parts, "flops", product.flops)
        found = parts[-1].products
        known = next((one for one in found if one.product == product), Multiplication(path, product, 0))
        found[:] = [one for one in found if one is not known]
        found.append(Multiplication(path, product, known.runs + 1))

    def add_weight(self, name: str, shape: tuple[int, ...]) -> None:
        """One parameter."""
        parts = self._along(_part_of(name))
        _raise(parts, "parameters", prod(shape))
        parts[-1].weights[name] = shape

    def add_calls(self) -> None:
        """How often the layers of each list were called."""
        for path, calls in self._modules.calls.items():
            if path in self._known:
                self._known[path].calls = calls

    def _place(self, op: OpCount) -> str:
        if op.kind == "kernel" or op.label:
            return _inside(op.path, op.label or "kernel")
        if op.path not in self._modules.parents:
            return op.path
        if op.kind != "product":
            return _inside(op.path, "elementwise" if op.kind == "free" else op.kind)
        part = _part_of(op.weight)
        return part if part.startswith(f"{op.path}." if op.path else "") and part else _inside(op.path, "product")

    def _along(self, path: str) -> list[Part]:
        """The parts on the way from the root, made where they are missing."""
        found, names = [self.root], path.split(".") if path else []
        for length in range(1, len(names) + 1):
            inside = ".".join(names[:length])
            if inside not in self._known:
                self._known[inside] = Part(inside)
                found[-1].parts.append(self._known[inside])
            found.append(self._known[inside])
        return found


def _part_of(weight: str) -> str:
    """The part that a parameter belongs to: its module, or for ``in_proj_weight`` what it is called without the end."""
    return re.sub(r"[._]?(weight|bias)$", "", weight)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _raise(parts: Sequence[Part], name: str, amount: int) -> None:
    for part in parts:
        setattr(part, name, getattr(part, name) + amount)


def find_part(root: Part, path: str) -> Part:
    """A part by its path, or by the end of it; the error for an unknown one names the nearest."""
    ends = root.called(path)
    if not ends:
        first = [part.path for part in root.walk() if not part.is_repeated]
        near = get_close_matches(path, first, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        at_top = ", ".join(part.name for part in root.parts)
        raise ValueError(f"no part of this model is called {path!r}.{hint} At the top there are: {at_top}.")
    return min(ends, key=lambda part: len(part.path))
