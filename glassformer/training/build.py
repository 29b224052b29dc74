"""From a recipe to a run that is ready to train: data, tokenizer, model, objective, batches, optimizers."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from glassformer.config import to_dict
from glassformer.data.batching import BatchPlan, BudgetPlan, FixedPlan
from glassformer.data.loader import Dataset, Loader
from glassformer.data.token_files import tokenizer_fingerprint
from glassformer.objectives.base import Batch, Objective
from glassformer.objectives.job import HasLengths, Job, RunContext, job_of, without_smoothing
from glassformer.recipes.new_models import check_new
from glassformer.recipes.recipe import Aligned, DataFiles, Optimisation, Recipe, RecipeLoadOptions
from glassformer.recipes.rows import PARTS, Records, read_parts
from glassformer.training import parallel
from glassformer.training.adapters import adapter_state
from glassformer.training.block_calls import checkpoint_blocks, compile_model, missing_compiler
from glassformer.training.build_model import StartModel, make_facts, make_model, make_tokenizer, start_model
from glassformer.training.capture import RECOMPUTE_OBSTACLE, check_capture, obstacles, reasons_to_synchronise
from glassformer.training.checkpoint_contents import compare, fingerprint_of, needs_base
from glassformer.training.checkpoint_folders import CheckpointError, check
from glassformer.training.loop import Precision, Settings, Trainer
from glassformer.training.optim import adamw, muon_and_adamw
from glassformer.training.parallel import all_gather, on_rank_zero, rank_zero_first
from glassformer.training.schedules import Schedule, schedule
from glassformer.weights.files import WeightsError
from glassformer.weights.fingerprint import fingerprint
from glassformer.weights.source import find_model

# Settings that may change when a run is resumed, because the result does not depend on them (or only in the last
# digits). Of files and folders the contents are compared, not the paths.
FREE = {
    "": ("name", "about", "expected"),
    "run": ("device", "parallel", "threads", "compile", "capture", "recompute", "keep", "keep_memory"),
    "batch": ("workers",),
    "data": ("train", "valid", "test", "on_bad_row"),
    "model": ("teacher", "load_options"),
    "evaluation": ("samples",),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """A run that is ready to train, with its parts."""

    recipe: Recipe
    job: Job[Any]
    context: RunContext
    model: nn.Module
    objective: Objective[Any]
    eval_objective: Objective[Any]  # the same without label smoothing
    lineage: str | None
    parts: dict[str, Records[Any]]
    examples: dict[str, Dataset[Any]]
    trainer: Trainer
    fingerprint: dict[str, Any]
    base: str | None  # the fingerprint of frozen weights that are not in its checkpoints; None: all are
    start_notes: list[str]  # on the model that it starts from

    def batches(self, part: str, *, whole: bool = False) -> Iterator[Batch]:
        """Yield the evaluation batches of a part, always the same: as many as the recipe sets, or all (``whole``)."""
        count = None if whole else self.recipe.evaluation.batches
        shuffle = count is not None  # else they would be the shortest rows
        plan = batch_plan(self.recipe, self.examples[part], shuffle=shuffle)
        with Loader(self.examples[part], self.eval_objective.prepare, plan, seed=self.recipe.run.seed) as loader:
            yield from islice(loader.epoch(), count)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counted from 1."""
        loader = self.trainer.batches
        assert isinstance(loader, Loader)
        return loader.cursor.epoch + 1

    def notes(self) -> list[str]:
        """Return notes on the data: rows that were left out, or cut."""
        notes = []
        for part, rows in self.parts.items():
            stats = rows.stats
            if stats is not None and stats.bad:
                notes.append(f"{part}: {stats}")
            cut = getattr(self.examples.get(part), "cut", 0)
            notes += [f"{part}: {note}" for note in getattr(self.examples.get(part), "notes", ())]
            if cut:
                notes.append(f"{part}: {cut:,} of {len(rows):,} rows were cut to {self.recipe.batch.length} tokens")
        return notes


def build_run(
    recipe: Recipe,
    folder: Path,
    process: parallel.Process,
    checkpoint: Path | None = None,
    begin: Callable[[], None] = lambda: None,
) -> Run:
    """Build everything; files are written by the first process before the others read them.

    Args:
        recipe: of the run.
        folder: for the tokenizer and the token files.
        process: the current process.
        checkpoint: of a run to resume; compared before anything is trained or written.
        begin: called, by the first process, when all is in order, before anything is written.
    """
    recipe = replace(recipe, run=replace(recipe.run, precision=chosen_precision(recipe, process.device, checkpoint)))
    if checkpoint is not None:
        recipe = _with_existing_start(recipe, checkpoint)
    # Read the data, and compare what is known by now with the checkpoint.
    job = job_of(recipe)
    _check(recipe, job, process)
    parts: dict[str, Records[Any]] = read_parts(recipe.data, job.record, hold_out=job.holds_out_rows)
    labels = job.labels(parts["train"])
    start = _start(recipe, job, labels, checkpoint)
    run_fingerprint = _run_fingerprint(recipe, parts, start) | job.fingerprint()
    _compare(checkpoint, run_fingerprint, recipe)
    # Tokenizer, facts of the model, tokenised examples.
    on_rank_zero(begin)
    tokenizer = rank_zero_first(lambda: make_tokenizer(recipe, job, parts["train"], folder / "tokenizer", start))
    run_fingerprint["tokenizer"] = tokenizer_fingerprint(tokenizer)
    _compare(checkpoint, run_fingerprint, recipe)
    context = RunContext(recipe, tokenizer, make_facts(recipe, job, tokenizer, labels, start), folder / "tokens")
    examples = rank_zero_first(lambda: job.examples(context, parts))  # token files are written once
    run_fingerprint["examples"] = {part: getattr(rows, "fingerprint", None) for part, rows in examples.items()}
    return _assembled(context, job, start, parts, examples, run_fingerprint, process)


