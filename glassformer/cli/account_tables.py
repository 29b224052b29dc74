"""The tables that ``glassformer account`` prints, and the same numbers as data for JSON."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from glassformer.cli.console import grid, heading, percent, print_line, print_wide
from glassformer.inspect.account.account import Account
from glassformer.inspect.account.explain import Explanation, Section, explain
from glassformer.inspect.account.hardware import DTYPES, HARDWARE, OPTIMIZER, Hardware, Timing
from glassformer.inspect.account.plan import PlanLine, TrainingPlan
from glassformer.inspect.account.report import KINDS, duration, human, main_kinds, scale_for, shares_of, table_rows
from glassformer.inspect.account.sweep import Crossing, SweepAxis

RIVALS = {"projections": "the projections", "ffn": "the feed-forward networks"}


class Costs(NamedTuple):
    """An account, the sizes from which attention dominates, and the time on a device where one is named."""

    account: Account
    crossings: list[Crossing]
    timing: Timing | None
    seconds: float | None = None  # measured on this machine


def show_model(costs: Costs, depth: int | None, *, full: bool) -> None:
    """Print the parts, shares, memory and time of one model."""
    account, timing = costs.account, costs.timing
    print_line(f"{account.name}: {load(account)}", style="bold")
    print_wide(_parts(account, depth, full=full))
    heading("FLOPs of the forward pass by kind of work")
    print_wide(_shares(account))
    heading("Memory")
    print_wide(_memory(account))
    if timing is not None:
        heading(f"Time on {timing.hardware.name}, operations in sequence")
        print_wide(_times(timing, account, depth, full=full))
    print_line("")
    measured = run_lines(account, costs.seconds, None if timing is None else timing.hardware)
    for line in [*crossing_lines(costs.crossings), *_conventions(account), *timing_lines(timing), *measured]:
        print_line(line)


class Row(NamedTuple):
    """A row of a comparison: a cell for each model, and the numbers behind the cells where their ratio means much."""

    what: str
    cells: list[str]
    values: Sequence[float] = ()


def show_models(costs: Sequence[Costs]) -> None:
    """Print several models side by side, a column each."""
    accounts = [each.account for each in costs]
    table = grid("", *(account.name for account in accounts))
    for row in [*_work_rows(accounts), *_layer_rows(costs), *_memory_rows(accounts), *_time_rows(costs)]:
        table.add_row(row.what, *row.cells)
    print_line(" / ".join(sorted({load(account, context=False) for account in accounts})), style="bold")
    print_wide(table)
    print_line("")
    for line in _conventions(accounts[0]):
        print_line(line)


def show_change(before: Costs, after: Costs, changes: Sequence[str]) -> None:
    """Print what a change of facts does to the costs of a model: the rows that differ, with their ratios."""
    costs = [before, after]
    accounts = [each.account for each in costs]
    table, same = grid("", "before", "after", ""), []
    for row in [*_work_rows(accounts), *_memory_rows(accounts), *_time_rows(costs)]:
        if row.cells[0] == row.cells[-1]:
            same += [] if row.what.startswith(" ") else [row.what.partition(",")[0]]  # equal shares say little
            continue
        ratio = _ratio(row.values[1] / row.values[0]) if row.values and row.values[0] else ""
        table.add_row(row.what, *row.cells, Text(ratio, "bold"))
    print_line(f"{before.account.name}, with {', '.join(changes)}: {load(after.account)}", style="bold")
    print_wide(table)
    print_line("")
    if same:
        print_line(f"Unchanged: {', '.join(same)}.")
    for line in _conventions(accounts[0]):
        print_line(line)


def _ratio(ratio: float) -> str:
    """Return how much larger or smaller a number became: a factor of two or more as a factor, otherwise in per cent."""
    if not 0.5 < ratio < 2:
        return f"× {ratio:.3g}"
    return f"{'+' if ratio > 1 else '−'}{percent(abs(ratio - 1))}"


def _work_rows(accounts: Sequence[Account]) -> Iterator[Row]:
    """Yield parameters, FLOPs, and the share of each kind of work in the FLOPs of the forward pass."""
    flops = scale_for(max(account.flops for account in accounts), "FLOP")
    parameters = [account.parameters for account in accounts]
    yield Row("parameters", [f"{number:,}" for number in parameters], parameters)
    yield Row("context", [f"{account.context:,}" for account in accounts])
    yield Row(f"FLOPs, {flops.unit}", [flops(each.flops) for each in accounts], [each.flops for each in accounts])
    kinds_of_each = [main_kinds(account.shares()) for account in accounts]
    for kind in (*KINDS, "other"):
        if any(kind in kinds for kinds in kinds_of_each):
            pairs = zip(kinds_of_each, accounts, strict=True)
            yield Row(f"  {kind}", [percent(kinds.get(kind, 0) / result.forward_flops) for kinds, result in pairs])


def _layer_rows(costs: Sequence[Costs]) -> Iterator[Row]:
    """Yield shares of the FLOPs of the layers, and the sizes from which attention dominates."""
    yield Row("layers only", [])
    shares = [{share.kind: share.of_layers for share in shares_of(each.account)} for each in costs]
    for kind in KINDS[:3]:
        yield Row(f"  {kind}", [percent(share.get(kind) or 0) for share in shares])
    for rival in RIVALS:
        sizes = [{crossing.rival: crossing.value for crossing in each.crossings}.get(rival) for each in costs]
        yield Row(f"attention ≥ {rival} from", ["never" if size is None else f"{size:,}" for size in sizes])


def show_sweep(costs: Sequence[Costs], axis: SweepAxis, crossings: Sequence[Crossing]) -> None:
    """Print one model at several sizes, a row each."""
    accounts = [each.account for each in costs]
    flops = scale_for(max(account.flops for account in accounts), "FLOP")
    columns = [*_memory_rows(accounts), *_time_rows(costs)]
    flops_by_kind = [main_kinds(account.shares()) for account in accounts]
    kinds = [kind for kind in (*KINDS, "other") if any(kind in parts for parts in flops_by_kind)]
    table = grid(axis, flops.unit, *kinds, *(column.what for column in columns), first="right")
    for row, (account, parts) in enumerate(zip(accounts, flops_by_kind, strict=True)):
        shares = [percent(parts.get(kind, 0) / account.forward_flops) for kind in kinds]
        cells = [column.cells[row] for column in columns]
        table.add_row(f"{getattr(account, axis):,}", flops(account.flops), *shares, *cells)
    varied = load(accounts[0], context=axis != "context", batch=axis != "batch", source=axis != "source")
    print_line(f"{accounts[0].name}: {varied}, by {axis}", style="bold")
    print_wide(table)
    print_line("")
    for line in [*crossing_lines(crossings), *_conventions(accounts[0])]:
        print_line(line)


def load(account: Account, *, context: bool = True, batch: bool = True, source: bool = True) -> str:
    """Return the workload in words, without the sizes that vary."""
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
    saved = scale_for(account.memory.activations, "B")
    last = (f"saved\n{saved.unit}",) if trained else ()
    head = ("parameters", f"FLOPs\n{flops.unit}", "share", f"element-wise\n{work.unit}", f"moved\n{moved.unit}")
    table = grid("part", *head, *last)
    for label, level, part in [*table_rows(account, depth, full=full), ("total", 1, account.root)]:
        table.add_row(
            Text("  " * (level - 1) + label, style="bold" if level <= 1 else ""),
            f"{part.parameters:,}" if part.parameters else "",
            flops(part.flops + part.backward_flops),
            percent(part.flops / account.forward_flops) if part.flops else "",
            work(part.elementwise),
            moved(part.bytes_moved),
            *((saved(part.activation_bytes),) if trained else ()),
        )
    return table


def _shares(account: Account) -> Table:
    table = grid("", "FLOPs", "of the model", "of the layers")
    for share in shares_of(account):
        inside = "" if share.of_layers is None else percent(share.of_layers)
        table.add_row(share.kind, f"{share.flops:,}", percent(share.of_all), inside)
    table.add_row("total", f"{account.forward_flops:,}", percent(1), percent(1))
    return table


def _memory(account: Account) -> Table:
    table = grid("", "", "")
    table.columns[2].justify = "left"
    table.show_header = False
    for line in explain(account, "memory").sections[0].lines:
        table.add_row(line.what, human(line.value, "B"), line.formula)
    return table


def _memory_rows(accounts: Sequence[Account]) -> Iterator[Row]:
    """Yield the kinds of memory that any account has."""
    names = {
        "weights": "weights", "gradients": "gradients", "optimizer": "optimizer", "activations": "activations",
        "kv_cache_per_token": "cache per token", "kv_cache": "cache", "resident": "resident", "peak": "peak",
    }  # fmt: skip
    for field, name in names.items():
        values = [getattr(account.memory, field) for account in accounts]
        if any(values):
            yield Row(name, [human(value, "B") for value in values], values)


def _times(timing: Timing, account: Account, depth: int | None, *, full: bool) -> Table:
    flops = scale_for(sum(work.flops for work in timing.work), "FLOP")
    moved = scale_for(sum(work.bytes for work in timing.work), "B")
    table = grid("part", flops.unit, f"{moved.unit} moved", "FLOP/byte", "time", "share", "bound by")
    done = [
        (_folded(work.name, full=full), work, time) for work, time in zip(timing.work, timing.estimates, strict=True)
    ]
    rows = [(label, level, part.path) for label, level, part in table_rows(account, depth, full=full)]
    for label, level, path in [*rows, (OPTIMIZER, 1, OPTIMIZER), ("total", 1, "")]:
        inside = [(work, time) for name, work, time in done if not path or f"{name}.".startswith(f"{path}.")]
        seconds = sum(time.seconds for _, time in inside)
        if not seconds:
            continue
        operations, size = sum(work.flops for work, _ in inside), sum(work.bytes for work, _ in inside)
        compute = sum(time.seconds for _, time in inside if time.bound == "compute")
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


def _time_rows(costs: Sequence[Costs]) -> Iterator[Row]:
    """Yield the estimated and the measured time."""
    timings = [each.timing for each in costs if each.timing is not None]
    if timings:
        seconds = [timing.seconds for timing in timings]
        yield Row("time", [duration(each) for each in seconds], seconds)
        yield Row("tokens/s", [f"{timing.tokens_per_second:,.0f}" for timing in timings])
        yield Row("bound by", [timing.bound for timing in timings])
    measured = [each.seconds for each in costs if each.seconds is not None]
    if measured:
        yield Row("time, measured", [duration(each) for each in measured], measured)


def timing_lines(timing: Timing | None) -> Iterator[str]:
    """Yield the total of the roofline estimate, and what it ignores."""
    if timing is None:
        return
    yield (
        f"{duration(timing.seconds)}, {timing.tokens_per_second:,.0f} tokens/s; {percent(timing.compute_share)} of the "
        f"time is bound by compute, the rest by memory. Ridge point: {timing.ridge:,.1f} FLOP/byte."
    )
    yield (
        "Each operation takes the longer of FLOPs / peak and bytes / bandwidth, and operations run in sequence. The "
        "estimate ignores kernel launches, caches, kernels below peak and fusion by a compiler."
    )
    yield f"{timing.hardware.name}: {timing.hardware.source}."


def run_data(account: Account, seconds: float | None, hardware: Hardware | None) -> dict[str, Any]:
    """Return the measured run on this machine as data; empty if there was none."""
    if seconds is None:
        return {}
    speed = account.flops / seconds
    is_this_machine = hardware is not None and hardware.name not in HARDWARE  # devices of the table are others
    share = speed / hardware.peak(account.dtype) if hardware is not None and is_this_machine else None
    rate = account.tokens / seconds
    return {"run": {"seconds": seconds, "tokens_per_second": rate, "flops_per_second": speed, "share_of_peak": share}}


def run_lines(account: Account, seconds: float | None, hardware: Hardware | None) -> Iterator[str]:
    """Yield the measured run on this machine as text."""
    for run in run_data(account, seconds, hardware).values():
        share = run["share_of_peak"]
        of_peak = "" if hardware is None or share is None else f", {percent(share)} of the peak of {hardware.name}"
        yield (
            f"Measured on this machine: {duration(run['seconds'])}, {run['tokens_per_second']:,.0f} tokens/s, "
            f"{human(run['flops_per_second'], 'FLOP/s')}{of_peak}."
        )


def crossing_lines(crossings: Sequence[Crossing]) -> Iterator[str]:
    """Yield the sizes from which attention costs as much as other parts."""
    for rival, axis, value in crossings:
        if value is None:
            yield f"Attention scores and sums never cost as many FLOPs as {RIVALS[rival]}, at any {axis}."
        else:
            yield f"Attention scores and sums cost at least as many FLOPs as {RIVALS[rival]} from {axis} {value:,} on."


def _conventions(account: Account) -> Iterator[str]:
    if account.causal == "dense":
        yield "A matrix product counts 2·m·n·p FLOPs, dense: masked pairs of query and key count (see --causal)."
    else:
        yield "A matrix product counts 2·m·n·p FLOPs, exact: masked pairs of query and key do not count (see --causal)."
    if account.mode == "train":
        yield "FLOPs are those of forward and backward pass; moved and element-wise are of the forward pass only."
        yield "Saved are the activations that a part keeps for the backward pass."
    if account.recomputed_flops:
        yield f"Not counted: {human(account.recomputed_flops, 'FLOP')} that the fused kernel recomputes."


UNITS = {"FLOPs": "FLOP", "bytes": "B"}


def show_explanation(account: Account, explanation: Explanation) -> None:
    """Print every term with its formula, section by section."""
    print_line(f"{explanation.subject} of {account.name}: {load(account)}", style="bold")
    for section in explanation.sections:
        heading(section.title)
        names = [line.what for line in section.lines]
        width = max(map(len, [*names, "total"])) + 2
        for what, formula, numbers, value in section.lines:
            terms = [term for term in (formula, numbers if numbers != f"{value:,}" else "") if term]
            print_line(f"  {what:<{width}}{' = '.join([*terms, _value(value, section.unit)])}")
        if section.total is not None:
            share = "" if section.share is None else f", {percent(section.share)} of the model's"
            print_line(f"  {'total':<{width}}{_value(section.total, section.unit)}{share}")


def _value(value: int, unit: str) -> str:
    if unit not in UNITS or value < 1000:
        return f"{value:,} {unit}" if unit in UNITS else f"{value:,}"
    return f"{value:,} ({human(value, UNITS[unit])})"


def explanation_data(account: Account, explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as data."""
    return {
        "name": account.name,
        "subject": explanation.subject,
        "sections": [_section_data(section) for section in explanation.sections],
    }


