"""``glassformer account``: what a model costs to hold, run, train and serve, part by part, and why."""

import csv
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from glassformer.cli.account_tables import (
    Costs,
    explanation_data,
    hardware_data,
    plan_data,
    run_data,
    run_lines,
    show_change,
    show_explanation,
    show_hardware,
    show_machine,
    show_model,
    show_models,
    show_plan,
    show_sweep,
)
from glassformer.cli.console import note, print_json, print_line
from glassformer.cli.errors import InputError
from glassformer.cli.options import MODEL, FactsKeywords, Keywords, as_command, setting
from glassformer.config import ModelConfig
from glassformer.config import change as change_fact
from glassformer.config.checks import Setting, SettingError, check_positive_number
from glassformer.inspect.account.account import WIDTHS, Account
from glassformer.inspect.account.account import account as account_of
from glassformer.inspect.account.explain import explain
from glassformer.inspect.account.hardware import (
    HARDWARE,
    Hardware,
    Timing,
    custom_hardware,
    hardware,
    hardware_with_prefix,
    time_on,
)
from glassformer.inspect.account.plan import plan_of
from glassformer.inspect.account.plot import check_plot, plot_models, plot_sweep
from glassformer.inspect.account.report import as_dict, part_rows, summary_row
from glassformer.inspect.account.sweep import Sweep, crossings, parse_sweep, run_sweep
from glassformer.inspect.facts import ReadOptions, facts_of
from glassformer.recipes.files import parse_change

NUMBERS = ("flops", "bandwidth", "memory", "mfu", "tokens")
LOAD, OUTPUT, DEVICE, PLAN = "Workload", "Output", "Device", "Training run"


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """The model and the workload whose costs are counted.

    Args:
        change: change a fact (config value), such as decoder.attention.kv_heads=1, and compare. Repeatable.
        train: count a training step instead of a forward pass.
        decode: count the decoding of one token, with the tokens before it in the cache.
    """

    panel: ClassVar[str] = LOAD
    settings: Annotated[
        dict[str, Any],
        Keywords(
            account_of,
            ("batch", "context", "source", "dtype", "attention", "causal", "optimizer"),
            LOAD,
            changed={
                "batch": {"min": 1}, "context": {"min": 1}, "source": {"min": 1},
                "dtype": {"metavar": "TYPE", "show_default": "float32",
                          "help": f"Type of weights and activations: {', '.join(WIDTHS)}."},
            },
        ),
    ]  # fmt: skip
    change: list[str] | None = setting(None, metavar="FACT=VALUE", rich_help_panel=MODEL)
    train: bool = False
    decode: bool = False

    @property
    def dtype(self) -> str:
        """The type of weights and activations."""
        return str(self.settings.get("dtype", "float32"))

    def check(self, *, plans: bool) -> None:
        """Raise if two options exclude each other."""
        if "optimizer" in self.settings and not (self.train or plans):
            raise InputError("--optimizer is for training; add --train.")
        if self.decode and (self.train or plans):
            raise InputError("--decode generates one token, --train and --devices train; choose one.")

    def accounts(self, models: list[str], reading: ReadOptions, *, plans: bool) -> list[Account]:
        """Return the account of each model; of a model that is changed, before and after."""
        pages = {name: facts_of(name, **reading) for name in models}
        if self.change:
            if len(models) != 1:
                raise InputError(f"--change takes one model; got {', '.join(models) or 'none'}.")
            models = [models[0], f"{models[0]}, {', '.join(self.change)}"]
            pages[models[1]] = _changed(pages[models[0]], self.change)
        if "source" in self.settings and all(facts.family != "encoder-decoder" for facts in pages.values()):
            raise InputError("--source is for the encoder of an encoder-decoder; use --context for this model.")
        for name, facts in pages.items():
            if self.decode and facts.decoder is None:
                raise InputError(f"--decode needs a decoder, and {name} is an encoder; leave it out.")
        mode = "train" if self.train or plans else "decode" if self.decode else "forward"
        settings = {"mode": mode, "dtype": self.dtype, **self.settings}
        return [replace(account_of(pages[name], **settings), name=name) for name in models]


