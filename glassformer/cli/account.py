"""``glassformer account``: what a model costs to hold, run, train and serve, part by part, and why."""

import csv
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from glassformer.cli import account_more as more
from glassformer.cli.account_options import Device, Load, Showing
from glassformer.cli.account_tables import Books, run_data, run_lines, show_model, show_models, show_sweep
from glassformer.cli.errors import InputError
from glassformer.cli.options import Choosing
from glassformer.cli.outputs import note, print_json, say
from glassformer.cli.verbs import computing_verb
from glassformer.inspect.account.account import Account
from glassformer.inspect.account.explain import explain
from glassformer.inspect.account.hardware import HARDWARE, Hardware
from glassformer.inspect.account.plot import check_plot, plot_models, plot_sweep
from glassformer.inspect.account.report import as_dict, part_rows, summary_row
from glassformer.inspect.account.sweep import Sweep, crossings, parse_sweep, run_sweep
from glassformer.inspect.account.timing import Timing, plan_of, time_on


@computing_verb
def account(
    load: Load,
    choosing: Choosing,
    showing: Showing,
    device: Device,
    model: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Published models, or models' folders, GGUF or llama2.c files."),
    ] = None,
) -> None:
    """What a model costs: parameters, FLOPs and memory of every part, traced on tensors that take no memory.

    Several models are shown side by side.
    """
    models = model or []
    if device.list_hardware:
        _list_hardware(showing)
        return
    load.check(plans=device.plans)
    device.check(load.dtype)
    showing.check(models, plans=device.plans)
    if showing.plot is not None:
        check_plot(showing.plot)
    sweep = None if showing.sweep is None else parse_sweep(showing.sweep)
    if showing.as_csv and not device.plans and device.names_one:
        raise InputError("--csv has no column for times; leave out the device, or take --json.")
    if device.run and (sweep is not None or showing.explain is not None or showing.as_csv):
        raise InputError("--run tells the time of one pass or step; leave out --sweep, --explain and --csv.")
    asked = (sweep, showing.explain, showing.plot)
    asks_of_a_model = device.plans or device.run or any(one is not None for one in asked)
    if not models and (asks_of_a_model or not device.measure):
        raise InputError("name a model: glassformer account gpt2-xl; glassformer info lists the published ones.")
    if sweep is not None and getattr(load, sweep.axis) not in (None, 1):
        raise InputError(f"--{sweep.axis} and --sweep {showing.sweep} both say the {sweep.axis}; leave out the first.")
    accounts = load.accounts(models, choosing, plans=device.plans)
    tool = device.chosen(load.dtype)
    if not accounts:
        assert tool is not None
        _show_machine(tool, showing)
    elif sweep is not None:
        _sweep(accounts[0], sweep, showing, tool)
    elif showing.explain is not None:
        _explain(accounts[0], showing)
    elif device.plans:
        assert tool is not None
        _plan(accounts[0], showing, device, tool)
    else:
        _show([_books(one, tool, _seconds(one, device)) for one in accounts], showing)


def _books(one: Account, tool: Hardware | None, seconds: float | None) -> Books:
    return Books(one, crossings(one), None if tool is None else time_on(one, tool), seconds)


def _seconds(one: Account, device: Device) -> float | None:
    """How long it takes on this machine, if that is asked for."""
    if not device.run:
        return None
    from glassformer.inspect.account.trial import measured_seconds

    return measured_seconds(one)


def _show(several: list[Books], showing: Showing) -> None:
    """One model, or several side by side."""
    accounts = [one.account for one in several]
    _note_length(accounts)
    alone = len(several) == 1 and not showing.compare
    if showing.as_json:
        data = [_data(one, showing.depth) for one in several]
        print_json(data[0] if alone else data)
    elif showing.as_csv:
        _print_csv(part_rows(accounts[0], showing.depth) if alone else map(summary_row, accounts))
    elif alone:
        show_model(several[0], showing.depth, full=showing.full)
    else:
        show_models(several)
    if showing.plot is not None:
        plot_models(accounts, showing.plot)
        note(f"wrote {showing.plot}")


