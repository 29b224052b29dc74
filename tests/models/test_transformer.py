"""The Transformer of all families: what it takes and refuses, pooling, dropout, starting weights, ties, one graph."""

import copy
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from einops import rearrange

from glassformer.config import (
    Convolution,
    Disentangled,
    Embed,
    EmbeddingHead,
    FeedForward,
    Init,
    InputPosition,
    LMHead,
    MaskDecoder,
    ModelConfig,
    PretrainingHead,
    TaskHead,
    buffers,
    change,
)
from glassformer.models.embed import positions_from_mask
from glassformer.models.output_heads import pool
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import scaled_dot_product_attention
from glassformer.nn.cache import KVCache
from glassformer.nn.linear import Linear
from glassformer.nn.multi_head import Attention
from tests.configs import (
    CONFIGS,
    DECODERS,
    ENCODERS,
    LONGEST,
    ONE_OF_EACH,
    PAIRS,
    VOCAB,
    WIDTH,
    at_token,
    attention,
    built,
    encoder_decoder,
    model,
    random_config,
    stack,
    tokens,
)
from tests.helpers import PATHS, largest_difference, normal, randomise, right_padded, types_unchecked

each_config = pytest.mark.parametrize("config", CONFIGS)
each_family = pytest.mark.parametrize("config", ONE_OF_EACH)


def model_inputs(made: Transformer, batch: int = 2, length: int = 7) -> dict:
    """Tokens for a model of any family, the last row padded."""
    lengths = [length] * (batch - 1) + [max(1, length - 3)]
    inputs = {"ids": tokens(batch, length), "mask": right_padded(*lengths, width=length)}
    if made.config.family == "encoder-decoder":
        inputs |= {"target": tokens(batch, 5, seed=1), "target_mask": right_padded(*[5, 3][-batch:], width=5)}
    return inputs


def parts(answer) -> tuple:
    return answer if isinstance(answer, tuple) else (answer,)


# ---- what is refused


def test_a_decoder_has_no_target():
    for wrong in ({"target": tokens(2, 3)}, {"target_mask": torch.ones(2, 3, dtype=torch.bool)}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} cannot be used: this model has no encoder"):
            built("gpt2")(tokens(2, 3), **wrong)


def test_an_encoder_has_neither_target_nor_cache():
    with pytest.raises(ValueError, match="target and cache cannot be used: this model has no decoder"):
        built("bert")(tokens(2, 3), target=tokens(2, 3), cache=KVCache())
    with pytest.raises(ValueError, match="no decoder; encode"):
        built("bert").decode(tokens(2, 3))


def test_an_encoder_decoder_needs_its_target():
    with pytest.raises(ValueError, match="needs target"):
        built("t5")(tokens(2, 3))


def test_memory_exactly_where_there_is_an_encoder():
    with pytest.raises(ValueError, match="an encoder-decoder's decoder needs memory="):
        built("t5").decode(tokens(2, 3))
    with pytest.raises(ValueError, match="an encoder-decoder's decoder needs memory="):
        built("gpt2").decode(tokens(2, 3), memory=normal(2, 3, WIDTH))
    with pytest.raises(ValueError, match="no encoder; decode"):
        built("gpt2").encode(tokens(2, 3))


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (torch.ones(2, 4, dtype=torch.bool), r"\(2, 5\).*got torch\.bool of shape \(2, 4\)"),
        (torch.ones(5, dtype=torch.bool), r"\(2, 5\).*got torch\.bool of shape \(5,\)"),
        (torch.ones(2, 1, 5, dtype=torch.bool), r"\(2, 5\).*of shape \(2, 1, 5\)"),
        (torch.ones(2, 5), r"got torch\.float32"),
        (torch.ones(2, 4, dtype=torch.int64), r"\(2, 5\).*got torch\.int64 of shape \(2, 4\)"),
    ],
    ids=["length", "one row", "three axes", "float", "int of another length"],
)
@each_family
def test_masks_of_another_shape_or_type_are_refused(config, mask, says):
    made = built(config)
    more = {"target": tokens(2, 5)} if made.config.family == "encoder-decoder" else {}
    with types_unchecked(), pytest.raises(ValueError, match=f"mask must be .*{says}"):
        made(tokens(2, 5), mask, **more)
    if more:
        with types_unchecked(), pytest.raises(ValueError, match="mask must be"):
            made(tokens(2, 5), target=tokens(2, 5), target_mask=mask)


def test_whole_numbers_as_a_mask_are_refused_where_documents_cannot_be_packed():
    """What other libraries call an attention mask, 1 and 0, is not taken for booleans without a word."""
    ids = tokens(2, 5)
    ones = torch.ones_like(ids)
    for call in (
        lambda: built("t5")(ids, ones, target=ids),
        lambda: built("t5")(ids, target=ids, target_mask=ones),
        lambda: built("gpt2")(ids, ones, cache=KVCache()),
    ):
        with types_unchecked(), pytest.raises(ValueError, match=r"packed documents.*mask\.bool\(\)"):
            call()


