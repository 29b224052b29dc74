"""What ``glassformer account`` prints for people."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from glassformer.cli.outputs import grid, heading, percent, print_wide, say
from glassformer.inspect.account.account import Account
from glassformer.inspect.account.explain import explain
from glassformer.inspect.account.growth import Axis
from glassformer.inspect.account.hardware import HARDWARE, Hardware
from glassformer.inspect.account.report import KINDS, five_kinds, shares_of, table_rows
from glassformer.inspect.account.sweep import Crossing
from glassformer.inspect.account.timing import OPTIMIZER, Timing
from glassformer.inspect.account.units import duration, human, scale_for

RIVALS = {"projections": "the projections'", "ffn": "the feed-forward network's"}


class Books(NamedTuple):
    """An account, where attention catches up in it, and how long it takes where a device is named."""

    account: Account
    crossings: list[Crossing]
    timing: Timing | None
    seconds: float | None = None  # of a real run on this machine


def show_model(books: Books, depth: int | None, *, full: bool) -> None:
    """One model: its parts, shares, memory, time."""
    account, timing = books.account, books.timing
    say(f"{account.name}: {load(account)}", style="bold")
    print_wide(_parts(account, depth, full=full))
    heading("FLOPs by kind of work, forward")
    print_wide(_shares(account))
    heading("Memory")
    print_wide(_memory(account))
    if timing is not None:
        heading(f"Time on {timing.hardware.name}, operation after operation")
        print_wide(_times(timing, account, depth, full=full))
    say("")
    tool = None if timing is None else timing.hardware
    ran = run_lines(account, books.seconds, tool)
    for line in [*crossing_lines(books.crossings), *_counted(account), *timing_lines(timing), *ran]:
        say(line)


def show_models(several: Sequence[Books]) -> None:
    """Several models side by side, a column each."""
    accounts = [one.account for one in several]
    table = grid("", *(one.account.name for one in several))
    flops = scale_for(max(one.flops for one in accounts), "FLOP")
    table.add_row("parameters", *(f"{one.parameters:,}" for one in accounts))
    table.add_row("context", *(f"{one.context:,}" for one in accounts))
    table.add_row(f"FLOPs, {flops.unit}", *(flops(one.flops) for one in accounts))
    fives = [five_kinds(one.shares()) for one in accounts]
    for kind in (*KINDS, "other"):
        if any(kind in five for five in fives):
            parts = [five.get(kind, 0) / one.forward_flops for five, one in zip(fives, accounts, strict=True)]
            table.add_row(f"  {kind}", *map(percent, parts))
    table.add_row("of the layers alone")
    shares = [{share.kind: share.of_layers for share in shares_of(one)} for one in accounts]
    for kind in KINDS[:3]:
        table.add_row(f"  {kind}", *(percent(share.get(kind) or 0) for share in shares))
    for rival in RIVALS:
        found = [{crossing.rival: crossing.value for crossing in one.crossings}.get(rival) for one in several]
        table.add_row(f"attention ≥ {rival} from", *("never" if one is None else f"{one:,}" for one in found))
    for what, cells in _memory_cells(accounts):
        table.add_row(what, *cells)
    if any(one.timing is not None for one in several):
        for what, cells in _time_cells([one.timing for one in several if one.timing is not None]):
            table.add_row(what, *cells)
    if any(one.seconds is not None for one in several):
        table.add_row("time, run here", *(duration(one.seconds or 0.0) for one in several))
    same = {load(one, context=False) for one in accounts}
    say(f"{' / '.join(sorted(same))}", style="bold")
    print_wide(table)
    say("")
    for line in _counted(accounts[0]):
        say(line)


def show_sweep(several: Sequence[Books], axis: Axis, crossings: Sequence[Crossing]) -> None:
    """One model at several sizes, a row each."""
    accounts = [one.account for one in several]
    flops = scale_for(max(one.flops for one in accounts), "FLOP")
    memory = list(_memory_cells(accounts))
    times = [one.timing for one in several if one.timing is not None]
    timed = list(_time_cells(times)) if times else []
    fives = [five_kinds(one.shares()) for one in accounts]
    kinds = [kind for kind in (*KINDS, "other") if any(kind in five for five in fives)]
    table = grid(axis, flops.unit, *kinds, *(what for what, _ in [*memory, *timed]), first="right")
    for row, (account, five) in enumerate(zip(accounts, fives, strict=True)):
        shares = [percent(five.get(kind, 0) / account.forward_flops) for kind in kinds]
        more = [cells[row] for _, cells in [*memory, *timed]]
        table.add_row(f"{getattr(account, axis):,}", flops(account.flops), *shares, *more)
    varied = load(accounts[0], context=axis != "context", batch=axis != "batch", source=axis != "source")
    say(f"{accounts[0].name}: {varied}, by {axis}", style="bold")
    print_wide(table)
    say("")
    for line in [*crossing_lines(crossings), *_counted(accounts[0])]:
        say(line)


def load(account: Account, *, context: bool = True, batch: bool = True, source: bool = True) -> str:
    """What is run, in words; what varies is left out."""
    words = {"forward": "one forward pass", "train": "one training step", "decode": "one new token"}[account.mode]
    if batch:
        words += f", batch {account.batch:,}"
    if context:
        words += f", context {account.context:,}"
    if account.has_source and source:
        words += f", source {account.source:,}" if context else ""
    return f"{words}, {account.dtype}, {account.attention} attention"


def _parts(account: Account, depth: int | None, *, full: bool) -> Table:
    trained = account.mode == "train"
    flops = scale_for(account.flops, "FLOP")
    work = scale_for(account.root.elementwise, "op")
    moved = scale_for(account.root.bytes_moved, "B")
    held = scale_for(account.memory.activations, "B")
    last = (f"held\n{held.unit}",) if trained else ()
    head = ("parameters", f"FLOPs\n{flops.unit}", "share", f"element-wise\n{work.unit}", f"moved\n{moved.unit}")
    table = grid("part", *head, *last)
    for label, level, part in [*table_rows(account, depth, full=full), ("in all", 1, account.root)]:
        table.add_row(
            Text("  " * (level - 1) + label, style="bold" if level <= 1 else ""),
            f"{part.parameters:,}" if part.parameters else "",
            flops(part.flops + part.backward_flops),
            percent(part.flops / account.forward_flops) if part.flops else "",
            work(part.elementwise),
            moved(part.bytes_moved),
            *((held(part.activation_bytes),) if trained else ()),
        )
    return table


def _shares(account: Account) -> Table:
    table = grid("", "FLOPs", "of all", "of the layers")
    for share in shares_of(account):
        inside = "" if share.of_layers is None else percent(share.of_layers)
        table.add_row(share.kind, f"{share.flops:,}", percent(share.of_all), inside)
    table.add_row("in all", f"{account.forward_flops:,}", percent(1), percent(1))
    return table


def _memory(account: Account) -> Table:
    table = grid("", "", "")
    table.columns[2].justify = "left"
    table.show_header = False
    for line in explain(account, "memory").sections[0].lines:
        table.add_row(line.what, human(line.value, "B"), line.formula)
    return table


def _memory_cells(accounts: Sequence[Account]) -> Iterator[tuple[str, list[str]]]:
    """What of the memory is not nothing everywhere, by name, and its values."""
    names = {
        "weights": "weights", "gradients": "gradients", "optimizer": "optimizer", "activations": "activations",
        "kv_cache_per_token": "cache per token", "kv_cache": "cache", "held": "held", "peak": "peak",
    }  # fmt: skip
    for field, name in names.items():
        values = [getattr(one.memory, field) for one in accounts]
        if any(values):
            yield name, [human(value, "B") for value in values]


def _times(timing: Timing, account: Account, depth: int | None, *, full: bool) -> Table:
    flops = scale_for(sum(one.flops for one in timing.work), "FLOP")
    moved = scale_for(sum(one.bytes for one in timing.work), "B")
    table = grid("part", flops.unit, f"{moved.unit} moved", "FLOP/byte", "time", "share", "bound by")
    done = [(_folded(one.name, full=full), one, took) for one, took in zip(timing.work, timing.estimates, strict=True)]
    rows = [(label, level, part.path) for label, level, part in table_rows(account, depth, full=full)]
    for label, level, path in [*rows, (OPTIMIZER, 1, OPTIMIZER), ("in all", 1, "")]:
        inside = [(one, took) for name, one, took in done if not path or f"{name}.".startswith(f"{path}.")]
        seconds = sum(took.seconds for _, took in inside)
        if not seconds:
            continue
        operations, size = sum(one.flops for one, _ in inside), sum(one.bytes for one, _ in inside)
        compute = sum(took.seconds for _, took in inside if took.bound == "compute")
        table.add_row(
            Text("  " * (level - 1) + label, style="bold" if level <= 1 else ""),
            flops(operations),
            moved(size),
            f"{operations / size:,.1f}" if operations and size else "",
            duration(seconds),
            percent(seconds / timing.seconds),
            "compute" if compute >= seconds / 2 else "memory",
        )
    return table


def _folded(path: str, *, full: bool) -> str:
    return path if full else re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)


def _time_cells(timings: Sequence[Timing]) -> Iterator[tuple[str, list[str]]]:
    yield "time", [duration(one.seconds) for one in timings]
    yield "tokens/s", [f"{one.tokens_per_second:,.0f}" for one in timings]
    yield "bound by", [one.bound for one in timings]


def timing_lines(timing: Timing | None) -> Iterator[str]:
    """What the roofline says in all, and what it leaves out."""
    if timing is None:
        return
    yield (
        f"{duration(timing.seconds)}, {timing.tokens_per_second:,.0f} tokens/s; {percent(timing.compute_share)} of the "
        f"time is bound by compute, the rest by memory. Ridge point: {timing.ridge:,.1f} FLOP/byte."
    )
    yield (
        "Every operation takes the longer of FLOPs / peak and bytes / bandwidth, one after the other; launches, caches "
        "and missed peaks are left out, and so is a compiler that joins element-wise operations."
    )
    yield f"{timing.hardware.name}: {timing.hardware.source}."


def run_data(account: Account, seconds: float | None, hardware: Hardware | None) -> dict[str, Any]:
    """A real run on this machine, for machines; nothing if there was none."""
    if seconds is None:
        return {}
    speed = account.flops / seconds
    known = hardware is not None and hardware.name not in HARDWARE  # of a device of the table this machine says nothing
    share = speed / hardware.peak(account.dtype) if hardware is not None and known else None
    rate = account.tokens / seconds
    return {"run": {"seconds": seconds, "tokens_per_second": rate, "flops_per_second": speed, "share_of_peak": share}}


def run_lines(account: Account, seconds: float | None, hardware: Hardware | None) -> Iterator[str]:
    """The same for people."""
    for run in run_data(account, seconds, hardware).values():
        share = run["share_of_peak"]
        of_peak = "" if hardware is None or share is None else f", {percent(share)} of the peak of {hardware.name}"
        yield (
            f"Run on this machine: {duration(run['seconds'])}, {run['tokens_per_second']:,.0f} tokens/s, "
            f"{human(run['flops_per_second'], 'FLOP/s')}{of_peak}."
        )


def crossing_lines(crossings: Sequence[Crossing]) -> Iterator[str]:
    """From which size on attention costs as much as something else."""
    for rival, axis, value in crossings:
        if value is None:
            yield f"Attention's products never cost as much as {RIVALS[rival]}, however large the {axis}."
        else:
            yield f"Attention's products cost at least as much as {RIVALS[rival]} from {axis} {value:,} on."


def _counted(account: Account) -> Iterator[str]:
    if account.causal == "dense":
        yield "Counted by 2·m·n·p, dense: every query with every key, masked or not (--causal exact: what is seen)."
    else:
        yield "Counted by 2·m·n·p, exact: only queries and keys that see each other (--causal dense: all of them)."
    if account.mode == "train":
        yield "A training step: forward and backward FLOPs; moved and element-wise are of the forward pass alone."
    if account.recomputed_flops:
        yield f"Besides, the fused kernel computes {human(account.recomputed_flops, 'FLOP')} again: not counted."
