"""``glassformer train``, ``evaluate`` and ``compare``: train from a recipe, measure a model, compare runs."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassformer.cli.console import (
    grid,
    heading,
    note,
    print_line,
    print_rounded_json,
    print_table,
    print_wide,
    stdout_console,
    visible,
)
from glassformer.cli.options import (
    AsJson,
    InitKeywords,
    LoadingOptions,
    ModelName,
    OnBadRowOption,
    as_command,
    computing_command,
    setting,
)
from glassformer.config.checks import Setting, SettingError

if TYPE_CHECKING:
    from glassformer.recipes.recipe import Recipe
    from glassformer.training.compare import RunSummary
    from glassformer.training.logging.progress import OpenSink
    from glassformer.training.session import Session

_THREADS = re.compile(r"run(\.threads=|=.*\bthreads\b)")
_CHANGE = re.compile(r"[A-Za-z_][\w.]*=")  # how KEY=VALUE begins; a path may have the sign further inside


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run is written, and what it starts from.

    Args:
        out: write the run to this folder.
        resume: continue the run in --out as if it had not been interrupted.
        init_from: start from the weights and the tokenizer of a model.
        threads: CPU threads (run.threads); by default a short measurement chooses.
    """

    out: Path | None = setting(None, flags=["--out", "-o"], metavar="FOLDER", show_default="runs/RECIPE")
    resume: bool = False
    init_from: str | None = setting(None, metavar="FOLDER")
    on_bad_row: OnBadRowOption = None
    threads: int | None = setting(None, min=1)


