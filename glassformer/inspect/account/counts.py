"""What an account counts: the workload that is run, and the products and work of each operator call. Without torch."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

from glassformer.config import BlockSparse, ModelConfig, Stack
from glassformer.config.options import AttentionPath

AccountMode = Literal["forward", "train", "decode"]
WorkKind = Literal[
    "product", "kernel", "normalisation", "activation", "softmax", "elementwise", "copy", "lookup", "free"
]
ATTENTION = ("scores", "weighted_sum")


@dataclass(frozen=True)
class Workload:
    """What is run: a forward pass, a training step or a decoding step, its sizes, and how attention is computed."""

    batch: int
    context: int  # tokens of the decoder, or of the encoder where there is no decoder
    source: int  # tokens of the encoder
    mode: AccountMode = "forward"
    attention: AttentionPath = "sdpa"


class Product(NamedTuple):
    """``times`` matrix products (m × n) · (n × p) of one operator, 2 · m · n · p FLOPs each.

    ``pairs``: how many of the m × p entries are counted, if not all. ``role``: which of the products of a fused kernel
    this is.
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
    """The arithmetic of one operator call."""

    products: tuple[Product, ...] = ()
    recomputed: int = 0  # FLOPs of products computed before, whose results were not stored
    elementwise: int = 0  # element-wise operations


@dataclass(slots=True)
class OpCount:
    """One operator call."""

    operator: str  # aten.mm
    kind: WorkKind
    path: str  # of the calling module
    shape: tuple[int, ...]  # of its largest operand or result
    work: Work = field(default_factory=Work)
    moved: int = 0  # bytes read and written
    backward: bool = False
    weight: str = ""  # the parameter that it multiplies by
    layer: int = 0  # number of the layer call in the pass, from 1; 0: outside the layers
    label: str = ""  # of a matrix product; see ``recorder.AttentionProducts``
    saved: list[tuple[tuple[int, ...], int]] = field(default_factory=list)  # for the backward pass: shapes, bytes


class AttentionShape(NamedTuple):
    """Queries and keys of one attention. The last query is at the position of the last key, or ``ahead`` before it.

    A window of n covers the query's position and the n − 1 before it; without a causal mask, also the n − 1 after it.
    """

    queries: int
    keys: int
    causal: bool = False
    window: int | None = None
    ahead: int = 0

    @property
    def pairs(self) -> int:
        """Query/key pairs that are not masked."""
        if not self.causal and self.window is None:
            return self.queries * self.keys
        behind = self._pairs_behind(self.keys - self.queries - self.ahead)
        # Without a causal mask also the keys ahead; the query's own position counts once.
        return behind if self.causal else behind + self._pairs_behind(self.ahead) - self.queries

    def _pairs_behind(self, before: int) -> int:
        """Return the pairs of each query and the keys up to its own position; ``before``: keys before all queries."""
        # The first query sees ``before`` + 1 keys and each next query one more, until the window limits it.
        most = before + self.queries if self.window is None else min(self.window, before + self.queries)
        short = max(0, min(self.queries, most - before - 1))  # queries that see fewer than ``most``
        return short * (before + 1) + short * (short - 1) // 2 + (self.queries - short) * most


class ExactPairs:
    """Counts only the unmasked query/key pairs (``causal="exact"``), by the facts of a model and the workload.

    Cross-attention is unmasked. Block-sparse attention is counted as it is computed, block by block. A window that is
    computed by blocks has fewer masked pairs to leave out.
    """

    def __init__(self, config: ModelConfig, workload: Workload, ops: list[OpCount]) -> None:
        self._config, self._workload = config, workload
        self._first: dict[str, int] = {}  # stack → the number of its first layer call
        for op in ops:
            stack = op.path.partition(".")[0]
            if op.layer:
                self._first[stack] = min(op.layer, self._first.get(stack, op.layer))

    def backward_share(self, op: OpCount, role: str) -> Fraction:
        """Return the share of unmasked pairs in an attention product of the backward pass; 1 for any other product."""
        shape = self._shape(op, role or op.label, None)
        return Fraction(1) if shape is None else Fraction(shape.pairs, shape.queries * shape.keys)

    def restrict_forward(self, op: OpCount, product: Product) -> Product:
        """Return a product of the forward pass with its unmasked pairs."""
        role = product.role or op.label
        keys, width = (product.p, product.n) if role == "scores" else (product.n, product.p)
        shape = self._shape(op, role, keys)
        if shape is None:
            return product
        # With grouped heads, m counts the queries of all heads of a group: pairs of one head · heads.
        pairs = product.m * shape.pairs // shape.queries
        return Product(product.m, width, keys, product.times, pairs, product.role)

    def _shape(self, op: OpCount, role: str, keys: int | None) -> AttentionShape | None:
        """Return the shape of dense self-attention, else None.

        A decoding step may read no more keys than its window shows.
        """
        stack_name, *inner = op.path.split(".")
        if role not in ATTENTION or not op.layer or inner[-1:] != ["attention"]:
            return None
        stack = self._config.encoder if stack_name == "encoder" else self._config.decoder
        assert stack is not None
        window = _window(stack, op.layer - self._first[stack_name])
        if isinstance(window, BlockSparse):
            return None
        length = self._workload.source if stack_name == "encoder" else self._workload.context
        if self._workload.mode == "decode":
            return AttentionShape(1, keys or length, stack.causal, window)
        if op.kind == "kernel" and window is not None and (queries := op.work.products[0].m) < length:
            return _block_shape(queries, op.work.products[0].p, stack.causal, window)
        return AttentionShape(length, keys or length, stack.causal, window)


def _block_shape(queries: int, keys: int, causal: bool, window: int) -> AttentionShape:
    """Return the shape of a block of a window; without a causal mask, as many keys ahead of it as behind it.

    The blocks at the ends of the sequence have keys on one side: those of the first have the pairs of its mirror image.
    """
    ahead = (keys - queries) // 2 if not causal and keys - queries > window else 0
    return AttentionShape(queries, keys, causal, window, ahead)


def _window(stack: Stack, layer: int) -> int | BlockSparse | None:
    """Return the window of a layer by its number, of a kind whose pairs can be counted."""
    window = stack.window(layer)
    if not isinstance(window, int | BlockSparse | None):
        raise TypeError(f"causal='exact' does not support the attention window {window!r}; use causal='dense'.")
    return window
