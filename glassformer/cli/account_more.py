"""What ``glassformer account`` prints of explanations, plans and devices."""

from typing import Any

from rich.table import Table

from glassformer.cli.account_tables import load
from glassformer.cli.outputs import grid, heading, percent, print_wide, say
from glassformer.inspect.account.account import Account
from glassformer.inspect.account.explain import Explanation, Section
from glassformer.inspect.account.hardware import DTYPES, HARDWARE, Hardware
from glassformer.inspect.account.plan import Line, Plan
from glassformer.inspect.account.units import human

UNITS = {"FLOPs": "FLOP", "bytes": "B"}


def show_explanation(account: Account, found: Explanation) -> None:
    """Every term with its formula, section by section."""
    say(f"{found.subject} of {account.name}: {load(account)}", style="bold")
    for section in found.sections:
        heading(section.title)
        names = [line.what for line in section.lines]
        width = max(map(len, [*names, "in all"])) + 2
        for what, formula, numbers, value in section.lines:
            terms = [one for one in (formula, numbers if numbers != f"{value:,}" else "") if one]
            say(f"  {what:<{width}}{' = '.join([*terms, _value(value, section.unit)])}")
        if section.total is not None:
            share = "" if section.share is None else f", {percent(section.share)} of the model's"
            say(f"  {'in all':<{width}}{_value(section.total, section.unit)}{share}")


def _value(value: int, unit: str) -> str:
    if unit not in UNITS or value < 1000:
        return f"{value:,} {unit}" if unit in UNITS else f"{value:,}"
    return f"{value:,} ({human(value, UNITS[unit])})"


def explanation_data(account: Account, found: Explanation) -> dict[str, Any]:
    """The same for machines."""
    return {
        "name": account.name,
        "subject": found.subject,
        "sections": [_section_data(section) for section in found.sections],
    }


def _section_data(section: Section) -> dict[str, Any]:
    return section._asdict() | {"lines": [line._asdict() for line in section.lines]}


def show_plan(account: Account, plan: Plan) -> None:
    """A training run, every number with its formula."""
    devices = f"{plan.devices:,} × {plan.hardware.name}"
    whose = "of all of them together" if plan.parallel == "tensor" else "on each"
    say(f"{account.name} on {devices}, {plan.parallel}: {load(account)} {whose}", style="bold")
    width = max(len(line.what) for line in plan.lines()) + 2
    for line in plan.lines():
        say(f"  {line.what:<{width}}{line.formula} = {_amount(line)}")
    verdict = {
        True: "It fits.",
        False: "It does not fit.",
        None: "Whether it fits is not known: --memory says the size.",
    }
    say("")
    say(verdict[plan.fits], style="bold")
    say("Left out: communication, but for what --mfu says of it, fragmentation and the libraries' own memory.")
    say(f"{plan.hardware.name}: {plan.hardware.source}.")


def _amount(line: Line) -> str:
    if line.unit == "bytes":
        return human(line.value, "B")
    if line.unit == "FLOPs":
        return human(line.value, "FLOP")
    return f"{line.value:,.0f} {line.unit}" if line.value >= 100 else f"{line.value:.4g} {line.unit}"


def plan_data(plan: Plan) -> dict[str, Any]:
    """The same for machines."""
    names = ("devices", "parallel", "mfu", "tokens", "total_flops", "tokens_per_second", "steps", "seconds_per_step")
    return (
        {name: getattr(plan, name) for name in names}
        | {"days": plan.days, "device_hours": plan.device_hours}
        | {"memory_per_device_bytes": plan.memory_per_device, "fits": plan.fits}
        | {"hardware": hardware_data(plan.hardware), "lines": [line._asdict() for line in plan.lines()]}
    )


def show_hardware() -> None:
    """The table of devices with their sources."""
    say("Dense peaks of matrix products in TFLOP/s; bandwidth in GB/s; memory in GB.", style="bold")
    table = grid("device", *DTYPES, "GB/s", "GB")
    for one in HARDWARE.values():
        peaks = [f"{one.flops[dtype] / 1e12:,.5g}" if dtype in one.flops else "" for dtype in DTYPES]
        size = "" if one.memory is None else f"{one.memory / 1e9:,.4g}"
        table.add_row(one.name, *peaks, f"{one.bandwidth / 1e9:,.0f}", size)
    print_wide(table)
    heading("Sources")
    for one in HARDWARE.values():
        say(f"{one.name}: {one.source}")


def show_machine(one: Hardware) -> None:
    """One device, as measured."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for dtype, peak in one.flops.items():
        table.add_row(f"{dtype} products", human(peak, "FLOP/s"))
    table.add_row("memory traffic", human(one.bandwidth, "B/s"))
    if one.memory is not None:
        table.add_row("memory", human(one.memory, "B"))
    say(one.name, style="bold")
    print_wide(table)
    say(one.source)


def hardware_data(one: Hardware) -> dict[str, Any]:
    """A device for machines: FLOP/s, bytes/s, bytes."""
    return {
        "name": one.name,
        "flops_per_second": dict(one.flops),
        "bytes_per_second": one.bandwidth,
        "memory_bytes": one.memory,
        "source": one.source,
    }