def _changed(facts: ModelConfig, changes: list[str]) -> ModelConfig:
    """Return the facts of a model with some of them changed, one after the other."""
    for text in changes:
        if "=" not in text.strip("="):
            raise InputError(f"--change is FACT=VALUE, such as decoder.attention.kv_heads=1; got {text!r}.")
        facts = change_fact(facts, *parse_change(text))
    return facts


@dataclass(frozen=True, kw_only=True)
class AccountOutput:
    """What is shown of an account, and how.

    Args:
        compare: print one model in the side-by-side format of several models.
        sweep: vary context, batch or source: context=1024..65536 doubles it each time, context=1024,3000 is a list.
        explain: print every number of a part, such as blocks.0.ffn, with its formula.
        depth: show parts down to this depth.
        full: show every block in a row of its own.
        plot: plot the shares into an .svg or .png file.
        as_json: print one JSON object, or a list for several models.
        as_csv: print CSV: a row per part, or per model for several models.
    """

    panel: ClassVar[str] = OUTPUT
    compare: bool = False
    sweep: str | None = setting(None, metavar="SIZE=FROM..TO")
    explain: str | None = setting(None, metavar="PART|flops|memory")
    depth: int | None = setting(None, min=0)
    full: bool = False
    plot: Path | None = setting(None, metavar="FILE")
    as_json: bool = setting(False, flags=["--json"])
    as_csv: bool = setting(False, flags=["--csv"])

    def check(self, models: list[str], *, plans: bool) -> None:
        """Raise if two options exclude each other."""
        if self.as_json and self.as_csv:
            raise InputError("--json and --csv exclude each other; choose one.")
        views = {"--sweep": self.sweep, "--explain": self.explain, "--devices": plans or None}
        chosen = [name for name, value in views.items() if value is not None]
        if len(chosen) > 1:
            raise InputError(f"{' and '.join(chosen)} exclude each other; choose one.")
        if chosen and len(models) > 1:
            raise InputError(f"{chosen[0]} takes one model; got {', '.join(models)}.")
        if chosen and chosen[0] != "--sweep" and (self.as_csv or self.plot is not None):
            other = "--csv" if self.as_csv else "--plot"
            raise InputError(f"{chosen[0]} prints text or --json; leave out {other}.")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The device that runs the model, and a training run on several.

    Args:
        hardware: estimate the time on this device; see --list-hardware.
        custom: a device that is not in the table.
        measure: measure this machine, in a few seconds.
        run: also run the workload here with random weights, and time it.
        list_hardware: list the known devices with their sources.
        plan: the training run.
    """

    panel: ClassVar[str] = DEVICE
    hardware: str | None = setting(None, metavar="NAME")
    custom: Annotated[
        dict[str, Any],
        Keywords(
            custom_hardware,
            ("flops", "bandwidth", "memory"),
            DEVICE,
            changed={
                "flops": {"metavar": "FLOP/S", "help": "Peak FLOP/s of a device not in the list."},
                "bandwidth": {"metavar": "BYTES/S", "help": "Memory bandwidth of that device."},
                "memory": {"metavar": "BYTES", "help": "Memory size of that device."},
            },
        ),
    ]
    measure: bool = False
    run: bool = False
    list_hardware: bool = False
    plan: Annotated[
        dict[str, Any],
        Keywords(
            plan_of,
            ("devices", "parallel", "mfu", "checkpointing", "tokens"),
            PLAN,
            changed={"devices": {"min": 1}, "checkpointing": {"flags": ["--recompute"]}},
        ),
    ]

    @property
    def plans(self) -> bool:
        """Whether a training run is planned."""
        return "devices" in self.plan

    @property
    def named(self) -> list[str]:
        """The options that name a device."""
        ways = {"--hardware": self.hardware is not None, "--flops": "flops" in self.custom, "--measure": self.measure}
        return [name for name, used in ways.items() if used]

    def check(self, dtype: str) -> None:
        """Raise for impossible numbers, and for options that exclude or need each other."""
        numbers = {name: value for name, value in {**self.custom, **self.plan}.items() if name in NUMBERS}
        check_positive_number(**numbers)
        if self.plan.get("mfu", 0) > 1:
            raise InputError(f"--mfu is a share of the peak, at most 1; got {self.plan['mfu']}.")
        if self.custom and not {"flops", "bandwidth"} <= set(self.custom):
            raise InputError("a device not in the list needs both --flops and --bandwidth; --memory is optional.")
        if len(self.named) > 1:
            raise InputError(f"{' and '.join(self.named)} each name a device; choose one.")
        if self.plans and not self.named:
            raise InputError("--devices needs a device: --hardware NAME, --flops and --bandwidth, or --measure.")
        if self.named and dtype == "float64":
            raise InputError("no device has a known peak in float64; use --dtype float32.")
        if self.plan and not self.plans:
            template = "{} is for a training run; set the number of devices: --devices."
            raise SettingError(template, Setting(next(iter(self.plan))))

    def chosen(self, dtype: str) -> Hardware | None:
        """Return the device; None if no option names one."""
        if self.measure:
            from glassformer.inspect.account.measure import measure_machine

            return measure_machine(dtype)
        if self.custom:
            return custom_hardware(**self.custom)
        return None if self.hardware is None else _find_hardware(self.hardware)


def _find_hardware(name: str) -> Hardware:
    """Return a device of the table; the beginning of its name is enough where it is unique, with a note."""
    matches = hardware_with_prefix(name)
    try:
        return hardware(name)
    except SettingError:
        if len(matches) != 1:
            raise
    note(f"{name} is taken to be {matches[0].name}.")
    return matches[0]


@partial(as_command, threads="CPU threads for --measure and --run; defaults to torch's default.")
def account(
    load: WorkloadOptions,
    reading: FactsKeywords,
    output: AccountOutput,
    device: DeviceOptions,
    model: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Published or shipped models, model folders, GGUF or llama2.c files."),
    ] = None,
) -> None:
    """Count the parameters, FLOPs and memory of every part of a model, without allocating its weights.

    Several models are shown side by side, as are a model and its changed version (--change).
    """
    models = model or []
    if device.list_hardware:
        _list_hardware(output)
        return
    # Options that exclude or need each other.
    load.check(plans=device.plans)
    device.check(load.dtype)
    output.check(models, plans=device.plans)
    if output.plot is not None:
        check_plot(output.plot)
    sweep = None if output.sweep is None else parse_sweep(output.sweep)
    if output.as_csv and not device.plans and device.named:
        raise InputError("--csv has no column for times; leave out the device, or use --json.")
    if device.run and (sweep is not None or output.explain is not None or output.as_csv):
        raise InputError("--run times one pass or step; leave out --sweep, --explain and --csv.")
    views = (sweep, output.explain, output.plot)
    needs_model = device.plans or device.run or any(view is not None for view in views)
    if not models and (needs_model or not device.measure):
        raise InputError("name a model: glassformer account gpt2-xl; glassformer info lists the published ones.")
    if sweep is not None and sweep.axis in load.settings:
        raise InputError(f"--{sweep.axis} and --sweep {output.sweep} both set the {sweep.axis}; leave out the first.")
    accounts = load.accounts(models, reading, plans=device.plans)
    machine = device.chosen(load.dtype)
    # One view: a machine; a sweep, an explanation or a training plan of the (changed) model; or the costs of models.
    if not accounts:
        assert machine is not None
        _show_machine(machine, output)
    elif sweep is not None:
        _sweep(accounts[-1], sweep, output, machine)
    elif output.explain is not None:
        _explain(accounts[-1], output)
    elif device.plans:
        assert machine is not None
        _plan(accounts[-1], output, device, machine)
    else:
        costs = [_costs(account, machine, _seconds(account, device)) for account in accounts]
        _show(costs, output, load.change)


def _costs(account: Account, machine: Hardware | None, seconds: float | None) -> Costs:
    return Costs(account, crossings(account), None if machine is None else time_on(account, machine), seconds)


def _seconds(account: Account, device: DeviceOptions) -> float | None:
    """Return the measured time on this machine, with --run."""
    if not device.run:
        return None
    from glassformer.inspect.account.measure import measure_account

    return measure_account(account)


def _show(costs: list[Costs], output: AccountOutput, changes: list[str] | None) -> None:
    """Print one model, several side by side, or one before and after a change."""
    accounts = [each.account for each in costs]
    _note_length(accounts)
    single = len(costs) == 1 and not output.compare
    if output.as_json:
        data = [_data(each, output.depth) for each in costs]
        print_json(data[0] if single else data)
    elif output.as_csv:
        _print_csv(part_rows(accounts[0], output.depth) if single else map(summary_row, accounts))
    elif single:
        show_model(costs[0], output.depth, full=output.full)
    elif changes:
        show_change(costs[0], costs[1], changes)
    else:
        show_models(costs)
    if output.plot is not None:
        plot_models(accounts, output.plot)
        note(f"wrote {output.plot}")


def _sweep(base: Account, sweep: Sweep, output: AccountOutput, machine: Hardware | None) -> None:
    """Print one model at several sizes."""
    accounts = run_sweep(base, sweep)
    costs = [Costs(account, [], None if machine is None else time_on(account, machine)) for account in accounts]
    _note_length(accounts)
    crossed = [] if sweep.axis == "batch" else crossings(accounts[0], sweep.axis)
    if output.as_json:
        rows = [_data(each, output.depth) for each in costs]
        print_json({"sweep": sweep.axis, "crossings": [crossing._asdict() for crossing in crossed], "accounts": rows})
    elif output.as_csv:
        _print_csv(map(summary_row, accounts))
    else:
        show_sweep(costs, sweep.axis, crossed)
    if output.plot is not None:
        plot_sweep(accounts, sweep, crossed, output.plot)
        note(f"wrote {output.plot}")


def _explain(account: Account, output: AccountOutput) -> None:
    assert output.explain is not None
    explanation = explain(account, output.explain)
    _note_length([account])
    same_name = (part.path for part in account.root.called(output.explain) if not part.is_repeated)
    others = [path for path in same_name if path != explanation.subject]
    if others:
        note(f"this is {explanation.subject}; there are also {', '.join(others)}.")
    if output.as_json:
        print_json(explanation_data(account, explanation))
    else:
        show_explanation(account, explanation)


def _plan(account: Account, output: AccountOutput, device: DeviceOptions, machine: Hardware) -> None:
    plan = plan_of(account, machine, **device.plan)
    _note_length([account])
    seconds = _seconds(account, device)
    if output.as_json:
        data = as_dict(account, output.depth) | {"plan": plan_data(plan)}
        print_json(data | run_data(account, seconds, machine))
    else:
        show_plan(account, plan)
        for line in run_lines(account, seconds, machine):
            print_line(f"{line} The plan has {plan.tokens_per_second / plan.devices:,.0f} tokens/s on each device.")


def _data(costs: Costs, depth: int | None) -> dict[str, Any]:
    account, timing = costs.account, costs.timing
    data = as_dict(account, depth) | {"crossings": [crossing._asdict() for crossing in costs.crossings]}
    if timing is not None:
        data |= {"roofline": _timing_data(timing)}
    return data | run_data(account, costs.seconds, None if timing is None else timing.hardware)


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
            {"path": work.name, "flops": work.flops, "bytes": work.bytes, "seconds": time.seconds, "bound": time.bound}
            for work, time in pieces
        ],
    }


def _list_hardware(output: AccountOutput) -> None:
    if output.as_json:
        print_json([hardware_data(device) for device in HARDWARE.values()])
    else:
        show_hardware()


def _show_machine(machine: Hardware, output: AccountOutput) -> None:
    if output.as_json:
        print_json(hardware_data(machine))
    else:
        show_machine(machine)


def _print_csv(rows: Iterable[dict[str, Any]]) -> None:
    listed = list(rows)
    writer = csv.DictWriter(sys.stdout, listed[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)


def _note_length(accounts: list[Account]) -> None:
    """Note where more tokens are counted than a model has positions."""
    for name in dict.fromkeys(account.name for account in accounts):
        tokens, config = max(
            ((max(account.context, account.source), account.config) for account in accounts if account.name == name),
            key=lambda pair: pair[0],
        )
        assert config is not None
        if config.max_length is not None and tokens > config.max_length:
            note(f"{name} has positions for {config.max_length:,} tokens; the costs of {tokens:,} are hypothetical.")
