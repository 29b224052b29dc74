"""FLOPs by kind of work as functions of one size, exactly, from a few traces of a model with few layers.

Layers that are alike cost the same, so a trace of three periods of them gives all. In the length T of a text FLOPs are
a polynomial of degree 2 at most between the lengths at which a window, or a pattern of blocks, begins to leave
something out; with blocks also in their number ⌈T / block⌉. Coefficients are solved for in whole numbers and checked
against one more trace: if that disagrees, every size is traced by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations_with_replacement, count, islice, pairwise
from math import prod
from typing import Literal, NamedTuple

from glassformer.config import BlockSparse, Model, Stack
from glassformer.inspect.account.account import Account, account, kind_of
from glassformer.inspect.account.tree import Part

Axis = Literal["context", "batch", "source"]
Flops = dict[str, int]
FAR = 2**40  # tokens; what has not happened by then does not happen
NEAR = 2**17  # the same where every size must be traced
PERIODS = 3  # of the windows of layers, of which the middle one stands for all but the first and the last


def at(base: Account, axis: Axis, value: int, config: Model | None = None) -> Account:
    """The same account with another size. The source goes with the context where nobody said how long it is."""
    given = None if base.follows else base.source
    sizes: dict[str, int | None] = {"batch": base.batch, "context": base.context, "source": given} | {axis: value}
    assert base.config is not None
    made = account(
        config or base.config,
        **sizes,  # type: ignore[arg-type]
        dtype=base.dtype,  # type: ignore[arg-type]
        mode=base.mode,
        attention=base.attention,
        causal=base.causal,
        optimizer=base.optimizer,
    )
    return replace(made, name=base.name)


class Segment(NamedTuple):
    """Sizes from ``start`` on, before ``end``, in which FLOPs follow one formula; ``blocks``: the sizes of blocks."""

    start: int
    end: int
    blocks: tuple[int, ...] = ()

    def terms(self, size: int) -> list[int]:
        """The products of up to two of: 1, the size, the number of blocks."""
        variables = (1, size, *(-(-size // block) for block in self.blocks))
        return [prod(pair) for pair in combinations_with_replacement(variables, 2)]

    def samples(self) -> Iterator[int]:
        """Sizes at which it is traced: not all in the same place within a block."""
        step = max(self.blocks, default=2) // 2 + 1
        return (self.start + number * step for number in count())


class Growth:
    """FLOPs of the products of one forward pass, or decoding step, by kind of work, at any size."""

    def __init__(self, base: Account, axis: Axis) -> None:
        assert base.config is not None
        mode = "decode" if base.mode == "decode" else "forward"
        self._base, self._axis = replace(base, load=replace(base.load, mode=mode)), axis  # type: ignore[arg-type]
        self._size: int = getattr(base, axis)
        self._shares = base.shares()
        self._config, self._middle = _few_layers(base.config)
        if self._trace(self._size) != self._shares:
            self._config, self._middle = base.config, {}
        self._traced: dict[int, Flops] = {self._size: self._shares}
        self._formulas: dict[Segment, dict[str, list[Fraction]] | None] = {}

    @property
    def farthest(self) -> int:
        """The largest size that can be asked."""
        return NEAR if self._formula(self._segments[-1]) is None else FAR

    def at(self, size: int) -> Flops:
        """FLOPs by kind at this size."""
        segment = next((one for one in self._segments if one.start <= size < one.end), None)
        formula = None if segment is None else self._formula(segment)
        if segment is None or formula is None:
            return self._flops(size)
        return self._filled_in(formula, segment, size)

    @cached_property
    def _segments(self) -> list[Segment]:
        """Between the sizes from which on something is left out."""
        config = self._base.config
        assert config is not None
        stacks = [one for one in (config.encoder, config.decoder) if one is not None]
        windows = {window for stack in stacks for window in stack.attention.windows if window is not None}
        ends = sorted({2, FAR + 1} | {_last_full(window) + 1 for window in windows})
        sparse = [one for one in windows if isinstance(one, BlockSparse)]
        return [
            Segment(start, end, tuple(sorted({one.block for one in sparse if one.full_length < start})))
            for start, end in pairwise(ends)
        ]

    def _formula(self, segment: Segment) -> dict[str, list[Fraction]] | None:
        """The coefficients of each kind; None where there are too few sizes, or the formula does not hold."""
        if segment not in self._formulas:
            self._formulas[segment] = self._solve(segment)
        return self._formulas[segment]

    def _solve(self, segment: Segment) -> dict[str, list[Fraction]] | None:
        needed = len(segment.terms(0))
        *sizes, check = islice(segment.samples(), needed + 1)
        if segment.start <= self._size < segment.end and self._size not in sizes:
            check = self._size
        if max(*sizes, check) >= segment.end:
            return None
        rows = [segment.terms(size) for size in sizes]
        known = [self._flops(size) for size in sizes]
        found = {kind: solve(rows, [one.get(kind, 0) for one in known]) for kind in known[0]}
        holds = self._filled_in(found, segment, check) == self._flops(check)
        return found if holds else None

    @staticmethod
    def _filled_in(formula: dict[str, list[Fraction]], segment: Segment, size: int) -> Flops:
        terms = segment.terms(size)
        exact = {kind: sum(a * b for a, b in zip(row, terms, strict=True)) for kind, row in formula.items()}
        assert all(Fraction(value).denominator == 1 for value in exact.values()), "FLOPs are whole numbers"
        return {kind: int(value) for kind, value in exact.items()}

    def _flops(self, size: int) -> Flops:
        if size not in self._traced:
            self._traced[size] = self._trace(size)
        return self._traced[size]

    def _trace(self, size: int) -> Flops:
        found: Flops = {}
        for part in at(self._base, self._axis, size, self._config).root.walk():
            if part.products:
                kind = kind_of(part.path)
                found[kind] = found.get(kind, 0) + self._times(part) * sum(one.flops for one in part.products)
        return found

    def _times(self, part: Part) -> int:
        stack, *inside = part.path.split(".")
        middle, times = self._middle.get(stack, (range(0), 1))
        return times if inside[:1] == ["blocks"] and int(inside[1]) in middle else 1


def _last_full(window: int | BlockSparse) -> int:
    """The longest text of which a window shows everything."""
    if isinstance(window, BlockSparse):
        return window.full_length
    if isinstance(window, int):
        return window
    raise TypeError(f"no rule says from which length on a window of {type(window).__name__} leaves something out.")


def _few_layers(config: Model) -> tuple[Model, dict[str, tuple[range, int]]]:
    """The facts with few layers and, by stack, which of them stand for how many."""
    middle: dict[str, tuple[range, int]] = {}
    stacks: dict[str, Stack | None] = {"encoder": config.encoder, "decoder": config.decoder}
    for name, stack in stacks.items():
        period = 1 if stack is None else len(stack.attention.windows)
        if stack is not None and stack.layers > PERIODS * period and stack.layers % period == 0:
            middle[name] = (range(period, 2 * period), stack.layers // period - 2)
            stacks[name] = replace(stack, layers=PERIODS * period, unique_layers=None)
    return replace(config, encoder=stacks["encoder"], decoder=stacks["decoder"]), middle


def solve(rows: Sequence[Sequence[int]], values: Sequence[int]) -> list[Fraction]:
    """The coefficients with which each row gives its value, by elimination; those that the rows leave open are 0."""
    table = [[Fraction(one) for one in (*row, value)] for row, value in zip(rows, values, strict=True)]
    width, done = len(rows[0]), 0
    pivots: list[int] = []
    for column in range(width):
        chosen = next((row for row in range(done, len(table)) if table[row][column]), None)
        if chosen is None:
            continue
        table[done], table[chosen] = table[chosen], table[done]
        table[done] = [one / table[done][column] for one in table[done]]
        for row in range(len(table)):
            if row != done and table[row][column]:
                factor = table[row][column]
                table[row] = [a - factor * b for a, b in zip(table[row], table[done], strict=True)]
        pivots.append(column)
        done += 1
    found = [Fraction(0)] * width
    for row, column in enumerate(pivots):
        found[column] = table[row][-1]
    return found
