"""What a decoder remembers: keys, values, real slots and positions; and calls that mix masks and none."""

import copy
import math

import pytest
import torch

from glassformer.config import BucketBias, LMHead
from glassformer.nn.cache import KVCache, LayerCache
from tests.configs import DECODERS, PAIRS, attention, built, model, stack, tokens
from tests.helpers import PATHS, largest_difference, normal, right_padded, some_at_once


def test_a_layer_keeps_keys_and_values_in_order():
    cache = LayerCache()
    keys, values = normal(2, 3, 7, 4), normal(2, 3, 7, 5, seed=1)
    for start, end in ((0, 4), (4, 5), (5, 7)):
        k, v = cache.extend(keys[:, :, start:end], values[:, :, start:end])
        assert torch.equal(k, keys[:, :, :end])
        assert torch.equal(v, values[:, :, :end])
    assert cache.memory is None


def test_the_memory_is_projected_once():
    cache, calls = LayerCache(), []

    def project():
        calls.append(1)
        return normal(1, 3, 4), normal(1, 3, 4, seed=1)

    first, again = cache.project_memory_once(project), cache.project_memory_once(project)
    assert len(calls) == 1
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_each_layer_has_its_own():
    cache = KVCache()
    assert cache.layer(0) is cache.layer(0)
    assert cache.layer(0) is not cache.layer(1)


def test_every_slot_is_real_until_a_mask_says_otherwise():
    cache = KVCache()
    assert cache.extend_token_mask(None, 2, 3) is None
    cache.extend_positions(torch.arange(3))
    assert cache.length == 3
    assert cache.token_mask is None
    mask = torch.tensor([[True, False], [True, True]])
    real = cache.extend_token_mask(mask, 2, 2)
    cache.extend_positions(torch.tensor([[3, 3], [3, 4]]))
    assert real.tolist() == [[True, True, True, True, False], [True] * 5]
    real = cache.extend_token_mask(None, 2, 1)  # no mask: the new slots are real, those before stay as they were
    assert real.tolist() == [[True, True, True, True, False, True], [True] * 6]
    assert cache.token_mask is real


def test_positions_are_kept_for_all_rows_or_for_each():
    cache = KVCache()
    assert cache.extend_positions(torch.arange(3)).tolist() == [0, 1, 2]
    both = cache.extend_positions(torch.tensor([[3, 3], [3, 4]]))
    assert both.tolist() == [[0, 1, 2, 3, 3], [0, 1, 2, 3, 4]]
    one_for_all = cache.extend_positions(torch.tensor([7]))
    assert one_for_all.tolist() == [[0, 1, 2, 3, 3, 7], [0, 1, 2, 3, 4, 7]]
    single_row = cache.extend_positions(torch.tensor([[9]]))
    assert single_row[:, -1].tolist() == [9, 9]
    assert cache.length == 7


@pytest.mark.parametrize("first", [(1, 3), (2, 3), (3,)], ids=str)
@pytest.mark.parametrize("then", [(1, 2), (2, 2), (2,)], ids=str)
def test_positions_of_every_shape_follow_each_other(first, then):
    cache = KVCache()
    before, after = torch.randint(9, first), torch.randint(9, then)
    cache.extend_positions(before)
    joined = cache.extend_positions(after)
    rows = max(math.prod(shape[:-1]) for shape in (first, then))
    assert torch.equal(joined.expand(rows, 5), torch.cat((before.expand(rows, 3), after.expand(rows, 2)), dim=-1))
    assert cache.length == 5


# ---- through a model


def memory_of(model, rows=2):
    if model.encoder is None:
        return {}
    real = right_padded(*[5, 3, 4][:rows], width=5)
    return {"memory": model.encode(tokens(rows, 5, seed=3), real), "memory_mask": real}


