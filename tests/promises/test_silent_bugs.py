"""Known silent bugs of Transformer implementations, each with the test that would have caught it.

A silent bug raises no error: the model trains, only worse. Each has a fixed number, "row", by which it can be cited;
the gaps between the numbers belong to parts of a Transformer that this package does not have yet.
"""

import math
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.config.parts import PLACEMENTS
from glassformer.nn import masks
from glassformer.nn.feedforward import ACTIVATIONS, gelu_tanh
from glassformer.nn.masks import Mask
from tests.helpers import (
    FLOATS,
    PATHS,
    interleave_rows,
    largest_difference,
    normal,
    randomise,
    right_padded,
    some_at_once,
)

each_path = pytest.mark.parametrize("path", PATHS)
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def attend(q, k, v, mask=None, **options):
    return gf.scaled_dot_product_attention(q, k, v, mask, **options)


# ---- masks and positions


def blind_masks(device):
    """Masks for two rows of five queries and three keys, and which queries see nothing under each."""
    first_row = torch.tensor([True, False], device=device)[:, None].expand(2, 5)
    some = right_padded(5, 2, width=5, device=device)
    return {
        "padding": (masks.padding(right_padded(0, 2, width=3, device=device)), first_row),
        "cross": (masks.cross(some, torch.ones(2, 3, dtype=torch.bool, device=device)), ~some),
        "causal": (masks.causal(), torch.tensor([True, True, False, False, False], device=device).expand(2, 5)),
        "pairs": (Mask(pairs=some[:, :, None].expand(2, 5, 3)), ~some),
        "everything": (Mask(pairs=torch.zeros(5, 3, dtype=torch.bool, device=device)), torch.ones_like(first_row)),
    }


@each_path
@each_dtype
@pytest.mark.parametrize("kind", ["padding", "cross", "causal", "pairs", "everything"])
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_row_03_fully_masked_row_gives_zeros(path, dtype, kind, kv_heads, device):
    mask, blind = blind_masks(device)[kind]
    shapes = ((2, 2, 5, 8), (2, kv_heads, 3, 8), (2, kv_heads, 3, 6))
    q, k, v = (normal(*shape, seed=i, dtype=dtype, device=device).requires_grad_() for i, shape in enumerate(shapes))
    out = attend(q, k, v, mask, path=path)
    blind = blind[:, None].expand(2, 2, 5)
    assert (out[blind] == 0).all()
    assert (out[~blind] != 0).any(-1).all()
    out.backward(torch.ones_like(out))
    for x in (q, k, v):
        assert x.grad.isfinite().all()
    assert (q.grad[blind] == 0).all()


@each_path
def test_row_03_module_gives_its_bias_for_a_fully_masked_row(path, device):
    attention = randomise(gf.MultiHeadAttention(8, 2)).to(device)
    x = normal(2, 3, 8, dtype=torch.float32, device=device)
    out = attention(x, mask=masks.padding(right_padded(0, 3, width=3, device=device)), path=path)
    assert torch.equal(out[0], attention.o.bias.expand(3, 8))
    out.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


GARBAGE = pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30], ids=str)


def hiding_masks(device):
    """Masks for two rows of four queries and six keys, and the key slots that no query attends under each."""
    real = right_padded(6, 4, width=6, device=device)
    far = torch.tensor([True, True, False, False, False, False], device=device).expand(2, 6)
    return {
        "padding": (masks.padding(real), ~real),
        "causal and padding": (masks.causal() & masks.padding(real), ~real),
        "cross": (masks.cross(torch.ones(2, 4, dtype=torch.bool, device=device), real), ~real),
        "pairs": (Mask(pairs=real[:, None, :].expand(2, 4, 6)), ~real),
        "per head": (Mask(pairs=real[:, None, None, :].expand(2, 4, 4, 6)), ~real),
        "bare": (real[:, None, None, :].expand(2, 1, 4, 6), ~real),
        "past window": (masks.causal() & masks.window(1), far),
    }


HIDING = ("padding", "causal and padding", "cross", "pairs", "per head", "bare", "past window")