@dataclass(frozen=True, kw_only=True)
class PrintOptions:
    """What is printed instead of training.

    Args:
        list_recipes: list the recipes and exit.
        print_config: print the whole recipe as YAML and exit.
        print_groups: print every parameter with its optimizer and weight decay, and exit.
    """

    list_recipes: bool = setting(False, flags=["--list"])
    print_config: bool = False
    print_groups: bool = False


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Where metrics are logged.

    Args:
        tensorboard: write TensorBoard events into --out.
        wandb: log to this project of Weights & Biases.
        quiet: print warnings only.
    """

    panel: ClassVar[str] = "Logging"
    tensorboard: bool = False
    wandb: str | None = setting(None, metavar="PROJECT")
    quiet: bool = setting(False, flags=["--quiet", "-q"])


def _complete_recipe(beginning: str) -> list[str]:
    """Shell completion of recipe names."""
    from glassformer.recipes.files import recipe_names

    return [name for name in recipe_names() if name.startswith(beginning)]


@as_command
def train(
    run: RunOptions,
    printing: PrintOptions,
    logging: LogOptions,
    start: InitKeywords,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe, which defines the whole run: a name (see --list) or a YAML file.",
            autocompletion=_complete_recipe,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Recipe values to override: optimizer.lr=1e-3, run.size=small …"),
    ] = None,
) -> None:
    """Train a model from a recipe. For several processes: torchrun --nproc-per-node N -m glassformer train …"""
    if printing.list_recipes:
        _list_recipes()
        return
    notes: list[str] = []
    chosen = _read(recipe, list(changes or ()), run, start, notes)
    if printing.print_config:
        from glassformer.objectives.job import with_all_options
        from glassformer.recipes.files import write_recipe

        typer.echo(write_recipe(with_all_options(chosen)), nl=False)
        for text in notes:
            note(text)
        return
    _run(chosen, run, printing, logging, notes)


def _read(
    recipe: str | None, changes: list[str], run: RunOptions, start: Mapping[str, Any], notes: list[str]
) -> "Recipe":
    """Return the recipe with the changes and options of the command line; ``notes`` gets what follows from them."""
    from glassformer.recipes.files import read_recipe

    if recipe is None or _CHANGE.match(recipe):
        if not run.resume or run.out is None:
            raise ValueError("name a recipe; glassformer train --list shows them.")
        if recipe is not None:
            changes.insert(0, recipe)
        recipe = str(run.out / "recipe.yaml")
        if not Path(recipe).is_file():
            raise ValueError(f"{run.out} holds no run to resume; name a recipe to start one.")
        if any(change.startswith("run.size=") for change in changes):
            raise ValueError("a run that is resumed keeps the size it began with; leave out run.size.")
    # Options of the command line as changes of the recipe.
    values = {f"model.load_options.{name}": value for name, value in start.items()}
    if run.on_bad_row is not None:
        values["data.on_bad_row"] = run.on_bad_row
    if run.threads is not None:
        if twice := [change for change in changes if _THREADS.match(change)]:
            raise ValueError(f"set it once: --threads {run.threads} or {twice[-1]}.")
        values["run.threads"] = run.threads
    if run.init_from is not None:  # replaces the model of the recipe, but not the changes to it
        recipe_model = ("start=null", "lineage=null", "sizes={}", "facts={}", "helper={}")
        changes = [*(f"model.{change}" for change in recipe_model), *changes]
        stated = read_recipe(recipe, changes).model.start
        if stated is not None:
            raise ValueError(f"choose one model to start from: --init-from {run.init_from} or model.start={stated}.")
        values["model.start"] = run.init_from
    result = read_recipe(recipe, changes, notes=notes, **values)
    if start and result.model.start is None and result.model.teacher is None:
        template = "{} is for a model to start from; add --init-from FOLDER, or leave it out."
        raise SettingError(template, Setting(next(iter(start))))
    return result


def _list_recipes() -> None:
    from glassformer.recipes.files import read_recipe, recipe_names, recipe_sizes

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("recipe", style="bold cyan", no_wrap=True)
    table.add_column("model and expected result")
    for name in recipe_names():
        recipe = read_recipe(name)
        lines = [str(recipe.expected)]
        for size in recipe_sizes(name):
            lines.append(f"run.size={size}: {read_recipe(name, [f'run.size={size}']).expected}")
        table.add_row(name, Text.assemble(recipe.about, *(("\n" + line, "dim") for line in lines)))
    print_table(table)


def _run(recipe: "Recipe", run: RunOptions, printing: PrintOptions, logging: LogOptions, notes: list[str]) -> None:
    from glassformer.training import parallel
    from glassformer.training.logging.progress import Monitor
    from glassformer.training.malloc import keep_freed_memory
    from glassformer.training.session import Session, StoppedError

    # Open the processes, the console and the loggers of the run.
    folder = run.out if run.out is not None else recipe.default_folder
    with parallel.start(recipe.run.chosen_device) as process:
        console = stdout_console() if process.is_first and not logging.quiet else None
        if printing.print_groups:
            _print_groups(recipe, process)
            return
        sinks = _sinks(logging, folder, recipe) if process.is_first else []
        if process.device.type == "cpu" and recipe.run.keep_memory:
            keep_freed_memory()
        for text in notes if console is not None else ():
            note(text)
        # Train; an interrupted run says what it leaves and how to resume it.
        shown = Console(stderr=True, highlight=False) if logging.quiet and process.is_first else console
        monitor = Monitor(shown, recipe.name, sinks, only_warnings=logging.quiet)
        session = Session(recipe, folder, process, monitor, resume=run.resume)
        try:
            outcome = session.train()
        except (StoppedError, KeyboardInterrupt) as stopped:
            if console is not None:
                text = _stopped(session, stopped, folder)
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None
        if console is not None:
            _print_outcome(console, folder, outcome.step, outcome.results)


def _stopped(session: "Session", stopped: BaseException, folder: Path) -> str:
    """Return what an interrupted run leaves, a model or a checkpoint, and the command that resumes it."""
    from glassformer.training.checkpoint_contents import needs_base
    from glassformer.training.session import MODEL, StoppedError

    resume = f"Resume with: glassformer train --out {folder} --resume"
    if isinstance(stopped, StoppedError):
        several = len(stopped.kept) > 1
        origin = f"the mean of {len(stopped.kept)} checkpoints" if several else f"of step {stopped.kept[0]:,}"
        return f"Stopped after step {stopped.step:,}. The model so far, {origin}: {folder / MODEL}. {resume}"
    last = session.checkpoints.latest()
    if last is None:
        return f"Stopped before the first checkpoint. {resume}"
    return f"Stopped. The newest checkpoint{'' if needs_base(last) else ' can be used as a model'}: {last}. {resume}"


def _sinks(logging: LogOptions, folder: Path, recipe: "Recipe") -> "list[OpenSink]":
    from glassformer.training.logging.sinks import TensorBoard, WeightsAndBiases, import_tensorboard, import_wandb

    sinks: list[OpenSink] = []
    if logging.tensorboard:
        import_tensorboard()  # a missing package is an error before anything is written
        sinks.append(lambda done: TensorBoard(folder / "tensorboard", done=done))
    if logging.wandb is not None:
        import_wandb()
        project = logging.wandb
        sinks.append(lambda done: WeightsAndBiases(folder, project=project, name=recipe.name, done=done))
    return sinks


def _print_groups(recipe: "Recipe", process: Any) -> None:
    import tempfile

    from glassformer.training.build import build_run
    from glassformer.training.optim import list_groups
    from glassformer.training.threads import computing_with

    with computing_with(recipe.run.threads), tempfile.TemporaryDirectory() as folder:
        run = build_run(recipe, Path(folder), process)
        rows = list_groups(run.trainer.optimizers, run.model)
    table = Table(box=None, pad_edge=False)
    for name in ("parameter", "shape", "optimizer", "group", "weight decay", "lr"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        shape = " × ".join(map(str, row.shape))
        table.add_row(row.name, shape, row.optimizer, str(row.group), f"{row.weight_decay:g}", f"{row.lr:g}")
    print_table(table)


def _print_outcome(console: Console, folder: Path, step: int, results: dict[str, dict[str, float]]) -> None:
    for split, metrics in results.items():
        line = Text(f"{split:<11} ", style="magenta")
        for name, value in metrics.items():
            line.append(f"{name} ", style="default").append(f"{value:.4g}  ", style="bold default")
        console.print(line, highlight=False)
    text = f"{step:,} steps. Model: {folder / 'model'}; loss curve: {folder / 'loss.svg'}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@computing_command
def evaluate(
    model: ModelName,
    loading: LoadingOptions,
    data: Annotated[
        list[str],
        typer.Argument(metavar="FILE|KEY=VALUE", help="Labelled files (two for a parallel corpus), and settings."),
    ],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format of the data: text, jsonl, csv, tsv, parallel, conll, squad or dataset; default: from the file "
            "name's suffix, else as in training.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    on_bad_row: OnBadRowOption = None,
) -> None:
    """Evaluate MODEL on labelled data with the metrics of its head: loss, perplexity, BLEU, ROUGE, accuracy, F1 …

    KEY=VALUE changes how data is read and evaluated, as in a recipe: data.columns.label=emotion evaluation.beam=5.
    """
    from glassformer.recipes.files import recipe_of
    from glassformer.training.evaluation import check_changes, evaluate_model, evaluation_recipe, files_of, format_of

    # Arguments are files or changes of the recipe; an option and a change may not set the same key.
    files = [argument for argument in data if not _CHANGE.match(argument)]
    changes = [argument for argument in data if _CHANGE.match(argument)]
    keys = dict(change.split("=", 1) for change in changes)
    check_changes(keys)
    for key, name, value in (("data.format", "--format", format_), ("data.on_bad_row", "--on-bad-row", on_bad_row)):
        if key in keys and value is not None:
            raise ValueError(f"set it once: {name} {value} or {key}={keys[key]}.")
    loaded = loading.load(model)
    kind = format_ or keys.get("data.format") or format_of(loaded, files)
    page = evaluation_recipe(loaded, kind, files_of(kind, files), keys.get("job"))
    values = {} if on_bad_row is None else {"data.on_bad_row": on_bad_row}
    metrics, notes = evaluate_model(loaded, recipe_of("evaluation", page, changes, **values))
    for text in notes:
        note(text)
    if as_json:
        print_rounded_json({"model": str(model), "files": files, **metrics})
        return
    print_table(_metrics_table(metrics))


def _metrics_table(metrics: dict[str, float]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in metrics.items():
        table.add_row(visible(name), f"{value:.6g}")
    return table


@as_command
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders of glassformer train.")],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Plot losses, speed and time; needs matplotlib.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare training runs: final metrics, best validation loss, speed, cost, and what differs in their recipes."""
    from glassformer.inspect.account.plot import check_plot
    from glassformer.training.compare import plot_runs, read_runs

    without_matplotlib = None
    if plot is not None:
        try:
            check_plot(plot)
        except ImportError as error:  # the table needs no matplotlib, so it is printed first
            without_matplotlib = error
    summaries = read_runs(runs)
    if as_json:
        _print_runs_json(summaries)
    else:
        _print_runs(summaries)
    if without_matplotlib is not None:
        raise without_matplotlib
    if plot is not None:
        plot_runs(summaries, plot)
        note(f"wrote {plot}")


