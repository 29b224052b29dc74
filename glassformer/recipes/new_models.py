"""The facts of a new model: from a recipe's lineage and sizes, for the vocabulary of a tokenizer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassformer.config import ModelConfig, merge
from glassformer.config.checks import check_choice
from glassformer.families import lineages
from glassformer.recipes.recipe import ModelPlan
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights.lineage import Lineage


def new_facts(
    lineage: Lineage, sizes: Mapping[str, Any], head: str, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
) -> ModelConfig:
    """Return facts of a model of a lineage for the vocabulary of a tokenizer, with the ids of its special tokens."""
    key_of = {key.path: name for name, key in lineage.keys.items() if key.path is not None}
    config = {key_of["vocab"]: tokenizer.vocab_size, **sizes}  # as in the lineage's config.json
    if config[key_of["vocab"]] < tokenizer.vocab_size:
        raise ValueError(
            f"model.sizes.{key_of['vocab']}={config[key_of['vocab']]} is less than the {tokenizer.vocab_size} tokens "
            f"of the vocabulary; leave it out."
        )
    # Ids of special tokens, under the names of the lineage's config.json.
    roles = ("bos", "eos", "pad")
    tokens = {role: getattr(tokenizer, role) for role in roles}
    config |= {key_of[f"tokens.{role}"]: tokens[role] for role in roles if f"tokens.{role}" in key_of}
    config |= label_config(labels)
    start = _start_token(lineage, head, tokens)
    if "tokens.start" in key_of:
        config[key_of["tokens.start"]] = start
    facts = lineage.facts(config, head)
    # Roles that this config.json has no key for.
    missing = {role: number for role, number in tokens.items() if getattr(facts.tokens, role) is None}
    if facts.family == "encoder-decoder":
        missing["start"] = start
    elif facts.family == "encoder":
        missing = {}
    return replace(facts, tokens=replace(facts.tokens, **missing))


def label_config(labels: tuple[str, ...]) -> dict[str, Any]:
    """Return labels as a config.json has them, if there are any."""
    return {"id2label": {str(number): label for number, label in enumerate(labels)}} if labels else {}


def _start_token(lineage: Lineage, head: str, tokens: Mapping[str, int | None]) -> int | None:
    """Return the decoder's start token: the one with that role in the lineage's published models, or a default."""
    published = lineage.facts({}, head).tokens
    same = [
        role
        for role in ("pad", "eos", "bos")
        if published.start is not None and getattr(published, role) == published.start
    ]
    return next((tokens[role] for role in (*same, "bos", "pad", "eos") if tokens[role] is not None), None)


def check_new(plan: ModelPlan, head: str, **sizes: Any) -> None:
    """Raise unless a new model can be built from a plan: a lineage that has this head and all of these sizes.

    Args:
        plan: the recipe's section on the model.
        head: the kind of head.
        **sizes: in place of those of the plan.
    """
    check_choice("model.lineage", str(plan.lineage), lineages())
    lineage, config = lineages()[str(plan.lineage)], {**plan.sizes, **sizes}
    check_choice(f"the kind of head of {lineage.name}", head, lineage.heads)
    reader = lineage.reader(config)
    try:
        facts = replace(lineage.read(reader), head=lineage.head_format(head).head(reader))
    except (TypeError, ValueError) as error:  # the message is about a config.json
        raise ValueError(f"model.sizes of {lineage.name}: {str(error).replace('config.json says ', '')}") from error
    merge(facts, plan.facts, "model.facts")
    for name in config:
        check_choice(f"a size of {lineage.name}", name, {*reader.used, *lineage.keys})
        if name.endswith(("_token_id", "_index")):  # not all of them are keys with a path
            raise ValueError(f"the size {name}={config[name]!r} comes from the tokenizer; leave it out.")
