"""Sinusoidal, learned and rotary positions."""

import math
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glassformer as gf
from glassformer.nn.input_positions import sinusoids
from tests.helpers import FLOATS, largest_difference, normal, randomise, types_unchecked

each_layout = pytest.mark.parametrize("layout", ["interleaved", "halves"])
each_pairing = pytest.mark.parametrize("pairing", ["interleaved", "halves"])


# ---- sinusoids


def paper(position: int, width: int, layout: str, base: float = 10_000.0) -> list[float]:
    """PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos(the same)."""
    sines = [math.sin(position / base ** (2 * i / width)) for i in range((width + 1) // 2)]
    cosines = [math.cos(position / base ** (2 * i / width)) for i in range(width // 2)]
    if layout == "halves":
        return sines + cosines
    return [(cosines if column % 2 else sines)[column // 2] for column in range(width)]


@each_layout
@pytest.mark.parametrize("width", [1, 2, 7, 16])
@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_sinusoids_equal_the_formula(layout, width, base, device):
    positions = torch.tensor([[0, 1, 2], [17, 999, 3]], device=device)
    table = sinusoids(positions, width, layout=layout, base=base)
    expected = [[paper(p, width, layout, base) for p in row] for row in positions.tolist()]
    assert table.shape == (2, 3, width)
    assert largest_difference(table.cpu(), torch.tensor(expected, dtype=torch.float64)) < 1e-12


@each_layout
def test_sinusoids_far_away(layout, device):
    table = sinusoids(torch.tensor([1_000_000], device=device), 64, layout=layout)
    expected = torch.tensor([paper(1_000_000, 64, layout)], dtype=torch.float64)
    assert largest_difference(table.cpu(), expected) < 1e-9


@pytest.mark.parametrize("step", [1, 5, 300])
def test_a_step_is_one_linear_map_for_all_positions(step):
    """Section 3.5 of the paper: PE(pos + k) is a linear function of PE(pos), here with its matrix written out."""
    width, positions = 8, torch.arange(0, 2000, 37)
    rotations = []
    for pair in range(width // 2):
        angle = step * 10_000 ** (-2 * pair / width)
        rotations.append(
            torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64)
        )
    matrix = torch.block_diag(*rotations)
    assert largest_difference(sinusoids(positions, width) @ matrix.T, sinusoids(positions + step, width)) < 1e-10


@each_layout
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_encoding_is_added(layout, dtype, device):
    encoding = gf.SinusoidalPositionalEncoding(6, layout=layout)
    x = normal(2, 4, 6, dtype=dtype, device=device)
    counted = encoding(x)
    assert counted.dtype == dtype
    assert torch.equal(counted, encoding(x, torch.arange(4, device=device)))
    assert torch.equal(counted, x + sinusoids(torch.arange(4, device=device), 6, layout=layout).to(dtype))
    own = encoding(x, torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]], device=device))
    assert largest_difference(own[0], counted[0]) <= 4 * torch.finfo(dtype).eps  # angles of another shape
    assert largest_difference(own[1], counted[1]) > 0.1
    assert not encoding.state_dict()


# ---- learned positions


def test_learned_positions_are_added(device):
    learned = randomise(gf.LearnedPositionalEmbedding(5, 4, device))
    table, x = learned.position.weight, normal(2, 3, 4, dtype=torch.float32, device=device)
    assert torch.equal(learned(x), x + table[:3])
    positions = torch.tensor([[4, 0, 0], [1, 2, 3]], device=device)
    assert torch.equal(learned(x, positions), x + table[positions])


def test_learned_positions_end():
    learned = gf.LearnedPositionalEmbedding(5, 4)
    assert learned(torch.zeros(5, 4)).shape == (5, 4)
    with pytest.raises(ValueError, match=r"(?s)\b6 tokens.*\b5 positions.*max_length=6"):
        learned(torch.zeros(6, 4))
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"position {wrong} is outside the table: it has rows 0 to 4"):
            learned(torch.zeros(2, 4), torch.tensor([0, wrong]))


# ---- positions of one's own, for all three


def each_kind():
    return {
        "sinusoidal": gf.SinusoidalPositionalEncoding(8),
        "learned": randomise(gf.LearnedPositionalEmbedding(64, 8)).double(),
        "rotary": gf.RotaryPositionalEmbedding(100.0, 8, 64),
    }


KINDS = pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary"])


@KINDS
def test_positions_belong_to_the_first_axes(kind):
    """Positions for the first of two batch axes serve every row of the second, also where their sizes agree."""
    places, x, positions = each_kind()[kind], normal(3, 3, 5, 8), torch.randint(64, (3, 5))
    expected = torch.stack([places(x[b], positions[b]) for b in range(3)])
    assert largest_difference(places(x, positions), expected) < 1e-12


@KINDS
@pytest.mark.parametrize(
    ("tokens", "positions"), [((2, 5), (4,)), ((2, 5), (2, 4)), ((1, 5), (3, 5)), ((5,), (2, 5))], ids=str
)
def test_positions_that_do_not_fit_are_named(kind, tokens, positions):
    both = rf"(?s){re.escape(str(positions))}.*{re.escape(str(tokens)[:-1].rstrip(','))}"
    with types_unchecked(), pytest.raises(ValueError, match=both):
        each_kind()[kind](normal(*tokens, 8), torch.zeros(positions, dtype=torch.int64))


@KINDS
@pytest.mark.parametrize("width", [1, 6])
def test_another_width_is_refused(kind, width):
    with types_unchecked(), pytest.raises(ValueError, match=rf"(?s)(?=.*\b8\b)(?=.*\b{width}\b)"):
        each_kind()[kind](normal(2, 5, width))


# ---- rotary positions


def rotary(pairing="interleaved", width=8, length=64, theta=100.0, device="cpu"):
    return gf.RotaryPositionalEmbedding(theta, width, length, device, pairing=pairing)


@each_pairing
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(i=st.integers(0, 63), j=st.integers(0, 63), shift=st.integers(-63, 63), seed=st.integers(0, 100))
def test_a_score_depends_on_the_distance_alone(pairing, device, i, j, shift, seed):
    shift = max(-min(i, j), min(shift, 63 - max(i, j)))
    rope = rotary(pairing, device=device)
    q, k = normal(1, 8, seed=seed, device=device), normal(1, 8, seed=seed + 1, device=device)

    def score(i: int, j: int) -> float:
        return float(rope(q, torch.tensor([i], device=device)) @ rope(k, torch.tensor([j], device=device)).T)

    assert score(i, j) == pytest.approx(score(i + shift, j + shift), abs=1e-12)


@each_pairing
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3), (0,)])
def test_any_leading_axes_and_the_norm_is_kept(pairing, leading, device):
    rope = rotary(pairing, device=device)
    x = normal(*leading, 10, 8, device=device)
    turned = rope(x)
    assert turned.shape == x.shape
    if turned.numel():
        assert largest_difference(turned.norm(dim=-1), x.norm(dim=-1)) < 1e-12
    for i, sequence in enumerate(x.reshape(-1, 10, 8)):
        assert torch.equal(turned.reshape(-1, 10, 8)[i], rope(sequence))


