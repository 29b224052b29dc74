"""Blocks and layers: the residual rule, causality, memory, dropout, and errors."""

import pytest
import torch

import glassformer as gf
from glassformer.config.parts import PLACEMENTS
from glassformer.nn import masks
from glassformer.nn.block import residual
from tests.helpers import PATHS, largest_difference, normal, randomise, right_padded, types_unchecked

WIDTH, HEADS, HIDDEN = 8, 2, 12
each_placement = pytest.mark.parametrize("placement", PLACEMENTS)
each_path = pytest.mark.parametrize("path", PATHS)


def block(placement="pre", cross=False, dropout=0.0):
    made = gf.Block(
        gf.MultiHeadAttention(WIDTH, HEADS),
        gf.FeedForward(WIDTH, HIDDEN),
        lambda: gf.LayerNorm(WIDTH),
        cross=gf.MultiHeadAttention(WIDTH, HEADS) if cross else None,
        placement=placement,
        dropout=dropout,
    )
    return randomise(made).double()


def test_residual_rule_on_numbers():
    """Norms and sublayers that are plain arithmetic, so that every line can be done by hand."""
    x = torch.tensor([10.0])
    steps = [(lambda y: y / 2, lambda y: y + 1), (lambda y: y * 10, lambda y: y - 3)]
    assert residual(x, steps, "pre").item() == 173  # 10 + (5 + 1) = 16, then 16 + (160 − 3)
    assert residual(x, steps, "post").item() == 180  # (10 + 11) / 2 = 10.5, then (10.5 + 7.5) · 10
    assert residual(x, steps, "parallel").item() == 18  # 10 + (5 + 1) + (5 − 3)
    assert residual(x, steps, "parallel_norms").item() == 113  # 10 + (5 + 1) + (100 − 3)


@each_path
@pytest.mark.parametrize("cross", [False, True])
def test_block_equals_the_formula(path, cross):
    x, memory = normal(2, 5, WIDTH), normal(2, 4, WIDTH, seed=1) if cross else None
    mask, memory_mask = masks.causal(), masks.padding(right_padded(4, 2, width=4)) if cross else None

    def parts(made):
        steps = [(made.attention_norm, lambda y: made.attention(y, mask=mask, path=path))]
        if cross:
            steps.append((made.cross_norm, lambda y: made.cross(y, memory, mask=memory_mask, path=path)))
        return [*steps, (made.ffn_norm, made.ffn)]

    def run(made):
        return made(x, mask, memory=memory, memory_mask=memory_mask, path=path)

    pre, post, parallel, parallel_norms = (block(placement, cross) for placement in PLACEMENTS)
    y = x
    for norm, step in parts(pre):
        y = y + step(norm(y))
    assert largest_difference(run(pre), y) < 1e-12
    y = x
    for norm, step in parts(post):
        y = norm(y + step(y))
    assert largest_difference(run(post), y) < 1e-12
    shared = parallel.attention_norm(x)
    y = x + sum(step(shared) for _, step in parts(parallel))
    assert largest_difference(run(parallel), y) < 1e-12
    y = x + sum(step(norm(x)) for norm, step in parts(parallel_norms))
    assert largest_difference(run(parallel_norms), y) < 1e-12


def test_number_of_norms():
    def norms(made):
        return sum(isinstance(module, gf.LayerNorm) for module in made.modules())

    assert {p: (norms(block(p)), norms(block(p, cross=True))) for p in PLACEMENTS} == {
        "pre": (2, 3),
        "post": (2, 3),
        "parallel": (1, 1),
        "parallel_norms": (2, 3),
    }


@each_placement
def test_every_parameter_of_a_block_gets_a_gradient(placement):
    made = block(placement, cross=True)
    made(normal(2, 5, WIDTH), memory=normal(2, 4, WIDTH, seed=1)).square().sum().backward()
    assert all(parameter.grad.any() for name, parameter in made.named_parameters() if not name.endswith("k.bias"))


def test_memory_and_cross_attention_belong_together():
    x = normal(2, 5, WIDTH)
    with pytest.raises(ValueError, match="has no cross-attention, but a memory was given"):
        block()(x, memory=x)
    with pytest.raises(ValueError, match="has cross-attention, but no memory was given"):
        block(cross=True)(x)
    with types_unchecked(), pytest.raises(ValueError, match=r"placement must be one of .* Did you mean 'pre'\?"):
        block("prre")