def _section_data(section: Section) -> dict[str, Any]:
    return section._asdict() | {"lines": [line._asdict() for line in section.lines]}


def show_plan(account: Account, plan: TrainingPlan) -> None:
    """Print the plan of a training run, every number with its formula."""
    devices = f"{plan.devices:,} × {plan.hardware.name}"
    whose = "across all devices" if plan.parallel == "tensor" else "per device"
    print_line(f"{account.name} on {devices}, {plan.parallel}: {load(account)} {whose}", style="bold")
    width = max(len(line.what) for line in plan.lines()) + 2
    for line in plan.lines():
        print_line(f"  {line.what:<{width}}{line.formula} = {_amount(line)}")
    verdict = {
        True: "It fits.",
        False: "It does not fit.",
        None: "Whether it fits is unknown; set the memory size with --memory.",
    }
    print_line("")
    print_line(verdict[plan.fits], style="bold")
    print_line("Not included: communication (except through --mfu), fragmentation, and the memory of libraries.")
    print_line(f"{plan.hardware.name}: {plan.hardware.source}.")


def _amount(line: PlanLine) -> str:
    if line.unit == "bytes":
        return human(line.value, "B")
    if line.unit == "FLOPs":
        return human(line.value, "FLOP")
    return f"{line.value:,.0f} {line.unit}" if line.value >= 100 else f"{line.value:.4g} {line.unit}"


