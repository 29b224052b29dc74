"""Numbers of an account with the formula they come from, in names and filled in: ``hidden × width = 6,400 × 1,600``.

Weights and matrix products know their sizes. Element-wise work and bytes that are held are taken from the pass, one
operation at a time; each is written as a product of sizes of its part wherever it is one, and else as the number that
was counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from glassformer.inspect.account.account import Account, Part
from glassformer.inspect.account.walk import ONE, Leaf, Product, Size, Walk

MOST = 12  # steps for each number of one operation; more would be an accident of the sizes
SUBLAYERS = ("attention", "cross", "ffn")
TABLES = {
    "token": "vocabulary", "position": "positions", "segment": "segments", "language": "languages",
    "relative": "distances",
}  # fmt: skip


class Formula(NamedTuple):
    """The same in names (empty, if there are none for it) and in numbers."""

    names: str
    numbers: str

    def times(self, count: int, what: str) -> "Formula":
        """So many of it."""
        if count == 1:
            return self
        sign = " × " if " × " in self.numbers else " · "
        names, numbers = (f"({one})" if " + " in re.sub(r"\([^()]*\)", "", one) else one for one in self)
        return Formula(f"{what}{sign}{names}" if names else "", f"{count:,}{sign}{numbers}")


def evaluate(numbers: str) -> int:
    """What a formula that is filled in comes to: whole numbers, ``·``, ``×``, ``+`` and brackets."""
    total = 0
    for term in re.split(r" \+ (?![^(]*\))", numbers):
        factors = re.split(r" [·×] (?![^(]*\))", term)
        total += prod(evaluate(one[1:-1]) if one.startswith("(") else int(one.replace(",", "")) for one in factors)
    return total


def product_of(sizes: Iterable[Size], sign: str = " · ") -> Formula:
    """Sizes multiplied with each other."""
    names, numbers = zip(*((size.label.replace(" · ", "·"), f"{size.value:,}") for size in sizes), strict=True)
    return Formula(sign.join(names), sign.join(numbers))


def of_product(product: Product) -> Formula:
    """2 · m · n · p FLOPs, as often as the product is done."""
    inside = (product.m, product.n, product.p) if product.pairs is None else (product.n, product.pairs)
    times = () if product.times == ONE else (product.times,)
    return product_of((Size("2", 2), *times, *inside)).times(product.runs, "runs")


def of_weight(account: Account, part: Part, name: str, shape: tuple[int, ...]) -> Formula:
    """The shape of a weight, with names where the product that it serves has them, or the facts."""
    config = account.config
    widths = {config.vocab: "vocabulary", config.embed.width: "width of the embedding", config.width: "width"}
    table = TABLES.get(name.removesuffix(".weight").rpartition(".")[2])
    linear = next((one for one in part.products if (one.p.value, one.n.value)[: len(shape)] == shape), None)
    if table is not None and len(shape) == 2:
        return product_of((Size(table, shape[0]), Size(widths.get(shape[1], "heads"), shape[1])), " × ")
    if linear is not None:
        return product_of((linear.p, linear.n)[: len(shape)], " × ")
    if len(shape) == 1 and shape[0] in widths:
        return product_of((Size(widths[shape[0]], shape[0]),))
    return Formula("", " × ".join(f"{size:,}" for size in shape))


class RecordedLeaf(Leaf):
    """Books that keep every entry of element-wise work and of bytes held, not their sum alone."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("elementwise", "saved"):
            entries: list[int] = self.__dict__.setdefault(f"{name}_entries", [])
            entries.append(value - self.__dict__.get(name, 0))
        super().__setattr__(name, value)


class RecordedWalk(Walk):
    """A walk whose leaves keep their entries."""

    @property
    def leaf(self) -> Leaf:
        """The books of the part that is being run."""
        return self.leaves.setdefault(".".join(self._path), RecordedLeaf())


