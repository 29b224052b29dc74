"""``glassformer account``: what a model costs to hold, run, train and serve, part by part, and why."""

import csv
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from glassformer.cli.account_tables import (
    Books,
    explanation_data,
    hardware_data,
    plan_data,
    run_data,
    run_lines,
    show_explanation,
    show_hardware,
    show_machine,
    show_model,
    show_models,
    show_plan,
    show_sweep,
)
from glassformer.cli.errors import InputError
from glassformer.cli.options import Choosing, computing_verb
from glassformer.cli.outputs import note, print_json, say
from glassformer.config.checks import check_choice, check_number
from glassformer.inspect.account.account import WIDTHS, Account, Causal
from glassformer.inspect.account.account import account as account_of
from glassformer.inspect.account.explain import explain
from glassformer.inspect.account.hardware import HARDWARE, Hardware, beginning_with, hardware, own
from glassformer.inspect.account.load import Kernel
from glassformer.inspect.account.memory import Optimizer
from glassformer.inspect.account.plan import Parallel
from glassformer.inspect.account.plot import check_plot, plot_models, plot_sweep
from glassformer.inspect.account.report import as_dict, part_rows, summary_row
from glassformer.inspect.account.sweep import Sweep, crossings, parse_sweep, run_sweep
from glassformer.inspect.account.timing import Timing, plan_of, time_on
from glassformer.inspect.facts import facts_of