def _assembled(
    context: RunContext,
    job: Job[Any],
    start: StartModel | None,
    parts: dict[str, Records[Any]],
    examples: dict[str, Dataset[Any]],
    run_fingerprint: dict[str, Any],
    process: parallel.Process,
) -> Run:
    """Return the run, with a model that is initialised from its seed."""
    recipe = context.recipe
    torch.manual_seed(recipe.run.seed)
    random.seed(recipe.run.seed)  # saved in checkpoints, whether or not it is used
    model = make_model(context, job, start).to(process.device)
    is_adapted = start is not None and recipe.model.adapters is not None
    objective = job.objective(context)
    return Run(
        recipe=recipe,
        job=job,
        context=context,
        model=model,
        objective=objective,
        eval_objective=without_smoothing(objective),
        lineage=recipe.model.lineage if start is None else start.lineage,
        parts=parts,
        examples=examples,
        trainer=_trainer(recipe, model, objective, examples["train"], process),
        fingerprint=run_fingerprint,
        base=fingerprint(model, adapter_state(model)) if is_adapted else None,
        start_notes=[] if start is None else start.notes,
    )


def chosen_precision(recipe: Recipe, device: torch.device, checkpoint: Path | None = None) -> Precision:
    """Return the precision of the products: with ``auto`` that of the checkpoint to resume, or else of the device."""
    if recipe.run.precision != "auto":
        return recipe.run.precision
    if checkpoint is not None:
        saved: Precision = fingerprint_of(checkpoint)["recipe"]["run"]["precision"]
        return saved
    return fast_precision(device)


def fast_precision(device: torch.device) -> Precision:
    """Return bfloat16 for a GPU that computes with it, else float32."""
    return "bfloat16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "float32"


def _with_existing_start(recipe: Recipe, checkpoint: Path) -> Recipe:
    """Return the recipe of a resumed run, with its checkpoint in place of a start model or tokenizer that is gone.

    A checkpoint of adapters does not contain their base weights; without these it is an error.
    """
    paths = recipe.model.start, recipe.tokenizer.load
    every = all_gather([path is not None and not _exists(path) for path in paths])  # processes may differ in this
    gone = [any(answers) for answers in zip(*every, strict=True)]
    if gone[0] and needs_base(checkpoint):
        raise CheckpointError(
            f"model.start={recipe.model.start} does not exist, and {checkpoint} holds only adapters, which need its "
            f"weights (SHA-256 {fingerprint_of(checkpoint)['recipe']['model']['start']}). Put it back, or set its "
            f"new path: model.start=FOLDER."
        )
    if any(gone):
        on_rank_zero(partial(check, checkpoint))
    start, load = (str(checkpoint) if is_gone else path for is_gone, path in zip(gone, paths, strict=True))
    return replace(recipe, model=replace(recipe.model, start=start), tokenizer=replace(recipe.tokenizer, load=load))


def _exists(path: str) -> bool:
    """Whether a folder, a file or a name of the local cache can be opened."""
    try:
        find_model(path)
    except WeightsError:
        return False
    return True


def _check(recipe: Recipe, job: Job[Any], process: parallel.Process) -> None:
    job.check()
    if recipe.model.start is None:
        check_new(recipe.model, job.head)
    missing = missing_compiler(process.device) if recipe.run.compile else None
    if missing is not None:
        raise ValueError(f"run.compile=true is not possible: {missing}, or leave out run.compile.")
    if recipe.run.capture:  # what is known by now; the trainer checks model and objective
        precision, is_fused = chosen_precision(recipe, process.device), recipe.optimizer.kind == "adamw"
        reasons = reasons_to_synchronise(process.device, process.world, precision, is_fused)
        check_capture([*reasons, *([RECOMPUTE_OBSTACLE] if recipe.run.recompute else [])])
    if process.world > 1 and recipe.run.parallel == "fsdp" and (recipe.model.adapters or not job.keeps_all):
        raise ValueError(
            "this run saves only a part of what it trains, which sharded weights do not allow; set run.parallel=ddp."
        )
    if not job.keeps_all and recipe.data.test is not None:
        raise ValueError(
            f"the part that the job {recipe.job} saves cannot be evaluated on its own; leave out data.test."
        )