@each_path
@GARBAGE
@pytest.mark.parametrize("kind", HIDING)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_row_04_garbage_in_masked_slots_does_not_leak(path, garbage, kind, kv_heads, device):
    mask, hidden = hiding_masks(device)[kind]
    results = []
    for filler in (0.5, garbage):
        q, k, v = normal(2, 4, 4, 8), normal(2, kv_heads, 6, 8, seed=1), normal(2, kv_heads, 6, 5, seed=2)
        q, k, v = (x.to(device, torch.float32) for x in (q, k, v))
        k, v = (x.masked_fill(hidden[:, None, :, None], filler) for x in (k, v))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, mask, path=path)
        out.backward(normal(*out.shape, seed=3, dtype=out.dtype, device=device))
        results.append((out.detach(), *(x.grad for x in leaves)))
    for clean, poisoned in zip(*results, strict=True):
        assert clean.isfinite().all()
        assert torch.equal(clean, poisoned)


@each_path
@GARBAGE
@pytest.mark.parametrize("kind", HIDING)
def test_row_04_garbage_reaches_no_parameter_of_cross_attention(path, garbage, kind, device):
    mask, hidden = hiding_masks(device)[kind]
    results = []
    for filler in (0.5, garbage):
        attention = randomise(gf.MultiHeadAttention(8, 4)).to(device)
        query, memory = (normal(2, n, 8, seed=n, dtype=torch.float32, device=device) for n in (4, 6))
        memory = memory.masked_fill(hidden[..., None], filler).requires_grad_()
        out = attention(query, memory, mask=mask, path=path)
        out.backward(normal(*out.shape, seed=3, dtype=out.dtype, device=device))
        results.append((out.detach(), memory.grad, *(parameter.grad for parameter in attention.parameters())))
    for clean, poisoned in zip(*results, strict=True):
        assert clean.isfinite().all()
        assert torch.equal(clean, poisoned)


@each_path
@GARBAGE
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_row_04_garbage_reaches_no_real_token_of_an_encoder_layer(path, garbage, placement, device):
    layer = randomise(gf.EncoderLayer(8, 2, 12, placement=placement)).to(device)
    real = right_padded(6, 4, width=6, device=device)
    x = normal(2, 6, 8, dtype=torch.float32, device=device)
    clean, poisoned = (
        layer(x.masked_fill(~real[..., None], filler), masks.padding(real), path=path)[real]
        for filler in (0.5, garbage)
    )
    assert clean.isfinite().all()
    assert torch.equal(clean, poisoned)


@each_path
@pytest.mark.parametrize("kind", ["padding", "pairs"])
def test_row_04_garbage_reaches_no_parameter_of_a_single_head(path, kind, device):
    real = right_padded(6, 4, width=6, device=device)
    mask = masks.padding(real) if kind == "padding" else real[:, None, :].expand(2, 4, 6)
    results = []
    for filler in (0.5, math.nan):
        head = randomise(gf.AttentionHead(8, 5)).to(device)
        query, memory = (normal(2, n, 8, seed=n, dtype=torch.float32, device=device) for n in (4, 6))
        memory = memory.masked_fill(~real[..., None], filler).requires_grad_()
        out = head(query, memory, mask=mask, path=path)
        out.backward(normal(*out.shape, seed=3, dtype=out.dtype, device=device))
        results.append((out.detach(), memory.grad, *(parameter.grad for parameter in head.parameters())))
    for clean, poisoned in zip(*results, strict=True):
        assert clean.isfinite().all()
        assert torch.equal(clean, poisoned)


def general_block(placement):
    attention, ffn = gf.MultiHeadAttention(8, 2), gf.FeedForward(8, 12, activation="silu", gated=True)
    return gf.Block(attention, ffn, lambda: gf.RMSNorm(8), placement=placement)


# Self-attention in every dress.
SELF_ATTENDING = {
    "heads": lambda: gf.MultiHeadAttention(8, 2),
    "head": lambda: gf.AttentionHead(8, 5),
    **{f"{p}-norm encoder layer": lambda p=p: gf.EncoderLayer(8, 2, 12, placement=p) for p in PLACEMENTS},
    **{f"{p}-norm decoder layer": lambda p=p: gf.DecoderLayer(8, 2, 12, placement=p) for p in PLACEMENTS},
    **{f"{p} block": lambda p=p: general_block(p) for p in PLACEMENTS},
}


def self_attend(module, x, mask, path):
    if isinstance(module, gf.DecoderLayer):
        return module(x, normal(2, 3, 8, seed=4, dtype=x.dtype, device=x.device), mask, path=path)
    return module(x, mask=mask, path=path)


