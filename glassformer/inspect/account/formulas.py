"""Numbers of an account with the formula they come from, in names and filled in: ``hidden × width = 6,400 × 1,600``.

Operators know the shapes of their tensors. The facts of a model say what a size is called; one that they do not name
stands as the number it is.
"""

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from glassformer.config import Disentangled, Stack, TaskHead
from glassformer.inspect.account.account import Account
from glassformer.inspect.account.counts import OpCount
from glassformer.inspect.account.tree import Multiplication, Part

TABLES = {
    "token": "vocabulary", "position": "positions", "segment": "segments", "language": "languages",
    "relative": "distances",
}  # fmt: skip
LINEAR = ("rows", "inputs", "outputs")
PRODUCTS = {
    "q": ("batch·tokens", "width", "heads·head"),
    "k": ("batch·tokens", "width", "key/value heads·head"),
    "v": ("batch·tokens", "width", "key/value heads·head"),
    "o": ("batch·tokens", "heads·head", "width"),
    "position_q": ("rows of the table", "width", "heads·head"),
    "position_k": ("rows of the table", "width", "heads·head"),
    "up": ("batch·tokens", "width", "hidden"),
    "gate": ("batch·tokens", "width", "hidden"),
    "down": ("batch·tokens", "hidden", "width"),
    "scores": ("queries", "head", "keys"),
    "position_scores": ("queries", "head", "rows of the table"),
    "weighted_sum": ("queries", "keys", "head"),
}  # what the three sizes of a part's product are called
ROWS = ("batch·tokens", "batch·source", "queries of a group", "rows of the table", "batch")
WIDTHS = (
    "width", "hidden", "vocabulary", "width of the embedding", "heads·head", "key/value heads·head", "head", "labels",
)  # fmt: skip
FIRST = (
    "batch", "batch·tokens", "batch·heads", "batch·key/value heads", "heads", "key/value heads", "tokens",
    "rows of the table", "source",
)  # fmt: skip
MIDDLE = ("tokens", "queries of a group", "heads", "key/value heads", "source", "rows of the table", "head")
LAST = (*WIDTHS, "tokens", "source", "rows of the table", "rotary dimension")


TIMES = ("batch·heads", "batch·key/value heads")


class Formula(NamedTuple):
    """The same in names and in numbers."""

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


class Size(NamedTuple):
    """A number and what it counts."""

    label: str
    value: int


def product_of(sizes: Iterable[Size], sign: str = " · ") -> Formula:
    """Sizes multiplied with each other."""
    known = list(sizes) or [Size("1", 1)]
    return Formula(sign.join(size.label for size in known), sign.join(f"{size.value:,}" for size in known))


def _sum(terms: Sequence[Formula]) -> Formula:
    return Formula(" + ".join(one.names for one in terms), " + ".join(one.numbers for one in terms))


