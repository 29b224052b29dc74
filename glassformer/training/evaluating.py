"""How good a model is on rows that nobody trains on: the figures of its job, without a run."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.config import LMHead, Model, PretrainingHead, TaskHead, to_dict
from glassformer.config.checks import check_choice
from glassformer.data.loader import Loader
from glassformer.data.records import Text
from glassformer.hub import JOB, Loaded
from glassformer.models.transformer import Transformer
from glassformer.training.assembling import batch_plan
from glassformer.training.file_formats import ENDINGS, ending_of
from glassformer.training.loop import evaluate
from glassformer.training.objectives.base import Objective
from glassformer.training.objectives.examples import read_note
from glassformer.training.objectives.job import Job, RunContext, job_of, without_smoothing
from glassformer.training.reading import Records, read_part
from glassformer.training.recipe import Recipe
from glassformer.training.recipe_files import recipe_of
from glassformer.weights.lineage import head_kind

# What a later judgement goes by, of each section of the recipe: how rows are read, and what hidden words hang on.
_KEPT = {
    "data": ("format", "documents", "marker", "columns", "separator", "header", "quoted", "prefix", "ignored",
             "languages", "split"),
    "batch": ("examples", "tokens", "length"),
    "run": ("seed",),
    "evaluation": ("beam",),
}  # fmt: skip
_SAID_BY = {  # keys that nothing goes by here, and what does the same
    "run.device": "--device",
    "run.precision": "--dtype",
    "model.start": "MODEL",
    "model.load_options": "--head, --lineage, --allow-pickle, --ignore-keys, --fresh or --tokenizer-kind",
    "data.test": "FILE",
    "evaluation.rows": "data.limit",
    "model.teacher": "job=distillation besides",
}
_TASKS = {"classify": "classify", "pair": "classify", "tag": "tag", "span": "answer"}


def job_for(facts: Model) -> str:
    """The name of the job that a model's head is for."""
    head = facts.head
    if isinstance(head, TaskHead) and head.task in _TASKS:
        return _TASKS[head.task]
    if isinstance(head, LMHead):
        return {"decoder": "language", "encoder": "masked", "encoder-decoder": "text-to-text"}[facts.family]
    kind = "none" if head is None else type(head).__name__
    if isinstance(head, PretrainingHead):
        return "masked-pairs"
    raise ValueError(f"a model with the head {kind} has nothing to be judged by; load it with another head.")


def note_of(job: Job[Any]) -> dict[str, Any]:
    """What is written down beside the model of a job, to judge it later as it was judged after training."""
    page = to_dict(job.recipe)
    kept = {section: {name: page[section][name] for name in names} for section, names in _KEPT.items()}
    return {"job": job.recipe.job, "objective": to_dict(job.options), **kept}


def check_changes(said: Mapping[str, str]) -> None:
    """Raise unless every key that is said changes how a model is judged; most of a recipe is of training alone."""
    known = [f"{section}.{name}" for section, names in _KEPT.items() for name in names]
    known += ["job", "objective", "data.limit", "data.on_bad_row"]
    if said.get("job") == "distillation":
        known.append("model.teacher")
    for key in said:
        named = "objective" if key.startswith("objective.") else ".".join(key.split(".")[:2])
        if named in _SAID_BY and named not in known:
            raise ValueError(f"{named} changes nothing here; say {_SAID_BY[named]}.")
        check_choice("what KEY=VALUE changes of an evaluation", named, known)


def _noted(loaded: Loaded) -> dict[str, Any]:
    """What is written down beside a model, or follows from its head."""
    note = loaded.folder / JOB
    if not note.is_file():
        return {"job": job_for(loaded.config), "objective": _usual_options(loaded.config)}
    try:
        said = _judged(read_note(note))
        job_of(recipe_of("evaluation", _page(loaded, said, said.get("data", {}).get("format", "text"), None)))
    except (TypeError, ValueError) as error:
        remedy = "take it away, and the job follows from the model's head"
        raise ValueError(f"{note} is damaged; {remedy}. What is wrong: {error}") from error
    return said


def _judged(said: Any) -> dict[str, Any]:
    """A note as it is to be judged by: of a student without its teacher, what is left."""
    if not isinstance(said, dict) or not {"job", "objective"} <= said.keys():
        raise ValueError("it is no table with a job and an objective.")
    if other := [name for name in ("objective", *_KEPT) if not isinstance(said.get(name, {}), dict)]:
        raise ValueError(f"{other[0]} is {said[other[0]]!r}, and no table.")
    if said["job"] == "distillation":
        hidden = {name: said["objective"].get(name) for name in ("masking", "rows")}
        said = {**said, "job": "masked", "objective": hidden}
    return said


