"""Whatever decides by the kind of a fact refuses a kind that it does not know, instead of taking it for another.

The kinds come from the types of the config itself: a new Literal or a new union is tested without a line here.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch

from glassformer.config import Attention, BlockSparse, ModelConfig, shapes
from glassformer.config.parts import Placement
from glassformer.inspect.account.counts import ExactPairs, OpCount, Workload
from glassformer.inspect.parts import part_tree
from glassformer.models.stack import Stack
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.kernels.static_cache import StaticCache
from glassformer.objectives.causal_lm import NextToken
from glassformer.training.capture import obstacles
from tests.configs import CONFIGS, attention, model, random_config, stack, tokens
from tests.helpers import types_unchecked

# Facts that only name what a head is for: nothing is computed by them but the shape of the answer.
NAMES_ONLY = {("TaskHead", "task")}
# Kinds that decide which weights there are.
WITH_WEIGHTS = {("Norm", "kind"), ("Stack", "placement"), ("InputPosition", "kind")}
SPARSE = model(encoder=stack(attention=attention(windows=(BlockSparse(block=2, random=1),))))


@dataclass(frozen=True)
class Unheard:
    """A mechanism that nobody knows."""


def options(hint: Any) -> list[Any]:
    """The single types of a hint, tuples and unions opened."""
    if get_origin(hint) in (Union, type(int | str), tuple):
        return [inner for option in get_args(hint) if option is not ... for inner in options(option)]
    return [hint]


def config_types(kind: type = ModelConfig) -> Iterator[type]:
    """Every dataclass that a config can hold."""
    yield kind
    for hint in get_type_hints(kind).values():
        for option in options(hint):
            if is_dataclass(option):
                yield from config_types(option)


TYPES = list(dict.fromkeys(config_types()))
LITERALS = [
    (kind.__name__, field.name)
    for kind in TYPES
    for field in fields(kind)
    if any(get_origin(option) is Literal for option in options(get_type_hints(kind)[field.name]))
    and (kind.__name__, field.name) not in NAMES_ONLY
]
UNIONS = [
    (kind.__name__, field.name)
    for kind in TYPES
    for field in fields(kind)
    if len([option for option in options(get_type_hints(kind)[field.name]) if is_dataclass(option)]) > 1
]


def parts(facts: Any) -> Iterator[Any]:
    """Every dataclass inside a config, tuples opened."""
    yield facts
    for field in fields(facts):
        value = getattr(facts, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if is_dataclass(inner):
                yield from parts(inner)


def configs_with(kind: str, field: str) -> Iterator[tuple[ModelConfig, Any]]:
    """Copies of configs that have the fact, and the part of each that it stands in."""
    for config in (*CONFIGS.values(), SPARSE, *map(random_config, range(40))):
        changed = copy.deepcopy(config)
        holders = (part for part in parts(changed) if type(part).__name__ == kind and getattr(part, field) is not None)
        if (part := next(holders, None)) is not None:
            yield changed, part


def run(config: ModelConfig) -> None:
    length = 24 if any(isinstance(part, BlockSparse) for part in parts(config)) else 6
    ids = tokens(1, min(length, config.max_length or length)) % config.vocab
    with torch.no_grad(), types_unchecked():
        Transformer(config)(ids, **({"target": ids} if config.family == "encoder-decoder" else {}))


def test_the_enumeration_finds_the_facts_that_are_known_to_be_there() -> None:
    assert {("Norm", "kind"), ("Stack", "placement"), ("Rotary", "pairing"), ("TaskHead", "pool")} <= set(LITERALS)
    assert {("Attention", "score_bias"), ("ModelConfig", "head")} <= set(UNIONS)
    assert set(LITERALS) >= WITH_WEIGHTS


@pytest.mark.parametrize(("kind", "field"), LITERALS)
def test_an_unknown_word_is_refused(kind: str, field: str) -> None:
    refused: list[bool] = []
    for config, part in configs_with(kind, field):
        object.__setattr__(part, field, "unheard")
        try:
            run(config)
        except (ValueError, KeyError) as error:
            refused.append("unheard" in str(error))
        if (kind, field) in WITH_WEIGHTS:
            for use in (shapes, part_tree):
                with pytest.raises((ValueError, KeyError), match="unheard"):
                    use(config)
    assert all(refused)
    assert refused  # by some config: the layout of sinusoids, say, plays no part where positions are learned


@pytest.mark.parametrize(("kind", "field"), UNIONS)
def test_an_unknown_mechanism_is_refused(kind: str, field: str) -> None:
    config, part = next(configs_with(kind, field))
    object.__setattr__(part, field, Unheard())
    for use in (run, shapes, part_tree):
        with pytest.raises(TypeError, match="Unheard"):
            use(config)


def test_an_unknown_window_is_refused() -> None:
    config, part = next(configs_with("Attention", "windows"))
    object.__setattr__(part, "windows", (Unheard(),))
    with pytest.raises(TypeError, match="Unheard"):
        run(config)


def test_an_unknown_window_is_refused_wherever_masks_of_windows_are_made() -> None:
    made, ids = Transformer(copy.deepcopy(model(decoder=stack(causal=True)))), tokens(1, 1)
    cache = KVCache()
    with torch.no_grad(), types_unchecked():
        made.decode(ids, cache=cache)
        static = StaticCache(cache, 8)
        static.fill(cache)
        made.decode(ids, cache=static)
        for part in made.modules():
            if isinstance(part, Stack):
                object.__setattr__(part.facts.attention, "windows", (Unheard(),))
        for step in ({"cache": static}, {"cache": KVCache()}, {"mask": torch.ones(1, 1, dtype=torch.bool)}, {}):
            with pytest.raises(TypeError, match="Unheard"):
                made.decode(ids, **step)
        # Documents that a pattern may cross, and steps that it may not repeat.
        with pytest.raises(ValueError, match="cannot take packed rows"):
            made.decode(ids, torch.ones(1, 1, dtype=torch.long))
        assert obstacles(made, NextToken())


def exact_share(window: Any) -> Fraction:
    """The share of unmasked pairs that an exact account counts with this window, of sequences of 24 tokens."""
    config = copy.deepcopy(model(decoder=stack(causal=True)))
    assert config.decoder is not None
    object.__setattr__(config.decoder.attention, "windows", (window,))
    scores = OpCount("aten.bmm", "product", "decoder.blocks.0.attention", (24, 24), layer=1, label="scores")
    return ExactPairs(config, Workload(batch=1, context=24, source=24), [scores]).backward_share(scores, "")


@pytest.mark.parametrize("kind", options(get_type_hints(Attention)["windows"]))
def test_an_exact_account_supports_every_kind_of_window(kind: type) -> None:
    """Block-sparse attention is counted as it is computed, so its share is 1."""
    attentions = [part for _, part in configs_with("Attention", "windows")]
    window = next(window for part in attentions for window in part.windows if isinstance(window, kind))
    share = exact_share(window)
    assert share == 1 if isinstance(window, BlockSparse) else 0 < share < 1


def test_an_exact_account_refuses_an_unknown_window() -> None:
    with pytest.raises(TypeError, match="Unheard"):
        exact_share(Unheard())


@pytest.mark.parametrize("placement", get_args(Placement))
def test_every_placement_has_words(placement: str) -> None:
    assert (
        placement.split("_")[0]
        in part_tree(model(decoder=stack(causal=True, placement=placement))).parts[1].description
    )
