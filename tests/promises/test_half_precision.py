"""Half precision: what overflows is cut, and nothing turns into NaN."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glassformer.config import Attention, BucketBias, FeedForward, LMHead, ModelConfig, Norm, Stack
from glassformer.config.parts import PLACEMENTS
from glassformer.models.output_heads import pool
from glassformer.models.transformer import Transformer
from glassformer.nn.block import residual
from glassformer.nn.feedforward import ACTIVATIONS, activated, clamp_half
from glassformer.nn.feedforward import gated as multiply_gate
from tests.configs import CONFIGS, built, tokens
from tests.helpers import PATHS, largest_difference, randomise, right_padded

LARGEST = torch.finfo(torch.float16).max


def test_row_18_only_half_precision_is_cut():
    huge = torch.tensor([math.inf, -math.inf, 1e30, -1e30, 3.0], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert torch.equal(clamp_half(huge.to(dtype)), huge.to(dtype))
    assert clamp_half(huge.half()).tolist() == [LARGEST, -LARGEST, LARGEST, -LARGEST, 3.0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_row_18_no_activation_makes_nan_of_an_overflow(activation, gated):
    """gelu(−∞) is −∞ · 0, and a closed gate times ∞ is 0 · ∞: both are NaN unless the overflow is cut before."""
    ends = torch.tensor([math.inf, -math.inf, LARGEST, -LARGEST, 0.0, 2.0], dtype=torch.float16)
    up, gate = torch.meshgrid(ends, ends, indexing="ij")
    act = ACTIVATIONS[activation]
    out = multiply_gate(activated(gate, act), up) if gated else activated(up, act)
    assert out.isfinite().all()
    assert float(out.abs().max()) > 0


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_row_18_sublayers_that_overflow_in_opposite_directions(placement):
    x = torch.full((1, 4), 3.0, dtype=torch.float16)
    sublayers = [(lambda y: y.clamp(-1, 1), lambda y, sign=sign: y * 0 + sign * math.inf) for sign in (1, -1)]
    assert residual(x, sublayers, placement).isfinite().all()


def t5(gated: bool, activation: str, layers: int = 3) -> ModelConfig:
    encoder = Stack(
        layers=layers,
        attention=Attention(heads=2, head_dim=8, biases="", scale=1.0, score_bias=BucketBias(buckets=8)),
        ffn=FeedForward(hidden=32, activation=activation, gated=gated, bias=False),
    )
    decoder = replace(encoder, causal=True, cross=True)
    return ModelConfig(
        vocab=31, width=16, norm=Norm(kind="rms", eps=1e-6), encoder=encoder, decoder=decoder, head=LMHead(scale=0.25)
    )


def overflowing(gated: bool, activation: str, layers: int = 3) -> Transformer:
    """Weights with which hidden vectors and the residual stream leave the range of half precision."""
    model = randomise(Transformer(t5(gated, activation, layers)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ffn." in name:
                parameter.mul_(400 if "down" in name else 2000)
    return model.eval()


INPUTS = {"ids": tokens(2, 7), "mask": right_padded(7, 4, width=7), "target": tokens(2, 5, seed=1)}


def largest_inside(model: Transformer) -> dict[str, float]:
    """The largest number that each linear layer gives."""
    seen: dict[str, float] = {}
    for name, module in model.named_modules():
        if name.endswith((".up", ".gate", ".down")):
            module.register_forward_hook(
                lambda _, __, out, name=name: seen.__setitem__(name, float(out.detach().abs().max()))
            )
    with torch.no_grad():
        model(**INPUTS)
    return seen


@pytest.mark.parametrize(("gated", "activation"), [(False, "relu"), (True, "gelu_tanh"), (True, "silu")])
@pytest.mark.parametrize("path", PATHS)
def test_row_18_a_half_precision_encoder_decoder_stays_finite(gated, activation, path):
    assert max(largest_inside(overflowing(gated, activation)).values()) > 2 * LARGEST  # in float32 it does overflow
    model = overflowing(gated, activation).half()
    out = model(**INPUTS, path=path)
    assert out.dtype == torch.float16
    assert out.isfinite().all()
    assert out.float().std() > 1e-3
    memory = model.encode(INPUTS["ids"], INPUTS["mask"], path=path)
    assert memory.isfinite().all()


def compare_with_compiled() -> None:
    model = overflowing(gated=True, activation="gelu_tanh", layers=1).half()
    with torch.no_grad():
        out, expected = torch.compile(model, fullgraph=True, backend="aot_eager")(**INPUTS), model(**INPUTS)
    assert out.isfinite().all()
    assert largest_difference(out, expected) < 1e-2


@pytest.mark.slow
def test_row_18_the_cut_is_not_lost_when_the_model_is_compiled():
    """In a process of its own: the run-time shape checks of the other tests are Python that no compiler can trace."""
    code = "from tests.promises import test_half_precision as t; t.compare_with_compiled(); print('finite')"
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert result.stdout.strip() == "finite", result.stderr[-2000:]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_near_the_exact_answer(config, dtype):
    exact, model = built(config), built(config).to(dtype)
    given = {"ids": tokens(2, 7), "mask": right_padded(7, 4, width=7)}
    if exact.config.family == "encoder-decoder":
        given["target"] = tokens(2, 5, seed=1)
    with torch.no_grad():
        ours, theirs = model(**given), exact(**given)
    for half, whole in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, theirs)), strict=True):
        assert half.dtype == dtype
        if half.ndim == 3 and half.shape[1] == 7:
            half, whole = half[given["mask"]], whole[given["mask"]]
        bound = 60 * torch.finfo(dtype).eps * max(1.0, float(whole.abs().max()))
        assert largest_difference(half, whole) < bound


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_mean_of_many_tokens_is_not_lost(dtype):
    """A sum of 4,000 numbers overflows float16, and bfloat16 counts 256, 258, 260 …"""
    x = torch.full((2, 4003, 3), 30.0, dtype=dtype)
    real = right_padded(4001, 257, width=4003)
    assert torch.equal(pool(x, real, "mean"), x[:, 0])
    assert torch.equal(pool(x, None, "mean"), x[:, 0])
    ramp = (torch.arange(4003) % 256).to(dtype)[None, :, None].expand(2, -1, 3)
    for row in range(2):
        exact = ramp[row, real[row]].double().mean(0)
        assert largest_difference(pool(ramp, real, "mean")[row], exact) <= 128 * torch.finfo(dtype).eps