def _usual_options(facts: Model) -> dict[str, Any]:
    """A head with a single score says a number."""
    head = facts.head
    is_number = isinstance(head, TaskHead) and _TASKS.get(head.task) == "classify" and len(head.labels) == 1
    return {"kind": "number"} if is_number else {}


def page_for(loaded: Loaded, format_: str, files: Any, job: str | None = None) -> dict[str, Any]:
    """The page of a recipe that judges a model on files, as it was judged after training if its folder says how.

    Another ``job`` has other options. How files of another format were read is of no use, but for their languages.
    Changes to the page are the caller's.
    """
    said = _noted(loaded)
    if job not in (None, said["job"]):
        said = {"job": job, "objective": {}}
    return _page(loaded, said, format_, files)


def _page(loaded: Loaded, said: dict[str, Any], format_: str, files: Any) -> dict[str, Any]:
    read, longest = said.get("data", {}), loaded.config.longest
    if read.get("format") != format_:
        read = {name: value for name, value in read.items() if name == "languages"}
    usual = {"examples": 16, "length": 512 if longest is None else min(longest, 512)}
    return {
        "about": "evaluation",
        "expected": {"result": ""},
        "job": said["job"],
        "objective": said["objective"],
        "data": {**read, "format": format_, "test": files},
        "model": {"start": str(loaded.folder)},
        "batch": said.get("batch", usual),
        "optimizer": {"lr": 1.0},
        "run": {"steps": 1, **said.get("run", {})},
        "evaluation": {"rows": None, **said.get("evaluation", {})},
    }


def judge_model(loaded: Loaded, recipe: Recipe, part: str = "test") -> tuple[dict[str, float], list[str]]:
    """The loss and every figure of a model on a part of the data of a recipe; and what is to be told of its rows."""
    job: Job[Any] = job_of(recipe)
    if not job.keeps_all:
        raise ValueError(
            f"what the job {recipe.job} keeps is a part of what learned, and cannot be judged on its own. It is to be "
            f"taught something else: glassformer train finetune model.start={recipe.model.start} data.train=FILE."
        )
    kind = head_kind(loaded.config.head)
    if {"pair": "classify"}.get(kind, kind) != job.head:
        raise ValueError(f"the job {recipe.job} is for models with the head {job.head}, and this one has {kind}.")
    rows: Records[Any] = read_part(recipe.data, part, job.record)
    with tempfile.TemporaryDirectory() as folder:
        kit = RunContext(recipe, loaded.tokenizer, loaded.config, Path(folder))
        examples = job.examples(kit, {part: rows})[part]
        losses = _losses(loaded.model, without_smoothing(job.objective(kit)), job, examples, recipe)
    notes = [str(rows.tally)] if rows.tally is not None and rows.tally.bad else []
    notes += getattr(examples, "notes", [])
    if cut := getattr(examples, "cut", 0):
        notes.append(f"{cut:,} of {len(rows):,} rows were cut to {recipe.batch.length} tokens")
    return losses | job.figures(kit, loaded, list(rows)), notes


def _losses(
    model: Transformer, objective: Objective[Any], job: Job[Any], examples: Any, recipe: Recipe
) -> dict[str, float]:
    plan = batch_plan(recipe, examples, shuffle=False)
    with Loader(examples, objective.prepare, plan, seed=recipe.run.seed) as loader:
        return job.losses(evaluate(model, objective, loader.epoch()))


def format_of(loaded: Loaded, given: Sequence[str]) -> str:
    """The format of files by how their names end; where that says nothing, the one that the model learned from."""
    endings = {ending_of(file) for file in given}
    found = ENDINGS.get(*endings) if len(endings) == 1 else None
    said = _noted(loaded).get("data", {}).get("format")
    fits = len(given) == 2 if said == "parallel" else len(endings) == 1
    if fits and found in (None, "text") and said not in (None, "toy", "documentation"):  # those two are in no files
        recipe = recipe_of("evaluation", page_for(loaded, "text", None))
        found = found if found is not None and job_of(recipe).record is Text else said
    if found is None:
        raise ValueError(
            f"what kind of files {', '.join(given) or 'none'} are cannot be told; say --format, one of "
            f"{', '.join([*ENDINGS.values(), 'parallel', 'dataset'])}."
        )
    return found


def files_of(format_: str, given: Sequence[str]) -> Any:
    """Files as a recipe names them: of aligned ones, the source first."""
    if format_ == "parallel":
        if len(given) != 2:
            raise ValueError(f"aligned files are two, the source and the target; got {len(given)}.")
        return {"source": given[0], "target": given[1]}
    return given[0] if len(given) == 1 else list(given)