@each_path
@pytest.mark.parametrize(
    ("kind", "shape", "garbage"),
    some_at_once(
        product(SELF_ATTENDING, ("mask", "one per row", "one per row and head"), GARBAGE.args[1]),
        lambda given: given[0] == "heads" or given[2] is math.nan,
    ),
)
def test_row_04_garbage_in_padded_rows_of_the_input_spoils_no_gradient(path, garbage, shape, kind, device):
    """The padded rows are queries, too: what they give is nobody's concern, but it must not come back as NaN · 0."""
    real = right_padded(6, 4, width=6, device=device)
    mask = {
        "mask": masks.padding(real),
        "one per row": real[:, None, :],
        "one per row and head": real[:, None, None, :],
    }[shape]
    results = []
    for filler in (0.5, garbage):
        module = randomise(SELF_ATTENDING[kind]()).to(device)
        x = normal(2, 6, 8, dtype=torch.float32, device=device).masked_fill(~real[..., None], filler).requires_grad_()
        out = self_attend(module, x, mask, path)[real]
        out.backward(normal(*out.shape, seed=3, dtype=out.dtype, device=device))
        gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
        results.append({"output": out.detach(), "input": x.grad[real]} | gradients)
    clean, poisoned = results
    for name, expected in clean.items():
        assert expected.isfinite().all(), name
        assert torch.equal(expected, poisoned[name]), name


@each_path
def test_row_05_no_attention_to_pad_columns(path, device):
    """The pads of a row are hidden from its queries; the queries that are pads themselves are not touched."""
    real = right_padded(6, 4, width=6, device=device)
    q, k, v = (normal(2, 3, 6, 8, seed=seed, device=device).requires_grad_() for seed in range(3))
    out = attend(q, k, v, masks.padding(real), path=path)
    out.sum().backward()
    for x in (k, v):
        assert (x.grad.transpose(1, 2)[~real] == 0).all()
        assert (x.grad.transpose(1, 2)[real] != 0).all()
    assert (out != 0).all()
    _, weights = attend(q, k, v, masks.padding(real), path="eager", return_weights=True)
    columns = weights.movedim(-1, 1)  # batch, key, head, query
    assert (columns[~real] == 0).all()
    assert (columns[real] > 0).all()


@each_path
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), length=st.integers(1, 12), batch=st.integers(1, 3))
def test_row_06_a_later_token_changes_no_earlier_logit(path, device, data, length, batch):
    model = randomise(gf.TransformerLM(17, 12, 8, 2, 2, 16)).to(device)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 16), min_size=batch * length, max_size=batch * length)))
    ids = ids.view(batch, length).to(device)
    row, place = data.draw(st.integers(0, batch - 1)), data.draw(st.integers(0, length - 1))
    changed = ids.clone()
    changed[row, place] = (changed[row, place] + data.draw(st.integers(1, 16))) % 17
    with torch.no_grad():
        before, after = model(ids, path=path), model(changed, path=path)
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.equal(before[row, place], after[row, place])


