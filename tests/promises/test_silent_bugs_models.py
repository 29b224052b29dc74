"""Known silent bugs of Transformer implementations, tested on whole models of every build.

The rows are those of ``test_silent_bugs.py``; row 12, packed documents that see each other, is in ``test_packing.py``.
"""

import math
from itertools import product

import pytest
import torch

from glassformer.config import BlockSparse, Embed, InputPosition, LMHead, ModelConfig, change, get_fact
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.multi_head import Attention
from tests.configs import (
    CONFIGS,
    DECODERS,
    ENCODERS,
    PAIRS,
    built,
    encoder_decoder,
    model,
    random_config,
    stack,
    tokens,
)
from tests.helpers import PATHS, largest_difference, normal, right_padded, some_at_once, types_unchecked

each_path = pytest.mark.parametrize("path", PATHS)
each_config = pytest.mark.parametrize("config", CONFIGS)
BOUND = 1e-10  # in float64
FEW = ("bert", "gpt2", "t5", "deberta_v2")
DECODER_SEEDS = [seed for seed in range(40) if random_config(seed).decoder is not None][:12]


@pytest.fixture(autouse=True)
def _quick():
    """Shapes are checked by the same calls in tests/models; without it these many calls take half the time."""
    with types_unchecked():
        yield


def parts(answer) -> tuple:
    return answer if isinstance(answer, tuple) else (answer,)