@each_path
@pytest.mark.parametrize("mask", [None, masks.Mask(), torch.ones(5, 5, dtype=torch.bool)], ids=["none", "empty", "all"])
def test_decoder_layer_is_causal_whatever_the_mask(path, mask):
    layer = randomise(gf.DecoderLayer(WIDTH, HEADS, HIDDEN)).double()
    x, memory = normal(2, 5, WIDTH), normal(2, 4, WIDTH, seed=1)
    changed = x.clone()
    changed[:, 3:] += 1
    before, after = layer(x, memory, mask, path=path), layer(changed, memory, mask, path=path)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


@each_path
def test_a_mask_can_hide_more_from_a_decoder_layer(path):
    layer = randomise(gf.DecoderLayer(WIDTH, HEADS, HIDDEN)).double()
    x, memory = normal(2, 5, WIDTH), normal(2, 4, WIDTH, seed=1)
    changed = x.clone()
    changed[:, 0] += 1
    mask = masks.padding(~right_padded(1, 1, width=5))
    before, after = layer(x, memory, mask, path=path), layer(changed, memory, mask, path=path)
    assert torch.equal(before[:, 1:], after[:, 1:])


def test_decoder_layers_project_the_memory_themselves():
    """Two layers share the memory but neither keys nor values: each has projections of its own that get gradients."""
    layers = [randomise(gf.DecoderLayer(WIDTH, HEADS, HIDDEN), seed).double() for seed in (0, 1)]
    memory, seen = normal(2, 4, WIDTH, seed=1), []
    x = normal(2, 5, WIDTH)
    for layer in layers:
        layer.cross.k.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
        x = layer(x, memory)
    x.square().sum().backward()
    assert all(torch.equal(key_input, memory) for key_input, _ in seen)
    assert not torch.equal(seen[0][1], seen[1][1])
    for layer in layers:
        assert layer.cross.k.weight.grad.any()
        assert layer.cross.v.weight.grad.any()
        assert layer.cross.k.weight is not layer.attention.k.weight


@pytest.mark.parametrize("kind", ["block", "encoder", "decoder"])
def test_dropout_only_while_training(kind):
    x = normal(2, 5, WIDTH)
    if kind == "block":
        made, run = block(dropout=0.5), lambda made: made(x)
    elif kind == "encoder":
        made, run = gf.EncoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.5).double(), lambda made: made(x)
    else:
        made, run = gf.DecoderLayer(WIDTH, HEADS, HIDDEN, dropout=0.5).double(), lambda made: made(x, x)
    assert not torch.equal(run(made), run(made))
    made.eval()
    assert torch.equal(run(made), run(made))


def test_dropped_sublayers_leave_the_stream_as_it_was():
    """Before the residual is added: where a sublayer's result is dropped the input shows through unscaled."""
    made, x = block(dropout=0.9), normal(200, 5, WIDTH)
    unchanged = (made(x) == x).double().mean().item()
    assert unchanged == pytest.approx(0.81, abs=0.03)


def test_transformer_block_builds_its_own_positions_or_takes_shared_ones():
    rope = gf.RotaryPositionalEmbedding(100.0, WIDTH // HEADS, 16)
    shared = randomise(gf.TransformerBlock(WIDTH, HEADS, HIDDEN, rope=rope)).double()
    own = randomise(gf.TransformerBlock(WIDTH, HEADS, HIDDEN, 16, 100.0)).double()
    none = randomise(gf.TransformerBlock(WIDTH, HEADS, HIDDEN)).double()
    x = normal(2, 5, WIDTH)
    assert shared.attn.rope is rope
    assert torch.equal(shared(x), own(x))
    assert none.attn.rope is None
    assert not torch.allclose(none(x), own(x))
    assert torch.allclose(own(x), own(x, torch.arange(7, 12)), atol=1e-12)  # only distances count


def test_positions_without_rotary_positions_are_refused():
    x, positions = normal(2, 5, WIDTH, dtype=torch.float32), torch.arange(5)
    with pytest.raises(ValueError, match="no rotary positions to use them"):
        gf.TransformerBlock(WIDTH, HEADS, HIDDEN)(x, positions)
    with pytest.raises(ValueError, match="no rotary positions to use them"):
        gf.MultiHeadAttention(WIDTH, HEADS)(x, token_positions=positions)
