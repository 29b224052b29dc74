"""A pass with sizes in place of numbers: what it multiplies, what it holds, what it moves.

A ``Walk`` is told of every operation of a pass, in the order in which a model runs them, and keeps the books. Values
occupy memory as long as somebody holds them, as tensors do; a pass that is to be differentiated holds besides what each
operation needs on the way back. Nothing here knows what a Transformer is; ``passes`` does.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Size(NamedTuple):
    """A number and what it counts."""

    label: str
    value: int


ONE = Size("", 1)


@dataclass(frozen=True)
class Product:
    """``times`` matrix products (m × n) · (n × p), by the rule 2 · m · n · p: n products and n sums per entry.

    ``pairs``: how many of the m × p entries are computed, where it is not all of them. ``runs``: how often the layer
    that it belongs to runs.
    """

    name: str
    m: Size
    n: Size
    p: Size
    times: Size = ONE
    pairs: Size | None = None
    runs: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        entries = self.m.value * self.p.value if self.pairs is None else self.pairs.value
        return 2 * self.n.value * entries * self.times.value * self.runs


@dataclass
class Leaf:
    """The books of one part that is not divided further."""

    products: list[Product] = field(default_factory=list)
    recomputed: int = 0  # FLOPs of products done again on the way back, by kernels that do not store their result
    elementwise: int = 0  # operations on single numbers
    moved: int = 0  # bytes read and written
    saved: int = 0  # bytes held for the way back


class Storage:
    """Memory of one value; it is free again when nobody holds it."""

    __slots__ = ("is_saved", "nbytes", "number", "walk")

    def __init__(self, walk: "Walk", nbytes: int) -> None:
        self.walk, self.nbytes, self.is_saved = walk, nbytes, False
        self.number = walk.storages = walk.storages + 1
        walk.live += nbytes
        walk.peak = max(walk.peak, walk.live)

    def __del__(self) -> None:
        self.walk.live -= self.nbytes


class Value(NamedTuple):
    """A tensor without its numbers. Weights and inputs have no storage here: they are there before the pass."""

    numel: int
    width: int  # bytes of a number
    storage: Storage | None = None
    weight: str = ""  # the name of a weight

    @property
    def nbytes(self) -> int:
        """Bytes to read or write it."""
        return self.numel * self.width


class Node(NamedTuple):
    """One operation on the way back. Values are known by the numbers of their storages, beside which is their size."""

    saved: tuple[Storage, ...]
    out: tuple[int, int]  # whose gradient comes in
    inputs: tuple[tuple[int, int], ...] = ()  # whose gradients go out
    weights: tuple[Value, ...] = ()  # whose gradients stay
    spare: int = 0  # bytes for steps between


class Walk:
    """The books of one pass.

    Args:
        width: bytes of a number.
        differentiable: hold what a backward pass needs.
        fused: linear maps, norms and activations are one kernel each, not the steps of their formulas.
    """

    def __init__(self, width: int, *, differentiable: bool = False, fused: bool = False) -> None:
        self.width = width
        self.differentiable = differentiable
        self.fused = fused
        self.live = self.peak = self.working = self.storages = 0
        self.leaves: dict[str, Leaf] = {}
        self.nodes: list[Node] = []
        self._path: list[str] = []
        self._pieces: list[dict[int, int]] = []  # what each piece holds for the way back, by the number of its storage
        self._beside: dict[int, int] = {}  # the same of what lies between the pieces, and their inputs
        self._held = self._beside
        self._made: set[int] = set()  # values that have a gradient

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is told inside belongs to this part."""
        self._path.append(name)
        yield
        self._path.pop()

    @contextmanager
    def piece(self, *inputs: Value) -> Iterator[None]:
        """What is told inside could be run again from these inputs."""
        self._beside |= {x.storage.number: x.storage.nbytes for x in inputs if x.storage is not None}
        self._held = {}
        self._pieces.append(self._held)
        yield
        self._held = self._beside

    @property
    def leaf(self) -> Leaf:
        """The books of the part that is being run."""
        return self.leaves.setdefault(".".join(self._path), Leaf())

    def new(self, numel: int, width: int | None = None) -> Value:
        """A fresh tensor."""
        width = self.width if width is None else width
        return Value(numel, width, Storage(self, numel * width))

    def weight(self, name: str, numel: int) -> Value:
        """A weight of the part that is being run, or, with a dot in its name, of another part."""
        return Value(numel, self.width, weight=name if "." in name else ".".join((*self._path, name)))

    def point(
        self,
        *inputs: Value,
        saves: Sequence[Value] = (),
        numel: int | None = None,
        work: int = 1,
        spare: int = 0,
    ) -> Value:
        """An operation number by number; ``numel`` numbers come out, as many as go in if None.

        It takes ``work`` steps for each number, and on the way back room for ``spare`` more results of its size.
        """
        largest = max(x.numel for x in inputs)
        out = self.new(largest if numel is None else numel, max(x.width for x in inputs))
        self.leaf.elementwise += work * largest
        self._book(inputs, out, saves, spare * out.nbytes)
        return out

    def keep(self, x: Value) -> None:
        """Hold a value for the way back because the operation that made it, the last one, needs its own result."""
        if self.differentiable:
            made = self.nodes.pop()
            self.nodes.append(made._replace(saved=(*made.saved, *self._save((x,)))))

    def look_up(self, name: str, table: int, numel: int, rows: Value | None = None) -> Value:
        """Rows of a table of so many numbers; its gradient is as large as the table. Which ``rows`` is held."""
        out = self.new(numel)
        self.leaf.moved += 2 * out.nbytes
        self._hold(out, () if rows is None else (rows,), weights=(self.weight(name, table),))
        return out

    def cast(self, x: Value, width: int) -> Value:
        """The same numbers in another type; itself, if it is of that type."""
        if x.width == width:
            return x
        out = self.new(x.numel, width)
        self._book((x,), out, ())
        return out

    def copy(self, x: Value, count: int, of: int, *, saves: Sequence[Value] = ()) -> Value:
        """A copy of so many of the equal pieces into which a value is cut, some perhaps more than once."""
        out = self.new(x.numel * count // of, x.width)
        self.leaf.moved += 2 * out.nbytes
        self._hold(out, saves, (x,))
        return out

    def join(self, *values: Value) -> Value:
        """Copies of several values, one after the other."""
        out = self.new(sum(x.numel for x in values), values[0].width)
        self._book(values, out, ())
        return out

    @staticmethod
    def part_of(x: Value, count: int, of: int) -> Value:
        """So many of the equal pieces of a value, where they lie."""
        return x._replace(numel=x.numel * count // of)

    def multiply(self, a: Value, b: Value, product: Product, *plus: Value) -> Value:
        """A product of two values, and what is added to it in the same breath; the way back needs the two."""
        out = self.new(product.m.value * product.p.value * product.times.value, max(a.width, b.width))
        self.count(product)
        self.leaf.elementwise += len(plus) * out.numel
        self._book((a, b, *plus), out, (a, b))
        return out

    def count(self, product: Product, *, recomputed: bool = False) -> None:
        """Count a product whose memory is booked elsewhere."""
        leaf, name = self.leaf, f"{'.'.join(self._path)}{'.' if product.name else ''}{product.name}"
        known = [one for one in leaf.products if one == replace(product, name=name, runs=one.runs)]
        for one in known:
            leaf.products.remove(one)
        leaf.products.append(replace(product, name=name, runs=product.runs + sum(one.runs for one in known)))
        if recomputed:
            leaf.recomputed += product.flops

    def kernel(self, *inputs: Value, numel: int, saves: Sequence[Value] = (), rest: int = 0, work: int = 0) -> Value:
        """One fused kernel: reads its inputs, writes its result, and holds ``rest`` bytes more for the way back."""
        out = self.new(numel)
        self.leaf.elementwise += work
        held = [self.new(rest, 1)] if rest and self.differentiable else []
        self._book(inputs, out, (*saves, out, *held))
        return out

    def _book(self, inputs: Sequence[Value], out: Value, saves: Sequence[Value], spare: int = 0) -> None:
        self.leaf.moved += sum(x.nbytes for x in inputs) + out.nbytes
        self._hold(out, saves, inputs, tuple(x for x in inputs if x.weight), spare)

    def _hold(
        self,
        out: Value,
        saves: Sequence[Value],
        inputs: Sequence[Value] = (),
        weights: tuple[Value, ...] = (),
        spare: int = 0,
    ) -> None:
        """Write down an operation that the way back will meet."""
        if self.differentiable:
            assert out.storage is not None
            known = (x.storage for x in inputs if x.storage is not None and x.storage.number in self._made)
            into = tuple({storage.number: storage.nbytes for storage in known}.items())
            self._made.add(out.storage.number)
            made = (out.storage.number, out.storage.nbytes)
            self.nodes.append(Node(self._save(saves), made, into, weights, spare))

    def _save(self, values: Sequence[Value]) -> tuple[Storage, ...]:
        """What must stay in memory for the way back; by whom it is saved first, it is paid for."""
        kept = {x.storage.number: x.storage for x in values if x.storage is not None}
        for number, storage in kept.items():
            self._held[number] = storage.nbytes
            if not storage.is_saved:
                storage.is_saved = True
                self.leaf.saved += storage.nbytes
        return tuple(kept.values())

    @property
    def saved(self) -> int:
        """Bytes held for the way back."""
        return sum(leaf.saved for leaf in self.leaves.values())

    @property
    def checkpointed(self) -> int:
        """The same if every piece holds its inputs alone and runs again: one at a time then holds the rest."""
        rest = (sum(size for number, size in piece.items() if number not in self._beside) for piece in self._pieces)
        return sum(self._beside.values()) + max(rest, default=0)

    def go_back(self) -> None:
        """Run the backward pass: gradients come and go, what was held for them is let go, gradients of weights stay.

        The highest level of memory, that of the forward pass included, is in ``peak``; without the gradients of weights
        it is in ``working``.
        """
        self.working = self.peak
        coming: dict[int, int] = {}
        grown: set[str] = set()
        stays = 0
        while self.nodes:
            node = self.nodes.pop()
            coming |= dict((node.out, *node.inputs))
            new = sum(x.nbytes for x in node.weights)
            level = self.live + sum(coming.values()) + node.spare
            again = sum(x.nbytes for x in node.weights if x.weight in grown)  # added to the first, and gone
            self.working = max(self.working, level + again)
            self.peak = max(self.peak, level + stays + new)
            del coming[node.out[0]]
            stays += sum(x.nbytes for x in node.weights if x.weight not in grown)  # a shared weight has one gradient
            grown |= {x.weight for x in node.weights}
