"""From a recipe to a run that is ready to go: data, tokenizer, model, objective, batches, optimizers."""

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
from glassformer.training import parallel
from glassformer.training.activation_checkpointing import checkpoint_blocks
from glassformer.training.adapter_files import adapter_state, fingerprint
from glassformer.training.building import Started, check_new, make_facts, make_model, make_tokenizer, started
from glassformer.training.checkpoint import CheckpointError, check
from glassformer.training.compiling import compile_model
from glassformer.training.loop import Settings, Trainer
from glassformer.training.objectives.base import Batch, Objective
from glassformer.training.objectives.job import Job, Measured, RunContext, job_of, without_smoothing
from glassformer.training.optim import adamw, muon_and_adamw
from glassformer.training.processes import by_first, first_then_all, gathered
from glassformer.training.reading import PARTS, Records, read_parts
from glassformer.training.recipe import Aligned, Files, Optimisation, Recipe, StartOptions
from glassformer.training.resume import compare, identity_of, needs_base
from glassformer.training.schedules import Schedule, schedule
from glassformer.weights.files import WeightsError
from glassformer.weights.source import find_place

# What may be another when a run goes on, for it changes nothing in what comes out (or only the last digits). Of files
# and folders it is compared what they hold, not where they lie.
FREE = {
    "": ("name", "about", "expected"),
    "run": ("device", "parallel", "compile", "recompute", "keep", "keep_memory"),
    "batch": ("workers",),
    "data": ("train", "valid", "test", "on_bad_row"),
    "model": ("teacher", "load_options"),
    "evaluation": ("samples",),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """All that a run is made of."""

    recipe: Recipe
    job: Job[Any]
    kit: RunContext
    model: nn.Module
    objective: Objective[Any]
    judged: Objective[Any]  # the same without label smoothing
    lineage: str | None
    parts: dict[str, Records[Any]]
    examples: dict[str, Dataset[Any]]
    trainer: Trainer
    identity: dict[str, Any]
    base: str | None  # the fingerprint of the start's frozen weights, of which a checkpoint has none; None: it has all
    begins: list[str]  # what is to be told of the model to start from

    def batches(self, part: str, *, whole: bool = False) -> Iterator[Batch]:
        """The batches of a part to be judged by, the same each time: as many as are wanted, or the ``whole`` of it."""
        few = None if whole else self.recipe.evaluation.batches
        some = few is not None  # in their order, these would be the shortest rows
        plan = batch_plan(self.recipe, self.examples[part], shuffle=some)
        with Loader(self.examples[part], self.judged.prepare, plan, seed=self.recipe.run.seed) as loader:
            yield from islice(loader.epoch(), few)

    @property
    def epoch(self) -> int:
        """The one that the next batch is of, counted from 1."""
        loader = self.trainer.batches
        assert isinstance(loader, Loader)
        return loader.cursor.epoch + 1

    def notes(self) -> list[str]:
        """What is worth saying of the data: rows that were left out, or cut."""
        found = []
        for part, rows in self.parts.items():
            tally = rows.tally
            if tally is not None and tally.bad:
                found.append(f"{part}: {tally}")
            cut = getattr(self.examples.get(part), "cut", 0)
            found += [f"{part}: {note}" for note in getattr(self.examples.get(part), "notes", ())]
            if cut:
                found.append(f"{part}: {cut:,} of {len(rows):,} rows were cut to {self.recipe.batch.length} tokens")
        return found


def build_run(
    recipe: Recipe,
    folder: Path,
    process: parallel.Process,
    checkpoint: Path | None = None,
    begin: Callable[[], None] = lambda: None,
) -> Run:
    """Make everything ready; what writes files is done by the first process before the others.

    Args:
        recipe: what is to be made.
        folder: for the tokenizer and the files of tokens.
        process: this one, of those that train together.
        checkpoint: of a run that is to go on; compared before anything is trained or written.
        begin: called, by the first process, when all is in order and something is to be written.
    """
    if checkpoint is not None:
        recipe = _at_hand(recipe, checkpoint)
    job = job_of(recipe)
    _check(recipe, job, process)
    parts: dict[str, Records[Any]] = read_parts(recipe.data, job.record, hold_out=job.holds_out_rows)
    labels = job.labels(parts["train"])
    start = _start(recipe, job, labels, checkpoint)
    identity = _identity(recipe, parts, start) | job.identity()
    _compare(checkpoint, identity, recipe)
    by_first(begin)
    tokenizer = first_then_all(lambda: make_tokenizer(recipe, job, parts["train"], folder / "tokenizer", start))
    identity["tokenizer"] = tokenizer_fingerprint(tokenizer)
    _compare(checkpoint, identity, recipe)
    kit = RunContext(recipe, tokenizer, make_facts(recipe, job, tokenizer, labels, start), folder / "tokens")
    examples = first_then_all(lambda: job.examples(kit, parts))  # files of tokens are written once, and read by all
    identity["examples"] = {part: getattr(rows, "fingerprint", None) for part, rows in examples.items()}
    torch.manual_seed(recipe.run.seed)
    random.seed(recipe.run.seed)  # remembered with a run, whether or not anybody draws from it
    model = make_model(kit, job, start).to(process.device)
    is_adapted = start is not None and recipe.model.adapters is not None
    objective = job.objective(kit)
    return Run(
        recipe=recipe,
        job=job,
        kit=kit,
        model=model,
        objective=objective,
        judged=without_smoothing(objective),
        lineage=recipe.model.lineage if start is None else start.lineage,
        parts=parts,
        examples=examples,
        trainer=_trainer(recipe, model, objective, examples["train"], process),
        identity=identity,
        base=fingerprint(model, adapter_state(model)) if is_adapted else None,
        begins=[] if start is None else start.notes,
    )


def _at_hand(recipe: Recipe, checkpoint: Path) -> Recipe:
    """The recipe of a run that goes on. What it began from and is gone is taken from its checkpoint.

    A checkpoint of adapters does not have the weights that they belong to; without these it is an error.
    """
    places = recipe.model.start, recipe.tokenizer.load
    every = gathered([place is not None and not _is_there(place) for place in places])  # processes may differ in it
    gone = [any(said) for said in zip(*every, strict=True)]
    if gone[0] and needs_base(checkpoint):
        raise CheckpointError(
            f"model.start={recipe.model.start} is not there, and {checkpoint} holds adapters alone, which need its "
            f"weights (SHA-256 {identity_of(checkpoint)['recipe']['model']['start']}). Put it back, or say where it is "
            f"now: model.start=FOLDER."
        )
    if any(gone):
        by_first(partial(check, checkpoint))
    start, load = (str(checkpoint) if is_gone else place for is_gone, place in zip(gone, places, strict=True))
    return replace(recipe, model=replace(recipe.model, start=start), tokenizer=replace(recipe.tokenizer, load=load))


def _is_there(place: str) -> bool:
    """Whether a folder, a file or a name of the local cache can be opened."""
    try:
        find_place(place)
    except WeightsError:
        return False
    return True


def _check(recipe: Recipe, job: Job[Any], process: parallel.Process) -> None:
    job.check()
    if recipe.model.start is None:
        check_new(recipe.model, job.head)
    if process.world > 1 and recipe.run.parallel == "fsdp" and (recipe.model.adapters or not job.keeps_all):
        raise ValueError("what is kept cannot be taken out while others hold parts of it; say run.parallel=ddp.")
    if not job.keeps_all and recipe.data.test is not None:
        raise ValueError(f"what the job {recipe.job} keeps cannot be judged on its own; leave out data.test.")


def _trainer(
    recipe: Recipe, model: nn.Module, objective: Objective[Any], examples: Dataset[Any], process: parallel.Process
) -> Trainer:
    if recipe.run.recompute:
        checkpoint_blocks(model)
    if recipe.run.compile:
        compile_model(model)
    wrap = parallel.wrap(recipe.run.parallel, model)
    loader, optimizers = _loader(recipe, examples, objective, process), make_optimizers(recipe.optimizer, model)
    return Trainer(model, objective, loader, optimizers, _settings(recipe, process), wrap=wrap)


def batch_plan(recipe: Recipe, examples: Dataset[Any], *, shuffle: bool = True) -> BatchPlan:
    """Which examples are in which batch."""
    batch, seed = recipe.batch, recipe.run.seed
    if batch.examples is not None:
        return FixedPlan(len(examples), batch.examples, seed=seed, shuffle=shuffle)
    assert batch.tokens is not None
    if not isinstance(examples, Measured):
        raise ValueError(
            f"the job {recipe.job} makes rows of one length: say how many are in a batch with batch.examples, and "
            f"batch.tokens=null."
        )
    return BudgetPlan(examples.lengths, batch.tokens, seed=seed, shuffle=shuffle)


def make_optimizers(plan: Optimisation, model: nn.Module) -> list[Optimizer]:
    """The optimizers of a recipe for a model."""
    options: Any = {"weight_decay": plan.weight_decay, "betas": tuple(plan.betas), "eps": plan.eps}
    if plan.kind == "muon":
        return muon_and_adamw(model, plan.lr, **options)
    return [adamw(model, plan.lr, **options)]


def make_schedule(plan: Optimisation, steps: int) -> Schedule:
    """How the learning rate moves over so many steps."""
    options = {"warmup": plan.warmup / steps, "start": 0.0}
    if plan.schedule in ("cosine", "linear"):
        options["floor"] = plan.floor
    return schedule(plan.schedule, **options)


def _settings(recipe: Recipe, process: parallel.Process) -> Settings:
    run = recipe.run
    return Settings(
        steps=run.steps,
        accumulate=parallel.share_of(recipe.batch.micro_batches, process.world),
        clip=recipe.optimizer.clip,
        precision=run.precision,
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


def _start(recipe: Recipe, job: Job[Any], labels: tuple[str, ...], checkpoint: Path | None) -> Started | None:
    """The model to start from, if there is one; a checkpoint that stands in for it knows its fingerprint."""
    folder = recipe.model.start
    if folder is None:
        return None
    stands_in = checkpoint is not None and folder == str(checkpoint)
    known_by = identity_of(Path(folder))["recipe"]["model"]["start"] if stands_in else None
    options = StartOptions() if stands_in else recipe.model.load_options  # a checkpoint is in our own format
    return started(folder, job, labels, options, known_by)


def _identity(recipe: Recipe, parts: dict[str, Records[Any]], start: Started | None) -> dict[str, Any]:
    """What may not change while a run goes on, as far as it is known before anything is made: recipe, rows, start."""
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


def _compare(checkpoint: Path | None, identity: dict[str, Any], recipe: Recipe) -> None:
    """Raise if a checkpoint is of another run, and say where that lies which differs."""
    if checkpoint is None:
        return
    places = {"model.start": recipe.model.start, "teacher": recipe.model.teacher, "tokenizer": recipe.tokenizer.load}
    for part in PARTS:
        files: Files = getattr(recipe.data, part)
        both = (files.source, files.target) if isinstance(files, Aligned) else (files,)
        named = [one for some in both for one in ((some,) if isinstance(some, str) else some or ())]
        places[f"data.{part}"] = ", ".join(named) or None
    compare(checkpoint, identity, {name: place for name, place in places.items() if place is not None})