def _print_runs_json(runs: "list[RunSummary]") -> None:
    from glassformer.training.compare import differing_keys

    keys = differing_keys(runs)
    for run in runs:
        print_rounded_json(
            {
                "run": str(run.folder),
                "results": run.results,
                "best_validation_loss": run.best_validation_loss,
                "steps": run.steps,
                "tokens": run.tokens,
                "tokens_per_second": run.tokens_per_second,
                "seconds": run.seconds,
                "memory_bytes": run.memory,
                "estimated_seconds": run.estimated_seconds,
                "estimated_memory_bytes": run.estimated_memory,
                "parameters": run.parameters,
                "differs": {key: run.recipe[key] for key in keys if key in run.recipe},
            }
        )


def _print_runs(runs: "list[RunSummary]") -> None:
    """Print a column per run: metrics, then the recipe values that differ."""
    from glassformer.inspect.account.report import duration, human
    from glassformer.training.compare import differing_keys, metric_names

    # Size, speed and cost, then the metrics, a column per run.
    table = grid("", *(visible(run.name) for run in runs))

    def add(name: str, values: list[str | None]) -> None:
        table.add_row(name, *(Text("—" if value is None else visible(value)) for value in values))

    add("parameters", [None if run.parameters is None else f"{run.parameters:,}" for run in runs])
    add("steps", [f"{run.steps:,}" for run in runs])
    add("tokens", [f"{run.tokens:,}" for run in runs])
    add("tokens/s", [None if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}" for run in runs])
    add("training time", [duration(run.seconds) if run.seconds else None for run in runs])
    add("peak memory", [None if run.memory is None else human(run.memory, "B") for run in runs])
    times, sizes = [run.estimated_seconds for run in runs], [run.estimated_memory for run in runs]
    add("estimated time", [None if seconds is None else duration(seconds) for seconds in times])
    add("estimated memory", [None if size is None else human(size, "B") for size in sizes])
    add("last training loss", [f"{run.curves.train[-1].value:.4g}" for run in runs])
    best = [run.best_validation_loss for run in runs]
    add("best validation loss", [None if value is None else f"{value:.4g}" for value in best])
    for name in metric_names(runs):
        add(name, [f"{run.results[name]:.4g}" if name in run.results else None for run in runs])
    print_wide(table)
    keys = differing_keys(runs)
    if not keys:
        if len(runs) > 1:
            print_line("The recipes are the same.")
        return
    heading("The recipes differ in")
    table = grid("", *(visible(run.name) for run in runs))
    for key in keys:
        add(key, [_yaml_value(run.recipe[key]) if key in run.recipe else None for run in runs])
    print_wide(table)


def _yaml_value(value: Any) -> str:
    """Return a recipe value as the recipe writes it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