@each_pairing
def test_position_zero_rotates_nothing(pairing):
    x = normal(1, 8)
    assert torch.equal(rotary(pairing)(x), x)


@each_pairing
@pytest.mark.parametrize("heads", [2, 3], ids=["batch = heads", "batch != heads"])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 5), (2, 1, 5)], ids=str)
def test_positions_of_every_shape(pairing, heads, shape, device):
    rope = rotary(pairing, device=device)
    x = normal(2, heads, 5, 8, device=device)
    positions = torch.randint(64, shape).to(device)
    turned = rope(x, positions)
    rows = positions.reshape(-1, 5).expand(2, 5)
    for b in range(2):
        for h in range(heads):
            for t in range(5):
                whole = rope(x[b, h, t].expand(64, 8))
                assert largest_difference(turned[b, h, t], whole[rows[b, t]]) < 1e-12


def test_attention_aligns_positions_as_rotary_does():
    """Positions for the first of two batch axes serve every row of the second, also where their sizes agree."""
    attention = randomise(gf.CausalMultiHeadSelfAttention(8, 2, 64, 100.0)).double()
    x, positions = normal(3, 3, 5, 8), torch.randint(64, (3, 5))
    expected = torch.stack([attention(x[b], positions[b]) for b in range(3)])
    assert largest_difference(attention(x, positions), expected) < 1e-12


@each_pairing
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rotation_keeps_the_type_and_rounds_once(pairing, dtype, device):
    rope, x = rotary(pairing, device=device), normal(3, 50, 8, dtype=dtype, device=device)
    turned = rope(x)
    assert turned.dtype == dtype
    assert largest_difference(turned, rope(x.double())) <= 4 * torch.finfo(dtype).eps


@each_pairing
def test_memory_layout_does_not_matter(pairing, device):
    rope, x = rotary(pairing, device=device), normal(4, 5, 8, dtype=torch.float32, device=device)
    expected = rope(x)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert not strided.is_contiguous()
    every_other = torch.stack((x, x), dim=-1).flatten(-2)[..., ::2]
    storage = torch.zeros(x.numel() + 1, device=device)
    storage[1:] = x.flatten()
    odd = storage[1:].view_as(x)
    assert odd.storage_offset() == 1
    for same in (strided, every_other, odd):
        assert torch.equal(rope(same), expected)


def test_rotary_errors():
    rope = rotary(length=6)
    with pytest.raises(ValueError, match=r"\b7 tokens.*max_seq_len=6"):
        rope(normal(7, 8))
    for wrong in (6, -1):
        with pytest.raises(IndexError, match=f"position {wrong} is outside the table: it has rows 0 to 5"):
            rope(normal(1, 8), torch.tensor([wrong]))
    with pytest.raises(ValueError, match=r"width 8; got shape \(3, 6\)"):
        rope(normal(3, 6))
    with pytest.raises(ValueError, match="must be even; got 7"):
        rotary(width=7)
    for theta in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"theta must be .*{theta}"):
            rotary(theta=theta)
    with types_unchecked(), pytest.raises(TypeError, match="floating-point"):
        rope(torch.ones(3, 8, dtype=torch.int64))
    with types_unchecked(), pytest.raises(ValueError, match="Did you mean 'halves'"):
        rotary("halve")


