"""Positions that act inside attention, told to a ``Walk``: the shadows of ``nn.rotary`` and ``nn.relative``."""

from dataclasses import dataclass, field

from glassformer.config import Attention, BlockSparse, BucketBias, Disentangled, Model, Rotary, Stack
from glassformer.inspect.account.parts import dropout, linear, norm
from glassformer.inspect.account.walk import Product, Size, Value, Walk


@dataclass(frozen=True)
class Shared:
    """What a stack works out once for all of its layers."""

    angles: Value | None = None  # cosines and sines of rotary positions
    rows: Value | None = None  # of a table, for every query and key
    bias: Value | None = None  # of every query and key
    hidden: dict[int | BlockSparse | None, Value] = field(default_factory=dict)  # the same with a mask, by its window
    vectors: Value | None = None  # of relative positions


def shared(walk: Walk, model: Model, facts: Stack, queries: int, keys: int) -> Shared:
    """Angles, biases of distances, or rows for them."""
    rotary, scheme = facts.attention.rotary, facts.attention.score_bias
    angles = None if rotary is None else walk.new(queries * rotary.dim, 8)
    if scheme is None:
        return Shared(angles)
    with walk.part("relative"):
        rows = walk.new(queries * keys, 8)
        if isinstance(scheme, BucketBias):
            heads = facts.attention.heads
            bias = walk.look_up("weight", scheme.buckets * heads, heads * queries * keys, rows)
            return Shared(angles, bias=bias)
        vectors = walk.weight("weight", 2 * scheme.span * model.width)
    if scheme.norm_table:
        vectors = norm(walk, model.norm, "relative_norm", vectors, model.width)
    return Shared(angles, rows, vectors=vectors)


def turn(walk: Walk, x: Value, angles: Value, rotary: Rotary, facts: Attention) -> Value:
    """Rotary positions: six operations on each pair that turns; the angles have no gradient, so ``x`` is not held."""
    turning = walk.part_of(x, rotary.dim, facts.head_dim)
    wide = walk.cast(turning, max(x.width, 4))
    if rotary.pairing == "halves":
        half = walk.part_of(wide, 1, 2)
        own = angles if wide.width == angles.width else walk.new(angles.numel, wide.width)
        a, b = (walk.point(walk.point(half, saves=(own,)), walk.point(half, saves=(own,))) for _ in range(2))
        turned = walk.join(a, b)
        del half, a, b
    else:
        turned = walk.point(wide, saves=(walk.new(angles.numel, wide.width),), work=3)
    turned = walk.cast(turned, x.width)
    if rotary.dim == facts.head_dim:
        return turned
    return walk.join(turned, walk.part_of(x, facts.head_dim - rotary.dim, facts.head_dim))


def disentangled(
    walk: Walk, facts: Attention, scheme: Disentangled, known: Shared, given: tuple[Value, Value], batch: int
) -> Value | None:
    """What content and relative positions say to each other, to be added to the scores."""
    vectors, rows = known.vectors, known.rows
    assert vectors is not None
    assert rows is not None
    table, inner = Size("rows of the table", 2 * scheme.span), Size("heads · head", facts.heads * facts.head_dim)
    into, heads = Size("width", vectors.numel // table.value), Size("batch · heads", batch * facts.heads)
    vectors = dropout(walk, vectors, scheme.dropout if scheme.terms else 0.0)
    total = None
    for term, x, letter in zip(("c2p", "p2c"), given, ("k", "q"), strict=True):
        if term not in scheme.terms:
            continue
        own = not scheme.shared_projections
        name, label = (f"position_{letter}", "") if own else (letter, "positions")
        bias = (letter == "q" or scheme.key_bias) if own else letter in facts.biases
        places = linear(walk, name, vectors, (table, into, inner), bias=bias, label=label)
        with walk.part(term):
            tokens, head = Size("tokens", x.numel // inner.value // batch), Size("head", facts.head_dim)
            if facts.heads > 1:
                places = walk.copy(places, batch, 1)  # one for every row of the batch
            found = walk.multiply(walk.point(x), places, Product("", tokens, head, table, heads))
            chosen = walk.point(found, saves=(found, rows), numel=rows.numel * heads.value, work=0)
            total = walk.point(chosen) if total is None else walk.point(total, chosen)
        del places, found, chosen
    return total