def _trainer(
    recipe: Recipe, model: nn.Module, objective: Objective[Any], examples: Dataset[Any], process: parallel.Process
) -> Trainer:
    if recipe.run.recompute:
        checkpoint_blocks(model)
    run = recipe.run
    in_blocks = process.device.type == "cpu" or process.world > 1 or run.recompute or bool(obstacles(model, objective))
    if run.compile and in_blocks:
        compile_model(model)
    wrap = parallel.wrap(run.parallel, model)
    loader, optimizers = _loader(recipe, examples, objective, process), make_optimizers(recipe.optimizer, model)
    settings = _settings(recipe, process)
    trainer = Trainer(model, objective, loader, optimizers, settings, wrap=wrap, capture=run.capture)
    if run.compile and not in_blocks:
        trainer.train_module.compile_whole()
    return trainer


def batch_plan(recipe: Recipe, examples: Dataset[Any], *, shuffle: bool = True) -> BatchPlan:
    """Return which examples are in which batch."""
    batch, seed = recipe.batch, recipe.run.seed
    if batch.examples is not None:
        return FixedPlan(len(examples), batch.examples, seed=seed, shuffle=shuffle)
    assert batch.tokens is not None
    if not isinstance(examples, HasLengths):
        raise ValueError(
            f"the job {recipe.job} makes rows of one length: set the rows per batch with batch.examples, and "
            f"batch.tokens=null."
        )
    return BudgetPlan(examples.lengths, batch.tokens, seed=seed, shuffle=shuffle)


def make_optimizers(settings: Optimisation, model: nn.Module) -> list[Optimizer]:
    """Return the optimizers of a recipe for a model."""
    options: Any = {"weight_decay": settings.weight_decay, "betas": tuple(settings.betas), "eps": settings.eps}
    if settings.kind == "muon":
        return muon_and_adamw(model, settings.lr, **options)
    return [adamw(model, settings.lr, **options)]


def make_schedule(settings: Optimisation, steps: int) -> Schedule:
    """Return the learning-rate schedule of a recipe, for a run of ``steps`` steps."""
    options = {"warmup": settings.warmup / steps, "start": 0.0}
    if settings.schedule in ("cosine", "linear"):
        options["floor"] = settings.floor
    return schedule(settings.schedule, **options)


def _settings(recipe: Recipe, process: parallel.Process) -> Settings:
    run = recipe.run
    return Settings(
        steps=run.steps,
        accumulate=parallel.micro_batches_per_process(recipe.batch.micro_batches, process.world),
        clip=recipe.optimizer.clip,
        precision=chosen_precision(recipe, process.device),
        schedule=make_schedule(recipe.optimizer, run.steps),
    )


def _loader(
    recipe: Recipe, examples: Dataset[Any], objective: Objective[Any], process: parallel.Process
) -> Loader[Any, Batch]:
    return Loader(
        examples,
        objective.prepare,
        batch_plan(recipe, examples),
        seed=recipe.run.seed,
        workers=recipe.batch.workers,
        rank=process.rank,
        world=process.world,
    )


def _start(recipe: Recipe, job: Job[Any], labels: tuple[str, ...], checkpoint: Path | None) -> StartModel | None:
    """Return the model to start from, if any; a checkpoint that replaces it has its fingerprint."""
    folder = recipe.model.start
    if folder is None:
        return None
    is_replaced = checkpoint is not None and folder == str(checkpoint)
    known = fingerprint_of(Path(folder))["recipe"]["model"]["start"] if is_replaced else None
    options = RecipeLoadOptions() if is_replaced else recipe.model.load_options  # a checkpoint is in our own format
    return start_model(folder, job, labels, options, known)


def _run_fingerprint(recipe: Recipe, parts: dict[str, Records[Any]], start: StartModel | None) -> dict[str, Any]:
    """Return what may not change when a run is resumed, as far as it is known before building: recipe, rows, start."""
    page = to_dict(recipe)
    for section, names in FREE.items():
        for name in names:
            (page[section] if section else page).pop(name)
    page["tokenizer"]["load"] = recipe.tokenizer.load is not None
    if start is not None:
        page["model"]["start"] = start.fingerprint
    return {
        "recipe": page,
        "data": {part: f"{len(rows):,} rows, SHA-256 {rows.fingerprint}" for part, rows in parts.items()},
    }


def _compare(checkpoint: Path | None, run_fingerprint: dict[str, Any], recipe: Recipe) -> None:
    """Raise if a checkpoint is of another run; the error names the paths of what differs."""
    if checkpoint is None:
        return
    paths = {"model.start": recipe.model.start, "teacher": recipe.model.teacher, "tokenizer": recipe.tokenizer.load}
    for part in PARTS:
        files: DataFiles = getattr(recipe.data, part)
        sides = (files.source, files.target) if isinstance(files, Aligned) else (files,)
        names = [name for side in sides for name in ((side,) if isinstance(side, str) else side or ())]
        paths[f"data.{part}"] = ", ".join(names) or None
    compare(checkpoint, run_fingerprint, {name: path for name, path in paths.items() if path is not None})
