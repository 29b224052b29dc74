"""How many pairs of a query and a key see each other, for accounts that count no others (``causal="exact"``)."""

from fractions import Fraction
from typing import NamedTuple

from glassformer.config import BlockSparse, Model, Stack
from glassformer.inspect.account.counts import OpCount, Product
from glassformer.inspect.account.load import Load

ATTENTION = ("scores", "weighted_sum")


class AttentionShape(NamedTuple):
    """Queries and keys of one attention, the last query at the last key; a window counts the query itself."""

    queries: int
    keys: int
    causal: bool = False
    window: int | None = None

    @property
    def pairs(self) -> int:
        """Pairs that see each other."""
        reach = self.keys if self.window is None else min(self.window, self.keys)
        if not self.causal and self.window is None:
            return self.queries * self.keys
        full = self.keys - self.queries + 1  # keys up to the first query, itself included
        short = max(0, min(self.queries, reach - full))  # queries that see fewer than ``reach``
        before = short * full + short * (short - 1) // 2 + (self.queries - short) * min(reach, self.keys)
        return before if self.causal else 2 * before - self.queries


class ExactPairs:
    """Counts of products with the pairs that see each other alone, by the facts of a model and the sizes of a load.

    Cross-attention sees everything. Block-sparse attention is counted as it is computed, block by block.
    """

    def __init__(self, config: Model, load: Load, ops: list[OpCount]) -> None:
        self._config, self._load = config, load
        self._first: dict[str, int] = {}  # stack → the number of its first layer's call
        for op in ops:
            stack = op.path.partition(".")[0]
            if op.layer:
                self._first[stack] = min(op.layer, self._first.get(stack, op.layer))

    def share(self, op: OpCount, role: str) -> Fraction:
        """Of all pairs of a training step's attention, those that see each other; 1 where it is not attention."""
        shape = self._shape(op, role or op.label, None)
        return Fraction(1) if shape is None else Fraction(shape.pairs, shape.queries * shape.keys)

    def seen(self, op: OpCount, product: Product) -> Product:
        """A product of the forward pass, with the number of its entries that count."""
        role = product.role or op.label
        keys, width = (product.p, product.n) if role == "scores" else (product.n, product.p)
        shape = self._shape(op, role, keys)
        if shape is None:
            return product
        pairs = product.m * shape.pairs // shape.queries  # the queries of several heads, perhaps
        return Product(product.m, width, keys, product.times, pairs, product.role)

    def _shape(self, op: OpCount, role: str, keys: int | None) -> AttentionShape | None:
        """Of self-attention that is not by blocks. A decoding step may be handed no more keys than its window shows."""
        stack_name, *inside = op.path.split(".")
        if role not in ATTENTION or not op.layer or inside[-1:] != ["attention"]:
            return None
        stack = self._config.encoder if stack_name == "encoder" else self._config.decoder
        assert stack is not None
        window = _window(stack, op.layer - self._first[stack_name])
        if isinstance(window, BlockSparse):
            return None
        length = self._load.source if stack_name == "encoder" else self._load.context
        queries = 1 if self._load.mode == "decode" else length
        return AttentionShape(queries, keys or length, stack.causal, window)


def _window(stack: Stack, number: int) -> int | BlockSparse | None:
    """Of a layer by its number; a last layer that runs several times is the last one each time."""
    windows = stack.attention.windows
    window = windows[min(number, stack.layers - 1) % len(windows)]
    if not isinstance(window, int | BlockSparse | None):
        raise TypeError(f"which pairs see each other with the window {window!r} is not known here; use causal='dense'.")
    return window
