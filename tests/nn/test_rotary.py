"""Rotary positions from a config: angles, parts of a head that do not turn, and scalings for longer contexts."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import glassformer as gf
from glassformer.config import Rotary, RotaryScaling
from glassformer.nn.input_positions import frequencies
from glassformer.nn.rotary import RotaryAngles, rotary_angles, scale_frequencies
from tests.helpers import FLOATS, interleave_rows, largest_difference, normal

CPU = torch.device("cpu")
each_pairing = pytest.mark.parametrize("pairing", ["interleaved", "halves"])


def rotate_by_hand(x: list[float], position: int, facts: Rotary) -> list[float]:
    """Pair by pair, in plain numbers; what lies beyond the turning coordinates is copied."""
    out, pairs = list(x), facts.dim // 2
    for i in range(pairs):
        one, other = (2 * i, 2 * i + 1) if facts.pairing == "interleaved" else (i, i + pairs)
        angle = position * facts.theta ** (-2 * i / facts.dim)
        out[one] = x[one] * math.cos(angle) - x[other] * math.sin(angle)
        out[other] = x[one] * math.sin(angle) + x[other] * math.cos(angle)
    return out


@each_pairing
@pytest.mark.parametrize("dim", [2, 6, 8, 10])
def test_rotations_equal_the_formula_and_leave_the_rest(pairing, dim, device):
    facts = Rotary(dim=dim, length=64, theta=50.0, pairing=pairing)
    positions = torch.tensor([[0, 1, 63], [7, 7, 2]], device=device)
    x = normal(2, 3, 10, device=device)
    turned = rotary_angles(facts, positions).apply_rotary(x)
    expected = [[rotate_by_hand(x[b, t].tolist(), int(positions[b, t]), facts) for t in range(3)] for b in range(2)]
    assert largest_difference(turned.cpu(), torch.tensor(expected, dtype=torch.float64)) < 1e-12
    assert torch.equal(turned[..., dim:], x[..., dim:])


@each_pairing
@pytest.mark.parametrize("dim", [2, 4, 8])
def test_every_head_rotates_alike(pairing, dim, device):
    facts = Rotary(dim=dim, length=64, theta=50.0, pairing=pairing)
    x = normal(2, 3, 5, 8, device=device)
    for positions in (torch.arange(5, device=device), torch.tensor([[0, 1, 2, 3, 4], [7, 5, 3, 1, 2]], device=device)):
        angles = rotary_angles(facts, positions)
        turned = angles.for_heads(x.dtype).apply_rotary_heads(x)
        assert turned.transpose(-3, -2).is_contiguous()  # tokens before heads
        for head in range(3):
            assert largest_difference(turned[:, head], angles.apply_rotary(x[:, head])) < 1e-15


@each_pairing
def test_a_whole_head_equals_the_module(pairing, device):
    facts = Rotary(dim=8, length=64, theta=100.0, pairing=pairing)
    rope = gf.RotaryPositionalEmbedding(100.0, 8, 64, device, pairing=pairing)
    x, positions = normal(2, 5, 8, device=device), torch.tensor([[0, 9, 1, 63, 5]], device=device)
    assert largest_difference(rotary_angles(facts, positions).apply_rotary(x), rope(x, positions)) < 1e-12


@each_pairing
@pytest.mark.parametrize("dim", [4, 8])
def test_a_score_depends_on_the_distance_alone(pairing, dim):
    facts = Rotary(dim=dim, length=64, pairing=pairing)
    q, k = normal(1, 8), normal(1, 8, seed=1)

    def score(i: int, j: int) -> float:
        first, second = (rotary_angles(facts, torch.tensor([position])) for position in (i, j))
        return float(first.apply_rotary(q) @ second.apply_rotary(k).T)

    assert score(3, 10) == pytest.approx(score(33, 40), abs=1e-12)
    assert abs(score(3, 10) - score(3, 11)) > 1e-3


def test_pairings_differ_by_a_permutation_of_the_rotated_part():
    halves = Rotary(dim=6, length=64, theta=50.0, pairing="halves")
    neighbours = replace(halves, pairing="interleaved")
    positions, x = torch.arange(7), normal(7, 8)

    def reorder(y: torch.Tensor) -> torch.Tensor:
        return torch.cat((interleave_rows(y[:, :6].T, heads=1).T, y[:, 6:]), dim=-1)

    turned = rotary_angles(neighbours, positions).apply_rotary(reorder(x))
    assert largest_difference(turned, reorder(rotary_angles(halves, positions).apply_rotary(x))) < 1e-12


@each_pairing
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rotation_keeps_the_dtype_and_rounds_once(pairing, dtype, device):
    facts = Rotary(dim=6, length=20_000, pairing=pairing)
    positions = torch.tensor([0, 16_000, 19_999], device=device)
    x = normal(3, 8, dtype=dtype, device=device)
    turned = rotary_angles(facts, positions).apply_rotary(x)
    exact = rotary_angles(facts, positions).apply_rotary(x.double())
    assert turned.dtype == dtype
    assert largest_difference(turned, exact) <= 4 * torch.finfo(dtype).eps


@each_pairing
def test_memory_layout_does_not_matter(pairing):
    angles = rotary_angles(Rotary(dim=6, length=8, pairing=pairing), torch.arange(5))
    x = normal(2, 5, 9, dtype=torch.float32)
    odd = x[..., 1:]  # starts at an odd place of memory, and its rows are of odd length
    assert largest_difference(angles.apply_rotary(odd), angles.apply_rotary(odd.contiguous())) == 0


@each_pairing
def test_the_gradient_rotates_back(pairing):
    """A rotation is orthogonal: the gradient of ⟨apply_rotary(x), y⟩ is y turned by the opposite angle."""
    angles = rotary_angles(Rotary(dim=6, length=8, theta=10.0, pairing=pairing), torch.arange(4))
    back = RotaryAngles(angles.cos, -angles.sin, pairing)
    x, y = normal(4, 8).requires_grad_(), normal(4, 8, seed=1)
    (angles.apply_rotary(x) * y).sum().backward()
    assert largest_difference(x.grad, back.apply_rotary(y)) < 1e-12


# ---- scalings, against Hugging Face


def theirs(kind: str, facts: Rotary, **settings: object) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        hidden_size=4 * facts.dim,
        num_attention_heads=4,
        head_dim=facts.dim,
        max_position_embeddings=facts.length,
        rope_parameters={"rope_type": kind, "rope_theta": facts.theta, **settings},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, CPU)


def ours(facts: Rotary) -> tuple[torch.Tensor, float]:
    """Frequencies read off the angles at position 1, and the length of a turned unit vector."""
    angles = rotary_angles(facts, torch.tensor([1]))
    return torch.atan2(angles.sin, angles.cos)[0], float(torch.hypot(angles.cos, angles.sin).max())


ROTARY = Rotary(dim=64, length=131_072, theta=500_000.0)


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_linear_scaling_equals_hugging_face(factor):
    facts = replace(ROTARY, scaling=RotaryScaling(kind="linear", factor=factor))
    waves, longer = theirs("linear", facts, factor=factor)
    assert largest_difference(ours(facts)[0] / waves, torch.ones(32)) < 1e-5
    assert ours(facts)[1] == pytest.approx(longer) == 1.0


@pytest.mark.parametrize(("factor", "low", "high"), [(8.0, 1.0, 4.0), (32.0, 1.0, 4.0), (3.0, 2.0, 9.0)])
@pytest.mark.parametrize("original", [8192, 512])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_smooth_scaling_equals_hugging_face(factor, low, high, original, theta):
    scaling = RotaryScaling(kind="smooth", factor=factor, original_length=original, low=low, high=high)
    facts = replace(ROTARY, theta=theta, scaling=scaling)
    settings = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    waves, longer = theirs("llama3", facts, original_max_position_embeddings=original, **settings)
    assert largest_difference(ours(facts)[0] / waves, torch.ones(32)) < 1e-5
    assert ours(facts)[1] == pytest.approx(longer) == 1.0
    plain = frequencies(64, theta, CPU)
    kept = ours(facts)[0] / plain
    assert kept[0] == pytest.approx(1.0)  # the quickest turn as before, the slowest slower by the factor
    assert kept[-1] == pytest.approx(1 / factor)
    assert ((kept > 1 / factor + 1e-6) & (kept < 1 - 1e-6)).any()


@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (16.0, 2.0)])
@pytest.mark.parametrize("dim", [64, 16, 2])
@pytest.mark.parametrize(("original", "factor"), [(4096, 16.0), (32_768, 4.0), (64, 2.0)])
def test_yarn_equals_hugging_face(fast, slow, dim, original, factor):
    attention = 0.1 * math.log(factor) + 1
    scaling = RotaryScaling(
        kind="yarn", factor=factor, original_length=original, low=slow, high=fast, attention=attention
    )
    facts = replace(ROTARY, dim=dim, theta=10_000.0, length=int(original * factor), scaling=scaling)
    settings = {"factor": factor, "beta_fast": fast, "beta_slow": slow, "original_max_position_embeddings": original}
    waves, longer = theirs("yarn", facts, **settings)
    assert largest_difference(ours(facts)[0] / waves, torch.ones(dim // 2)) < 1e-5
    assert ours(facts)[1] == pytest.approx(longer, abs=1e-6)


def test_yarn_scales_every_rotated_coordinate():
    scaling = RotaryScaling(kind="yarn", factor=4.0, original_length=16, high=32.0, attention=1.25)
    facts = Rotary(dim=4, length=64, scaling=scaling)
    x = normal(3, 6)
    turned = rotary_angles(facts, torch.arange(3)).apply_rotary(x)
    assert largest_difference(turned[:, :4].norm(dim=-1), 1.25 * x[:, :4].norm(dim=-1)) < 1e-12
    assert torch.equal(turned[:, 4:], x[:, 4:])


@pytest.mark.parametrize("kind", ["linear", "smooth", "yarn"])
def test_a_factor_of_one_changes_nothing(kind):
    waves = frequencies(16, 10_000.0, CPU)
    scaling = RotaryScaling(kind=kind, factor=1.0, original_length=128, high=32.0)
    assert largest_difference(scale_frequencies(waves, Rotary(dim=16, length=128), scaling), waves) < 1e-15


def test_a_first_pass_without_gradients_does_not_prevent_training():
    with torch.device("meta"):
        rope = gf.RotaryPositionalEmbedding(10_000.0, 8, 16, pairing="halves")
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        rope(x.detach())
    rope(x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