@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 4, dtype=torch.bool), torch.ones(1, 5, dtype=torch.bool), torch.ones(2, 5)],
    ids=["length", "batch", "float"],
)
def test_a_memory_mask_that_does_not_fit_is_refused(mask):
    made = built("t5")
    memory = made.encode(tokens(2, 5))
    with types_unchecked(), pytest.raises(ValueError, match=r"memory_mask must be booleans of the shape \(2, 5\)"):
        made.decode(tokens(2, 3), memory=memory, memory_mask=mask)


@each_family
def test_ids_without_a_batch_are_refused(config):
    made = built(config)
    more = {"target": tokens(2, 5)} if made.config.family == "encoder-decoder" else {}
    with types_unchecked(), pytest.raises(ValueError, match=r"\(batch, tokens\); got \(5,\).*ids\[None\]"):
        made(tokens(5), **more)


@pytest.mark.parametrize("wrong", [VOCAB, -1])
def test_ids_outside_the_vocabulary_are_named(wrong):
    ids = tokens(2, 5)
    ids[1, 2] = wrong
    with pytest.raises(IndexError, match=f"token {wrong} is outside the table: it has rows 0 to {VOCAB - 1}"):
        built("gpt2")(ids)


def test_segments_and_languages_need_their_tables():
    ids = tokens(2, 5)
    for what in ("segments", "languages"):
        with pytest.raises(ValueError, match=f"{what} were given, but this model has no {what[:-1]} embeddings"):
            built("gpt2")(ids, **{what: torch.zeros_like(ids)})
    with types_unchecked(), pytest.raises(ValueError, match=r"one number per token: shape \(2, 5\), not \(5,\)"):
        built("bert")(ids, segments=torch.zeros(5, dtype=torch.int64))
    with types_unchecked(), pytest.raises(ValueError, match=r"one number per token: shape \(2, 5\), not \(5,\)"):
        built("bert")(ids, torch.ones(2, 5, dtype=torch.bool), segments=torch.zeros(5, dtype=torch.int64))
    with pytest.raises(IndexError, match="segment 2 is outside the table: it has rows 0 to 1"):
        built("bert")(ids, segments=torch.full_like(ids, 2))


@pytest.mark.parametrize("shape", [(4,), (2, 4), (3, 5), (1, 2, 5)], ids=str)
def test_positions_that_do_not_fit_are_named(shape):
    with types_unchecked(), pytest.raises(ValueError, match=r"positions of shape .* do not fit ids of shape \(2, 5\)"):
        built("llama")(tokens(2, 5), positions=torch.zeros(shape, dtype=torch.int64))


# ---- how long an input may be

LIMITED = ("bert", "roberta", "albert", "gpt2", "gptj", "llama", "bart")


@pytest.mark.parametrize("config", LIMITED)
@pytest.mark.parametrize("masked", [True, False])
def test_the_longest_input_works_and_one_more_token_is_refused(config, masked):
    made = built(config)
    for length in (LONGEST, LONGEST + 1):
        ids = tokens(1, length)
        mask = torch.ones_like(ids, dtype=torch.bool) if masked else None
        more = {"target": tokens(1, 3)} if made.config.family == "encoder-decoder" else {}
        if length == LONGEST:
            assert at_token(made(ids, mask, **more)).isfinite().all()
        else:
            with pytest.raises(ValueError, match=rf"\b{LONGEST + 1} tokens is too long.*end at {LONGEST}\b"):
                made(ids, mask, **more)
            if more:
                with pytest.raises(ValueError, match=rf"\b{LONGEST + 1} tokens is too long"):
                    made(tokens(1, 3), target=ids)


@pytest.mark.parametrize("config", LIMITED)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_count_towards_the_limit(config, side):
    made, width = built(config), LONGEST + 6
    mask = right_padded(LONGEST, 5, width=width)
    mask = mask.flip(-1) if side == "left" else mask
    ids = tokens(2, width)
    more = {"target": tokens(2, 3, seed=1)} if made.config.family == "encoder-decoder" else {}
    wide = at_token(made(ids, mask, **more))
    for row in range(2):
        alone = at_token(made(ids[row, mask[row]][None], **{name: x[row][None] for name, x in more.items()}))[0]
        got = wide[row] if more else wide[row, mask[row]]
        assert largest_difference(got, alone) < 1e-10
    mask = right_padded(LONGEST + 1, 5, width=width)
    with pytest.raises(ValueError, match=rf"\b{LONGEST + 1} tokens"):
        made(ids, mask, **more)


@pytest.mark.parametrize("config", ["t5", "2017", "deberta_v2"])
def test_no_limit_where_positions_have_none(config):
    made = built(config)
    assert made.config.max_length is None
    more = {"target": tokens(1, 100)} if made.config.family == "encoder-decoder" else {}
    assert made(tokens(1, 100), **more).isfinite().all()


def test_the_mask_decoder_names_a_position_and_not_a_token():
    with pytest.raises(IndexError, match=rf"position {LONGEST} is outside the table"):
        built("deberta")(tokens(1, LONGEST + 1))


# ---- halves and positions