class Formulas:
    """The formulas of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._known = {name: self._sizes(name) for name in ("encoder", "decoder")}

    def of_product(self, one: Multiplication) -> Formula:
        """2 · m · n · p FLOPs, as often as the product is done."""
        m, n, p = self._product(one)
        pairs = one.product.pairs
        inside = (m, n, p) if pairs is None else (n, Size("pairs that see each other", pairs))
        times = () if one.product.times == 1 else (self._name(one.name, one.product.times, TIMES, "times"),)
        return product_of((Size("2", 2), *times, *inside)).times(one.runs, "runs")

    def of_weight(self, part: Part, name: str, shape: tuple[int, ...]) -> Formula:
        """The shape of a weight, with names where the product that it serves has them, or the facts."""
        table = TABLES.get(name.removesuffix(".weight").rpartition(".")[2])
        if table is not None and len(shape) == 2:
            width = self._name(name, shape[1], (*WIDTHS, "heads"), "width")
            return product_of((Size(table, shape[0]), width), " × ")
        for one in part.products:
            _, n, p = self._product(one)
            if (p.value, n.value)[: len(shape)] == shape:
                return product_of((p, n)[: len(shape)], " × ")
        return product_of((self._name(name, size, WIDTHS) for size in shape), " × ")

    def of_elementwise(self, op: OpCount) -> Formula:
        """So many steps for each number of the largest operand, and for each row of it."""
        total, products = op.work.elementwise, op.work.products
        if products:  # of the entries of a product
            one = Multiplication(f"{op.path}.{products[0].role or op.label}", products[0])
            m, _, p = self._product(one)
            heads = self._name(op.path, products[0].times, TIMES, "times")
            sizes = [size for size in (heads, m, p) if size.value != 1]
            return self._counted(total, sizes)
        sizes = self._shape(op.path, op.shape)
        whole = prod(op.shape)
        steps, rest = divmod(total, whole)
        rows = prod(op.shape[:-1])
        if not rest:
            return self._counted(total, sizes)
        if steps and not rest % rows:
            parts = [self._counted(steps * whole, sizes), self._counted(rest, self._shape(op.path, op.shape[:-1]))]
            return _sum(parts)
        return Formula(f"{total:,}", f"{total:,}")

    def of_saved(self, op: OpCount, shape: tuple[int, ...], size: int) -> Formula:
        """Bytes of each number · numbers."""
        numbers = prod(shape)
        if numbers == 0 or size % numbers:
            return Formula(f"{size:,}", f"{size:,}")
        width = size // numbers
        unit = Size(f"{width} {'byte' if width == 1 else 'bytes'}", width)
        return product_of((unit, *self._shape(op.path, shape)))

    def _counted(self, total: int, sizes: Sequence[Size]) -> Formula:
        steps, rest = divmod(total, prod(size.value for size in sizes))
        if rest:
            return Formula(f"{total:,}", f"{total:,}")
        return product_of((*(() if steps == 1 and sizes else (Size(f"{steps:,}", steps),)), *sizes))

    def _product(self, one: Multiplication) -> tuple[Size, Size, Size]:
        """The three sizes of a product by their names."""
        labels = PRODUCTS.get(one.name.rpartition(".")[2], LINEAR)
        product = one.product
        return (
            self._name(one.name, product.m, (labels[0], *ROWS), LINEAR[0]),
            self._name(one.name, product.n, (labels[1], *WIDTHS), LINEAR[1]),
            self._name(one.name, product.p, (labels[2], *WIDTHS), LINEAR[2]),
        )

    def _shape(self, path: str, shape: Sequence[int]) -> list[Size]:
        """The sizes of a shape by their names; axes of one number are left out."""
        last = len(shape) - 1
        axes = (
            (size, FIRST if not axis and last else LAST if axis == last else MIDDLE) for axis, size in enumerate(shape)
        )
        return [self._name(path, size, labels) for size, labels in axes if size != 1]

    def _name(self, path: str, value: int, labels: Iterable[str], otherwise: str = "") -> Size:
        """A size under the first of these labels that the facts give this value; else as itself."""
        is_encoder = self._is_encoder(path)
        known = self._known["encoder" if is_encoder else "decoder"]
        label = next((one for one in labels if known.get(one) == value), otherwise or f"{value:,}")
        return Size(label, value)

    def _is_encoder(self, path: str) -> bool:
        config = self._account.config
        if config is None or config.encoder is None:
            return False
        return config.decoder is None or path.startswith(("encoder", "embed"))

    def _sizes(self, stack_name: str) -> dict[str, int]:
        """What the sizes of a stack and around it are called."""
        account, config = self._account, self._account.config
        batch, source = account.batch, account.source
        tokens = source if stack_name == "encoder" else 1 if account.mode == "decode" else account.context
        found = {"batch": batch, "tokens": tokens, "queries": tokens, "batch·tokens": batch * tokens}
        stack: Stack | None = None if config is None else getattr(config, stack_name)
        if config is None or stack is None:
            return {}
        facts, narrow = stack.attention, stack.attention.kv_heads or stack.attention.heads
        found |= {"width": config.width, "hidden": stack.ffn.hidden, "vocabulary": config.vocab}
        found |= {
            "heads": facts.heads,
            "key/value heads": narrow,
            "head": facts.head_dim,
            "batch·heads": batch * facts.heads,
            "batch·key/value heads": batch * narrow,
            "queries of a group": facts.heads // narrow * tokens,
        }
        found |= {"heads·head": facts.heads * facts.head_dim, "key/value heads·head": narrow * facts.head_dim}
        found |= {"width of the embedding": config.embed.width or config.width, "source": source}
        found |= {"batch·source": batch * source, "keys": source if stack_name == "encoder" else account.context}
        if isinstance(facts.score_bias, Disentangled):
            found["rows of the table"] = 2 * facts.score_bias.span
        if facts.rotary is not None:
            found["rotary dimension"] = facts.rotary.dim // 2
        if isinstance(config.head, TaskHead):
            found["labels"] = len(config.head.labels)
        return found
