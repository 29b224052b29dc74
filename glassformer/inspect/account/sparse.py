"""What block-sparse attention does in one pass, told to a ``Walk``. The shadow of ``nn.sparse``, without padding."""

from dataclasses import dataclass, replace

from glassformer.config import Attention, BlockSparse
from glassformer.inspect.account.attention import Looking, formula, softmax
from glassformer.inspect.account.walk import Product, Size, Value, Walk

INDEX = 8  # bytes of a number that says which


def attend_blocks(
    walk: Walk, facts: Attention, looking: Looking, pattern: BlockSparse, q: Value, k: Value, v: Value
) -> Value:
    """The first and the last block look at everything, those between at the ends, their neighbours and some others."""
    looking = replace(looking, window=None, fused=False, exact=False)
    with walk.part("scores"):
        real = walk.new(looking.batch * looking.keys, max(q.width, 4))  # added to the scores: −∞ where no token is
        q, k = walk.point(walk.cast(q, max(q.width, 4))), walk.cast(k, max(k.width, 4))
        if pattern.semantics == "set":  # rows of the batch are picked by their length
            picked = walk.new(looking.batch, 1)
            q, k, v = (walk.copy(x, 1, 1, saves=(picked,)) for x in (q, k, v))
    if looking.keys <= pattern.full_length:
        return formula(walk, facts, looking, (q, k, v), real)
    between = _Blocks(walk, facts, looking, pattern, walk.new(looking.batch, INDEX))
    if between.missing:
        with walk.part("scores"):
            q, k, v = (walk.copy(x, looking.keys + between.missing, looking.keys) for x in (q, k, v))
    return between.join(between.from_ends(q, k, v, real), between.from_middle(q, k, v))


@dataclass(frozen=True)
class _Blocks:
    """Attention between blocks: how many there are, and where each row's last one is."""

    walk: Walk
    facts: Attention
    looking: Looking
    pattern: BlockSparse
    last: Value

    @property
    def count(self) -> int:
        return -(-self.looking.keys // self.pattern.block)

    @property
    def missing(self) -> int:
        """Slots by which the last block is too short."""
        return -self.looking.keys % self.pattern.block

    def ends(self, x: Value) -> Value:
        """The first block of each row and its last one."""
        return self.walk.copy(x, 2, self.count, saves=(self.walk.new(self.looking.batch, INDEX), self.last))

    def near(self, x: Value, chosen: int) -> Value:
        """For each block between: as many blocks as it sees besides the ends."""
        which = self.walk.new(self.looking.batch * self.facts.heads * (self.count - 2) * chosen, INDEX)
        return self.walk.copy(x, (self.count - 2) * chosen, self.count, saves=(which,))

    def from_ends(self, q: Value, k: Value, v: Value, real: Value) -> Value:
        """Two blocks of queries against all keys."""
        block = self.pattern.block
        looking = replace(self.looking, queries=2 * block, keys=self.count * block)
        with self.walk.part("scores"):
            q = self.ends(q)
        return formula(self.walk, self.facts, looking, (q, k, v), real, "from the ends")

    def from_middle(self, q: Value, k: Value, v: Value) -> Value:
        """All blocks but two, each against the keys of a few blocks, which are copied for it."""
        walk, block, middle = self.walk, self.pattern.block, self.count - 2
        chosen = 3 + (self.pattern.random if self.pattern.semantics == "set" else 0)
        heads = Size("batch · heads", self.looking.batch * self.facts.heads)
        each = Size("batch · heads · middle blocks", heads.value * middle)
        queries, own, head = Size("queries", middle * block), Size("block", block), Size("head", self.facts.head_dim)
        ends, near = Size("keys at the ends", 2 * block), Size("keys near", chosen * block)
        with walk.part("weighted_sum"):
            v_ends, v_near = self.ends(v), self.near(v, chosen)
        with walk.part("scores"):
            k_ends, k_near = self.ends(k), self.near(k, chosen)
            q_ends = self.between(q)
            q_near = q_ends if heads.value == 1 else walk.copy(q, middle, self.count)
            to_ends = walk.multiply(q_ends, k_ends, Product("to the ends", queries, head, ends, heads))
            to_near = walk.multiply(q_near, k_near, Product("to the neighbours", own, head, near, each))
            del q_ends, q_near
            scores = walk.point(walk.join(to_ends, to_near))
            del to_ends, to_near
        weights = walk.cast(softmax(walk, scores, self.looking, rows=heads.value * queries.value), v.width)
        with walk.part("weighted_sum"):
            return walk.point(
                walk.multiply(weights, v_ends, Product("of the ends", queries, ends, head, heads)),
                walk.multiply(weights, v_near, Product("of the neighbours", own, near, head, each)),
            )

    def between(self, q: Value) -> Value:
        """The queries of all blocks but two: where they lie, if each head's follow the one's before in memory."""
        cut = self.walk.part_of if self.missing or min(self.looking.batch, self.facts.heads) == 1 else self.walk.copy
        return cut(q, self.count - 2, self.count)

    def join(self, ends: Value, between: Value) -> Value:
        """All queries in their order; rows that end before others have their last block put in its place."""
        with self.walk.part("weighted_sum"):
            out = self.walk.join(ends, between)
            out = self.walk.point(out, saves=(self.last, self.walk.new(self.looking.batch, INDEX)), work=0)
            return self.walk.copy(out, self.looking.keys, self.looking.keys + self.missing)
