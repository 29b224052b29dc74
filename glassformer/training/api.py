"""Training from Python: ``train`` runs a recipe and returns the finished run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

from glassformer import hub
from glassformer.config.checks import check_choice
from glassformer.config.options import with_listed_options

SectionChanges = Mapping[str, Any]


class Changes(TypedDict, total=False):
    """Changes to the sections of a recipe, whose keys are the fields of ``recipes.recipe.Recipe``.

    Options:
        job: what is learned.
        data: files and how they are read: {"train": "reviews.jsonl"}.
        objective: options of the job.
        model: {"start": folder} to start from a model, {"facts": {"norm": {"kind": "rms"}}} to change facts.
        tokenizer: which tokenizer is trained or loaded.
        batch: examples or tokens per batch.
        optimizer: kind, learning rate, schedule.
        run: steps, seed, device, precision.
        evaluation: how often, by which metric.
    """

    job: str
    data: SectionChanges
    objective: SectionChanges
    model: SectionChanges
    tokenizer: SectionChanges
    batch: SectionChanges
    optimizer: SectionChanges
    run: SectionChanges
    evaluation: SectionChanges


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, its metrics and, read on first access, its model and loss curves."""

    folder: Path
    steps: int
    metrics: dict[str, dict[str, float]]  # by part of the data: valid, test

    @cached_property
    def model(self) -> hub.Loaded:
        """The trained model with its tokenizer, as ``glassformer.load`` returns it."""
        return hub.load(self.folder / "model")

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Losses by step: ``train``, and ``valid`` if there are validation rows."""
        from glassformer.training.logging.curve import read_curves

        read = read_curves(self.folder / "log.jsonl")
        return {"train": [*read.train], **({"valid": [*read.validation]} if read.validation else {})}


@with_listed_options
def train(
    recipe: str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    **changes: Unpack[Changes],
) -> TrainedRun:
    """Run a recipe, as ``glassformer train`` does, and return the finished run.

    Args:
        recipe: the name of a recipe (``recipes.files.recipe_names``) or the path of a YAML file.
        out: the folder of the run; ``runs/RECIPE`` by default.
        resume: continue the run in ``out``, bit for bit as if it had never stopped.
        progress: show a progress bar and the estimated cost on standard error; warnings are printed there in any case.
        changes: to the recipe, section by section: ``data={"train": "reviews.jsonl"}, run={"steps": 500}``; see below.
    """
    from rich.console import Console

    from glassformer.recipes.files import read_recipe
    from glassformer.training import parallel
    from glassformer.training.logging.progress import Monitor
    from glassformer.training.session import Session

    # Nested changes as dotted keys: {"run": {"steps": 9}} becomes run.steps=9.
    values: dict[str, Any] = {}
    for name, change in changes.items():
        check_choice("a section of a recipe", name, Changes.__annotations__)
        if isinstance(change, Mapping):
            values |= {f"{name}.{key}": value for key, value in change.items()}
        else:
            values[name] = change
    # Read the recipe and run it.
    settings = read_recipe(recipe, **values)
    folder = settings.default_folder if out is None else Path(out)
    with parallel.start(settings.run.chosen_device) as process:
        console = Console(stderr=True) if process.is_first else None
        monitor = Monitor(console, settings.name, only_warnings=not progress)
        outcome = Session(settings, folder, process, monitor, resume=resume).train()
    return TrainedRun(folder, outcome.step, outcome.results)