def batch(lengths: tuple[int, ...], width: int, side: str, vocab: int, seed: int = 0):
    """Rows of these lengths in slots of this width, padded on one side with an id that is also a word's."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(vocab, (length,), generator=generator) for length in lengths]
    mask = right_padded(*lengths, width=width)
    mask = mask.flip(-1) if side == "left" else mask
    ids = torch.zeros(len(lengths), width, dtype=torch.int64)
    ids[mask] = torch.cat(rows)
    return rows, ids, mask


def at_row(answer, row: int, real) -> list:
    """What was said of one row, at its real tokens; an answer per sequence as it is."""
    return [x[row][real] if x.ndim > 1 and x.shape[1] == len(real) else x[row] for x in parts(answer)]


@torch.no_grad()
def check_padding(config: ModelConfig, path: str) -> None:
    made, alone = built(config), []
    lengths, target_lengths = (7, 4, 1), (2, 5, 3)
    for side, width in (("left", 9), ("right", 7), ("right", 10)):
        rows, ids, mask = batch(lengths, width, side, config.vocab)
        targets, more, shown = None, {}, mask
        if config.family == "encoder-decoder":
            targets, target, shown = batch(target_lengths, width + 2, side, config.vocab, seed=1)
            more = {"target": target, "target_mask": shown}
        together = made(ids, mask, path=path, **more)
        for number, row in enumerate(rows):
            if len(alone) == number:
                alone.append(made(row[None], path=path, **({"target": targets[number][None]} if targets else {})))
            for got, expected in zip(at_row(together, number, shown[number]), parts(alone[number]), strict=True):
                bound = BOUND * max(1.0, float(expected.abs().max()))
                assert largest_difference(got, expected[0]) < bound, (side, width, number)


def in_set_semantics(config: ModelConfig) -> ModelConfig:
    """Block-sparse attention as published counts some keys by their place, padding or not; ours can do otherwise."""
    for side in ("encoder", "decoder"):
        windows = get_fact(config, f"{side}.attention.windows")
        if windows and any(isinstance(window, BlockSparse) for window in windows):
            sets = tuple(change(w, "semantics", "set") if isinstance(w, BlockSparse) else w for w in windows)
            config = change(config, f"{side}.attention.windows", sets)
    return config


@pytest.mark.parametrize(
    ("config", "path"), some_at_once(product(CONFIGS, PATHS), lambda given: given[1] == "sdpa" or given[0] in FEW)
)
def test_row_01_no_padding_left_padding_and_right_padding_say_the_same(config, path):
    check_padding(CONFIGS[config], path)


@pytest.mark.parametrize("seed", some_at_once(range(15), lambda seed: seed < 6))
def test_row_01_for_random_config_of_facts(seed):
    check_padding(in_set_semantics(random_config(seed)), "sdpa")


# Neighbours of a convolution are slots: a hole is a hole there.
@pytest.mark.parametrize(
    "config", [config for config in CONFIGS if get_fact(CONFIGS[config], "encoder.convolution") is None]
)
def test_row_01_padding_between_tokens_says_the_same(config):
    """Positions and windows count real tokens, wherever the holes are."""
    made, ids = built(config), tokens(1, 10)
    mask = torch.tensor([[True, False, True, True, False, False, True, True, True, False]])
    more = {"target": tokens(1, 4, seed=1)} if made.config.family == "encoder-decoder" else {}
    together, alone = made(ids, mask, **more), made(ids[mask][None], **more)
    shown = torch.ones(4, dtype=torch.bool) if more else mask[0]
    for got, expected in zip(at_row(together, 0, shown), parts(alone), strict=True):
        assert largest_difference(got, expected[0]) < BOUND


# ---- decoding in batches


def memories(made: Transformer, rows: int) -> dict:
    if made.encoder is None:
        return {}
    real = right_padded(*(6, 2, 4)[:rows], width=6)
    ids = torch.randint(made.config.vocab, (rows, 6), generator=torch.Generator().manual_seed(8))
    return {"memory": made.encode(ids, real), "memory_mask": real}


@torch.no_grad()
def check_ragged_decoding(config: ModelConfig, path: str, side: str) -> None:
    """The mask is given with the prompt and never again: the tokens that follow are all real."""
    made, lengths, steps = built(config), (6, 2, 4), 4
    rows, ids, mask = batch(lengths, 6, side, config.vocab)
    new = torch.randint(config.vocab, (3, steps), generator=torch.Generator().manual_seed(2))
    memory, cache = memories(made, 3), KVCache()
    together = [made.decode(ids, mask, cache=cache, path=path, **memory)]
    together += [made.decode(new[:, i : i + 1], cache=cache, path=path, **memory) for i in range(steps)]
    for number, row in enumerate(rows):
        mine = {name: value[number : number + 1] for name, value in memory.items()}
        alone = made.decode(torch.cat((row, new[number]))[None], path=path, **mine)[0]
        got = torch.cat((together[0][number, mask[number]], *(step[number] for step in together[1:])))
        assert largest_difference(got, alone) < BOUND * max(1.0, float(alone.abs().max())), number


@pytest.mark.parametrize(
    ("side", "path"),
    some_at_once(product(("left", "right"), PATHS), {("left", "sdpa"), ("right", "eager")}.__contains__),
)
@pytest.mark.parametrize("config", DECODERS)
def test_row_02_a_ragged_batch_with_a_cache_equals_each_row_alone(config, side, path):
    check_ragged_decoding(CONFIGS[config], path, side)


@pytest.mark.parametrize("seed", some_at_once(DECODER_SEEDS, DECODER_SEEDS[:5].__contains__))
def test_row_02_for_random_config_of_facts(seed):
    for side in ("left", "right"):
        check_ragged_decoding(in_set_semantics(random_config(seed)), "sdpa", side)


@pytest.mark.parametrize("config", some_at_once(DECODERS, {"gpt2", "gpt_neo", "llama", "t5"}.__contains__))
@torch.no_grad()
def test_row_02_greedy_tokens_of_a_batch_are_those_of_each_row(config):
    made = built(config)
    rows, ids, mask = batch((6, 2, 4), 6, "right", made.config.vocab)
    memory = memories(made, 3)

    def greedy(ids, mask, memory, steps=5):
        cache, generated = KVCache(), []
        logits = made.apply_head(made.decode(ids, mask, cache=cache, **memory))
        last = slice(-1, None)
        token = logits[:, last].argmax(-1) if mask is None else _at_last(logits, mask).argmax(-1)
        for _ in range(steps):
            generated.append(token)
            token = made.apply_head(made.decode(token, cache=cache, **memory))[:, last].argmax(-1)
        return torch.cat(generated, 1)

    together = greedy(ids, mask, memory)
    for number, row in enumerate(rows):
        mine = {name: value[number : number + 1] for name, value in memory.items()}
        assert torch.equal(together[number], greedy(row[None], None, mine)[0])


def _at_last(x, real):
    last = real.long().cumsum(-1).argmax(-1)
    return x[torch.arange(len(x)), last][:, None]


# ---- rows of nothing


@each_config
@pytest.mark.parametrize(
    ("path", "dtype"), [("eager", torch.float64), ("sdpa", torch.float64), ("sdpa", torch.float16)], ids=str
)
def test_row_03_a_row_of_padding_is_finite_and_spoils_no_gradient(config, path, dtype):
    made = built(config, dtype)
    ids, mask = tokens(3, 6), right_padded(6, 0, 3, width=6)
    more, kept = {}, mask
    if made.config.family == "encoder-decoder":
        kept = right_padded(5, 0, 4, width=5)
        more = {"target": tokens(3, 5, seed=1), "target_mask": kept}
    answers = parts(made(ids, mask, path=path, **more))
    assert all(answer.isfinite().all() for answer in answers)
    total = sum(answer.float().square().mean() for answer in answers)
    total.backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@each_config
def test_row_03_a_row_of_padding_changes_nothing_for_the_others(config):
    made = built(config)
    ids, mask = tokens(2, 6), right_padded(6, 0, width=6)
    more = {"target": tokens(2, 5, seed=1)} if made.config.family == "encoder-decoder" else {}
    shown = torch.ones(5, dtype=torch.bool) if more else mask[0]
    alone = made(ids[:1], mask[:1], **{name: value[:1] for name, value in more.items()})
    for got, expected in zip(at_row(made(ids, mask, **more), 0, shown), at_row(alone, 0, shown), strict=True):
        assert largest_difference(got, expected) < BOUND


@pytest.mark.parametrize("config", ENCODERS)
@each_path
def test_row_03_attention_of_a_row_of_padding_gives_its_bias(config, path):
    made, seen = built(config), []
    made.encoder.blocks[0].attention.o.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    more = {"target": tokens(2, 5, seed=1)} if made.config.family == "encoder-decoder" else {}
    made(tokens(2, 6), right_padded(6, 0, width=6), path=path, **more)
    assert (seen[0][1] == 0).all()
    assert (seen[0][0] != 0).any()


# ---- garbage


@each_config
@pytest.mark.parametrize(("path", "side"), [("eager", "right"), ("sdpa", "left")])
@torch.no_grad()
def test_row_04_ids_in_padded_slots_matter_to_nobody(config, path, side):
    made = built(config)
    _, ids, mask = batch((6, 3), 6, side, made.config.vocab)
    more, wild = {}, {}
    if made.config.family == "encoder-decoder":
        _, target, target_mask = batch((5, 2), 5, side, made.config.vocab, seed=1)
        more = {"target": target, "target_mask": target_mask}
        wild = {"target": target.where(target_mask, 10**6), "target_mask": target_mask}
    clean, poisoned = made(ids, mask, path=path, **more), made(ids.where(mask, -100), mask, path=path, **(wild or more))
    for one, other in zip(parts(clean), parts(poisoned), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("config", PAIRS)
@pytest.mark.parametrize(
    ("path", "cached", "garbage"),
    [
        ("eager", True, math.nan),
        ("eager", False, math.nan),
        ("sdpa", True, math.nan),
        ("sdpa", False, math.nan),
        ("sdpa", False, math.inf),
        ("sdpa", False, -1e30),
    ],
)
def test_row_04_garbage_in_padded_slots_of_the_memory_does_not_leak(config, path, garbage, cached):
    """A memory may come from anywhere, and its padded slots may hold anything."""
    mask, target = right_padded(6, 3, width=6), tokens(2, 5, seed=1)
    results = []
    for filler in (0.5, garbage):
        made = built(config)
        memory = normal(2, 6, made.config.width).masked_fill(~mask[..., None], filler).requires_grad_()
        if cached:
            cache = KVCache()
            pieces = (slice(0, 3), slice(3, 4), slice(4, 5))
            steps = [made.decode(target[:, s], memory=memory, memory_mask=mask, cache=cache, path=path) for s in pieces]
            hidden = torch.cat(steps, 1)
        else:
            hidden = made.decode(target, memory=memory, memory_mask=mask, path=path)
        hidden.backward(normal(*hidden.shape, seed=3))
        used = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
        results.append({"output": hidden.detach(), "memory": memory.grad} | used)
    clean, poisoned = results
    assert not clean["memory"][~mask].any()
    assert clean["memory"][mask].any()
    for name, expected in clean.items():
        assert expected.isfinite().all(), name
        assert torch.equal(expected, poisoned[name]), name


# ---- who looks at whom


def has_window(made: Transformer) -> bool:
    stacks = (made.config.encoder, made.config.decoder)
    return any(isinstance(window, int) for each in stacks if each for window in each.attention.windows)


@each_config
def test_row_05_nobody_looks_at_padding(config):
    """The weights of every attention of the model, asked of its own projections."""
    made, seen = built(config), []
    mask = right_padded(6, 3, width=6)
    more, target_mask = {}, None
    if made.config.family == "encoder-decoder":
        target_mask = right_padded(5, 2, width=5)
        more = {"target": tokens(2, 5, seed=1), "target_mask": target_mask}

    def keep_weights(module, args, kwargs):
        context = kwargs["context"]
        look_at = kwargs.get("key") if len(args) == 1 else args[1]
        _, weights = Attention.forward(module, args[0], look_at, context=context, return_weights=True)
        seen.append((weights, len(args) > 1))

    for module in made.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(keep_weights, with_kwargs=True)
    made(tokens(2, 6), mask, path="eager", **more)
    assert seen
    for weights, _ in seen:
        keys = weights.shape[-1]
        real = mask if keys == 6 else target_mask
        columns = weights.movedim(-1, 1)  # batch, key, head, query
        assert not columns[~real].any()
        total = weights.sum(-1)
        # Queries that are padding look, too, unless there is nothing but padding in their window.
        blind = (total == 0) & ~mask[:, None] if has_window(made) and keys == 6 else torch.zeros_like(total).bool()
        assert largest_difference(total, (~blind).double()) < 1e-12


# ---- positions with an offset


def long_model(kind: str) -> Transformer:
    place = InputPosition(kind="learned", length=512, offset=2)
    embed = Embed(position=place, norm=True)
    if kind == "encoder":
        return built(model(encoder=stack(layers=1), embed=embed, head=LMHead(transform="gelu")), torch.float32)
    if kind == "decoder":
        return built(model(decoder=stack(layers=1, causal=True), embed=embed, head=LMHead()), torch.float32)
    return built(encoder_decoder(stack(layers=1), embed=embed, head=LMHead()), torch.float32)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_row_11_an_offset_takes_nothing_from_the_length(kind):
    made = long_model(kind)
    assert made.state_dict()["embed.position.weight"].shape == (514, 16)
    more = {"target": tokens(1, 512)} if kind == "encoder-decoder" else {}
    for length in (512, 513):
        ids = tokens(1, length)
        padded, mask = torch.cat((ids, ids), 1), right_padded(length, width=2 * length).flip(-1)
        if length == 512:
            plain = made(ids, **more)
            assert plain.isfinite().all()
            wide = made(padded, mask, **more)
            assert largest_difference(wide[:, -512:], plain) < 1e-4
            continue
        for wrong in ((ids,), (ids, torch.ones_like(ids, dtype=torch.bool)), (padded, mask)):
            with pytest.raises(ValueError, match=r"\b513 tokens is too long: .*\b512\b"):
                made(*wrong, **more)
        if more:
            with pytest.raises(ValueError, match=r"\b513 tokens is too long: .*\b512\b"):
                made(ids[:, :5], target=ids)


def test_row_11_the_rows_before_the_offset_are_never_read():
    made = long_model("encoder")
    made.zero_grad()
    made(tokens(2, 512), right_padded(512, 100, width=512).flip(-1)).sum().backward()
    gradient = made.embed.position.weight.grad
    assert not gradient[:2].any()
    assert gradient[2:].any(-1).all()


@pytest.mark.parametrize(
    ("config", "calls"),
    [
        ("bart", 30),
        ("deberta_v2", 30),
        *(pytest.param(config, 1000, marks=pytest.mark.slow) for config in ("llama", "2017", "roberta")),
    ],
)
def test_row_11_a_thousand_calls_leave_everything_as_it_was(config, calls):
    made = built(config, torch.float32)
    everything = [*made.named_parameters(), *made.named_buffers()]
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in everything}
    more = {"target": tokens(1, 2)} if made.config.family == "encoder-decoder" else {}
    inputs = [(tokens(1, n), right_padded(n - 1, width=n)) for n in range(2, 12)]
    with torch.no_grad():
        first = [made(*given, **more) for given in inputs]
        for call in range(calls):
            made(*inputs[call % len(inputs)], **more)
        for one, given in zip(first, inputs, strict=True):
            assert torch.equal(one, made(*given, **more))
    after = dict([*made.named_parameters(), *made.named_buffers()])
    assert {*after} == {*before}
    for name, tensor in after.items():
        same, copy = before[name]
        assert tensor is same
        assert torch.equal(tensor, copy)
