"""The same account at several sizes, and the size from which one kind of work costs as much as another.

A point where two kinds of work cost the same is found among whole numbers: the first size at which the one costs at
least as much as the other, in FLOPs counted at that size. Nothing is read off a curve.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Literal, NamedTuple

from glassformer.config import Head, Model, PretrainingHead, Stack
from glassformer.config.checks import check_choice
from glassformer.inspect.account.account import Account, account, flops_by_kind

Axis = Literal["context", "batch", "source"]
AXES = ("context", "batch", "source")
FORM = (
    "context=1024..65536 (doubled each time), context=1024,2048,4096 (these), or the same with batch or, for an "
    "encoder-decoder, source"
)
FAR = 2**40  # tokens; what has not happened by then does not happen
RIVALS = ("projections", "ffn")  # with which attention catches up as the context grows


@dataclass(frozen=True)
class Sweep:
    """Which size is varied, and its values in rising order."""

    axis: Axis
    values: tuple[int, ...]


def parse_sweep(said: str) -> Sweep:
    """``context=1024..65536``, which doubles from the first to the last, or ``context=1024,2048,4096``."""
    axis, equals, values = said.replace(" ", "").partition("=")
    if not equals:
        raise ValueError(f"a sweep names what it varies: {FORM}; got {said!r}.")
    if axis not in AXES:
        check_choice("what a sweep varies", axis, AXES)
    first, dots, last = values.partition("..")
    numbers = [_whole(one, said) for one in ((first, last) if dots else values.split(","))]
    if any(b <= a for a, b in pairwise(numbers)):
        raise ValueError(f"the values of a sweep rise: {FORM}; got {said!r}.")
    return Sweep(axis, tuple(_doubled(*numbers) if dots else numbers))  # type: ignore[arg-type]


def _whole(text: str, said: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"a sweep goes over whole numbers of at least 1: {FORM}; got {said!r}.")
    return int(text)


def _doubled(first: int, last: int) -> list[int]:
    """first, 2 · first, 4 · first … and the last in any case."""
    values = [first]
    while values[-1] * 2 < last:
        values.append(values[-1] * 2)
    return [*values, last]


def run_sweep(base: Account, sweep: Sweep) -> list[Account]:
    """The account at each size."""
    if sweep.axis == "source" and base.config.family != "encoder-decoder":
        raise ValueError(
            f"{base.name} is of the family {base.config.family} and reads no source of its own: vary the context."
        )
    return [at(base, sweep.axis, value) for value in sweep.values]


def at(base: Account, axis: Axis, value: int, config: Model | None = None) -> Account:
    """The same account with another size. The source goes with the context where nobody said how long it is."""
    given = None if base.follows else base.source
    sizes: dict[str, int | None] = {"batch": base.batch, "context": base.context, "source": given} | {axis: value}
    made = account(
        config or base.config,
        **sizes,  # type: ignore[arg-type]
        dtype=base.dtype,
        mode=base.mode,
        attention=base.attention,
        causal=base.causal,
        optimizer=base.optimizer,
    )
    return replace(made, name=base.name)


class Crossing(NamedTuple):
    """From which size on attention's products cost at least as much as those of another kind."""

    rival: str
    axis: Axis
    value: int | None  # None: they never do


def crossings(base: Account, axis: Axis = "context") -> list[Crossing]:
    """Where attention catches up with the projections and with the feed-forward network, all else unchanged."""
    kinds = kinds_at(base, axis)
    known = [rival for rival in RIVALS if rival in base.shares()]
    return [Crossing(rival, axis, _first(partial(_caught_up, kinds, rival))) for rival in known]


def _caught_up(kinds: Callable[[int], dict[str, int]], rival: str, size: int) -> bool:
    flops = kinds(size)
    return flops.get("attention", 0) >= flops[rival]


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest whole number from which on a statement holds; None if it does not hold far out."""
    if not holds(FAR):
        return None
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2  # it does not hold there
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def kinds_at(base: Account, axis: Axis) -> Callable[[int], dict[str, int]]:
    """FLOPs by kind at any size, quickly: layers that are alike are counted once and multiplied."""
    config, times = base.config, {}
    stacks = {"encoder": config.encoder, "decoder": config.decoder}
    for name, stack in stacks.items():
        fewer = None if stack is None else _fewer(config, stack)
        if stack is not None and fewer is not None:
            layers, times[name] = fewer
            stacks[name] = replace(stack, layers=layers, unique_layers=None)
    head = _without_mask_decoder(config) if "encoder" in times else config.head
    short = replace(config, encoder=stacks["encoder"], decoder=stacks["decoder"], head=head)
    once = replace(base, mode="decode" if base.mode == "decode" else "forward")
    return cache(lambda value: flops_by_kind(at(once, axis, value, short).root, times))


def _fewer(config: Model, stack: Stack) -> tuple[int, int] | None:
    """As few layers as show every window once, and how often they run; None if the layers are no multiple of them."""
    period, lm = len(stack.attention.windows), config.lm
    extra = lm.mask_decoder.steps - 1 if stack is config.encoder and lm is not None and lm.mask_decoder else 0
    if stack.layers % period or (extra and period > 1):
        return None
    return period, (stack.layers + extra) // period


def _without_mask_decoder(config: Model) -> Head | None:
    """The head, without its wish that the last layer run several times."""
    lm = config.lm
    if lm is None or lm.mask_decoder is None:
        return config.head
    plain = replace(lm, mask_decoder=None)
    return replace(config.head, lm=plain) if isinstance(config.head, PretrainingHead) else plain
