"""Whatever decides by the kind of a fact refuses a kind that it does not know, instead of taking it for another.

The kinds come from the types of the config itself: a new Literal or a new union is tested without a line here.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch

from glassformer.config import BlockSparse, Model, shapes
from glassformer.config.parts import Placement
from glassformer.inspect.parts import part_tree
from glassformer.models.transformer import Transformer
from tests.helpers import types_unchecked
from tests.pages import PAGES, any_page, attention, model, stack, tokens

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


def config_types(kind: type = Model) -> Iterator[type]:
    """Every dataclass that a page of facts can hold."""
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
    """Every dataclass inside a page, tuples opened."""
    yield facts
    for field in fields(facts):
        value = getattr(facts, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if is_dataclass(inner):
                yield from parts(inner)


def pages_with(kind: str, field: str) -> Iterator[tuple[Model, Any]]:
    """Copies of pages that have the fact, and the part of each that it stands in."""
    for page in (*PAGES.values(), SPARSE, *map(any_page, range(40))):
        found = copy.deepcopy(page)
        holders = (part for part in parts(found) if type(part).__name__ == kind and getattr(part, field) is not None)
        if (part := next(holders, None)) is not None:
            yield found, part


def run(page: Model) -> None:
    length = 24 if any(isinstance(part, BlockSparse) for part in parts(page)) else 6
    ids = tokens(1, min(length, page.longest or length)) % page.vocab
    with torch.no_grad(), types_unchecked():
        Transformer(page)(ids, **({"target": ids} if page.family == "encoder-decoder" else {}))


def test_the_enumeration_finds_the_facts_that_are_known_to_be_there() -> None:
    assert {("Norm", "kind"), ("Stack", "placement"), ("Rotary", "pairing"), ("TaskHead", "pool")} <= set(LITERALS)
    assert {("Attention", "score_bias"), ("Model", "head")} <= set(UNIONS)
    assert set(LITERALS) >= WITH_WEIGHTS


@pytest.mark.parametrize(("kind", "field"), LITERALS)
def test_an_unknown_word_is_refused(kind: str, field: str) -> None:
    refused: list[bool] = []
    for page, part in pages_with(kind, field):
        object.__setattr__(part, field, "unheard")
        try:
            run(page)
        except (ValueError, KeyError) as error:
            refused.append("unheard" in str(error))
        if (kind, field) in WITH_WEIGHTS:
            for use in (shapes, part_tree):
                with pytest.raises((ValueError, KeyError), match="unheard"):
                    use(page)
    assert all(refused)
    assert refused  # by some page: the layout of sinusoids, say, plays no part where positions are learned


@pytest.mark.parametrize(("kind", "field"), UNIONS)
def test_an_unknown_mechanism_is_refused(kind: str, field: str) -> None:
    page, part = next(pages_with(kind, field))
    object.__setattr__(part, field, Unheard())
    for use in (run, shapes, part_tree):
        with pytest.raises(TypeError, match="Unheard"):
            use(page)


def test_an_unknown_window_is_refused() -> None:
    page, part = next(pages_with("Attention", "windows"))
    object.__setattr__(part, "windows", (Unheard(),))
    with pytest.raises(TypeError, match="Unheard"):
        run(page)


@pytest.mark.parametrize("placement", get_args(Placement))
def test_every_placement_has_words(placement: str) -> None:
    assert placement.split("_")[0] in part_tree(model(decoder=stack(causal=True, placement=placement))).parts[1].says
