"""Weights as int8: what rounding may change, that the kernel computes the formula, and what is refused."""

import copy
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer import account, hub
from glassformer.config.options import Quantization
from glassformer.generation.api import generate
from glassformer.generation.settings import GenerationSettings
from glassformer.models.output_heads import Targets
from glassformer.models.quantize import is_quantized, quantize
from glassformer.models.transformer import Transformer
from glassformer.nn.kernels.operators import MAX_INT8_ROWS
from glassformer.nn.kernels.quantized import QuantizedLinear
from glassformer.nn.linear import Linear
from glassformer.training.adapters import add_adapters
from glassformer.weights.files import WeightsError
from tests.configs import CONFIGS
from tests.helpers import normal, randomise, relative_difference, types_unchecked

HALF = 2.0**-8  # bfloat16 rounds to 8 bits: vectors before the product, and their products


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (33, 64), (130, 48)])
def test_rounding_changes_a_weight_by_half_a_step_at_most(shape: tuple[int, int]) -> None:
    weight = normal(*shape, dtype=torch.float32)
    weight[0] = 0.0
    module = QuantizedLinear(weight)
    assert module.values.dtype == torch.int8
    assert int(module.values.abs().max()) <= 127
    step = weight.abs().amax(-1, keepdim=True) / 127
    assert bool(((module.weight - weight).abs() <= step * 0.5001).all())
    assert not module.weight[0].any()


def test_fp8_rounds_each_weight_by_a_sixteenth_at_most_and_survives_a_cast() -> None:
    weight = normal(33, 64, dtype=torch.float32)
    weight[0] = 0.0
    module = QuantizedLinear(weight, kind="fp8")
    assert module.values.dtype.itemsize == 1
    smallest = weight.abs().amax(-1, keepdim=True) / 448 * 2.0**-6  # below it, e4m3 has fewer bits
    error = (module.weight - weight).abs()
    assert bool((error <= (weight.abs() / 16 + smallest / 8) * 1.001).all())
    x = normal(3, 64, dtype=torch.float32)
    assert relative_difference(module(x), x @ module.weight.T) < 1e-5
    before = module.values.clone()
    assert torch.equal(module.half().values, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 3, MAX_INT8_ROWS, MAX_INT8_ROWS + 1, 70])
@pytest.mark.parametrize(("inner", "outer", "bias"), [(96, 80, False), (64, 37, True), (12, 5, True)])
def test_the_kernel_computes_the_formula(rows: int, dtype: torch.dtype, inner: int, outer: int, bias: bool) -> None:
    """Few rows of a width that is a multiple of 32 go through the kernel for int8, others through one for floats."""
    linear = Linear(inner, outer, dtype=dtype, bias=bias)
    randomise(linear)
    module, x = QuantizedLinear(linear.weight, linear.bias), normal(2, rows, inner, dtype=dtype)[:1]
    expected = x.double() @ module.weight.double().T
    expected = expected if linear.bias is None else expected + linear.bias.double()
    bound = 1e-5 if dtype != torch.bfloat16 else 4 * HALF
    assert relative_difference(module(x), expected) < bound  # the formula
    module.fused = True
    assert module(x).dtype == dtype
    assert relative_difference(module(x), expected) < max(bound, 4 * HALF)


@pytest.mark.parametrize("fused", [False, True])
def test_no_vectors_have_no_products(fused: bool) -> None:
    """The kernel for int8 refuses those with gaps, which ``contiguous`` leaves as they are."""
    module = QuantizedLinear(normal(8, 64), normal(8))
    module.fused = fused
    assert module(normal(2, 0, 64)).shape == (2, 0, 8)
    assert module(normal(0, 128)[:, ::2]).shape == (0, 8)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_large_activation_does_not_overflow_float16(kind: Quantization) -> None:
    module, x = QuantizedLinear(normal(8, 3072, dtype=torch.float32) * 0.02, kind=kind), normal(4, 3072).half()
    x[:, 7] = 600.0
    exact = x.double() @ module.weight.double().T
    for module.fused in (True, False):
        assert relative_difference(module.half()(x).double(), exact) < 2e-3


def test_gradients_of_vectors_and_autocast_do_not_depend_on_the_number_of_rows() -> None:
    module = QuantizedLinear(normal(8, 64, dtype=torch.float32))
    module.fused = True
    for rows in (2, MAX_INT8_ROWS + 4):
        x = normal(rows, 64, dtype=torch.float32).requires_grad_()
        module(x).sum().backward()
        assert x.grad is not None
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert module(x).dtype == torch.bfloat16
    assert module(normal(64, 4).bfloat16().T).shape == (4, 8)  # strided
    with pytest.raises(ValueError, match=r"QuantizedLinear\(64, 8\) needs vectors of width 64"):
        module(normal(2, 63, dtype=torch.float32))