def _sweep(base: Account, sweep: Sweep, showing: Showing, tool: Hardware | None) -> None:
    """One model at several sizes."""
    several = [Books(one, [], None if tool is None else time_on(one, tool), None) for one in run_sweep(base, sweep)]
    accounts = [one.account for one in several]
    _note_length(accounts)
    found = [] if sweep.axis == "batch" else crossings(accounts[0], sweep.axis)
    if showing.as_json:
        rows = [_data(one, showing.depth) for one in several]
        print_json({"sweep": sweep.axis, "crossings": [one._asdict() for one in found], "accounts": rows})
    elif showing.as_csv:
        _print_csv(map(summary_row, accounts))
    else:
        show_sweep(several, sweep.axis, found)
    if showing.plot is not None:
        plot_sweep(accounts, sweep, found, showing.plot)
        note(f"wrote {showing.plot}")


def _explain(one: Account, showing: Showing) -> None:
    assert showing.explain is not None
    found = explain(one, showing.explain)
    _note_length([one])
    alike = (part.path for part in one.root.called(showing.explain) if not part.is_repeated)
    others = [path for path in alike if path != found.subject]
    if others:
        note(f"this is {found.subject}; there are also {', '.join(others)}.")
    if showing.as_json:
        print_json(more.explanation_data(one, found))
    else:
        more.show_explanation(one, found)


def _plan(one: Account, showing: Showing, device: Device, tool: Hardware) -> None:
    assert device.devices is not None
    parallel: Any = device.parallel or "ddp"
    found = plan_of(
        one,
        tool,
        devices=device.devices,
        tokens=device.tokens,
        mfu=device.mfu or 0.4,
        parallel=parallel,
        checkpointing=device.checkpoint,
    )
    _note_length([one])
    seconds = _seconds(one, device)
    if showing.as_json:
        print_json(as_dict(one, showing.depth) | {"plan": more.plan_data(found)} | run_data(one, seconds, tool))
    else:
        more.show_plan(one, found)
        for line in run_lines(one, seconds, tool):
            say(f"{line} The plan has {found.tokens_per_second / found.devices:,.0f} tokens/s on each device.")


def _data(books: Books, depth: int | None) -> dict[str, Any]:
    data = as_dict(books.account, depth) | {"crossings": [one._asdict() for one in books.crossings]}
    if books.timing is not None:
        data |= {"roofline": _timing_data(books.timing)}
    return data | run_data(books.account, books.seconds, None if books.timing is None else books.timing.hardware)


def _timing_data(timing: Timing) -> dict[str, Any]:
    pieces = zip(timing.work, timing.estimates, strict=True)
    return {
        "hardware": more.hardware_data(timing.hardware),
        "seconds": timing.seconds,
        "tokens_per_second": timing.tokens_per_second,
        "bound": timing.bound,
        "compute_share": timing.compute_share,
        "ridge_flops_per_byte": timing.ridge,
        "work": [
            {"path": one.name, "flops": one.flops, "bytes": one.bytes, "seconds": took.seconds, "bound": took.bound}
            for one, took in pieces
        ],
    }


def _list_hardware(showing: Showing) -> None:
    if showing.as_json:
        print_json([more.hardware_data(one) for one in HARDWARE.values()])
    else:
        more.show_hardware()


def _show_machine(tool: Hardware, showing: Showing) -> None:
    if showing.as_json:
        print_json(more.hardware_data(tool))
    else:
        more.show_machine(tool)


def _print_csv(rows: Iterable[dict[str, Any]]) -> None:
    listed = list(rows)
    writer = csv.DictWriter(sys.stdout, listed[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)


def _note_length(accounts: list[Account]) -> None:
    """Say so where a model has positions for fewer tokens than are counted."""
    for name in dict.fromkeys(one.name for one in accounts):
        longest = max((one for one in accounts if one.name == name), key=lambda one: max(one.context, one.source))
        assert longest.config is not None
        most, asked = longest.config.longest, max(longest.context, longest.source)
        if most is not None and asked > most:
            note(f"{name} has positions for {most:,} tokens; {asked:,} are counted on paper.")