@pytest.mark.parametrize("config", PAIRS)
@pytest.mark.parametrize("path", PATHS)
def test_encode_once_and_decode_many(config, path):
    made = built(config)
    inputs = model_inputs(made)
    ids, mask = inputs["ids"], inputs["mask"]
    memory = made.encode(ids, mask, path=path)
    for seed in range(3):
        target, target_mask = tokens(2, 5, seed=seed), right_padded(5, 2 + seed, width=5)
        hidden = made.decode(target, target_mask, memory=memory, memory_mask=mask, path=path)
        whole = made(ids, mask, target=target, target_mask=target_mask, path=path)
        assert largest_difference(made.apply_head(hidden, target_mask), whole) < 1e-12


@each_config
def test_paths_agree(config):
    made = built(config)
    inputs = model_inputs(made)
    for eager, fused in zip(*(parts(made(**inputs, path=path)) for path in PATHS), strict=True):
        assert largest_difference(eager, fused) < 1e-11


def test_answer_without_a_head_is_the_vectors():
    made = built(change(CONFIGS["gpt2"], "head", None))
    ids = tokens(2, 5)
    assert made(ids).shape == (2, 5, WIDTH)
    assert torch.equal(made(ids), made.decode(ids))


POSITIONED = ("bert", "roberta", "gpt2", "gptj", "llama", "deberta")


@pytest.mark.parametrize("config", POSITIONED)
def test_explicit_positions_are_obeyed(config):
    made, ids = built(config), tokens(2, 6)
    counted = at_token(made(ids))
    for places in (torch.arange(6), torch.arange(6)[None], torch.arange(6).expand(2, 6)):
        assert largest_difference(at_token(made(ids, positions=places)), counted) < 1e-12
    restart = torch.tensor([0, 1, 2, 0, 1, 2])  # two documents in one row
    per_row = torch.stack((torch.arange(6), restart))
    mixed = at_token(made(ids, positions=per_row))
    assert largest_difference(mixed[0], counted[0]) < 1e-12
    assert largest_difference(mixed[1], counted[1]) > 1e-4
    assert largest_difference(mixed[1], at_token(made(ids, positions=restart))[1]) < 1e-12
    assert largest_difference(mixed[1], at_token(made(ids[1:], positions=restart))[0]) < 1e-12


@pytest.mark.parametrize("config", ["gptj", "llama", "deberta_v2"])
def test_relative_positions_know_distances_alone(config):
    made, ids = built(config), tokens(2, 6)
    shifted = torch.arange(6) + 11
    assert largest_difference(made(ids, positions=shifted), made(ids)) < 1e-10


@pytest.mark.parametrize("config", ["bert", "gpt2", "llama"])
def test_positions_in_padded_slots_matter_to_nobody(config):
    made, ids, mask = built(config), tokens(2, 6), right_padded(6, 4, width=6)
    places = torch.arange(6).expand(2, 6)
    wild = at_token(made(ids, mask, positions=places.where(mask, -100)))
    assert largest_difference(wild[mask], at_token(made(ids, mask))[mask]) < 1e-12


def test_segments_in_padded_slots_matter_to_nobody():
    made, ids, mask = built("bert"), tokens(2, 6), right_padded(6, 4, width=6)
    segments = torch.tensor([0, 0, 1, 1, 1, 1]).expand(2, 6)
    clean = made(ids, mask, segments=segments)
    for one, other in zip(clean, made(ids, mask, segments=segments.where(mask, -1)), strict=True):
        assert torch.equal(one, other)
    assert largest_difference(clean[1], made(ids, mask)[1]) > 1e-4  # and in real ones they matter


def test_segments_default_to_0_and_languages_to_none():
    config = model(encoder=stack(), embed=Embed(segments=2, languages=3))
    made, ids = built(config), tokens(2, 5)
    bare = made(ids)
    assert torch.equal(bare, made(ids, segments=torch.zeros_like(ids)))
    assert largest_difference(bare, made(ids, segments=torch.ones_like(ids))) > 1e-3
    spoken = [made(ids, languages=torch.full_like(ids, number)) for number in range(3)]
    for number, one in enumerate(spoken):
        assert largest_difference(one, bare) > 1e-3
        assert largest_difference(one, spoken[number - 1]) > 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_positions_from_mask(seed):
    real = torch.rand(3, 9, generator=torch.Generator().manual_seed(seed)) < 0.6
    places = positions_from_mask(real)
    for row in range(3):
        assert places[row, real[row]].tolist() == [*range(int(real[row].sum()))]
    assert (places >= 0).all()
    for start in (1, 4, 8):  # counted on from what a cache has seen
        cache = KVCache()
        cache.extend_token_mask(real[:, :start], 3, start)
        cache.extend_positions(places[:, :start])
        on = cache.next_positions(real[:, start:].shape, real[:, start:])
        assert torch.equal(on[real[:, start:]], places[:, start:][real[:, start:]])


def test_the_factor_on_token_vectors_is_rounded_first_where_the_facts_say_so():
    """As Gemma does: √3072 = 55.4256 is 55.5 in bfloat16."""
    ids, embedded = tokens(2, 5), []
    for rounded in (False, True):
        made = built(model(encoder=stack(), embed=Embed(scale=3072**0.5, scale_in_dtype=rounded)), torch.bfloat16)
        embedded.append(made.embed(ids, torch.arange(5)))
    table = made.embed.token.weight
    assert torch.equal(embedded[1], table[ids] * 55.5)
    assert torch.equal(embedded[0], (table[ids].float() * 3072**0.5).bfloat16())
    assert not torch.equal(*embedded)