class Terms:
    """Element-wise work and bytes held, operation by operation, as formulas."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.walk = RecordedWalk(
            account.bytes_per_number, differentiable=account.mode == "train", fused=account.attention == "fused"
        )
        account.walk(self.walk)

    def of(self, part: Part, what: str) -> Formula | None:
        """``elementwise`` or ``saved`` of a part of its own, besides the parts inside it; None if there is none."""
        leaf = self.walk.leaves.get(part.path)
        entries = [] if leaf is None else [entry for entry in getattr(leaf, f"{what}_entries") if entry]
        if not entries:
            return None
        runs, choices = self._runs(part), self._choices(part, what)
        found: Counter[tuple[Size, ...] | int] = Counter()
        for entry in entries:
            basis = self._bytes(part, entry, choices) if what == "saved" else _largest(entry, choices)
            found[basis or entry] += entry // prod(size.value for size in basis) if basis else 1
        if all(count % runs == 0 for count in found.values()):
            return _sum({key: count // runs for key, count in found.items()}, what).times(runs, "runs")
        return _sum(found, what)

    def _runs(self, part: Part) -> int:
        """How often the block in which a part lies runs."""
        stack, _, rest = part.path.partition(".blocks.")
        inside = self.account.find(f"{stack}.blocks.{rest.split('.')[0]}").walk() if rest else ()
        return next((one.products[0].runs for one in inside if one.products), 1)

    def _bytes(self, part: Part, entry: int, choices: Sequence[tuple[Size, ...]]) -> tuple[Size, ...] | None:
        """The sizes whose product, times the bytes of a number, is an entry."""
        usual = (self.account.bytes_per_number, 4, 8, 1, 2)
        for width in (1, *usual) if part.name in SUBLAYERS else usual:  # which hold masks of dropout, a byte a number
            for sizes in choices:
                if entry == width * prod(size.value for size in sizes):
                    return sizes
        return None

    def _choices(self, part: Part, what: str) -> list[tuple[Size, ...]]:
        """What the numbers of a part may be counted by: those of its own product first."""
        is_encoder = self.account.config.decoder is None or part.path.startswith(("encoder", "embed"))
        is_encoder = is_encoder and self.account.config.encoder is not None
        read = self.account.batch * self.account.source if is_encoder else self.account.tokens
        rows, one = Size("batch · tokens", read), Size("batch", self.account.batch)
        own = [(one.n if what == "saved" else one.p, one.m) for one in part.products if one.times == ONE]
        where = part.path.split(".")[3] if ".blocks." in part.path else part.path.split(".")[0]
        if where in ("attention", "cross"):
            return [*own, *self._attention(part, rows, is_encoder=is_encoder)]
        if part.name == "relative":
            return [(Size("queries", read // one.value), Size("keys", read // one.value))]
        return [*own, *((size, rows) for size in self._widths(where, is_encoder=is_encoder)), (rows,), (one,)]

    def _widths(self, where: str, *, is_encoder: bool) -> list[Size]:
        """Lengths of the vectors outside attention."""
        config = self.account.config
        stack = config.encoder if is_encoder else config.decoder
        assert stack is not None
        width, vocabulary = Size("width", config.width), Size("vocabulary", config.vocab)
        narrow = Size("width of the embedding", config.embed.width or 0)
        of = {"ffn": [width, Size("hidden", stack.ffn.hidden)], "loss": [vocabulary]}
        return (of | {"head": [width, vocabulary, narrow], "embed": [width, narrow]}).get(where, [width])

    def _attention(self, part: Part, rows: Size, *, is_encoder: bool) -> list[tuple[Size, ...]]:
        """Vectors of all heads together; queries and keys."""
        account, config = self.account, self.account.config
        stack = config.encoder if is_encoder else config.decoder
        assert stack is not None
        facts = stack.attention
        inner = Size("heads · head", facts.heads * facts.head_dim)
        narrow = Size("key/value heads · head", (facts.kv_heads or facts.heads) * facts.head_dim)
        turned = Size("rotary dimension", facts.rotary.dim if facts.rotary is not None else 0)
        source = Size("batch · source", account.batch * account.source)
        width = Size("width", config.width)
        found: list[tuple[Size, ...]] = [(inner, rows), (narrow, rows), (width, rows), (narrow, source)]
        if part.name == "rotary":
            return [*found, (turned, Size("tokens", rows.value // account.batch))]
        scores = account.find(".".join([*part.path.split(".")[:4], "scores"])).products
        if len(scores) == 1:
            heads, queries, keys = scores[0].times, scores[0].m, scores[0].p
            found += [(heads, queries, keys), (queries, keys), (heads, queries)]
        return found


def _largest(entry: int, choices: Sequence[tuple[Size, ...]]) -> tuple[Size, ...] | None:
    """The sizes of which an entry is a small multiple: the largest product, and the first of equal ones."""
    fitting = []
    for sizes in choices:
        numbers = prod(size.value for size in sizes)
        if numbers and entry % numbers == 0 and entry // numbers <= MOST:
            fitting.append((numbers, sizes))
    return max(fitting, key=lambda one: one[0])[1] if fitting else None


def _sum(found: "dict[tuple[Size, ...] | int, int]", what: str) -> Formula:
    """Terms added up; one that is no product of sizes stands as the number it is, and then none has names."""
    terms = []
    for key, count in found.items():
        if isinstance(key, int):
            terms.append(Formula("", f"{key:,}").times(count, ""))
            continue
        unit = ("byte" if count == 1 else "bytes") if what == "saved" else ""
        first = () if count == 1 and not unit else (Size(f"{count} {unit}".strip(), count),)
        terms.append(product_of((*first, *key)))
    names = " + ".join(term.names for term in terms) if all(term.names for term in terms) else ""
    return Formula(names, " + ".join(term.numbers for term in terms))
