"""``glassformer train``: a model from a recipe; ``evaluate``: how good it is; ``compare``: several runs."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassformer.cli.errors import option
from glassformer.cli.options import AsJson, Loading, ModelName, ModelOptions, computing_verb, verb
from glassformer.cli.outputs import grid, heading, note, people, print_computed, print_wide, say, visible

if TYPE_CHECKING:
    from glassformer.training.compare import RunSummary
    from glassformer.training.logging.progress import OpenSink
    from glassformer.training.recipe import Recipe
    from glassformer.training.session import Session

WATCHING = "Who is told"
_CHANGE = re.compile(r"[A-Za-z_][\w.]*=")  # how KEY=VALUE begins; a path may have the sign further inside


@dataclass(frozen=True, kw_only=True)
class Going:
    """Where a run goes, and from where."""

    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where the run goes: runs/RECIPE unless given.")
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, exactly as if it had never stopped.")
    ] = False
    init_from: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Start a new run from the weights and the tokenizer of a model."),
    ] = None
    on_bad_row: Annotated[
        str | None,
        typer.Option(metavar="stop|skip", help="What a bad row does: stop with its file and line, or be left out."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Questions that are answered without training."""

    list_recipes: Annotated[bool, typer.Option("--list", help="List the recipes and stop.")] = False
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the whole recipe as YAML and stop.")] = (
        False
    )
    print_groups: Annotated[
        bool, typer.Option("--print-groups", help="Print every parameter with its optimizer and decay, and stop.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Telling:
    """Who else is told of a run."""

    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write events for TensorBoard into --out.", rich_help_panel=WATCHING)
    ] = False
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Tell Weights & Biases, under this project.", rich_help_panel=WATCHING),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=WATCHING)] = False


def _complete_recipe(beginning: str) -> list[str]:
    """The recipes that a shell offers after some characters."""
    from glassformer.training.recipe_files import recipe_names

    return [name for name in recipe_names() if name.startswith(beginning)]


@computing_verb
def train(
    going: Going,
    asking: Asking,
    telling: Telling,
    opening: ModelOptions,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help="A recipe's name (see --list) or a YAML file.", autocompletion=_complete_recipe
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as optimizer.lr=1e-3.")
    ] = None,
) -> None:
    """Train a model by a recipe. Several processes: torchrun --nproc-per-node N -m glassformer train …"""
    if asking.list_recipes:
        _list_recipes()
        return
    told: list[str] = []
    found = _read(recipe, list(changes or ()), going, opening.options(), told)
    if asking.print_config:
        from glassformer.training.objectives.job import with_all_options
        from glassformer.training.recipe_files import write_recipe

        typer.echo(write_recipe(with_all_options(found)), nl=False)
        for text in told:
            note(text)
        return
    _run(found, going, asking, telling, told)


def _read(recipe: str | None, changes: list[str], going: Going, options: dict[str, Any], told: list[str]) -> "Recipe":
    from glassformer.training.recipe_files import read_recipe

    if recipe is None or _CHANGE.match(recipe):
        if not going.resume or going.out is None:
            raise ValueError("say which recipe to train by: glassformer train --list shows them.")
        if recipe is not None:
            changes.insert(0, recipe)
        recipe = str(going.out / "recipe.yaml")
        if not Path(recipe).is_file():
            raise ValueError(f"{going.out} holds no run to go on with; say which recipe to begin.")
    values = {f"model.load_options.{name}": value for name, value in options.items() if value}
    if going.on_bad_row is not None:
        values["data.on_bad_row"] = going.on_bad_row
    if going.init_from is not None:  # in place of the recipe's model, not of what is said besides
        recipe_model = ("start=null", "lineage=null", "sizes={}", "facts={}", "helper={}")
        changes = [*(f"model.{change}" for change in recipe_model), *changes]
        said = read_recipe(recipe, changes).model.start
        if said is not None:
            raise ValueError(f"say one model to start from: --init-from {going.init_from} or model.start={said}.")
        values["model.start"] = going.init_from
    found = read_recipe(recipe, changes, notes=told, **values)
    unused = [option(name) for name, value in options.items() if value]
    if unused and found.model.start is None and found.model.teacher is None:
        raise ValueError(f"{unused[0]} is for a model to start from; say --init-from FOLDER, or leave it out.")
    return found


