"""The same account at several sizes, FLOPs as a function of one size, and the sizes where two kinds of work cost alike.

``FlopsCurve`` gives exact FLOPs by kind of work at any size from a few traces of a model with few layers. Equal layers
cost the same, so a trace of three periods of them is enough. In the length T of a sequence FLOPs are a polynomial of
degree 2 at most between the lengths at which a window, or a block-sparse pattern, begins to hide something; with blocks
also in their number. The coefficients are solved for exactly and checked against one more trace: if that disagrees,
every size is traced. A crossing is the first whole size at which one kind costs at least as much as another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import combinations_with_replacement, count, islice, pairwise
from math import prod
from typing import Literal, NamedTuple, get_args

from glassformer.config import BlockSparse, ModelConfig, Stack
from glassformer.config.checks import check_choice
from glassformer.config.model import a_family
from glassformer.inspect.account.account import Account, account, kind_of
from glassformer.inspect.account.tree import PartCost

SweepAxis = Literal["context", "batch", "source"]
Flops = dict[str, int]
Coefficients = dict[str, list[Fraction]]
FAR = 2**40  # the largest size of a curve with a formula
NEAR = 2**17  # the same where every size must be traced
PERIODS = 3  # of the windows of layers; the middle one represents all but the first and the last
FORM = (
    "context=1024..65536 (doubled each time), context=1024,2048,4096 (these), or the same with batch or, for an "
    "encoder-decoder, source"
)
OVERTAKEN_KINDS = ("projections", "ffn")  # the kinds that attention overtakes as the context grows


@dataclass(frozen=True)
class Sweep:
    """The size that is varied, and its values in ascending order."""

    axis: SweepAxis
    values: tuple[int, ...]


def parse_sweep(text: str) -> Sweep:
    """Parse ``context=1024..65536``, which doubles from the first to the last, or ``context=1024,2048,4096``."""
    axis, equals, values = text.replace(" ", "").partition("=")
    if not equals:
        raise ValueError(f"a sweep names what it varies: {FORM}; got {text!r}.")
    if axis not in get_args(SweepAxis):
        check_choice("what a sweep varies", axis, get_args(SweepAxis))
    first, dots, last = values.partition("..")
    numbers = [_parse_size(number, text) for number in ((first, last) if dots else values.split(","))]
    if any(b <= a for a, b in pairwise(numbers)):
        raise ValueError(f"the values of a sweep rise: {FORM}; got {text!r}.")
    return Sweep(axis, tuple(_doubled(*numbers) if dots else numbers))  # type: ignore[arg-type]


def _parse_size(number: str, text: str) -> int:
    if not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise ValueError(f"a sweep goes over integers of at least 1: {FORM}; got {text!r}.")
    return int(number)


def _doubled(first: int, last: int) -> list[int]:
    """first, 2 · first, 4 · first … and always the last."""
    values = [first]
    while values[-1] * 2 < last:
        values.append(values[-1] * 2)
    return [*values, last]


def run_sweep(base: Account, sweep: Sweep) -> list[Account]:
    """Return the account at each size."""
    if base.config is None:
        raise ValueError(f"{base.name} is a custom module, whose sizes are those of its inputs; vary these instead.")
    if sweep.axis == "source" and not base.has_source:
        raise ValueError(f"{base.name} is {a_family(base.config.family)} and reads no source; vary the context.")
    return [account_at(base, sweep.axis, value) for value in sweep.values]


def account_at(base: Account, axis: SweepAxis, value: int, config: ModelConfig | None = None) -> Account:
    """Return the same account at another size. A source length that was not set follows the context."""
    source = None if base.source_follows else base.source
    sizes: dict[str, int | None] = {"batch": base.batch, "context": base.context, "source": source} | {axis: value}
    assert base.config is not None
    resized = account(
        config or base.config,
        **sizes,  # type: ignore[arg-type]
        dtype=base.dtype,  # type: ignore[arg-type]
        mode=base.mode,
        attention=base.attention,
        causal=base.causal,
        optimizer=base.optimizer,
    )
    return replace(resized, name=base.name)


# ---- crossings


class Crossing(NamedTuple):
    """The size from which attention costs at least as much as another kind of work."""

    rival: str
    axis: SweepAxis
    value: int | None  # None: never


def crossings(base: Account, axis: SweepAxis = "context") -> list[Crossing]:
    """Return where attention overtakes the projections and the feed-forward network, all else unchanged."""
    rivals = [rival for rival in OVERTAKEN_KINDS if rival in base.shares() and base.config is not None]
    if not rivals:
        return []
    curve = FlopsCurve(base, axis)
    return [Crossing(rival, axis, _first(partial(_overtakes, curve, rival), curve.largest)) for rival in rivals]


def _overtakes(curve: "FlopsCurve", rival: str, size: int) -> bool:
    flops = curve.at(size)
    return flops.get("attention", 0) >= flops[rival]


def _first(holds: Callable[[int], bool], largest: int) -> int | None:
    """Return the smallest size from which a condition holds, by bisection; None if it does not hold at the largest."""
    if not holds(largest):
        return None
    high = 1
    while not holds(high):
        high = min(2 * high, largest)
    low = high // 2  # it does not hold there
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# ---- FLOPs as a function of one size


class Grid(NamedTuple):
    """Blocks of a sequence: ⌊(size − offset) / block⌋ of them."""

    block: int
    offset: int


class Segment(NamedTuple):
    """Sizes start ≤ size < end in which FLOPs follow one formula; ``grids``: the blocks in it."""

    start: int
    end: int
    grids: tuple[Grid, ...] = ()

    def terms(self, size: int) -> list[int]:
        """Return the products of up to two of: 1, the size, the number of blocks."""
        variables = (1, size, *((size - grid.offset) // grid.block for grid in self.grids))
        return [prod(pair) for pair in combinations_with_replacement(variables, 2)]

    def samples(self) -> Iterator[int]:
        """Return the sizes to trace, with blocks at growing distances: at offsets within a block that do not repeat."""
        if not self.grids:
            return (self.start + 2 * number for number in count())
        step = max(grid.block for grid in self.grids) // 5 + 1
        return (self.start + step * (number * (number + 1) // 2) for number in count())


class FlopsCurve:
    """FLOPs of the products of one forward pass, or decoding step, by kind of work, at any size."""

    def __init__(self, base: Account, axis: SweepAxis) -> None:
        assert base.config is not None
        mode = "decode" if base.mode == "decode" else "forward"
        self._base = replace(base, workload=replace(base.workload, mode=mode))  # type: ignore[arg-type]
        self._axis, self._size = axis, int(getattr(base, axis))
        flops = base.shares()
        self._config, self._middle = _few_layers(base.config)
        if self._trace(self._size) != flops:  # layers differ in some other way: trace them all
            self._config, self._middle = base.config, {}
        self._traced: dict[int, Flops] = {self._size: flops}
        self._solved: dict[Segment, Coefficients | None] = {}

    @property
    def largest(self) -> int:
        """The largest size that can be computed."""
        return NEAR if self._coefficients(self._segments[-1]) is None else FAR

    def at(self, size: int) -> Flops:
        """Return the FLOPs by kind at this size."""
        segment = next((segment for segment in self._segments if segment.start <= size < segment.end), None)
        coefficients = None if segment is None else self._coefficients(segment)
        if segment is None or coefficients is None:
            return self._flops(size)
        exact = _evaluate(coefficients, segment, size)
        assert all(value.denominator == 1 for value in exact.values()), "FLOPs are integers"
        return {kind: int(value) for kind, value in exact.items()}

    @cached_property
    def _segments(self) -> list[Segment]:
        """The ranges between the sizes from which a window hides something, or is computed by blocks."""
        config = self._base.config
        assert config is not None
        stacks = [stack for stack in (config.encoder, config.decoder) if stack is not None]
        found = {(window, stack.causal) for stack in stacks for window in stack.attention.windows if window is not None}
        hiding = {window + 1 for window, _ in found if isinstance(window, int)}
        ends = sorted({2, FAR + 1} | hiding | {_last_full(*window) + 1 for window in found})
        return [
            Segment(start, end, tuple(sorted({_grid(*window) for window in found if _last_full(*window) < start})))
            for start, end in pairwise(ends)
        ]

    def _coefficients(self, segment: Segment) -> Coefficients | None:
        """Return the coefficients by kind; None if the segment has too few sizes, or the formula does not hold."""
        if segment not in self._solved:
            self._solved[segment] = self._solve(segment)
        return self._solved[segment]

    def _solve(self, segment: Segment) -> Coefficients | None:
        # As many traced sizes as there are terms, and one more, or the base size, as a check.
        needed = len(segment.terms(0))
        *sizes, check = islice(segment.samples(), needed + 1)
        if segment.start <= self._size < segment.end and self._size not in sizes:
            check = self._size
        if max(*sizes, check) >= segment.end:
            return None
        rows = [segment.terms(size) for size in sizes]
        traced = [self._flops(size) for size in sizes]
        coefficients = {kind: solve(rows, [flops.get(kind, 0) for flops in traced]) for kind in traced[0]}
        holds = _evaluate(coefficients, segment, check) == self._flops(check)
        return coefficients if holds else None

    def _flops(self, size: int) -> Flops:
        if size not in self._traced:
            self._traced[size] = self._trace(size)
        return self._traced[size]

    def _trace(self, size: int) -> Flops:
        """Return the FLOPs by kind of a traced model with few layers, scaled to all layers."""
        flops: Flops = {}
        for part in account_at(self._base, self._axis, size, self._config).root.walk():
            if part.products:
                kind = kind_of(part.path)
                total = self._represented(part) * sum(product.flops for product in part.products)
                flops[kind] = flops.get(kind, 0) + total
        return flops

    def _represented(self, part: PartCost) -> int:
        """Return how many layers of the whole model a layer of the short one represents."""
        stack, *inner = part.path.split(".")
        middle, layers = self._middle.get(stack, (range(0), 1))
        return layers if inner[:1] == ["blocks"] and int(inner[1]) in middle else 1


def _evaluate(coefficients: Coefficients, segment: Segment, size: int) -> dict[str, Fraction]:
    """Σ coefficient · term, by kind."""
    terms = segment.terms(size)
    products = {kind: (a * b for a, b in zip(row, terms, strict=True)) for kind, row in coefficients.items()}
    return {kind: sum(values, Fraction(0)) for kind, values in products.items()}


def _last_full(window: int | BlockSparse, causal: bool) -> int:
    """Return the longest sequence that is not computed by blocks."""
    if isinstance(window, BlockSparse):
        return window.full_length
    if isinstance(window, int):
        return window if causal else 2 * window
    raise TypeError(f"no rule says from which length on a window of {type(window).__name__} hides something.")


def _grid(window: int | BlockSparse, causal: bool) -> Grid:
    """Return the blocks of longer sequences."""
    if isinstance(window, BlockSparse):
        return Grid(window.block, 1 - window.block)  # the last one may be partial
    from glassformer.nn.kernels.windows import window_block

    return Grid(window_block(window), _last_full(window, causal))


def _few_layers(config: ModelConfig) -> tuple[ModelConfig, dict[str, tuple[range, int]]]:
    """Return the facts with few layers and, by stack, which of these represent how many."""
    middle: dict[str, tuple[range, int]] = {}
    stacks: dict[str, Stack | None] = {"encoder": config.encoder, "decoder": config.decoder}
    for name, stack in stacks.items():
        period = 1 if stack is None else len(stack.attention.windows)
        if stack is not None and stack.layers > PERIODS * period and stack.layers % period == 0:
            middle[name] = (range(period, 2 * period), stack.layers // period - 2)
            stacks[name] = replace(stack, layers=PERIODS * period, unique_layers=None)
    return replace(config, encoder=stacks["encoder"], decoder=stacks["decoder"]), middle


def solve(rows: Sequence[Sequence[int]], values: Sequence[int]) -> list[Fraction]:
    """Solve rows · x = values exactly by Gauss-Jordan elimination; unknowns that the rows leave open are 0."""
    table = [[Fraction(entry) for entry in (*row, value)] for row, value in zip(rows, values, strict=True)]
    width, done = len(rows[0]), 0
    pivots: list[int] = []
    for column in range(width):
        pivot = next((row for row in range(done, len(table)) if table[row][column]), None)
        if pivot is None:
            continue
        # Normalise the pivot row and eliminate the column from all others.
        table[done], table[pivot] = table[pivot], table[done]
        table[done] = [entry / table[done][column] for entry in table[done]]
        for row in range(len(table)):
            if row != done and table[row][column]:
                factor = table[row][column]
                table[row] = [a - factor * b for a, b in zip(table[row], table[done], strict=True)]
        pivots.append(column)
        done += 1
    solution = [Fraction(0)] * width
    for row, column in enumerate(pivots):
        solution[column] = table[row][-1]
    return solution
