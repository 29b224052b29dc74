"""From a recipe to a tokenizer and a model: new ones, or those of a folder to start from (fine-tuning)."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from torch import nn

from glassformer import hub
from glassformer.config import Head, LMHead, ModelConfig, PretrainingHead, TaskHead, merge, shapes, to_dict
from glassformer.config.model import a_family
from glassformer.families import lineages
from glassformer.models.initialise import initialise
from glassformer.objectives.examples import read_note
from glassformer.objectives.job import Job, RunContext
from glassformer.recipes.new_models import label_config, new_facts
from glassformer.recipes.recipe import Recipe, RecipeLoadOptions
from glassformer.recipes.rows import Records
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import style, train_tokenizer
from glassformer.training.adapters import add_adapters
from glassformer.weights.fingerprint import fingerprint
from glassformer.weights.lineage import head_kind
from glassformer.weights.saving import write_text
from glassformer.weights.source import find_model

LOAD_DEFAULTS = RecipeLoadOptions()


def make_tokenizer(
    recipe: Recipe, job: Job[Any], rows: Records[Any], folder: Path, start: hub.Loaded | None
) -> Tokenizer:
    """Return the tokenizer that the recipe names, that of the model to start from, or one trained on the rows.

    A trained one is saved in ``folder`` and read from there the next time.
    """
    settings = recipe.tokenizer
    if settings.load is not None:
        return Tokenizer.load(find_model(settings.load), kind=recipe.model.load_options.tokenizer_kind)
    if start is not None:
        return start.tokenizer
    # Train a tokenizer, unless the folder holds one of the same rows and settings.
    special = job.special(rows)
    source: dict[str, Any] = {
        "tokenizer": to_dict(settings),
        "special": [*special],
        "rows": rows.fingerprint,
        "job": recipe.job,
    }
    source |= {"held out": recipe.data.held_out if recipe.data.valid is None else 0.0}
    note = folder / "source.json"
    if read_note(note) != json.loads(json.dumps(source)):
        note.unlink(missing_ok=True)
        (job.own_tokenizer(rows) or _train_tokenizer(recipe, job, rows, special)).save(folder)
        write_text(note, json.dumps(source) + "\n")
    return Tokenizer.load(folder)


def _train_tokenizer(recipe: Recipe, job: Job[Any], rows: Records[Any], special: tuple[str, ...]) -> Tokenizer:
    settings = recipe.tokenizer
    if settings.style is None:
        raise ValueError("a tokenizer must be trained: set tokenizer.style, or tokenizer.load=FOLDER.")
    return train_tokenizer(
        job.tokenizer_texts(rows),
        kind=settings.kind,
        vocab_size=None if settings.kind == "bytes" else settings.size,
        special=style(settings.style).with_further(*settings.special, *special),
        lowercase=settings.lowercase,
    )


def make_facts(
    recipe: Recipe, job: Job[Any], tokenizer: Tokenizer, labels: Iterable[str], start: hub.Loaded | None
) -> ModelConfig:
    """Return the facts of the model that is trained: those of the model to start from, or new ones."""
    plan = recipe.model
    if start is not None:
        # Facts of the start model.
        facts = start.config
        if tokenizer.vocab_size > facts.vocab:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, and the model in {plan.start} has {facts.vocab}; "
                f"leave out tokenizer.load to use the model's own."
            )
    else:
        # New facts: the lineage's, with the sizes and facts of the recipe.
        facts = new_facts(lineages()[str(plan.lineage)], plan.sizes, job.head, tokenizer, tuple(labels))
        facts = merge(job.finish(facts), plan.facts, "model.facts")
    if facts.max_length is not None and facts.max_length < recipe.batch.length:
        larger = "" if start is not None else ", or raise the number of positions in model.sizes"
        raise ValueError(
            f"batch.length={recipe.batch.length} tokens are more than the {facts.max_length} positions of the model; "
            f"lower it{larger}."
        )
    return facts


@dataclass(kw_only=True)
class StartModel(hub.Loaded):
    """A model to start from. New parts of its head are listed in ``report.fresh`` and initialised by ``make_model``."""

    fingerprint: str  # of the model in its folder, with its own head
    notes: list[str] = field(default_factory=list)  # to show


def start_model(
    folder: str,
    job: Job[Any],
    labels: tuple[str, ...],
    options: RecipeLoadOptions = LOAD_DEFAULTS,
    known: str | None = None,
) -> StartModel:
    """Return the model of a folder with the head that the job needs: its own, with its labels in order, or a new one.

    ``known``: its fingerprint, if the folder replaces one that is gone; else its weights are hashed.
    """
    load_options = options.options()
    own = hub.load(folder, dtype=torch.float32, **load_options)  # in half precision, updates would round away
    old, digest = own.config.head, fingerprint(own.model) if known is None else known
    if job.keeps(old, labels):
        return StartModel(**vars(own), fingerprint=digest)
    new = _new_head(own, job, labels)
    load_options |= {"head": new, "fresh": ["head.*", *options.fresh]}
    loaded = hub.load(folder, dtype=torch.float32, **load_options)
    if isinstance(old, TaskHead) and old.labels:  # weights of other labels may fit as well
        last = "head.out." if head_kind(old) == head_kind(new) else "head."
        loaded.report.fresh = [name for name in shapes(loaded.config) if name.startswith(last)]
    else:
        _copy_head(own, loaded)
    return StartModel(**vars(loaded), fingerprint=digest, notes=_head_notes(old, loaded))


@torch.no_grad()
def _copy_head(own: hub.Loaded, loaded: hub.Loaded) -> None:
    """Copy weights of the old head to the new one where both have them under different names."""
    weights = dict(own.model.named_parameters())
    for now, before in _common_prefixes(loaded.config.head, own.config.head):
        for name in [name for name in loaded.report.fresh if name.startswith(now)]:
            old, new = weights.get(before + name.removeprefix(now)), loaded.model.get_parameter(name)
            if old is not None and old.shape == new.shape:
                new.copy_(old)
                loaded.report.fresh.remove(name)


def _common_prefixes(new: Head | None, old: Head | None) -> Iterator[tuple[str, str]]:
    """Yield prefixes, in two heads, of the names of weights that do the same; the scores belong to their labels."""
    for (now, head), (before, other) in product(_parts(new).items(), _parts(old).items()):
        if isinstance(head, LMHead) and isinstance(other, LMHead):
            same, part = head.transform == other.transform, ""
        elif isinstance(head, TaskHead) and isinstance(other, TaskHead):
            same, part = (head.pool, head.hidden) == (other.pool, other.hidden), "hidden."
        else:
            continue
        if same:
            yield now + part, before + part


def _parts(head: Head | None) -> dict[str, Head | None]:
    """Return the heads inside a head, by the prefix of their weights."""
    return {"head.lm.": head.lm, "head.pair.": head.pair} if isinstance(head, PretrainingHead) else {"head.": head}


def _head_notes(old: Head | None, loaded: hub.Loaded) -> list[str]:
    """Return notes on which parts of the head are new, and why; none if all of it was loaded."""
    new, fresh = loaded.config.head, loaded.report.fresh
    if not fresh:
        return []
    whole = {name for name in shapes(loaded.config) if name.startswith("head.")} == {*fresh}
    parts = "" if whole else f" in {', '.join(dict.fromkeys(name.rpartition('.')[0] for name in fresh))}"
    were, are = (shorten(", ".join(getattr(head, "labels", ())), 200, placeholder=" …") for head in (old, new))
    if head_kind(old) != head_kind(new):
        return [f"the head is new{parts}: it was {head_kind(old)}, and is {head_kind(new)}"]
    return [f"the head is new{parts}: its labels were {were}, and are {are}"]


def _new_head(own: hub.Loaded, job: Job[Any], labels: tuple[str, ...]) -> Head:
    """Return a head for a job: the model's own with other labels, or its lineage's, or a plain one."""
    kind = job.head
    # The model's own head.
    if kind == "lm" and own.config.lm is not None:
        return own.config.lm
    if isinstance(own.config.head, TaskHead) and own.config.head.task == kind:
        return replace(own.config.head, labels=labels)
    # The head that the lineage has for this kind.
    if own.lineage is not None and kind in lineages()[own.lineage].heads:
        lineage = lineages()[own.lineage]
        config = lineage.config(replace(own.config, head=None)) if "none" in lineage.heads else {}
        head = lineage.facts({**config, **label_config(labels)}, kind).head
        assert head is not None
        return head
    # A plain head.
    pool: Literal["first", "last"] = "last" if own.config.family == "decoder" else "first"
    plain: dict[str, TaskHead] = {
        "classify": TaskHead(task="classify", labels=labels, pool=pool),
        "tag": TaskHead(task="tag", labels=labels),
        "span": TaskHead(task="span", labels=("start", "end")),
    }
    if kind not in plain:
        raise ValueError(
            f"the job {job.recipe.job} needs a model with the head {kind}; the one in {own.path} is "
            f"{a_family(own.config.family)} with the head {head_kind(own.config.head)}. Start from another, or train "
            "another job."
        )
    return plain[kind]


def make_model(context: RunContext, job: Job[Any], start: hub.Loaded | None) -> nn.Module:
    """Return the model with its initial weights, and with adapters if the recipe has them."""
    plan = context.recipe.model
    model = job.build(context) if start is None else start.model
    if start is not None:
        initialise(model, context.facts, start.report.fresh)  # once more, from the seed of the run
    if plan.adapters is not None:
        options = to_dict(plan.adapters)
        is_task = head_kind(context.facts.head) not in ("lm", "pretraining")  # a language-model head is not new
        add_adapters(model, **{**options, "targets": tuple(options["targets"])}, also=("head.*",) if is_task else ())
    return model