@pytest.mark.parametrize("config", DECODERS)
@pytest.mark.parametrize(
    ("masked_call", "path"),
    some_at_once(
        [("never", "eager"), ("never", "sdpa"), ("first", "sdpa"), ("last", "sdpa"), ("always", "eager")],
        lambda given: given[0] in ("first", "always"),
    ),
)
def test_a_mask_of_true_changes_nothing_in_any_call(config, path, masked_call):
    model, ids = built(config), tokens(2, 9)
    memory = memory_of(model)
    whole = model.decode(ids, path=path, **memory)
    cache, parts = KVCache(), []
    for number, piece in enumerate((slice(0, 4), slice(4, 5), slice(5, 9))):
        has_mask = masked_call == "always" or (masked_call, number) in (("first", 0), ("last", 2))
        mask = torch.ones_like(ids[:, piece], dtype=torch.bool) if has_mask else None
        parts.append(model.decode(ids[:, piece], mask, cache=cache, path=path, **memory))
    assert largest_difference(torch.cat(parts, 1), whole) < 1e-12
    assert cache.length == 9
    assert (cache.token_mask is None) == (masked_call == "never")


@pytest.mark.parametrize("config", DECODERS)
@pytest.mark.parametrize("path", some_at_once(PATHS, {"sdpa"}.__contains__))
def test_padding_in_the_middle_of_a_conversation(config, path):
    """Rows of unequal length in every call; only some calls have a mask. Each row alone says the same."""
    model = built(config)
    memory = memory_of(model)
    turns = [
        (tokens(2, 4, seed=1), None),
        (tokens(2, 5, seed=2), right_padded(5, 2, width=5)),
        (tokens(2, 1, seed=3), None),
        (tokens(2, 3, seed=4), right_padded(1, 3, width=3).flip(-1)),  # padded on the left
        (tokens(2, 2, seed=5), None),
    ]
    cache = KVCache()
    answers = [model.decode(ids, mask, cache=cache, path=path, **memory) for ids, mask in turns]
    reals = [torch.ones_like(ids, dtype=torch.bool) if mask is None else mask for ids, mask in turns]
    assert torch.equal(cache.token_mask, torch.cat(reals, 1))
    for row in range(2):
        alone = torch.cat([ids[row, real[row]] for (ids, _), real in zip(turns, reals, strict=True)])
        mine = {name: value[row : row + 1] for name, value in memory.items()}
        expected = model.decode(alone[None], path=path, **mine)[0]
        got = torch.cat([answer[row, real[row]] for answer, real in zip(answers, reals, strict=True)])
        assert largest_difference(got, expected) < 1e-12
        assert cache.positions[row, cache.token_mask[row]].tolist() == [*range(len(alone))]


@pytest.mark.parametrize("config", PAIRS)
def test_the_memory_is_projected_once_for_all_steps(config):
    model, cache = built(config), KVCache()
    memory, ids = memory_of(model), tokens(2, 4)
    whole = model.decode(ids, **memory)
    counts = []
    for block in model.decoder.blocks:
        block.cross.k.register_forward_hook(lambda *_: counts.append(1))
    parts = [model.decode(ids[:, i : i + 1], cache=cache, **memory) for i in range(4)]
    assert len(counts) == len(model.decoder.blocks)
    assert largest_difference(torch.cat(parts, 1), whole) < 1e-12


@pytest.mark.parametrize("config", ["gpt2", "llama"])
def test_explicit_positions_with_a_cache(config):
    model, ids, cache = built(config), tokens(2, 6), KVCache()
    places = torch.tensor([[3, 4, 5, 9, 10, 11], [0, 1, 2, 3, 4, 5]])
    whole = model(ids, positions=places)
    parts = [model(ids[:, s], positions=places[:, s], cache=cache) for s in (slice(0, 2), slice(2, 3), slice(3, 6))]
    assert largest_difference(torch.cat(parts, 1), whole) < 1e-12
    assert torch.equal(cache.positions, places)