RUN, SHOWN, DEVICE, PLAN = "What is run", "What is shown", "On a device", "A training run"


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is run; the names are those of ``inspect.account.account``."""

    batch: Annotated[int, typer.Option(min=1, help="Rows.", rich_help_panel=RUN)] = 1
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in each row; as many as the model's positions allow.", rich_help_panel=RUN),
    ] = None
    source: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens that an encoder-decoder's encoder reads; as many as --context.", rich_help_panel=RUN
        ),
    ] = None
    train: Annotated[
        bool, typer.Option("--train", help="A training step and not a forward pass.", rich_help_panel=RUN)
    ] = False
    decode: Annotated[
        bool,
        typer.Option("--decode", help="One new token, the others of --context in the cache.", rich_help_panel=RUN),
    ] = False
    dtype: Annotated[
        str,
        typer.Option(metavar="TYPE", help="Of weights and activations: float32, bfloat16 …", rich_help_panel=RUN),
    ] = "float32"
    attention: Annotated[
        str,
        typer.Option(
            metavar="fused|eager",
            help="Through fused kernels that write no scores down, or by the formulas.",
            rich_help_panel=RUN,
        ),
    ] = "fused"
    causal: Annotated[
        str,
        typer.Option(
            metavar="dense|exact",
            help="Count every query with every key, or only those that see each other.",
            rich_help_panel=RUN,
        ),
    ] = "dense"
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(get_args(Optimizer)), help="What it remembers; adamw unless given.", rich_help_panel=RUN
        ),
    ] = None

    def check(self, *, plans: bool) -> None:
        """Raise if a word is unknown, or two options exclude each other."""
        check_choice("--dtype", self.dtype, WIDTHS)
        check_choice("--attention", self.attention, get_args(Kernel))
        check_choice("--causal", self.causal, get_args(Causal))
        if self.optimizer is not None:
            check_choice("--optimizer", self.optimizer, get_args(Optimizer))
            if not (self.train or plans):
                raise InputError("--optimizer is for training; add --train.")
        if self.decode and (self.train or plans):
            raise InputError("--decode writes one token, --train and --devices learn; choose one.")

    def accounts(self, models: list[str], choosing: Choosing, *, plans: bool) -> list[Account]:
        """The books of each model."""
        pages = {name: facts_of(name, **choosing.choices()) for name in models}
        if self.source is not None and all(one.family != "encoder-decoder" for one in pages.values()):
            raise InputError("--source is what an encoder-decoder's encoder reads; say --context for this model.")
        for name, page in pages.items():
            if self.decode and page.decoder is None:
                raise InputError(f"--decode needs a decoder, and {name} is an encoder; leave it out.")
        given: dict[str, Any] = {
            "mode": "train" if self.train or plans else "decode" if self.decode else "forward",
            "optimizer": self.optimizer or "adamw",
        }
        given |= {name: getattr(self, name) for name in ("batch", "context", "source", "dtype", "attention", "causal")}
        return [replace(account_of(pages[name], **given), name=name) for name in models]


@dataclass(frozen=True, kw_only=True)
class Showing:
    """What is shown of it, and how."""

    compare: Annotated[
        bool, typer.Option("--compare", help="Models side by side, as when several are named.", rich_help_panel=SHOWN)
    ] = False
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE=FROM..TO",
            help="Vary context, batch or source: context=1024..65536 doubles, context=1024,3000 is a list.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="PART|flops|memory",
            help="Every number with its formula, as of blocks.0.ffn.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    depth: Annotated[int | None, typer.Option(min=0, help="Parts down to so many levels.", rich_help_panel=SHOWN)] = (
        None
    )
    full: Annotated[
        bool, typer.Option("--full", help="Every block on its own in the table.", rich_help_panel=SHOWN)
    ] = False
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the shares, into an .svg or .png file.", rich_help_panel=SHOWN),
    ] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: one object; a list of several.", rich_help_panel=SHOWN)
    ] = False
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="For spreadsheets: a row per part; of several, per model.", rich_help_panel=SHOWN),
    ] = False

    def check(self, models: list[str], *, plans: bool) -> None:
        """Raise if two options exclude each other."""
        if self.as_json and self.as_csv:
            raise InputError("--json and --csv are two ways to print the same; choose one.")
        one_alone = {"--sweep": self.sweep, "--explain": self.explain, "--devices": plans or None}
        wished = [name for name, value in one_alone.items() if value is not None]
        if len(wished) > 1:
            raise InputError(f"{' and '.join(wished)} show different things; choose one.")
        if wished and len(models) > 1:
            raise InputError(f"{wished[0]} is about one model; got {', '.join(models)}.")
        if wished and wished[0] != "--sweep" and (self.as_csv or self.plot is not None):
            other = "--csv" if self.as_csv else "--plot"
            raise InputError(f"{wished[0]} prints text or --json; leave out {other}.")


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device on which it is run, and a training run on several."""

    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How long it takes on this at the least.", rich_help_panel=DEVICE),
    ] = None
    flops: Annotated[
        float | None, typer.Option(metavar="FLOP/S", help="A device of your own.", rich_help_panel=DEVICE)
    ] = None
    bandwidth: Annotated[
        float | None, typer.Option(metavar="BYTES/S", help="Its memory's speed.", rich_help_panel=DEVICE)
    ] = None
    memory: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Its memory's size.", rich_help_panel=DEVICE)
    ] = None
    measure: Annotated[
        bool,
        typer.Option("--measure", help="This machine, measured in a few seconds.", rich_help_panel=DEVICE),
    ] = False
    run: Annotated[
        bool,
        typer.Option("--run", help="Run it here too, with random weights, and tell its time.", rich_help_panel=DEVICE),
    ] = False
    list_hardware: Annotated[
        bool, typer.Option("--list-hardware", help="The known devices, with sources.", rich_help_panel=DEVICE)
    ] = False
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Plan the training of the model on so many devices.", rich_help_panel=PLAN),
    ] = None
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(get_args(Parallel)), help="How they share it; ddp unless given.", rich_help_panel=PLAN
        ),
    ] = None
    mfu: Annotated[
        float | None, typer.Option(help="Share of the peak that is reached; 0.4 unless given.", rich_help_panel=PLAN)
    ] = None
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Blocks keep their inputs alone and run again.", rich_help_panel=PLAN)
    ] = False
    tokens: Annotated[
        float | None,
        typer.Option(help="To train on; 20 for each parameter unless given.", rich_help_panel=PLAN),
    ] = None

    @property
    def plans(self) -> bool:
        """Whether a training run is asked for."""
        return self.devices is not None

    @property
    def names_one(self) -> bool:
        """Whether a device is asked for."""
        return self.hardware is not None or self.flops is not None or self.measure

    def check(self, dtype: str) -> None:
        """Raise if a figure makes no sense, or something is said twice or by halves."""
        figures = {"--flops": self.flops, "--bandwidth": self.bandwidth, "--memory": self.memory}
        run = {"--mfu": self.mfu, "--tokens": self.tokens}
        check_number(**{name: value for name, value in (figures | run).items() if value is not None})
        if self.parallel is not None:
            check_choice("--parallel", self.parallel, get_args(Parallel))
        if self.mfu is not None and self.mfu > 1:
            raise InputError(f"--mfu is the share of the peak that is reached, at most 1; got {self.mfu}.")
        if (self.flops is None) != (self.bandwidth is None) or (self.memory is not None and self.flops is None):
            raise InputError("a device of your own needs --flops and --bandwidth; --memory may say its size besides.")
        ways = {"--hardware": self.hardware is not None, "--flops": self.flops is not None, "--measure": self.measure}
        named = [name for name, used in ways.items() if used]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} each name a device; choose one.")
        if self.plans and not named:
            raise InputError("--devices needs their kind: --hardware NAME, --flops and --bandwidth, or --measure.")
        if named and dtype == "float64":
            raise InputError("no peak in float64 is known of any device; take --dtype float32.")
        besides = {"--parallel": self.parallel, "--checkpoint": self.checkpoint or None, **run}
        if not self.plans and any(value is not None for value in besides.values()):
            said = next(name for name, value in besides.items() if value is not None)
            raise InputError(f"{said} is of a training run; say on how many devices: --devices.")

    def chosen(self, dtype: str) -> Hardware | None:
        """The device; None if none is asked for."""
        if self.measure:
            from glassformer.inspect.account.measure import measure_machine

            return measure_machine(dtype)
        if self.flops is not None and self.bandwidth is not None:
            return own(flops=self.flops, bandwidth=self.bandwidth, memory=self.memory)
        return None if self.hardware is None else _named(self.hardware)


def _named(name: str) -> Hardware:
    """A device of the table; by the beginning of its name where that is enough, which is then said."""
    try:
        return hardware(name)
    except ValueError as error:
        begun = beginning_with(name)
        if len(begun) == 1:
            note(f"{name} is taken to be {begun[0].name}.")
            return begun[0]
        said = str(error).replace("give your own figures (FLOP/s and bytes/s)", "say --flops and --bandwidth")
        raise InputError(said) from error


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
        print_json(explanation_data(one, found))
    else:
        show_explanation(one, found)


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
        print_json(as_dict(one, showing.depth) | {"plan": plan_data(found)} | run_data(one, seconds, tool))
    else:
        show_plan(one, found)
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
        "hardware": hardware_data(timing.hardware),
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
        print_json([hardware_data(one) for one in HARDWARE.values()])
    else:
        show_hardware()


def _show_machine(tool: Hardware, showing: Showing) -> None:
    if showing.as_json:
        print_json(hardware_data(tool))
    else:
        show_machine(tool)


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