@each_path
@pytest.mark.parametrize("chunk", [1, 3, 7])
@pytest.mark.parametrize("mask", [masks.causal(), masks.causal() & masks.window(4)], ids=["causal", "window"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_row_07_queries_in_chunks_equal_one_pass(path, chunk, mask, kv_heads, device):
    """Each chunk of queries meets all keys so far, as it does with a cache."""
    length = 16
    q, k, v = (normal(2, n, length, 8, seed=n, device=device) for n in (4, kv_heads, kv_heads))
    whole = attend(q, k, v, mask, path=path)
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        part = attend(q[:, :, start:end], k[:, :, :end], v[:, :, :end], mask, path=path)
        assert largest_difference(part, whole[:, :, start:end]) < 1e-12


def test_row_09_rotary_layouts_differ_by_a_permutation(device):
    width, length = 8, 6
    halves, neighbours = (
        gf.RotaryPositionalEmbedding(100.0, width, length, device, pairing=pairing)
        for pairing in ("halves", "interleaved")
    )
    q, k = normal(length, width, device=device), normal(length, width, seed=1, device=device)
    reordered = [interleave_rows(x.T, heads=1).T for x in (q, k)]
    scores = halves(q) @ halves(k).T
    assert largest_difference(neighbours(reordered[0]) @ neighbours(reordered[1]).T, scores) < 1e-12
    assert largest_difference(neighbours(q) @ neighbours(k).T, scores) > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_row_10_angles_stay_exact_when_the_model_is_cast(dtype, device):
    position, width, theta = 16_000, 8, 10_000.0
    model = gf.TransformerLM(5, position + 1, 16, 1, 2, 16, theta).to(device).to(dtype)
    assert model.lm_head.weight.dtype == dtype
    rope = model.layers[0].attn.rope
    for pair in range(width // 2):
        angle = position * theta ** (-2 * pair / width)
        assert float(rope.cos[position, pair]) == pytest.approx(math.cos(angle), abs=1e-9)
        assert float(rope.sin[position, pair]) == pytest.approx(math.sin(angle), abs=1e-9)
    x = normal(1, width, dtype=dtype, device=device)
    turned = rope(x, torch.tensor([position], device=device))
    exact = rope(x.double(), torch.tensor([position], device=device))
    assert turned.dtype == dtype
    assert torch.equal(turned, exact.to(dtype))  # one rounding, at the end


# ---- constants and numerics


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-3])
def test_row_15_the_epsilon_given_is_the_one_used(eps):
    x = normal(6) * 1e-3
    values = x.tolist()
    mean = sum(values) / 6
    variance, mean_square = sum((a - mean) ** 2 for a in values) / 6, sum(a * a for a in values) / 6
    layer = torch.tensor([(a - mean) / math.sqrt(variance + eps) for a in values], dtype=torch.float64)
    rms = torch.tensor([a / math.sqrt(mean_square + eps) for a in values], dtype=torch.float64)
    assert largest_difference(gf.LayerNorm(6, eps).double()(x), layer) < 1e-12
    assert largest_difference(gf.RMSNorm(6, eps).double()(x), rms) < 1e-12


def test_row_15_the_epsilon_of_the_config_reaches_the_model():
    config = gf.EncoderConfig(
        vocab_size=5,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=6,
        layer_norm_eps=0.25,
    )
    encoder = gf.TransformerEncoder(config)
    norms = {name: module.eps for name, module in encoder.named_modules() if isinstance(module, gf.LayerNorm)}
    assert len(norms) == 4
    assert set(norms.values()) == {0.25}, norms


def test_row_16_the_two_gelus_have_names_of_their_own():
    x = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    exact = torch.tensor([a * 0.5 * (1 + math.erf(a / math.sqrt(2))) for a in x.tolist()], dtype=torch.float64)
    assert ACTIVATIONS["gelu"] is gf.gelu
    assert ACTIVATIONS["gelu_tanh"] is gelu_tanh
    assert largest_difference(gf.gelu(x), exact) < 1e-12
    assert 1e-4 < largest_difference(gelu_tanh(x), exact) < 5e-4


@pytest.mark.parametrize(
    "mask", [None, masks.causal(), masks.padding(right_padded(5, 3, width=5))], ids=["", "causal", "pad"]
)
def test_row_19_attention_weights_are_returned_when_asked_for(mask, device):
    if mask is not None and mask.keys is not None:
        mask = masks.padding(mask.keys.to(device))
    attention = randomise(gf.MultiHeadAttention(8, 2)).double().to(device)
    x = normal(2, 5, 8, device=device)
    out, weights = attention(x, mask=mask, path="eager", return_weights=True)
    assert weights.shape == (2, 2, 5, 5)
    assert largest_difference(weights.sum(-1), torch.ones(2, 2, 5, device=device)) < 1e-12
    assert largest_difference(out, attention(x, mask=mask)) < 1e-12
    if mask is not None:
        assert (weights[~mask.dense(weights.shape, device).expand_as(weights)] == 0).all()
    values = attention.v(x).view(2, 5, 2, 4).transpose(1, 2)
    assert largest_difference(attention.o((weights @ values).transpose(1, 2).reshape(2, 5, 8)), out) < 1e-12


@pytest.mark.parametrize("options", [{}, {"path": "sdpa"}], ids=["default", "sdpa"])
def test_row_19_the_fast_path_refuses_to_return_none(options):
    x = normal(3, 8, dtype=torch.float32)
    with pytest.raises(ValueError, match='path="eager"'):
        attend(x, x, x, return_weights=True, **options)
    with pytest.raises(ValueError, match='path="eager"'):
        gf.MultiHeadAttention(8, 2)(x, return_weights=True, **options)


# ---- accounting


@pytest.mark.parametrize("device_name", ["cpu", "meta"])
@pytest.mark.parametrize("tie", ["object", "storage"])
def test_row_47_tied_weights_are_counted_once(device_name, tie):
    vocabulary, width = 11, 8
    model = gf.TransformerLM(vocabulary, 16, width, 1, 2, 16, device=device_name)
    untied = gf.num_parameters(model)
    table = model.token_embeddings.weight
    model.lm_head.weight = table if tie == "object" else torch.nn.Parameter(table.data)
    assert gf.num_parameters(model) == untied - vocabulary * width
    assert gf.num_parameters(model, embeddings=False) == untied - 2 * vocabulary * width