def test_what_would_be_lost_is_refused() -> None:
    model = Transformer(CONFIGS["llama"]).eval()
    with pytest.raises(ValueError, match="row 1 of a"):
        QuantizedLinear(torch.tensor([[1.0], [torch.nan]]))
    adapted = copy.deepcopy(model)
    add_adapters(adapted)
    with pytest.raises(ValueError, match=r"decoder.blocks.0.attention.q is not a plain Linear.*AdaptedLinear.*Merge"):
        quantize(adapted)
    hooked = copy.deepcopy(model)
    hooked.get_submodule("head.out").register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"head.out is not a plain Linear"):
        quantize(hooked)
    quantize(model)
    assert not any(module.training for module in model.modules())
    with pytest.raises(ValueError, match="quantised already"):
        quantize(model, "fp8")


def test_a_quantised_head_has_a_loss_in_every_type() -> None:
    model = Transformer(CONFIGS["llama"]).eval()
    quantize(model)
    model.bfloat16()
    hidden = normal(1, 3, model.config.width).bfloat16()
    for model.fused in (True, False):
        assert model.token_loss(hidden, Targets(torch.tensor([[1, 2, 3]]))).total.isfinite()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_keeps_its_answers(name: str) -> None:
    """Against the same model with the rounded weights as floats: only the rounding of vectors is left."""
    facts = CONFIGS[name]
    torch.manual_seed(0)
    model, rounded = Transformer(facts).eval(), Transformer(facts).eval()
    rounded.load_state_dict(model.state_dict())
    for module in rounded.modules():
        if isinstance(module, Linear):
            module.weight.data = QuantizedLinear(module.weight).weight
    quantize(model)
    assert is_quantized(model)
    assert not any(isinstance(module, Linear) for module in model.modules())
    ids = torch.randint(1, facts.vocab, (2, 7), generator=torch.Generator().manual_seed(1))
    target = {"target": ids} if facts.family == "encoder-decoder" else {}
    with torch.no_grad():
        hidden = [each.encode(ids) if each.decoder is None else _decoded(each, ids) for each in (model, rounded)]
        assert relative_difference(*hidden) < 16 * HALF
        output = model(ids, **target)
    assert all(part.isfinite().all() for part in (output if isinstance(output, tuple) else (output,)))


def _decoded(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    return model.decode(ids, memory=None if model.encoder is None else model.encode(ids))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_steps_with_a_cache_are_the_full_pass(name: str) -> None:
    model = Transformer(CONFIGS[name]).eval()
    quantize(model)
    settings = GenerationSettings(max_new_tokens=6, top_alternatives=2)
    starts = {"start": [2]} if model.family == "encoder-decoder" else {}
    (together,), (alone,) = (
        [one[0] for one in generate(model, prompts, settings, **starts)][:1]
        for prompts in ([[5, 6, 7], [8, 9]], [[5, 6, 7]])
    )
    for a, b in zip(together.log_probs, alone.log_probs, strict=True):
        assert a == pytest.approx(b, abs=0.05)


def test_a_shipped_model_loads_as_int8_and_predicts_as_before(tmp_path: Path) -> None:
    loaded, plain = (glassformer.load("stories", **options) for options in ({"quantize": "int8"}, {}))
    text = ["Once upon a time, there was a little girl named Lily. She liked to play in the park."]
    (now,), (before,) = loaded.score(text), plain.score(text)
    assert now.total.perplexity == pytest.approx(before.total.perplexity, rel=0.05)
    held = sum(parameter.nbytes for parameter in loaded.model.decoder.parameters())
    assert held < 0.6 * sum(parameter.nbytes for parameter in plain.model.decoder.parameters())  # stored as bfloat16
    with pytest.raises(WeightsError, match="a quantised model cannot be saved; load it again without quantize"):
        loaded.save(tmp_path / "model")
    with types_unchecked(), pytest.raises(ValueError, match="quantize must be one of fp8, int8; got 'int3'"):
        hub.load("stories", quantize="int3")  # type: ignore[typeddict-item]


def test_the_account_counts_the_products_of_a_step() -> None:
    quantized, plain = (glassformer.load("stories", **options) for options in ({"quantize": "int8"}, {}))
    for mode in ("forward", "decode"):
        assert account(quantized, mode=mode, context=32).flops == account(plain, mode=mode, context=32).flops
