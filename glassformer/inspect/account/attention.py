"""What attention does in one pass, told to a ``Walk``: the formula, or a fused kernel.

The shadow of ``nn.attention``, without padding.
"""

from dataclasses import dataclass

from glassformer.config import Attention, BlockSparse
from glassformer.inspect.account.parts import dropout
from glassformer.inspect.account.walk import Product, Size, Value, Walk


@dataclass(frozen=True)
class Looking:
    """Who looks at whom in one attention, and how it is computed."""

    batch: int
    queries: int
    keys: int
    causal: bool = False
    window: int | BlockSparse | None = None
    fused: bool = True  # by a kernel that writes no scores down, where there is one
    exact: bool = False  # count only the pairs that see each other
    dropout: float = 0.0
    hidden: bool = False  # the mask is in the bias already

    @property
    def has_band(self) -> bool:
        """Whether a window is written out as a mask; one as long as the keys says nothing beside "causal"."""
        return isinstance(self.window, int) and (self.window < self.keys or not self.causal)

    @property
    def hides(self) -> bool:
        """Whether a mask is written out where no kernel knows the word "causal"."""
        return self.has_band or (self.causal and self.queries > 1)

    @property
    def pairs(self) -> int:
        """How many pairs of a query and a key see each other."""
        reach = min(self.window, self.keys) if isinstance(self.window, int) else self.keys
        if self.queries == 1:
            return reach
        if not (self.causal or isinstance(self.window, int)):
            return self.queries * self.keys
        before = reach * (reach + 1) // 2 + (self.queries - reach) * reach  # itself and what came before
        return before if self.causal else 2 * before - self.queries


def attend(
    walk: Walk, facts: Attention, looking: Looking, given: tuple[Value, Value, Value], bias: Value | None = None
) -> Value:
    """One average per query and head. Where a bias is learned no kernel is used: on a CPU there is none for it."""
    if looking.fused and (bias is None or not walk.differentiable):
        return _fused(walk, facts, looking, given, bias)
    return formula(walk, facts, looking, given, bias)


def _products(facts: Attention, looking: Looking, name: str = "") -> tuple[Product, Product]:
    """q · kᵀ of every query and key, and the weighted sum of the values."""
    heads = Size("batch · heads", looking.batch * facts.heads)
    queries, keys, width = Size("queries", looking.queries), Size("keys", looking.keys), Size("head", facts.head_dim)
    if not looking.exact:
        return Product(name, queries, width, keys, heads), Product(name, queries, keys, width, heads)
    pairs = Size("pairs that see each other", looking.pairs)  # each costs one product of two vectors, there and back
    return (Product(name, queries, width, keys, heads, pairs),) * 2


def _fused(
    walk: Walk, facts: Attention, looking: Looking, given: tuple[Value, Value, Value], bias: Value | None
) -> Value:
    """One kernel: it holds a number per query and head, and multiplies queries and keys again on the way back."""
    scores, mix = _products(facts, looking)
    with walk.part("scores"):
        walk.count(scores, recomputed=True)
    with walk.part("weighted_sum"):
        walk.count(mix)
    with walk.part("kernel"):
        added = () if bias is None else (masked(walk, looking, bias),)
        if bias is None and looking.has_band:
            added = (walk.new(looking.queries * looking.keys),)  # numbers to add to the scores
        rows = looking.batch * facts.heads * looking.queries
        saves, rest, numel = (*given, *added), rows * max(walk.width, 4), given[0].numel
        return walk.kernel(*saves, numel=numel, saves=saves, rest=rest, work=5 * rows * looking.keys)


def formula(
    walk: Walk,
    facts: Attention,
    looking: Looking,
    given: tuple[Value, Value, Value],
    bias: Value | None = None,
    name: str = "",
) -> Value:
    """Scores, softmax, weighted sum, each written down; as PyTorch writes them where it has no kernel for the case."""
    (q, k, v), (first, second) = given, _products(facts, looking, name)
    with walk.part("scores"):
        width, wide = v.width, max(q.width, 4)
        q, k = walk.cast(q, wide), walk.cast(k, wide)
        if looking.fused:  # keys that groups of heads share are copied for each; the scale is on both sides
            v, bias = walk.cast(v, wide), None if bias is None else masked(walk, looking, bias)
            k, v = (walk.copy(x, facts.heads, facts.kv_heads) if facts.kv_heads else x for x in (k, v))
            q, k = walk.point(q), walk.point(k)
        q, k = (_in_order(walk, facts, looking, x) for x in (q, k))
        scores = walk.multiply(q, k, first)
        del q, k
        if not looking.fused:
            scores = walk.point(scores)  # the scale
        if bias is not None:
            scores = walk.point(scores, bias)
        if not looking.fused:
            scores = masked(walk, looking, scores)
    weights = softmax(walk, scores, looking, rows=looking.batch * facts.heads * looking.queries)
    del scores
    with walk.part("weighted_sum"):
        v = _in_order(walk, facts, looking, v)
        y = walk.cast(walk.multiply(walk.cast(weights, v.width), v, second), width)
        return walk.copy(y, 1, 1)  # the heads of a token beside each other


def masked(walk: Walk, looking: Looking, scores: Value) -> Value:
    """Scores, or what is added to them, with −∞ where nobody may look."""
    if looking.hidden or not looking.hides:
        return scores
    return walk.point(scores, saves=(walk.new(looking.queries * looking.keys, 1),))


def _in_order(walk: Walk, facts: Attention, looking: Looking, x: Value) -> Value:
    """The tokens of a head one after the other in memory, as a product wants them: a copy, unless they are already."""
    return x if min(looking.batch, facts.kv_heads or facts.heads) == 1 else walk.copy(x, 1, 1)


def softmax(walk: Walk, scores: Value, looking: Looking, rows: int) -> Value:
    """Softmax of so many rows, and dropout on its result."""
    with walk.part("softmax"):
        if looking.fused:
            weights = walk.point(scores, work=5)
            walk.keep(weights)
        else:
            largest = walk.point(scores, numel=rows)
            powers = walk.point(scores, largest)
            powers = walk.point(powers)
            walk.keep(powers)
            total = walk.point(powers, numel=rows)
            total = walk.point(total, saves=(walk.new(rows, 1),))  # 1 where nothing is seen
            weights = walk.point(powers, total, saves=(powers, total), spare=3)
        return dropout(walk, weights, looking.dropout)
