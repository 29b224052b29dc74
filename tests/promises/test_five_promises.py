"""Promises that every model of every lineage keeps: the same answer whatever the padding, the batch neighbours, the
cache and the chunks, and a round trip through a folder.

In float64 within 1e-10 of the largest answer; in float32 and bfloat16 within the bounds stated here. (Stopping and
resuming belongs to training.)
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer.hub as hub
from glassformer.config import BlockSparse, ModelConfig, change, get_fact
from glassformer.families import lineages
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from tests.helpers import PATHS, largest_difference, randomise, some_at_once
from tests.parity.cases import CASES, FIRST, one_of_each
from tests.parity.harness import LENGTHS, TARGET_LENGTHS, Case, pad_rows, rows

BOUNDS = {torch.float64: 1e-10, torch.float32: 5e-4, torch.bfloat16: 0.35}  # of logits around 3
ONE_OF_EACH_FAMILY = ("bert-BertForMaskedLM", "llama-LlamaForCausalLM", "t5-T5ForConditionalGeneration")


def facts_of(case: Case) -> ModelConfig:
    """The facts of a tiny model; block-sparse attention in the semantics that keeps the padding promise."""
    for lineage in lineages().values():
        for kind, form in lineage.heads.items():
            if form.architecture == case.architecture:
                facts = lineage.facts(case.config, kind)
                for path in ("encoder.attention.windows", "decoder.attention.windows"):
                    windows = get_fact(facts, path)
                    if windows and any(isinstance(window, BlockSparse) for window in windows):
                        facts = change(facts, path, tuple(change(w, "semantics", "set") for w in windows))
                return facts
    raise LookupError(case.architecture)


def built(case: Case, dtype: torch.dtype = torch.float64) -> Transformer:
    model = randomise(Transformer(facts_of(case))).eval()
    assert isinstance(model, Transformer)
    return model.to(dtype)


def inputs(model: Transformer, side: str, extra: int, chosen: slice = slice(None)) -> tuple[dict[str, Any], Tensor]:
    """A padded batch for any family, and which slots of the answer are real."""
    tokens = rows(LENGTHS, 1)[chosen]
    ids, mask = pad_rows(tokens, side, fill=1, extra=extra)
    given: dict[str, Any] = {"ids": ids, "mask": mask}
    embed = model.config.embed
    for name, kinds in (("segments", embed.segments), ("languages", embed.languages)):
        if kinds:
            given[name] = (ids % kinds).where(mask, 0)
    if model.config.family == "encoder-decoder":
        given["target"], given["target_mask"] = pad_rows(rows(TARGET_LENGTHS, 2)[chosen], side, fill=1, extra=extra)
        mask = given["target_mask"]
    return given, mask


def at_real(answer: Any, mask: Tensor) -> list[Tensor]:
    """The answer to each row at its real tokens; an answer per sequence as it is."""
    if isinstance(answer, tuple):
        return [row for part in answer for row in at_real(part, mask)]
    per_token = answer.ndim >= 2 and answer.shape[1] == mask.shape[1]
    return [answer[number][real] if per_token else answer[number] for number, real in enumerate(mask)]


def gap(one: list[Tensor], other: list[Tensor]) -> float:
    return max(largest_difference(a, b) for a, b in zip(one, other, strict=True))


def quick_types(given: tuple[Case, torch.dtype]) -> bool:
    """One of each kind, and the narrower types for one of each family."""
    case, dtype = given
    return case.id in FIRST if dtype == torch.float64 else case.id in ONE_OF_EACH_FAMILY


@pytest.mark.parametrize(
    ("case", "dtype"),
    some_at_once([(c, d) for c in CASES for d in BOUNDS if d == torch.float64 or c.id in FIRST], quick_types),
)
def test_row_01_padding_and_neighbours_change_nothing(case: Case, dtype: torch.dtype) -> None:
    model = built(case, dtype)
    with torch.no_grad():
        answers = {}
        paddings = (("right", 0), ("right", 3), ("left", 0), ("left", 2))
        for side, extra in paddings if dtype == torch.float64 else paddings[::3]:
            given, mask = inputs(model, side, extra)
            for path in PATHS if dtype == torch.float64 else ("sdpa",):
                answers[side, extra, path] = at_real(model(**given, path=path), mask)
        first = answers["right", 0, "sdpa"]
        for where, other in answers.items():
            assert gap(first, other) < BOUNDS[dtype], where
        parts = len(first) // len(LENGTHS)  # a head may give several answers to each row
        for number in range(len(LENGTHS)):
            given, mask = inputs(model, "right", 0, slice(number, number + 1))
            alone = at_real(model(**given), mask)
            together = [first[part * len(LENGTHS) + number] for part in range(parts)]
            assert gap(alone, together) < BOUNDS[dtype], ("alone", number)


@pytest.mark.parametrize("case", one_of_each(CASES))
def test_what_stands_in_padding_does_not_matter(case: Case) -> None:
    model = built(case)
    given, mask = inputs(model, "left", 2)
    other = dict(given)
    other["ids"] = given["ids"].where(given["mask"], -100)
    if "target" in given:
        other["target"] = given["target"].where(given["target_mask"], 10**6)
    with torch.no_grad():
        assert gap(at_real(model(**given), mask), at_real(model(**other), mask)) == 0.0


DECODERS = [case for case in CASES if facts_of(case).decoder is not None and get_fact(facts_of(case), "decoder.causal")]


def quick_paths(given: tuple[Case, str, str]) -> bool:
    """One of each kind on one path, and one of each family on the other."""
    case, *how = given
    return (case.id in FIRST and how == ["sdpa", "left"]) or (
        case.id in ONE_OF_EACH_FAMILY and how == ["eager", "right"]
    )


@pytest.mark.parametrize(
    ("case", "path", "side"), some_at_once(product(DECODERS, PATHS, ("right", "left", "none")), quick_paths)
)
def test_row_08_cached_chunks_equal_one_pass(case: Case, path: Any, side: str) -> None:
    model = built(case)
    given, mask = inputs(model, "right" if side == "none" else side, 0)
    ids, real, more = given["ids"], mask, {}
    with torch.no_grad():
        if "target" in given:
            memory = model.encode(given["ids"], given["mask"], path=path)
            ids, more = given["target"], {"memory": memory, "memory_mask": given["mask"]}
        elif "languages" in given:
            more = {"languages": given["languages"]}
        if side == "none":
            ids, real = ids[:1, : int(mask[0].sum())], None
            more = {
                name: value[:1, : ids.shape[1]] if name == "languages" else value[:1] for name, value in more.items()
            }
        whole = model.decode(ids, real, path=path, **more)
        for size in (1, 3, 7):
            cache, parts = KVCache(), []
            for start in range(0, ids.shape[1], size):
                piece = slice(start, start + size)
                new = {name: value[:, piece] if name == "languages" else value for name, value in more.items()}
                part_mask = None if real is None else real[:, piece]
                parts.append(model.decode(ids[:, piece], part_mask, cache=cache, path=path, **new))
            pieces = torch.cat(parts, 1)
            shown = torch.ones_like(ids, dtype=torch.bool) if real is None else real
            assert largest_difference(pieces[shown], whole[shown]) < BOUNDS[torch.float64], size


@pytest.mark.parametrize("case", one_of_each(CASES))
def test_save_and_load_is_bitwise(case: Case, tmp_path: Path) -> None:
    model = built(case, torch.float32)
    hub.save(model, tmp_path)
    again = hub.load(tmp_path)
    assert again.config == model.config
    given, _ = inputs(model, "right", 1)
    with torch.no_grad():
        before, after = model(**given), again.model(**given)
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (before, after)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", one_of_each(DECODERS))
def test_row_06_no_token_sees_a_later_one(case: Case) -> None:
    """Row 6 of the known silent bugs, for every causal model: change a token and nothing before it changes a bit."""
    model = built(case)
    given, _ = inputs(model, "right", 0)
    ids = given["target"] if "target" in given else given["ids"]
    more = {}
    with torch.no_grad():
        if "target" in given:
            more = {"memory": model.encode(given["ids"], given["mask"]), "memory_mask": given["mask"]}
        changed = ids.clone()
        changed[:, 4] = (changed[:, 4] + 1) % 50 + 5
        before, after = model.decode(ids, **more), model.decode(changed, **more)
    assert torch.equal(before[:, :4], after[:, :4])
    assert largest_difference(before[:, 4:], after[:, 4:]) > 1e-3
