"""Training from Python: ``train`` runs a recipe and returns the finished run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from glassformer import hub
from glassformer.training import parallel
from glassformer.training.logging.progress import Monitor
from glassformer.training.logging.sinks import read_log
from glassformer.training.recipe_files import read_recipe
from glassformer.training.session import MODEL, Session

Section = Mapping[str, Any]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, its metrics and, read when first asked for, its model and loss curves."""

    folder: Path
    steps: int
    metrics: dict[str, dict[str, float]]  # by part of the data: valid, test

    @cached_property
    def model(self) -> hub.Loaded:
        """The trained model with its tokenizer, as ``glassformer.load`` returns it."""
        return hub.load(self.folder / MODEL)

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Losses by step: ``train``, and ``valid`` if there are validation rows."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for line in read_log(self.folder / "log.jsonl"):
            part = {"step": "train", "validation": "valid"}.get(line["kind"])
            if part is not None and line.get("loss") is not None:
                curves.setdefault(part, []).append((line["step"], line["loss"]))
        return curves


def train(
    recipe: str | Path,
    *,
    job: str | None = None,
    data: Section | None = None,
    objective: Section | None = None,
    model: Section | None = None,
    tokenizer: Section | None = None,
    batch: Section | None = None,
    optimizer: Section | None = None,
    run: Section | None = None,
    evaluation: Section | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> TrainedRun:
    """Run a recipe, as ``glassformer train`` does, and return the finished run.

    Args:
        recipe: the name of a recipe (``training.recipe_files.recipe_names``) or the path of a YAML file.
        job: what is learned, in place of the recipe's.
        data: changes to this section of the recipe, ``{"train": "reviews.jsonl"}``; likewise the other sections, whose
            keys are the fields of ``training.recipe.Recipe``.
        objective: options of the job.
        model: ``{"start": folder}`` to start from a model, ``{"facts": {"norm": {"kind": "rms"}}}`` to change facts.
        tokenizer: which tokenizer is trained or loaded.
        batch: examples or tokens per batch.
        optimizer: kind, learning rate, schedule.
        run: steps, seed, device, precision.
        evaluation: how often, by which metric.
        out: the folder of the run; ``runs/RECIPE`` unless given.
        resume: continue the run in ``out``, to the bit as if it had never stopped.
        progress: show a progress bar on standard error.
    """
    sections = {
        "data": data, "objective": objective, "model": model, "tokenizer": tokenizer, "batch": batch,
        "optimizer": optimizer, "run": run, "evaluation": evaluation,
    }  # fmt: skip
    values = {f"{name}.{key}": value for name, section in sections.items() for key, value in (section or {}).items()}
    if job is not None:
        values["job"] = job
    settings = read_recipe(recipe, **values)
    folder = Path("runs") / settings.name if out is None else Path(out)
    device = None if settings.run.device == "auto" else settings.run.device
    with parallel.start(device) as process:
        console = Console(stderr=True) if progress and process.is_first else None
        outcome = Session(settings, folder, process, Monitor(console, settings.name), resume=resume).train()
    return TrainedRun(folder, outcome.step, outcome.results)
