"""From a recipe to a tokenizer and a model: new ones, or those of a folder to start from."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from torch import nn

from glassformer import hub
from glassformer.config import Head, LMHead, Model, PretrainingHead, TaskHead, shapes, to_dict
from glassformer.config.checks import check_choice
from glassformer.families import lineages
from glassformer.models.initialise import initialise
from glassformer.text.special_tokens import style
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import train_tokenizer
from glassformer.training.adapter_files import fingerprint
from glassformer.training.adapters import add_adapters
from glassformer.training.objectives.examples import read_note
from glassformer.training.objectives.job import Job, RunContext
from glassformer.training.reading import Records
from glassformer.training.recipe import ModelPlan, Recipe, StartOptions
from glassformer.weights.lineage import Lineage, head_kind
from glassformer.weights.saving import write_text
from glassformer.weights.source import find_place


def make_tokenizer(
    recipe: Recipe, job: Job[Any], rows: Records[Any], place: Path, start: hub.Loaded | None
) -> Tokenizer:
    """The tokenizer that the recipe names, that of the model to start from, or one trained on the rows.

    A trained one is kept in ``place`` and taken from there the next time.
    """
    said = recipe.tokenizer
    if said.load is not None:
        return Tokenizer.load(find_place(said.load), kind=recipe.model.load_options.tokenizer_kind)
    if start is not None:
        return start.tokenizer
    further = job.special(rows)
    made_of: dict[str, Any] = {
        "tokenizer": to_dict(said),
        "special": [*further],
        "rows": rows.fingerprint,
        "job": recipe.job,
    }
    made_of |= {"held out": recipe.data.held_out if recipe.data.valid is None else 0.0}
    note = place / "source.json"
    if read_note(note) != json.loads(json.dumps(made_of)):
        note.unlink(missing_ok=True)
        (job.own_tokenizer(rows) or _train_tokenizer(recipe, job, rows, further)).save(place)
        write_text(note, json.dumps(made_of) + "\n")
    return Tokenizer.load(place)


def _train_tokenizer(recipe: Recipe, job: Job[Any], rows: Records[Any], further: tuple[str, ...]) -> Tokenizer:
    said = recipe.tokenizer
    if said.style is None:
        raise ValueError("a tokenizer is to be trained: say tokenizer.style, or tokenizer.load=FOLDER.")
    return train_tokenizer(
        job.vocabulary(rows),
        kind=said.kind,
        vocab_size=None if said.kind == "bytes" else said.size,
        special=style(said.style).with_further(*said.special, *further),
        lowercase=said.lowercase,
    )


def make_facts(
    recipe: Recipe, job: Job[Any], tokenizer: Tokenizer, labels: Iterable[str], start: hub.Loaded | None
) -> Model:
    """The page of facts of the model that is trained: that of the model to start from, or a new one."""
    plan = recipe.model
    if start is not None:
        facts = start.config
        if tokenizer.vocab_size > facts.vocab:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, and the model in {plan.start} knows {facts.vocab}; "
                f"leave out tokenizer.load to take the model's own."
            )
    else:
        facts = new_facts(lineages()[str(plan.lineage)], plan.sizes, job.head, tokenizer, tuple(labels))
        facts = job.finish(facts)
    if facts.longest is not None and facts.longest < recipe.batch.length:
        raise ValueError(
            f"batch.length={recipe.batch.length} tokens are more than the {facts.longest} positions of the model; "
            f"lower it, or raise the number of positions in model.sizes."
        )
    return facts


def new_facts(
    lineage: Lineage, sizes: Mapping[str, Any], head: str, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
) -> Model:
    """Facts of a model of a lineage for the vocabulary of a tokenizer, with the ids of its special tokens."""
    named = {key.path: name for name, key in lineage.keys.items() if key.path is not None}
    said = {named["vocab"]: tokenizer.vocab_size, **sizes}
    if said[named["vocab"]] < tokenizer.vocab_size:
        raise ValueError(
            f"model.sizes.{named['vocab']}={said[named['vocab']]} is less than the {tokenizer.vocab_size} tokens of "
            f"the vocabulary; leave it out."
        )
    roles = ("bos", "eos", "pad")
    tokens = {role: getattr(tokenizer, role) for role in roles}
    said |= {named[f"tokens.{role}"]: tokens[role] for role in roles if f"tokens.{role}" in named}
    said |= _named(labels)
    start = _start_of(lineage, head, tokens)
    if "tokens.start" in named:
        said[named["tokens.start"]] = start
    facts = lineage.facts(said, head)
    stated = {role: number for role, number in tokens.items() if getattr(facts.tokens, role) is None}
    if facts.family == "encoder-decoder":
        stated["start"] = start
    elif facts.family == "encoder":
        stated = {}
    return replace(facts, tokens=replace(facts.tokens, **stated))


def _named(labels: tuple[str, ...]) -> dict[str, Any]:
    """Labels as a config.json names them, where there are any."""
    return {"id2label": {str(number): label for number, label in enumerate(labels)}} if labels else {}


def _start_of(lineage: Lineage, head: str, tokens: Mapping[str, int | None]) -> int | None:
    """What a decoder reads first: the token that it is in the published models of the lineage, or the usual one."""
    usual = lineage.facts({}, head).tokens
    same = [role for role in ("pad", "eos", "bos") if usual.start is not None and getattr(usual, role) == usual.start]
    return next((tokens[role] for role in (*same, "bos", "pad", "eos") if tokens[role] is not None), None)


def check_new(plan: ModelPlan, head: str, **sizes: Any) -> None:
    """Raise unless a new model can be made by a plan: a lineage with such a head that reads all sizes.

    Args:
        plan: what a recipe says of the model.
        head: the kind of head.
        **sizes: those that are others than in the plan.
    """
    check_choice("model.lineage", str(plan.lineage), lineages())
    lineage, said = lineages()[str(plan.lineage)], {**plan.sizes, **sizes}
    check_choice(f"the kind of head of {lineage.name}", head, lineage.heads)
    reader = lineage.reader(said)
    try:
        lineage.read(reader)
        lineage.form(head).head(reader)
    except (TypeError, ValueError) as error:  # written for those who have a config.json
        raise ValueError(f"model.sizes of {lineage.name}: {str(error).replace('config.json says ', '')}") from error
    for name in said:
        check_choice(f"a size of {lineage.name}", name, {*reader.used, *lineage.keys})
        if name.endswith(("_token_id", "_index")):  # not all of them are keys with a path
            raise ValueError(f"the size {name}={said[name]!r} is what the tokenizer says; leave it out.")


@dataclass(kw_only=True)
class Started(hub.Loaded):
    """A model to start from. What is new of its head is ``report.fresh``, and is drawn by ``make_model``."""

    fingerprint: str  # of the model as it lies in its folder, whatever becomes of its head
    notes: list[str] = field(default_factory=list)  # what is to be told of it


def started(
    folder: str, job: Job[Any], labels: tuple[str, ...], options: StartOptions, known_by: str | None = None
) -> Started:
    """The model of a folder with the head that the job needs: its own, with its labels in their order, or a new one.

    ``known_by``: its fingerprint, where the folder stands in for one that is gone; else its weights are hashed.
    """
    said = options.options()
    own = hub.load(folder, dtype=torch.float32, **said)  # as stored, steps would be lost to rounding
    old, known_by = own.config.head, fingerprint(own.model) if known_by is None else known_by
    if job.keeps(old, labels):
        return Started(**vars(own), fingerprint=known_by)
    new = _new_head(own, job, labels)
    said |= {"head": new, "fresh": ["head.*", *options.fresh]}
    found = hub.load(folder, dtype=torch.float32, **said)
    if isinstance(old, TaskHead) and old.labels:  # weights of other labels may fit as well
        last = "head.out." if head_kind(old) == head_kind(new) else "head."
        found.report.fresh = [name for name in shapes(found.config) if name.startswith(last)]
    else:
        _take_over(own, found)
    return Started(**vars(found), fingerprint=known_by, notes=_told(old, found))


@torch.no_grad()
def _take_over(own: hub.Loaded, found: hub.Loaded) -> None:
    """Fill what is new of a head from what the old one has of it under other names."""
    weights = dict(own.model.named_parameters())
    for now, before in _in_common(found.config.head, own.config.head):
        for name in [name for name in found.report.fresh if name.startswith(now)]:
            old, place = weights.get(before + name.removeprefix(now)), found.model.get_parameter(name)
            if old is not None and old.shape == place.shape:
                place.copy_(old)
                found.report.fresh.remove(name)


def _in_common(new: Head | None, old: Head | None) -> Iterator[tuple[str, str]]:
    """How names begin, in two heads, of weights that do the same in both; scores are of their labels alone."""
    for (now, one), (before, other) in product(_parts(new).items(), _parts(old).items()):
        if isinstance(one, LMHead) and isinstance(other, LMHead):
            same, part = one.transform == other.transform, ""
        elif isinstance(one, TaskHead) and isinstance(other, TaskHead):
            same, part = (one.pool, one.hidden) == (other.pool, other.hidden), "hidden."
        else:
            continue
        if same:
            yield now + part, before + part


def _parts(head: Head | None) -> dict[str, Head | None]:
    """The heads that a head is made of, by how the names of their weights begin."""
    return {"head.lm.": head.lm, "head.pair.": head.pair} if isinstance(head, PretrainingHead) else {"head.": head}


def _told(old: Head | None, found: hub.Loaded) -> list[str]:
    """That a head is new, or parts of it, and why; nothing if all of it was there."""
    new, fresh = found.config.head, found.report.fresh
    if not fresh:
        return []
    whole = {name for name in shapes(found.config) if name.startswith("head.")} == {*fresh}
    parts = "" if whole else f" in {', '.join(dict.fromkeys(name.rpartition('.')[0] for name in fresh))}"
    were, are = (shorten(", ".join(getattr(head, "labels", ())), 200, placeholder=" …") for head in (old, new))
    if head_kind(old) != head_kind(new):
        return [f"the head is new{parts}: it was {head_kind(old)}, and is {head_kind(new)}"]
    return [f"the head is new{parts}: its labels were {were}, and are {are}"]


def _new_head(own: hub.Loaded, job: Job[Any], labels: tuple[str, ...]) -> Head:
    """A head for a job: as the model has it, but for other labels; or as its lineage has it; or a plain one."""
    kind = job.head
    if kind == "lm" and own.config.lm is not None:
        return own.config.lm
    if isinstance(own.config.head, TaskHead) and own.config.head.task == kind:
        return replace(own.config.head, labels=labels)
    if own.lineage is not None and kind in lineages()[own.lineage].heads:
        lineage = lineages()[own.lineage]
        said = lineage.config(replace(own.config, head=None)) if "none" in lineage.heads else {}
        found = lineage.facts({**said, **_named(labels)}, kind).head
        assert found is not None
        return found
    pool: Literal["first", "last"] = "last" if own.config.family == "decoder" else "first"
    plain: dict[str, TaskHead] = {
        "classify": TaskHead(task="classify", labels=labels, pool=pool),
        "tag": TaskHead(task="tag", labels=labels),
        "span": TaskHead(task="span", labels=("start", "end")),
    }
    if kind not in plain:
        raise ValueError(
            f"the job {job.recipe.job} needs a model with the head {kind}; the one in {own.place} is of the family "
            f"{own.config.family} with the head {head_kind(own.config.head)}. Start from another, or train another job."
        )
    return plain[kind]


def make_model(kit: RunContext, job: Job[Any], start: hub.Loaded | None) -> nn.Module:
    """The model with its first weights, and with adapters if the recipe has them."""
    plan = kit.recipe.model
    model = job.build(kit) if start is None else start.model
    if start is not None:
        initialise(model, kit.facts, start.report.fresh)  # once more, from the seed of the run
    if plan.adapters is not None:
        options = to_dict(plan.adapters)
        is_task = head_kind(kit.facts.head) not in ("lm", "pretraining")  # a head over the vocabulary is no new one
        add_adapters(model, **{**options, "targets": tuple(options["targets"])}, also=("head.*",) if is_task else ())
    return model
