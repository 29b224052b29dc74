"""Several runs of ``glassformer train`` side by side: metrics, speed, cost, and the recipe values that differ."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.config import count
from glassformer.inspect.account.plot import STYLE, check_plot, save_figure
from glassformer.inspect.facts import facts_of
from glassformer.training.logging.curve import Curves, curves_of, read_lines, smooth, thin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNCOMPARED = ("name", "about", "expected")  # texts of a recipe that change nothing in the run
# Okabe and Ito (2008): told apart by all kinds of colour vision. Yellow, too faint for a line, is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
POINTS = 400  # of the step axis, at which a training curve is drawn
PLATE = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}  # behind a number
LABEL = 60  # characters of a run's name and differences in the legend


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run, as its folder records it."""

    name: str
    folder: Path
    recipe: dict[str, Any]  # by dotted key, as "optimizer.lr"
    results: dict[str, float]  # final metrics by part of the data, as "valid.loss"; empty if the run has not ended
    curves: Curves
    steps: int
    tokens: int  # tokens trained on, padding not counted
    seconds: float  # wall time of all training steps, without validations and checkpoints
    memory: int | None  # bytes, the peak of the process or of the GPU
    parameters: int | None  # None before a model was written
    estimated_seconds: float | None  # before the first step, validations included; None: not known
    estimated_memory: int | None  # bytes

    @cached_property
    def best_validation_loss(self) -> float | None:
        """The lowest one; None if the run had no validation."""
        return min((point.value for point in self.curves.validation), default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """Over all training steps."""
        return self.tokens / self.seconds if self.seconds else None


def read_runs(folders: Sequence[Path]) -> list[RunSummary]:
    """Read run folders; each is named by its last part, or by its whole path where two would be named alike."""
    short = [folder.resolve().name for folder in folders]
    names = [str(path) if short.count(name) > 1 else name for path, name in zip(folders, short, strict=True)]
    return [read_run_summary(path, name) for path, name in zip(folders, names, strict=True)]


def read_run_summary(folder: Path, name: str) -> RunSummary:
    """Read one run folder, without its weights."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder.")
    for file in ("recipe.yaml", "log.jsonl"):
        if not (folder / file).is_file():
            raise ValueError(f"{folder} is not a run of glassformer train: it has no {file}.")
    # The log: one line per step, and one with the estimated cost.
    lines = read_lines(folder / "log.jsonl")
    curves = curves_of(lines, folder / "log.jsonl")
    steps = [line for line in lines if line.get("kind") == "step"]
    estimate: dict[str, Any] = next((line.get("measured", {}) for line in lines if line.get("kind") == "cost"), {})
    measured = [line.get("measured", {}) for line in steps]
    return RunSummary(
        name=name,
        folder=folder,
        recipe=_read_recipe(folder / "recipe.yaml"),
        results=_read_results(folder / "results.json"),
        curves=curves,
        steps=max(line["step"] for line in steps),
        tokens=sum(line.get("tokens", 0) for line in steps),
        seconds=sum(step.get("seconds") or 0.0 for step in measured),
        memory=max((step["memory"] for step in measured if step.get("memory")), default=None),
        parameters=count(facts_of(folder / "model")) if (folder / "model").is_dir() else None,
        estimated_seconds=estimate.get("seconds"),
        estimated_memory=estimate.get("memory"),
    )


def differing_keys(runs: Sequence[RunSummary]) -> list[str]:
    """Return recipe keys whose values are not the same in all runs.

    A key that a run does not have counts as different.
    """
    keys = dict.fromkeys(key for run in runs for key in run.recipe)
    first = runs[0].recipe
    return [key for key in keys if any(key not in run.recipe or run.recipe[key] != first.get(key) for run in runs)]


def metric_names(runs: Sequence[RunSummary]) -> list[str]:
    """Return the final metrics that at least one run has, in their order."""
    return list(dict.fromkeys(name for run in runs for name in run.results))


def plot_runs(runs: Sequence[RunSummary], path: Path) -> None:
    """Draw the losses over the steps, and below them the best validation loss, the speed and the time as bars."""
    check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(10, 6 + 0.35 * len(runs)), layout="constrained")
        panels = figure.subplot_mosaic(
            [["loss"] * 3, ["best", "speed", "time"]], height_ratios=[4, 0.6 + 0.35 * len(runs)]
        )
        _draw_losses(panels["loss"], runs)
        _draw_bars(panels["best"], "best validation loss", runs, [run.best_validation_loss for run in runs], "{:.4g}")
        _draw_bars(panels["speed"], "tokens/s", runs, [run.tokens_per_second for run in runs], "{:,.0f}")
        _draw_bars(panels["time"], "training time, minutes", runs, [run.seconds / 60 for run in runs], "{:.3g}")
        for name in ("speed", "time"):
            panels[name].set_yticks([])
        save_figure(figure, path)


def _draw_losses(axes: "Axes", runs: Sequence[RunSummary]) -> None:
    keys = differing_keys(runs)
    for number, run in enumerate(runs):
        colour, curves = COLOURS[number % len(COLOURS)], run.curves
        changes = ", ".join(f"{key}={run.recipe[key]}" for key in keys if key in run.recipe)
        label = f"{run.name}: {changes}" if changes else run.name
        train = thin(smooth(curves.train, len(curves.train) // 100), POINTS)
        axes.plot(*zip(*train, strict=True), color=colour, linewidth=1, alpha=0.6)
        tried = curves.validation or train
        axes.plot(
            *zip(*tried, strict=True),
            color=colour,
            marker="o" if curves.validation else "",
            markersize=4,
            label=label if len(label) <= LABEL else label[: LABEL - 1] + "…",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss: training (thin), validation (dots)")
    axes.legend(frameon=False, fontsize=10)


def _draw_bars(axes: "Axes", title: str, runs: Sequence[RunSummary], values: list[float | None], form: str) -> None:
    for row, value in enumerate(values):
        axes.barh(row, value or 0.0, 0.7, color=COLOURS[row % len(COLOURS)])
        text = "none" if value is None else form.format(value)
        axes.text(0.02, row, text, va="center", transform=axes.get_yaxis_transform(), fontsize=10, bbox=PLATE)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_yticks(range(len(runs)), [run.name if len(run.name) <= 24 else f"…{run.name[-23:]}" for run in runs])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)


def _read_recipe(path: Path) -> dict[str, Any]:
    import yaml

    from glassformer.recipes.files import RecipeError, parse_yaml

    try:
        page = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, RecipeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a recipe: {str(error).splitlines()[0]}.") from error
    if not isinstance(page, dict):
        raise ValueError(f"{path} is not a recipe: it holds no keys.")
    return _flat({key: value for key, value in page.items() if key not in UNCOMPARED})


def _read_results(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))
        return {key: value for key, value in _flat(parts).items() if isinstance(value, int | float)}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} holds no results of a run: {error}.") from error


def _flat(page: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in page.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