def test_an_embedding_is_its_sum():
    place = InputPosition(kind="learned", length=9, offset=2)
    config = model(encoder=stack(), embed=Embed(segments=2, languages=3, position=place, scale=3.0))
    embed, ids = built(config).embed, tokens(2, 4)
    segments, languages, places = ids % 2, ids % 3, torch.tensor([[0, 1, 2, 3], [5, 6, 0, 8]])
    table = {name: getattr(embed, name).weight for name in ("token", "segment", "language", "position")}
    expected = (
        3 * table["token"][ids] + table["segment"][segments] + table["language"][languages]
        + table["position"][places + 2]
    )  # fmt: skip
    assert largest_difference(embed(ids, places, segments=segments, languages=languages), expected) < 1e-12


# ---- pooling


@pytest.mark.parametrize("how", ["first", "last", "mean"])
def test_row_38_pooling_knows_real_tokens_whatever_the_side(how):
    rows = [normal(n, 3, seed=n) for n in (5, 2, 1)]
    expected = torch.stack([{"first": row[0], "last": row[-1], "mean": row.mean(0)}[how] for row in rows])
    for width in (5, 8):
        for side in ("left", "right"):
            x, real = torch.full((3, width, 3), 1e3, dtype=torch.float64), torch.zeros(3, width, dtype=torch.bool)
            for number, row in enumerate(rows):
                place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
                x[number, place], real[number, place] = row, True
            assert largest_difference(pool(x, real, how), expected) < 1e-12
    whole = normal(2, 5, 3)
    everything = torch.ones(2, 5, dtype=torch.bool)
    assert largest_difference(pool(whole, None, how), pool(whole, everything, how)) < 1e-12


def test_pooling_a_row_of_padding_is_finite():
    x, real = normal(2, 4, 3), right_padded(0, 4, width=4)
    for how in ("first", "last", "mean"):
        assert pool(x, real, how).isfinite().all()
    assert not pool(x, real, "mean")[0].any()


@pytest.mark.parametrize("how", ["first", "last", "mean"])
@pytest.mark.parametrize("config", ["roberta", "gpt2", "llama"])
def test_row_38_the_classifier_pools_the_same_token_for_any_padding(config, how):
    head = TaskHead(task="classify", labels=("a", "b", "c"), pool=how, hidden="tanh")
    made = built(change(CONFIGS[config], "head", head))
    ids = tokens(1, 6)
    ids[0, -1] = 1  # the last real token is the one that padding is filled with
    expected = made(ids)[0]
    for side in ("left", "right"):
        mask = right_padded(6, width=9)
        mask = mask.flip(-1) if side == "left" else mask
        padded = torch.ones(1, 9, dtype=torch.int64)
        padded[mask] = ids[0]
        assert largest_difference(made(padded, mask)[0], expected) < 1e-12