def plan_data(plan: TrainingPlan) -> dict[str, Any]:
    """Return the plan as data."""
    names = ("devices", "parallel", "mfu", "tokens", "total_flops", "tokens_per_second", "steps", "seconds_per_step")
    return (
        {name: getattr(plan, name) for name in names}
        | {"days": plan.days, "device_hours": plan.device_hours}
        | {"memory_per_device_bytes": plan.memory_per_device, "fits": plan.fits}
        | {"hardware": hardware_data(plan.hardware), "lines": [line._asdict() for line in plan.lines()]}
    )


def show_hardware() -> None:
    """Print the table of devices with their sources."""
    print_line("Dense peaks of matrix products in TFLOP/s; bandwidth in GB/s; memory in GB.", style="bold")
    table = grid("device", *DTYPES, "GB/s", "GB")
    for device in HARDWARE.values():
        peaks = [f"{device.flops[dtype] / 1e12:,.5g}" if dtype in device.flops else "" for dtype in DTYPES]
        size = "" if device.memory is None else f"{device.memory / 1e9:,.4g}"
        table.add_row(device.name, *peaks, f"{device.bandwidth / 1e9:,.0f}", size)
    print_wide(table)
    heading("Sources")
    for device in HARDWARE.values():
        print_line(f"{device.name}: {device.source}")


def show_machine(device: Hardware) -> None:
    """Print a device as measured."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for dtype, peak in device.flops.items():
        table.add_row(f"{dtype} matrix products", human(peak, "FLOP/s"))
    table.add_row("memory bandwidth", human(device.bandwidth, "B/s"))
    if device.memory is not None:
        table.add_row("memory", human(device.memory, "B"))
    print_line(device.name, style="bold")
    print_wide(table)
    print_line(device.source)


def hardware_data(device: Hardware) -> dict[str, Any]:
    """Return a device as data: FLOP/s, bytes/s, bytes."""
    return {
        "name": device.name,
        "flops_per_second": dict(device.flops),
        "bytes_per_second": device.bandwidth,
        "memory_bytes": device.memory,
        "source": device.source,
    }