# ---- the rotary cache


def language_model(device="cpu", dtype=None):
    return gf.TransformerLM(11, 64, 16, 3, 2, 16, 100.0, device, dtype)


def test_cache_is_shared_and_not_saved(device):
    model = language_model(device)
    assert len({id(layer.attn.rope) for layer in model.layers}) == 1
    model.double()
    assert len({layer.attn.rope.cos.data_ptr() for layer in model.layers}) == 1
    assert not [name for name in model.state_dict() if "rope" in name]
    assert not [*rotary().state_dict()]


@pytest.mark.parametrize("cast", ["bfloat16", "half", "float", "double"])
def test_casts_do_not_touch_the_cache(cast, device):
    rope, fresh = rotary(device=device), rotary(device=device)
    getattr(rope, cast)()
    assert rope.cos.dtype == fresh.cos.dtype
    assert torch.equal(rope.cos, fresh.cos)
    assert torch.equal(rope.sin, fresh.sin)


def test_double_input_is_rotated_in_double(device):
    x = torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64, device=device)
    turned = rotary(width=4, device=device)(x, torch.tensor([63], device=device))
    expected = [math.cos(63), math.sin(63), math.cos(6.3), math.sin(6.3)]
    assert turned[0].tolist() == pytest.approx(expected, abs=1e-13)


def test_built_on_the_meta_device(device):
    model = language_model("meta")
    assert model.layers[0].attn.rope.cos.is_meta
    model.to_empty(device=device)
    whole = randomise(language_model(device))
    model.load_state_dict(whole.state_dict())
    ids = torch.arange(11, device=device)
    assert torch.equal(model.layers[2].attn.rope.cos, rotary(device=device).cos)
    assert torch.equal(model(ids), whole(ids))


def test_loaded_onto_the_meta_device(device):
    """The state dict has no rotary cache, so the model has to make its own."""
    whole, model = randomise(language_model(device)), language_model("meta")
    model.load_state_dict(whole.state_dict(), assign=True)
    ids = torch.arange(11, device=device)
    assert torch.equal(model(ids), whole(ids))
    assert torch.equal(model(ids, torch.arange(5, 16, device=device)), whole(ids, torch.arange(5, 16, device=device)))


def test_many_calls_leave_the_cache_as_it_was(device):
    rope = rotary(device=device)
    before = {name: (buffer, buffer.clone()) for name, buffer in rope.named_buffers()}
    x = normal(64, 8, device=device)
    with types_unchecked():
        for call in range(1000):
            rope(x[: call % 64 + 1], None if call % 2 else torch.arange(call % 64 + 1, device=device))
    assert {*before} == {"cos", "sin"}
    for name, buffer in rope.named_buffers():
        same, copy = before[name]
        assert buffer is same
        assert torch.equal(buffer, copy)


# ---- sinusoids in the fairseq layout


def fairseq(position: int, width: int, base: float = 10_000.0) -> list[float]:
    """All sines, then all cosines; the last frequency is 1 / base exactly, and an odd width ends in a zero."""
    pairs = width // 2
    angles = [position * base ** (-i / max(1, pairs - 1)) for i in range(pairs)]
    return [*map(math.sin, angles), *map(math.cos, angles)] + [0.0] * (width % 2)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_fairseq_sinusoids_equal_the_formula(width, base, device):
    positions = torch.tensor([[0, 1, 2], [17, 999, 3]], device=device)
    table = sinusoids(positions, width, layout="fairseq", base=base)
    expected = [[fairseq(p, width, base) for p in row] for row in positions.tolist()]
    assert table.shape == (2, 3, width)
    assert largest_difference(table.cpu(), torch.tensor(expected, dtype=torch.float64)) < 1e-12


@pytest.mark.parametrize("width", [4, 5, 16, 33])
@pytest.mark.parametrize("padding", [None, 1])
def test_fairseq_sinusoids_equal_hugging_face(width, padding):
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    rows = 200
    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(rows, width, padding)
    ours = sinusoids(torch.arange(rows), width, layout="fairseq")
    if padding is not None:  # their row of the padding id is emptied; positions start after it, so nobody reads it
        ours[padding] = 0
    assert largest_difference(ours, theirs) < 5e-5  # theirs are float32 angles up to 200


def test_fairseq_layout_is_neither_of_the_others():
    positions = torch.arange(5, 9)
    tables = [sinusoids(positions, 8, layout=layout) for layout in ("fairseq", "halves", "interleaved")]
    for i, one in enumerate(tables):
        for other in tables[i + 1 :]:
            assert largest_difference(one, other) > 1e-2


def test_unknown_layout():
    with types_unchecked(), pytest.raises(ValueError, match=r"layout must be .*'fairseqs'.*Did you mean 'fairseq'"):
        sinusoids(torch.arange(3), 4, layout="fairseqs")