@pytest.mark.parametrize("how", ["first", "last", "mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_embeddings_have_length_one(how, dtype):
    made = built(change(CONFIGS["roberta"], "head", EmbeddingHead(pool=how)), dtype)
    plain = built(change(CONFIGS["roberta"], "head", EmbeddingHead(pool=how, normalise=False)), dtype)
    ids, mask = tokens(3, 6), right_padded(6, 3, 0, width=6)
    vectors, longer = made(ids, mask), plain(ids, mask)
    assert vectors.dtype == dtype
    assert vectors.shape == (3, WIDTH)
    assert vectors.isfinite().all()
    lengths = vectors[:2].double().norm(dim=-1)
    assert largest_difference(lengths, torch.ones(2)) < 8 * torch.finfo(dtype).eps
    assert (longer[:2].double().norm(dim=-1) - 1).abs().min() > 0.05
    cosine = torch.nn.functional.cosine_similarity(vectors[:2].double(), longer[:2].double())
    assert (cosine > 1 - 8 * torch.finfo(dtype).eps).all()


def test_task_heads_answer_in_the_shape_of_the_question():
    ids = tokens(2, 5)
    shapes = {
        TaskHead(task="classify", labels=("a", "b", "c"), pool="first"): (2, 3),
        TaskHead(task="tag", labels=("a", "b", "c")): (2, 5, 3),
        TaskHead(task="span", labels=("start", "end")): (2, 5, 2),
        TaskHead(task="replaced", labels=("replaced",)): (2, 5),
        TaskHead(task="pool", pool="first", hidden="tanh"): (2, WIDTH),
        TaskHead(task="pool"): (2, 5, WIDTH),
    }
    for head, shape in shapes.items():
        assert built(change(CONFIGS["roberta"], "head", head))(ids).shape == shape


# ---- everyday life of a module


@each_config
def test_rows_of_nothing_but_padding_are_finite(config):
    made = built(config)
    mask = right_padded(0, 6, width=6)
    inputs = {"ids": tokens(2, 6), "mask": mask}
    if made.config.family == "encoder-decoder":
        inputs |= {"target": tokens(2, 4), "target_mask": right_padded(0, 4, width=4)}
    for path in PATHS:
        answers = parts(made(**inputs, path=path))
        for answer in answers:
            assert answer.isfinite().all()
        made.zero_grad()
        sum(answer.square().sum() for answer in answers).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


@each_config
def test_hooks_fire_once_per_use(config):
    made, fired = built(config), []
    for name, module in made.named_modules():
        if isinstance(module, Attention | Linear) or name.rsplit(".", 1)[0].endswith("blocks"):
            module.register_forward_hook(lambda *_, name=name: fired.append(name))
    made(**model_inputs(made))
    facts = made.config
    for side in ("encoder", "decoder"):
        stack_facts = getattr(facts, side)
        if stack_facts is None:
            continue
        uses = stack_facts.layers + (1 if config == "deberta" else 0)  # the mask decoder runs the last layer twice
        for part in ("", ".attention", ".attention.o", ".ffn.down"):
            names = [f"{side}.blocks.{i}{part}" for i in range(stack_facts.unique_layers or stack_facts.layers)]
            assert sum(fired.count(name) for name in names) == uses, part
            assert all(name in fired for name in names)
        if stack_facts.cross:
            assert fired.count(f"{side}.blocks.0.cross") == 1


def test_a_hook_can_change_what_a_block_says():
    made, ids = built("gpt2"), tokens(2, 5)
    before = made(ids)
    hook = made.decoder.blocks[0].register_forward_hook(lambda *args: args[-1] * 0)
    assert largest_difference(made(ids), before) > 1e-3
    hook.remove()
    assert torch.equal(made(ids), before)


@each_config
def test_deterministic_when_it_does_not_train(config):
    noisy = CONFIGS[config]
    for side in ("encoder", "decoder"):
        if getattr(noisy, side) is not None:
            for fact in ("dropout", "final_dropout", "ffn.dropout", "attention.dropout"):
                noisy = change(noisy, f"{side}.{fact}", 0.5)
    noisy = change(noisy, "embed.dropout", 0.5)
    made, plain = built(noisy), built(config)
    inputs = model_inputs(made)
    for one, again, quiet in zip(*(parts(m(**inputs)) for m in (made, made, plain)), strict=True):
        assert torch.equal(one, again)
        assert torch.equal(one, quiet)


DROPOUT = {
    "embed": (model(encoder=stack(), embed=Embed(dropout=0.5)), {}),
    "attention": (model(encoder=stack(attention=attention(dropout=0.5))), {}),
    "residual": (model(encoder=stack(dropout=0.5)), {}),
    "only ffn": (model(encoder=stack(dropout=0.5, dropout_on=("ffn",))), {}),
    "final": (model(encoder=stack(final_dropout=0.5)), {}),
    "inner": (model(encoder=stack(ffn=FeedForward(hidden=20, dropout=0.5))), {}),
    "convolution": (model(encoder=stack(convolution=Convolution(kernel=3, dropout=0.5))), {}),
    "relative": (model(encoder=stack(attention=attention(score_bias=Disentangled(span=4, dropout=0.5)))), {}),
    "head": (model(encoder=stack(), head=TaskHead(task="tag", labels=("a",) * 8, dropout=0.5)), {}),
    "hidden": (model(encoder=stack(), head=TaskHead(task="pool", hidden="gelu", input_dropout=0.5)), {}),
    "decoder": (model(decoder=stack(causal=True, dropout=0.5)), {}),
    "target": (encoder_decoder(stack(), embed=Embed(dropout=0.5)), {"target": tokens(2, 5, seed=1)}),
    "cross": (
        encoder_decoder(stack(), stack(dropout=0.5, dropout_on=("cross",))),
        {"target": tokens(2, 5, seed=1)},
    ),
}


@pytest.mark.parametrize("place", DROPOUT)
@pytest.mark.parametrize("path", PATHS)
def test_dropout_acts_in_its_place_while_training_and_nowhere_else(place, path):
    config, more = DROPOUT[place]
    made, ids = built(config), tokens(2, 7)
    quiet = made(ids, path=path, **more)
    assert torch.equal(quiet, made(ids, path=path, **more))
    made.train()
    assert not torch.equal(made(ids, path=path, **more), made(ids, path=path, **more))
    made.eval()
    assert torch.equal(made(ids, path=path, **more), quiet)


def test_no_dropout_is_no_dropout_while_training():
    for config in CONFIGS:
        made = built(config)
        inputs = model_inputs(made)
        quiet = parts(made(**inputs))
        for one, other in zip(quiet, parts(made.train()(**inputs)), strict=True):
            assert torch.equal(one, other)


def test_dropout_of_the_embedding_keeps_its_expectation():
    made = built(model(encoder=stack(), embed=Embed(dropout=0.25))).train()
    ids = tokens(1, 20).expand(500, 20)
    x = made.embed(ids, torch.arange(20))
    exact = made.eval().embed(ids, torch.arange(20))
    assert float((x == 0).double().mean()) == pytest.approx(0.25, abs=0.01)
    kept = x != 0
    assert largest_difference(x[kept], exact[kept] / 0.75) < 1e-12


# ---- starting weights


def test_std_is_that_of_every_matrix_and_table():
    config = model(
        width=64,
        encoder=stack(attention=attention(heads=4, head_dim=16), ffn=FeedForward(hidden=128)),
        embed=Embed(position=InputPosition(kind="learned", length=64), segments=64),
        head=LMHead(transform="gelu", bias=True, tied=False),
        vocab=64,
        init=Init(std=0.02),
    )
    cut = 0.02 * 0.9866  # of a normal distribution cut at three standard deviations
    for name, weight in Transformer(config).state_dict().items():
        if weight.ndim == 2:
            assert float(weight.std()) == pytest.approx(cut, rel=0.05), name
            assert float(weight.abs().max()) <= 3 * 0.02 + 1e-9, name
        else:
            expected = 1.0 if name.endswith("norm.weight") else 0.0
            assert (weight == expected).all(), name


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_projections_into_the_stream_start_smaller(family):
    body = stack(layers=8, attention=attention(heads=4, head_dim=16), ffn=FeedForward(hidden=128, gated=True))
    init = Init(std=0.02, residual_scaling=True)
    made = Transformer(
        encoder_decoder(body, width=64, init=init)
        if family == "encoder-decoder"
        else model(decoder=replace(body, causal=True), width=64, init=init)
    )
    for name, weight in made.state_dict().items():
        if weight.ndim != 2:
            continue
        writes = 24 if family == "encoder-decoder" and name.startswith("decoder") else 16
        into_stream = name.endswith((".o.weight", ".down.weight"))
        std = 0.02 / math.sqrt(writes) if into_stream else 0.02
        if weight.numel() > 2000:
            assert float(weight.std()) == pytest.approx(0.9866 * std, rel=0.06), name


def test_without_std_every_part_starts_by_its_own_rule():
    made = Transformer(model(width=64, encoder=stack(attention=attention(heads=4, head_dim=16)), vocab=200))
    state = made.state_dict()
    assert float(state["encoder.blocks.0.attention.q.weight"].std()) == pytest.approx(
        0.9866 * math.sqrt(2 / 128), rel=0.05
    )
    assert float(state["encoder.blocks.0.ffn.up.weight"].std()) == pytest.approx(0.9866 * math.sqrt(2 / 84), rel=0.08)
    assert float(state["embed.token.weight"].std()) == pytest.approx(0.9866, rel=0.05)


def test_the_seed_decides_the_starting_weights():
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(Transformer(change(CONFIGS["llama"], "init", Init(std=0.02))).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["embed.token.weight"], states[2]["embed.token.weight"])


# ---- ties

TIED = ("bert", "albert", "gpt2", "t5", "bart")


def tied_answer(made):
    inputs = model_inputs(made)
    return at_token(made(**inputs))


@pytest.mark.parametrize("config", TIED)
def test_row_20_a_tied_head_has_no_matrix_of_its_own(config):
    made = built(config)
    tables = [name for name, p in made.named_parameters() if VOCAB in p.shape and p.ndim == 2]
    assert tables == ["embed.token.weight"]
    assert [name for name in made.state_dict() if name in tables] == tables
    before = tied_answer(made)
    with torch.no_grad():
        made.embed.token.weight[VOCAB - 1] += 1.0  # of the inputs this token may be absent, of the logits never
    after = tied_answer(made)
    assert largest_difference(before[..., -1], after[..., -1]) > 1e-3


@pytest.mark.parametrize("config", TIED)
def test_row_20_the_tie_survives_saving_copying_casting_and_training(config):
    made = built(config)
    expected = tied_answer(made)
    loaded = Transformer(CONFIGS[config]).double().eval()
    assert not loaded.load_state_dict(made.state_dict()).missing_keys
    copied = copy.deepcopy(made)
    cast = copy.deepcopy(made).to(torch.float32).to(torch.float64)
    assert torch.equal(tied_answer(loaded), expected)
    assert torch.equal(tied_answer(copied), expected)
    assert largest_difference(tied_answer(cast), expected) < 1e-4
    for one in (loaded, copied, cast):
        assert one.embed.token.weight is not made.embed.token.weight
        optimiser = torch.optim.SGD(one.parameters(), lr=0.01)
        before = one.embed.token.weight.detach().clone()
        tied_answer(one).square().mean().backward()
        gradient = one.embed.token.weight.grad.clone()
        assert gradient[:, 0].all()  # every row: as logits all take part
        optimiser.step()
        assert largest_difference(one.embed.token.weight, before - 0.01 * gradient) < 1e-12
        if one.decoder is not None and one.config.family == "decoder":
            hidden = one.decode(tokens(2, 5))
            assert largest_difference(one.apply_head(hidden), hidden @ one.embed.token.weight.mT) < 1e-12


def test_row_20_an_untied_head_is_not_tied():
    made = built("llama")
    assert made.head.out.weight.shape == made.embed.token.weight.shape
    assert made.head.out.weight.data_ptr() != made.embed.token.weight.data_ptr()
    ids = tokens(2, 5)
    before = made.decode(ids)
    with torch.no_grad():
        made.head.out.weight.zero_()
    assert torch.equal(made.decode(ids), before)
    assert not made(ids).any()


def test_the_decoder_reads_the_encoders_table():
    made = built("t5")
    assert made.target_embed.token is None
    assert not [name for name in made.state_dict() if name.startswith("target_embed.token")]
    memory, target = made.encode(tokens(2, 5)), torch.full((1, 3), 7)
    before = made.decode(target, memory=memory[:1])
    with torch.no_grad():
        made.embed.token.weight[7] *= torch.linspace(0.5, 2.0, WIDTH)
    assert largest_difference(made.decode(target, memory=memory[:1]), before) > 1e-3


# ---- shared layers


@pytest.mark.parametrize(("layers", "unique"), [(4, 1), (4, 2), (6, 3), (3, 2)])
def test_shared_layers_are_the_same_weights_for_neighbours(layers, unique):
    config = model(
        encoder=stack(layers=layers, unique_layers=unique), embed=Embed(position=CONFIGS["bert"].embed.position)
    )
    made, order = built(config), []
    assert len(made.encoder.blocks) == unique
    for number, block in enumerate(made.encoder.blocks):
        block.register_forward_hook(lambda *_, number=number: order.append(number))
    ids = tokens(2, 5)
    answer = made(ids)
    assert len(order) == layers
    assert order == sorted(order)
    assert {*order} == {*range(unique)}
    plain = built(change(config, "encoder.unique_layers", None))
    state = {name: w for name, w in made.state_dict().items() if ".blocks." not in name}
    for number, used in enumerate(order):
        inside = f"encoder.blocks.{used}."
        for name, w in made.state_dict().items():
            if name.startswith(inside):
                state[name.replace(inside, f"encoder.blocks.{number}.")] = w
    plain.load_state_dict(state)
    assert largest_difference(plain(ids), answer) == 0


def test_a_shared_layer_with_a_cache_keeps_keys_for_each_use():
    made = built(change(change(CONFIGS["gpt2"], "decoder.layers", 4), "decoder.unique_layers", 2))
    ids, cache = tokens(2, 6), KVCache()
    parts_ = [made(ids[:, :4], cache=cache), made(ids[:, 4:], cache=cache)]
    assert largest_difference(torch.cat(parts_, 1), made(ids)) < 1e-12


# ---- gradients


@each_config
def test_gradients_reach_every_parameter(config):
    made = built(config)
    inputs = model_inputs(made)
    if made.config.embed.segments:
        inputs["segments"] = inputs["ids"] % 2
    weights = [normal(*answer.shape, seed=5) for answer in parts(made(**inputs))]
    sum((answer * w).sum() for answer, w in zip(parts(made(**inputs)), weights, strict=True)).backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if name.endswith(".k.bias") and not _sees_key_bias(made, name):
            assert parameter.grad.abs().max() < 1e-10, name  # adds the same to every score of a query
        else:
            assert parameter.grad.abs().max() > 1e-10, name


def _sees_key_bias(made, name):
    """Whether a bias of all keys changes the scores of a query unequally: positions turn it, or multiply it."""
    facts = getattr(made.config, name.split(".")[0]).attention
    rotated = facts.rotary is not None and ".cross." not in name
    return rotated or isinstance(facts.score_bias, Disentangled)


def _relative(made, name):
    return getattr(made.config, name.split(".")[0]).attention.score_bias


@pytest.mark.parametrize("seed", range(15))
def test_random_config_runs_and_trains(seed):
    config = random_config(seed)
    made = built(config, torch.float64)
    length = 8
    inputs = {"ids": torch.randint(config.vocab, (2, length)), "mask": right_padded(8, 5, width=length)}
    if config.embed.segments:
        inputs["segments"] = inputs["ids"] % config.embed.segments
    if config.embed.languages:
        inputs["languages"] = inputs["ids"] % config.embed.languages
    if config.family == "encoder-decoder":
        inputs |= {"target": torch.randint(config.vocab, (2, 6)), "target_mask": right_padded(6, 6, width=6)}
    answers = {path: parts(made(**inputs, path=path)) for path in PATHS}
    for eager, fused in zip(answers["eager"], answers["sdpa"], strict=True):
        assert eager.isfinite().all()
        assert largest_difference(eager, fused) < 1e-9
    sum(answer.sum() for answer in answers["sdpa"]).backward()
    for name, parameter in made.named_parameters():
        idle = name in ("target_embed.language.weight",) or (
            name.endswith(("relative.weight", "relative_norm.weight", "relative_norm.bias"))
            and getattr(_relative(made, name), "terms", None) == ()
        )
        assert idle or parameter.grad is not None, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_the_mask_decoder_runs_the_last_layer_on_the_vectors_before_it():
    """Against the definition, with the blocks called by hand."""
    made, ids = built("deberta"), tokens(2, 6)
    encoder, inside = made.encoder, {}
    encoder.register_forward_pre_hook(lambda _, args: inside.__setitem__("x", args[0]))
    lm = made(ids)
    from glassformer.models.stack import StackInput

    contexts = encoder.contexts(inside["x"], StackInput(torch.arange(6)), "sdpa")
    first = encoder.blocks[0](inside["x"], context=contexts[0])
    query = first + made.head.position.weight[:6]
    for _ in range(2):
        query = encoder.blocks[1](query, context=replace(contexts[1], key_input=first))
    assert largest_difference(made.apply_head(query), lm) < 1e-12
    plain = built(change(CONFIGS["deberta"], "head.mask_decoder", None))
    assert largest_difference(plain(ids), lm) > 1e-2
    for steps in (1, 3):
        other = built(change(CONFIGS["deberta"], "head.mask_decoder", MaskDecoder(length=LONGEST, steps=steps)))
        assert largest_difference(other(ids), lm) > 1e-4


def test_a_pretraining_head_is_both_heads():
    made, ids = built("bert"), tokens(2, 5)
    words, pair = made(ids, path="eager")
    hidden = made.encode(ids, path="eager")
    assert torch.equal(words, made.head.lm(hidden, None, made.embed.token.weight))
    assert torch.equal(pair, made.head.pair(hidden, None, made.embed.token.weight))
    assert isinstance(made.config.head, PretrainingHead)
    assert (words.shape, pair.shape) == ((2, 5, VOCAB), (2, 2))


# ---- devices and compilers


@each_config
def test_built_on_the_meta_device(config):
    with torch.device("meta"):
        empty = Transformer(CONFIGS[config])
    assert all(p.is_meta for p in empty.parameters())
    whole = built(config, torch.float32)
    inputs = model_inputs(whole)
    emptied = copy.deepcopy(empty).to_empty(device="cpu").eval()
    emptied.load_state_dict(whole.state_dict())
    empty.eval().load_state_dict(whole.state_dict(), assign=True)
    for made in (emptied, empty):
        assert not [name for name, buffer in made.named_buffers() if buffer.is_meta]
        for one, other in zip(parts(made(**inputs)), parts(whole(**inputs)), strict=True):
            assert torch.equal(one, other)


def test_nothing_is_stored_besides_the_weights():
    for config in CONFIGS:
        made = built(config)
        assert {name for name, _ in made.named_buffers()} == buffers(made.config), config


def shallow(name: str) -> ModelConfig:
    """One layer in each stack, or one that is used twice."""
    config = CONFIGS[name]
    for side in ("encoder", "decoder"):
        facts = getattr(config, side)
        if facts is not None:
            shared = facts.unique_layers is not None
            facts = replace(facts, layers=2 if shared else 1, unique_layers=1 if shared else None)
            config = change(config, side, facts)
    return config


def compare_with_compiled(*names: str) -> None:
    for name in names:
        made = built(shallow(name))
        inputs = model_inputs(made)
        torch._dynamo.reset()
        with torch.no_grad():
            compiled, plain = torch.compile(made, fullgraph=True, backend="aot_eager")(**inputs), made(**inputs)
        for one, other in zip(parts(compiled), parts(plain), strict=True):
            assert largest_difference(one, other) < 1e-10, name


def in_a_process_of_its_own(*names: str) -> str:
    """The run-time shape checks of the other tests are Python that no compiler can trace."""
    code = f"from tests.models import test_transformer as t; t.compare_with_compiled{names!r}; print('one graph')"
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    return result.stdout.strip() or result.stderr[-2000:]


@pytest.mark.slow
def test_an_encoder_and_a_decoder_compile_to_one_graph():
    """An encoder-decoder does so in tests/promises/test_half_precision.py."""
    assert in_a_process_of_its_own("roberta", "llama") == "one graph"


@pytest.mark.slow
def test_every_build_compiles_to_one_graph():
    assert in_a_process_of_its_own(*CONFIGS) == "one graph"


def test_the_configs_cover_what_they_should():
    assert {*DECODERS} | {*ENCODERS} == {*CONFIGS}
    assert {CONFIGS[name].family for name in ONE_OF_EACH} == {"encoder", "decoder", "encoder-decoder"}


class MaskAlone(Attention):
    """Attention of one's own, without the bias."""

    def forward(self, query, key=None, *, context):
        source = query if key is None else key
        q, k, v = (
            rearrange(map_(x), "b t (h k) -> b h t k", h=self.num_heads)
            for map_, x in ((self.q, query), (self.k, source), (self.v, source))
        )
        seen = scaled_dot_product_attention(q, k, v, context.mask, path=context.path)
        return self.o(rearrange(seen, "b h t k -> b t (h k)"))


@pytest.mark.parametrize("path", PATHS)
def test_a_custom_attention_gets_the_mask(path):
    """Along every path, though kernels would take it as one tensor with the bias."""
    model = randomise(Transformer(CONFIGS["t5"])).double().eval()
    for block in model.decoder.blocks:
        block.attention.__class__ = MaskAlone
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 6, 7], [5, 6, 9]])
    answers = [model(source, target=row[None], path=path) for row in target]
    assert largest_difference(answers[0][:, :2], answers[1][:, :2]) == 0
    assert largest_difference(answers[0][:, 2], answers[1][:, 2]) > 1e-3
