"""Rows and slots of a cache: reordered, selected, cropped, preallocated, evicted; the results do not change."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache, LayerCache
from tests.configs import DECODERS, built, tokens
from tests.helpers import PATHS, largest_difference, normal, right_padded, some_at_once

WINDOWED = "gpt_neo"  # layers that see all, 3 and all
FEW = (WINDOWED, "llama", "t5")  # for what hardly depends on the config


def memory_of(model: Transformer, rows: int) -> dict[str, Tensor]:
    if model.encoder is None:
        return {}
    real = right_padded(*[5, 3, 4][:rows], width=5)
    with torch.no_grad():
        return {"memory": model.encode(tokens(rows, 5, seed=3), real), "memory_mask": real}


def select_rows(inputs: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in inputs.items()}


def left_padded(*lengths: int, width: int) -> Tensor:
    return right_padded(*lengths, width=width).flip(-1)


@pytest.mark.parametrize(
    ("config", "padded"), some_at_once(product(DECODERS, (False, True)), lambda given: given[1] or given[0] in FEW)
)
def test_reordered_rows_go_on_as_their_sources(config: str, padded: bool) -> None:
    """Rows with different texts, swapped and doubled: what follows is what follows the source."""
    model, ids, more = built(config), tokens(3, 9), tokens(3, 4, seed=5)
    ids[1:, :5] = ids[:1, :5]  # the same beginning, as beams of one prompt have
    mask = left_padded(7, 7, 7, width=9) if padded else None
    memory = {name: value[:1].expand_as(value) for name, value in memory_of(model, 3).items()}
    rows = torch.tensor([2, 0, 0])
    with torch.inference_mode():
        for since in (0, 5):
            cache = KVCache()
            model.decode(ids[:, :5], None if mask is None else mask[:, :5], cache=cache, **memory)
            model.decode(ids[:, 5:], None if mask is None else mask[:, 5:], cache=cache, **memory)
            cache.reorder(rows, since=since)
            got = model.decode(more, cache=cache, **memory)
            whole = torch.cat((ids[rows], more), 1)
            real = None if mask is None else torch.cat((mask, torch.ones_like(more, dtype=torch.bool)), 1)
            expected = model.decode(whole, real, **memory)[:, 9:]
            assert largest_difference(got, expected) < 1e-12


@torch.no_grad()
def test_reordering_moves_only_what_must_move() -> None:
    cache = KVCache()
    layer = cache.layer(0)
    keys = normal(3, 2, 6, 4)
    layer.extend(keys, keys)
    cache.reorder(torch.arange(3))
    assert torch.equal(layer.k, keys)
    cache.reorder(torch.tensor([1, 1, 0]), since=4)
    assert torch.equal(layer.k[:, :, :4], keys[:, :, :4])  # stated to be equal: not moved
    assert torch.equal(layer.k[:, :, 4:], keys[[1, 1, 0], :, 4:])
    assert torch.equal(layer.v, layer.k)


@pytest.mark.parametrize(
    ("config", "path"), some_at_once(product(DECODERS, PATHS), lambda pair: pair[1] == "sdpa" or pair[0] in FEW)
)
def test_selected_rows_go_on_as_if_they_were_all(config: str, path: Any) -> None:
    model, ids, more = built(config), tokens(3, 6), tokens(4, 3, seed=5)
    mask = left_padded(6, 2, 5, width=6)
    memory = memory_of(model, 3)
    with torch.inference_mode():
        for rows in (torch.tensor([2, 0]), torch.tensor([1, 1, 0, 2]), torch.tensor([1])):
            cache = KVCache(capacity=9)
            model.decode(ids, mask, cache=cache, path=path, **memory)
            cache.select(rows, memory_rows=rows)
            got = model.decode(more[: len(rows)], cache=cache, path=path, **select_rows(memory, rows))
            whole = torch.cat((ids[rows], more[: len(rows)]), 1)
            real = torch.cat((mask[rows], torch.ones(len(rows), 3, dtype=torch.bool)), 1)
            expected = model.decode(whole, real, path=path, **select_rows(memory, rows))[:, 6:]
            assert largest_difference(got, expected) < 1e-12
            with pytest.raises(ValueError, match=f"another batch: {len(rows)} rows, not 5"):
                model.decode(tokens(5, 1), cache=cache, **select_rows(memory, torch.zeros(5, dtype=torch.long)))


def test_the_memory_may_be_kept_while_rows_are_chosen() -> None:
    cache = KVCache()
    layer = cache.layer(0)
    layer.extend(normal(2, 1, 3, 4), normal(2, 1, 3, 4))
    k, v = layer.project_memory_once(lambda: (normal(2, 5, 4), normal(2, 5, 4, seed=1)))
    cache.select(torch.tensor([0, 0, 1, 1]))
    assert torch.equal(layer.memory[0], k)
    cache.select(torch.tensor([2, 3]), memory_rows=torch.tensor([1]))
    assert torch.equal(layer.memory[0], k[1:])
    assert torch.equal(layer.memory[1], v[1:])


@pytest.mark.parametrize(
    ("config", "padded"), some_at_once(product(DECODERS, (False, True)), lambda given: given[1] or given[0] in FEW)
)
def test_what_was_taken_back_leaves_no_trace(config: str, padded: bool) -> None:
    model, ids = built(config), tokens(2, 8)
    mask = left_padded(8, 5, width=8) if padded else None
    memory = memory_of(model, 2)
    whole = model.decode(ids, mask, **memory)
    with torch.inference_mode():
        cache = KVCache()
        model.decode(ids[:, :5], None if mask is None else mask[:, :5], cache=cache, **memory)
        model.decode(tokens(2, 4, seed=9), cache=cache, **memory)
        cache.crop(5)
        assert cache.length == 5
        got = model.decode(ids[:, 5:], None if mask is None else mask[:, 5:], cache=cache, **memory)
    assert largest_difference(got, whole[:, 5:]) < 1e-12


def test_no_more_can_be_taken_back_than_there_is() -> None:
    cache = KVCache()
    built("gpt2")(tokens(2, 4), cache=cache)
    for length in (5, -1):
        with pytest.raises(ValueError, match=f"a cache of 4 slots cannot be cropped to {length}"):
            cache.crop(length)
    cache.crop(4)
    assert cache.length == 4
    cache.crop(0)
    assert cache.length == 0


def test_an_evicting_cache_cannot_be_cropped() -> None:
    cache, model = KVCache(evicts=True), built(WINDOWED)
    with torch.inference_mode():
        for number in range(12):
            model.decode(tokens(1, 1, seed=number), cache=cache)
    with pytest.raises(ValueError, match=r"cannot be cropped; use evicts=False"):
        cache.crop(5)


@pytest.mark.parametrize(
    ("evicts", "config"), some_at_once(product([False, True], DECODERS), lambda pair: pair[1] in FEW)
)
def test_preallocated_memory_changes_nothing(config: str, evicts: bool) -> None:
    model, ids = built(config), tokens(2, 14)
    mask = left_padded(14, 9, width=14)
    memory = memory_of(model, 2)
    whole = model.decode(ids, mask, **memory)
    with torch.inference_mode():
        for capacity in (None, 20, 3):  # 3: too little is made more
            for sizes in ((14,), (5, 1, 3, 1, 1, 1, 1, 1)):
                cache, parts, at = KVCache(capacity, evicts=evicts), [], 0
                for size in sizes:
                    piece = slice(at, at + size)
                    parts.append(model.decode(ids[:, piece], mask[:, piece], cache=cache, **memory))
                    at += size
                got = torch.cat(parts, 1)
                assert largest_difference(got[mask], whole[mask]) < 1e-12


@torch.no_grad()
def test_memory_is_set_aside_once() -> None:
    layer = LayerCache(capacity=10)
    layer.extend(normal(2, 1, 4, 3), normal(2, 1, 4, 3))
    before, place = layer.nbytes, layer.k.data_ptr()
    for _ in range(6):
        layer.extend(normal(2, 1, 1, 3), normal(2, 1, 1, 3))
    assert layer.nbytes == before == 2 * 2 * 10 * 3 * 8
    assert layer.k.data_ptr() == place
    with pytest.raises(ValueError, match="capacity"):
        KVCache(0)


@torch.no_grad()
def test_without_a_capacity_memory_grows_seldom() -> None:
    layer, places = LayerCache(), set()
    for number in range(200):
        layer.extend(normal(1, 1, 1, 2, seed=number), normal(1, 1, 1, 2))
        places.add((layer.nbytes, layer.k.data_ptr()))
    assert layer.length == 200
    assert len(places) <= 9


def test_a_window_bounds_what_is_kept() -> None:
    model = built(WINDOWED)
    evicting, keeping = KVCache(evicts=True), KVCache()
    with torch.inference_mode():
        for number in range(20):
            for cache in (evicting, keeping):
                model.decode(tokens(2, 1, seed=number), cache=cache)
    assert keeping.layer(1).length == 20
    assert evicting.layer(0).length == 20  # sees all
    assert evicting.layer(1).length <= 6
    assert evicting.layer(1).length + evicting.layer(1).evicted == 20
    assert evicting.nbytes < keeping.nbytes
    assert largest_difference(evicting.layer(1).k[:, :, -3:], keeping.layer(1).k[:, :, -3:]) < 1e-12


@pytest.mark.parametrize("since", [0, 4, 9])
def test_an_evicting_cache_is_reordered_and_selected_too(since: int) -> None:
    model, ids = built(WINDOWED), tokens(3, 12)
    ids[1:, :9] = ids[:1, :9]
    more, rows = tokens(3, 3, seed=4), torch.tensor([1, 2, 1])
    with torch.inference_mode():
        cache = KVCache(capacity=20, evicts=True)
        for at in range(12):
            model.decode(ids[:, at : at + 1], cache=cache)
        cache.reorder(rows, since=since)
        cache.select(torch.tensor([2, 0]))
        got = model.decode(more[:2], cache=cache)
        expected = model.decode(torch.cat((ids[rows][[2, 0]], more[:2]), 1))[:, 12:]
    assert largest_difference(got, expected) < 1e-12


def test_an_evicting_cache_needs_padding_on_the_left() -> None:
    cache = KVCache(evicts=True)
    with pytest.raises(ValueError, match="padding must be on the left"):
        built(WINDOWED)(tokens(2, 4), right_padded(4, 2, width=4), cache=cache)


def test_a_cache_filled_with_gradients_has_them() -> None:
    """Writing into memory set aside would lose them."""
    model, ids = built("gpt2"), tokens(1, 6)
    cache = KVCache(capacity=6)
    parts = [model(ids[:, piece], cache=cache) for piece in (slice(0, 4), slice(4, 6))]
    torch.cat(parts, 1).square().sum().backward()
    got = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model(ids).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert largest_difference(got[name], parameter.grad) < 1e-10, name


@torch.no_grad()
def test_a_refused_crop_changes_nothing():
    model, cache = built("gpt_neo"), KVCache(evicts=True)
    ids = tokens(2, 14)
    model(ids[:, :8], cache=cache)
    for place in range(8, 11):
        model(ids[:, place : place + 1], cache=cache)
    with pytest.raises(ValueError, match="evicts=False"):
        cache.crop(9)
    assert cache.length == 11
    assert largest_difference(model(ids[:, 11:], cache=cache), model(ids)[:, 11:]) < 1e-12


def test_refused_padding_changes_nothing():
    model, cache, ids = built("gpt2"), KVCache(evicts=True), tokens(1, 6)
    model(ids[:, :2], cache=cache)
    with pytest.raises(ValueError, match="on the left"):
        model(ids[:, 2:], torch.tensor([[True, True, False, False]]), cache=cache)
    assert largest_difference(model(ids[:, 2:], cache=cache), model(ids)[:, 2:]) < 1e-12


@pytest.mark.parametrize("rows", [[1], [0, 1], [0, 1, 2, 2]])
@pytest.mark.parametrize("since", [0, 5])
def test_reordering_needs_one_row_for_each(rows, since):
    model, cache = built("gpt2"), KVCache()
    with torch.no_grad():
        model(tokens(3, 6), cache=cache)
        with pytest.raises(ValueError, match=f"each of the 3 rows, got {len(rows)}"):
            cache.reorder(torch.tensor(rows), since=since)


def test_beyond_its_capacity_memory_doubles():
    model, cache, ids = built("gpt2"), KVCache(capacity=4), tokens(1, 20)
    places = set()
    with torch.inference_mode():
        for place in range(20):
            model(ids[:, place : place + 1], cache=cache)
            places.add(cache.layer(0).k.data_ptr())
    assert len(places) <= 4  # 4, 10, 22 slots, and perhaps one that the allocator gave twice
    assert cache.length == 20


@pytest.mark.parametrize("trained", ["q", "k", "v"])
def test_gradients_flow_through_a_cache_whatever_is_trained(trained):
    model, ids = built("llama"), tokens(2, 6)
    weight = getattr(model.decoder.blocks[0].attention, trained).weight
    model.requires_grad_(False)
    weight.requires_grad_(True)
    (whole,) = torch.autograd.grad(model(ids).square().sum(), weight)
    cache = KVCache()
    parts = [model(ids[:, piece], cache=cache) for piece in (slice(0, 3), slice(3, 4), slice(4, 6))]
    (pieces,) = torch.autograd.grad(torch.cat(parts, 1).square().sum(), weight)
    assert largest_difference(pieces, whole) < 1e-9


@pytest.mark.parametrize("config", ["llama", "t5"])
def test_a_cache_of_inference_mode_can_be_trained_through_and_put_in_order(config):
    model, ids, cache = built(config), tokens(2, 5), KVCache()
    memory = {} if model.encoder is None else {"memory": normal(2, 4, model.config.width)}
    with torch.inference_mode():
        model.decode(ids[:, :4], cache=cache, **memory)
    with torch.no_grad():
        cache.reorder(torch.tensor([1, 0]))
        cache.reorder(torch.tensor([1, 0]))
    after = model.decode(ids[:, 4:], cache=cache, **memory)
    after.sum().backward()
    assert largest_difference(after, model.decode(ids, **memory)[:, 4:]) < 1e-12