def _list_recipes() -> None:
    from glassformer.training.recipe_files import read_recipe, recipe_names

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("recipe", style="bold cyan", no_wrap=True)
    table.add_column("what it trains, and what to expect")
    for name in recipe_names():
        one = read_recipe(name)
        table.add_row(name, Text.assemble(one.about, "\n", (str(one.expected), "dim")))
    people().print(table)


def _run(recipe: "Recipe", going: Going, asking: Asking, telling: Telling, told: list[str]) -> None:
    from glassformer.training import parallel
    from glassformer.training.logging.progress import Monitor
    from glassformer.training.malloc import keep_freed_memory
    from glassformer.training.session import Session, StoppedError

    folder = going.out if going.out is not None else recipe.default_folder
    with parallel.start(recipe.run.chosen_device) as process:
        console = people() if process.is_first and not telling.quiet else None
        if asking.print_groups:
            _print_groups(recipe, process)
            return
        sinks = _sinks(telling, folder, recipe) if process.is_first else []
        if process.device.type == "cpu" and recipe.run.keep_memory:
            keep_freed_memory()
        for text in told if console is not None else ():
            note(text)
        session = Session(recipe, folder, process, Monitor(console, recipe.name, sinks), resume=going.resume)
        try:
            outcome = session.train()
        except (StoppedError, KeyboardInterrupt) as stopped:
            if console is not None:
                ended = _stopped(session, stopped, folder)
                console.print(ended, markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None
        if console is not None:
            _print_outcome(console, folder, outcome.step, outcome.results)


def _stopped(session: "Session", stopped: BaseException, folder: Path) -> str:
    """What a run that was stopped leaves: a model, or a checkpoint, and how it goes on."""
    from glassformer.training.resume import needs_base
    from glassformer.training.session import MODEL, StoppedError

    resume = f"Go on with: glassformer train --out {folder} --resume"
    if isinstance(stopped, StoppedError):
        several = len(stopped.kept) > 1
        made = f"the mean of {len(stopped.kept)} checkpoints" if several else f"of step {stopped.kept[0]:,}"
        return f"Stopped after step {stopped.step:,}. The model so far, {made}: {folder / MODEL}. {resume}"
    last = session.checkpoints.latest()
    if last is None:
        return f"Stopped before the first checkpoint. {resume}"
    return f"Stopped. The newest checkpoint{'' if needs_base(last) else ' can be used as a model'}: {last}. {resume}"


def _sinks(telling: Telling, folder: Path, recipe: "Recipe") -> "list[OpenSink]":
    from glassformer.training.logging.sinks import TensorBoard, WeightsAndBiases, import_tensorboard, import_wandb

    found: list[OpenSink] = []
    if telling.tensorboard:
        import_tensorboard()  # a package that is not there is told before anything is made
        found.append(lambda done: TensorBoard(folder / "tensorboard", done=done))
    if telling.wandb is not None:
        import_wandb()
        project = telling.wandb
        found.append(lambda done: WeightsAndBiases(folder, project=project, name=recipe.name, done=done))
    return found


def _print_groups(recipe: "Recipe", process: Any) -> None:
    import tempfile

    from glassformer.training.build import build_run
    from glassformer.training.optim import list_groups

    with tempfile.TemporaryDirectory() as folder:
        run = build_run(recipe, Path(folder), process)
        rows = list_groups(run.trainer.optimizers, run.model)
    table = Table(box=None, pad_edge=False)
    for name in ("parameter", "shape", "optimizer", "group", "weight decay", "lr"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        shape = " × ".join(map(str, row.shape))
        table.add_row(row.name, shape, row.optimizer, str(row.group), f"{row.weight_decay:g}", f"{row.lr:g}")
    people().print(table)


def _print_outcome(console: Console, folder: Path, step: int, results: dict[str, dict[str, float]]) -> None:
    for part, figures in results.items():
        line = Text(f"{part:<11} ", style="magenta")
        for name, value in figures.items():
            line.append(f"{name} ", style="default").append(f"{value:.4g}  ", style="bold default")
        console.print(line, highlight=False)
    told = f"{step:,} steps. The model: {folder / 'model'}; how it learned: {folder / 'loss.svg'}"
    console.print(told, markup=False, highlight=False, soft_wrap=True)


@computing_verb
def evaluate(
    model: ModelName,
    loading: Loading,
    data: Annotated[
        list[str],
        typer.Argument(metavar="FILE... [KEY=VALUE]...", help="Files with right answers; of aligned ones, two."),
    ],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="text, jsonl, csv, tsv, parallel, conll, squad, dataset; else by the ending, or as MODEL learned.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    on_bad_row: Annotated[
        str | None, typer.Option(metavar="stop|skip", help="What a bad row does: stop, or be left out.")
    ] = None,
) -> None:
    """Measure MODEL on data: loss and perplexity, BLEU, ROUGE, accuracy, entity F1, exact match, as its head has it.

    KEY=VALUE changes how the data is read and judged, as in a recipe: data.columns.label=emotion evaluation.beam=5.
    """
    from glassformer.training.evaluation import check_changes, evaluate_model, files_of, format_of, page_for
    from glassformer.training.recipe_files import recipe_of

    files = [one for one in data if not _CHANGE.match(one)]
    changes = [one for one in data if _CHANGE.match(one)]
    said = dict(one.split("=", 1) for one in changes)
    check_changes(said)
    for key, named, given in (("data.format", "--format", format_), ("data.on_bad_row", "--on-bad-row", on_bad_row)):
        if key in said and given is not None:
            raise ValueError(f"say it once: {named} {given} or {key}={said[key]}.")
    loaded = loading.load(model)
    kind = format_ or said.get("data.format") or format_of(loaded, files)
    page = page_for(loaded, kind, files_of(kind, files), said.get("job"))
    values = {} if on_bad_row is None else {"data.on_bad_row": on_bad_row}
    found, notes = evaluate_model(loaded, recipe_of("evaluation", page, changes, **values))
    for text in notes:
        note(text)
    if as_json:
        print_computed({"model": str(model), "files": files, **found})
        return
    people().print(_figures(found))


def _figures(found: dict[str, float]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.items():
        table.add_row(visible(name), f"{value:.6g}")
    return table


@verb
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders of glassformer train.")],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw losses, speed and time; needs matplotlib.")
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
        print_computed(
            {
                "run": str(run.folder),
                "results": run.results,
                "best_validation_loss": run.best_validation_loss,
                "steps": run.steps,
                "tokens": run.tokens,
                "tokens_per_second": run.tokens_per_second,
                "seconds": run.seconds,
                "memory_bytes": run.memory,
                "parameters": run.parameters,
                "differs": {key: run.recipe[key] for key in keys if key in run.recipe},
            }
        )


def _print_runs(runs: "list[RunSummary]") -> None:
    """A column per run: its metrics, then the recipe values that differ."""
    from glassformer.inspect.account.units import duration, human
    from glassformer.training.compare import differing_keys, metric_names

    table = grid("", *(visible(run.name) for run in runs))

    def add(name: str, values: list[str | None]) -> None:
        table.add_row(name, *(Text("—" if value is None else visible(value)) for value in values))

    add("parameters", [None if run.parameters is None else f"{run.parameters:,}" for run in runs])
    add("steps", [f"{run.steps:,}" for run in runs])
    add("tokens", [f"{run.tokens:,}" for run in runs])
    add("tokens/s", [None if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}" for run in runs])
    add("training time", [duration(run.seconds) if run.seconds else None for run in runs])
    add("peak memory", [None if run.memory is None else human(run.memory, "B") for run in runs])
    add("last training loss", [f"{run.curves.train[-1].value:.4g}" for run in runs])
    best = [run.best_validation_loss for run in runs]
    add("best validation loss", [None if value is None else f"{value:.4g}" for value in best])
    for name in metric_names(runs):
        add(name, [f"{run.results[name]:.4g}" if name in run.results else None for run in runs])
    print_wide(table)
    keys = differing_keys(runs)
    if not keys:
        if len(runs) > 1:
            say("The recipes are the same.")
        return
    heading("The recipes differ in")
    table = grid("", *(visible(run.name) for run in runs))
    for key in keys:
        add(key, [_yaml_value(run.recipe[key]) if key in run.recipe else None for run in runs])
    print_wide(table)


def _yaml_value(value: Any) -> str:
    """A recipe value as the recipe writes it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