def test_no_tokens_are_no_tokens():
    model, cache = built("gpt2"), KVCache()
    ids, mask = tokens(2, 4), right_padded(4, 2, width=4)
    model(ids, mask, cache=cache)
    assert model(ids[:, :0], cache=cache).shape == (2, 0, 31)
    assert cache.length == 4


def test_two_caches_know_nothing_of_each_other():
    model, one, other = built("llama"), KVCache(), KVCache()
    ids = tokens(2, 6)
    model(ids[:1, :3], cache=one)
    model(ids[1:, :4], cache=other)
    assert largest_difference(model(ids[:1, 3:], cache=one), model(ids[:1])[:, 3:]) < 1e-12
    assert largest_difference(model(ids[1:, 4:], cache=other), model(ids[1:])[:, 4:]) < 1e-12


@pytest.mark.parametrize("config", ["gpt2", "llama"])
def test_the_limit_counts_real_tokens_of_all_calls(config):
    model, cache = built(config), KVCache()  # 24 positions
    model(tokens(2, 20), right_padded(20, 10, width=20), cache=cache)
    model(tokens(2, 4), cache=cache)
    with pytest.raises(ValueError, match=r"\b25 tokens .*\b24\b"):
        model(tokens(2, 1), cache=cache)
    padded = KVCache()
    model(tokens(2, 20), right_padded(15, 10, width=20), cache=padded)
    for _ in range(9):  # 29 slots, of which at most 24 are real
        model(tokens(2, 1), cache=padded)
    with pytest.raises(ValueError, match=r"\b25 tokens .*\b24\b"):
        model(tokens(2, 1), cache=padded)


def test_a_cache_refuses_another_memory():
    cache, memory = KVCache(), normal(2, 3, 4)
    real = right_padded(3, 2, width=3)
    cache.check_memory(memory, real)
    cache.check_memory(memory.clone(), real.clone())  # computed anew, but the same
    for other, mask in ((memory + 1, real), (memory, None), (memory, ~real), (memory[:, :2], real[:, :2])):
        with pytest.raises(ValueError, match="another memory; make a new KVCache"):
            cache.check_memory(other, mask)


def test_a_cache_serves_one_batch_of_one_model():
    cache, model = KVCache(), built("gpt2")
    model(tokens(2, 3), cache=cache)
    with pytest.raises(ValueError, match="another batch: 2 rows, not 3"):
        model(tokens(3, 1), cache=cache)
    for other in (built("llama"), copy.deepcopy(model)):  # the second has the same config
        with pytest.raises(ValueError, match="another model"):
            other(tokens(2, 1), cache=cache)


def test_an_empty_chunk_changes_nothing():
    model, ids = built("gpt2"), tokens(2, 5)
    for mask in (None, right_padded(5, 4, width=5)):
        cache = KVCache()
        pieces = [
            model(ids[:, piece], None if mask is None else mask[:, piece], cache=cache)
            for piece in (slice(0, 0), slice(0, 2), slice(2, 2), slice(2, 5))
        ]
        assert largest_difference(torch.cat(pieces, 1), model(ids, mask)) < 1e-10


def test_positions_continue_from_those_passed():
    cache = KVCache()
    cache.extend_positions(torch.tensor([3, 4, 5]))
    assert cache.next_positions(torch.Size((2, 2)), None).tolist() == [6, 7]


@pytest.mark.parametrize("path", PATHS)
def test_a_bias_and_padding_are_cut_to_what_a_window_keeps(path):
    bias = BucketBias(buckets=4, max_distance=8)
    config = model(decoder=stack(causal=True, attention=attention(score_bias=bias, windows=(2,))), head=LMHead())
    made, ids = built(config), tokens(2, 6)
    real = torch.tensor([[False] * 2 + [True] * 4, [True] * 6])
    with torch.no_grad():
        whole, cache = made(ids, real, path=path), KVCache(evicts=True)
        steps = [made(ids[:, n : n + 1], real[:, n : n + 1], cache=cache, path=path) for n in range(6)]
    assert largest_difference(torch.cat(steps, 1)[real], whole[real]) < 1e-10
