"""The model that a run keeps: as its checkpoints have it, and in a folder of its own, ready to be used."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from glassformer import hub
from glassformer.families import lineages
from glassformer.models.transformer import Transformer
from glassformer.training.adapter_files import merged_with, save_adapters
from glassformer.training.assembling import Run
from glassformer.training.averaging import load_average
from glassformer.training.checkpoint import Checkpoints
from glassformer.training.evaluating import note_of
from glassformer.training.judging import Evaluator
from glassformer.training.processes import by_first
from glassformer.training.resume import needs_base, write_model
from glassformer.weights.reader import ConfigError
from glassformer.weights.saving import naming_file, write_text


def write_shown(folder: Path, run: Run, judge: Evaluator) -> None:
    """Fill a checkpoint with what is kept of a run: a model that can be loaded, or the adapters of one that is there.

    All processes call it; the first writes.
    """
    tokenizer, base = run.kit.tokenizer, run.base
    with judge.averaged():
        if base is None:
            write_model(folder, judge.shown(), tokenizer, run.lineage)
            return
        by_first(lambda: save_adapters(run.model, folder, base=base))
        by_first(lambda: tokenizer.save(folder))


def export_note(run: Run) -> str | None:
    """Why the model cannot be written for Hugging Face, and what to do about it; None if it can."""
    lineage = None if run.lineage is None else lineages()[run.lineage]
    if lineage is None:
        reason = "its lineage is not known"
    elif lineage.model_type is None:
        reason = f"{lineage.name} is not a kind of model that it has"
    else:
        try:
            lineage.config(run.kit.facts)
        except ConfigError as error:
            reason = str(error).rstrip(".")
        else:
            return None
    remedy = run.job.export_remedy()
    said = f"glassformer convert cannot write this model for Hugging Face: {reason}."
    return said if remedy is None else f"{said} {remedy}"


def chosen(checkpoints: Checkpoints, last: int) -> list[Path]:
    """The checkpoints that the kept model is made of: the best one, or the newest if none is, or the ``last`` few."""
    newest, best = checkpoints.all()[-last:], checkpoints.best()
    return newest if len(newest) > 1 or best is None else [best]


def keep_model(place: Path, run: Run, folders: Sequence[Path]) -> None:
    """Put the model of a checkpoint into its place, or the mean of several; the one before stays until then."""
    if needs_base(folders[0]):
        model: Transformer = merged_with(run.model, folders)
    else:
        model = hub.load(folders[-1]).model
        if len(folders) > 1:
            load_average(model, folders)
    hidden, before = (place.with_name(f".{place.name}.{state}") for state in ("new", "before"))
    with naming_file(place):
        try:
            for leftover in (hidden, before):
                shutil.rmtree(leftover, ignore_errors=True)
            hub.save(model, hidden, tokenizer=run.kit.tokenizer, lineage=run.lineage)
            write_text(hidden / hub.JOB, json.dumps(note_of(run.job), indent=2, ensure_ascii=False) + "\n")
            if place.exists():
                os.replace(place, before)
            os.replace(hidden, place)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
            shutil.rmtree(before, ignore_errors=True)
