"""The Triton kernels of a captured step equal their formulas: by Triton's interpreter, where Triton is installed."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from glassformer.nn.attention import scaled_dot_product_attention
from glassformer.nn.kernels import step_kernels
from glassformer.nn.rotary import RotaryAngles
from tests.helpers import largest_difference, relative_difference

normal = partial(torch.randn, dtype=torch.float32)  # the interpreter's products of bfloat16 are wrong


def test_they_are_not_chosen_on_a_cpu_nor_outside_captured_steps() -> None:
    x = torch.randn(1, 8)
    with torch.inference_mode(), step_kernels.activate(True):
        assert not step_kernels.enabled(x)
        assert not step_kernels.capturing(x)
        assert not step_kernels.use_matvec(x.bfloat16(), [x.bfloat16()])
    assert not step_kernels._THREAD.active


def test_only_gpus_that_have_a_type_run_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton refuses bfloat16 before capability 8.0 and e4m3 before 8.9; PyTorch computes both everywhere."""
    capability = [(9, 0)]
    monkeypatch.setattr(step_kernels, "HAS_TRITON", True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability[0])
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    with FakeTensorMode(), torch.inference_mode(), step_kernels.activate(True):
        vectors = {dtype: torch.empty(1, 8, dtype=dtype, device="cuda") for dtype in dtypes}
        small = torch.empty(8, 8, dtype=torch.float8_e4m3fn, device="cuda")
        for has, chosen, use_fp8 in (((9, 0), 3, True), ((8, 6), 3, False), ((7, 5), 2, False), ((6, 1), 0, False)):
            capability[0] = has
            assert [step_kernels.capturing(x) for x in vectors.values()] == [n < chosen for n in range(4)]
            assert step_kernels.use_matvec(vectors[torch.float16], [small]) == use_fp8


def test_products_whose_numbers_have_gaps_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes a bias and a scale of each row to lie one after the other."""
    monkeypatch.setattr(step_kernels, "enabled", lambda _: True)
    monkeypatch.setattr(step_kernels, "supports_dtype", lambda *_: True)
    make = partial(torch.zeros, dtype=torch.bfloat16)
    x, weights, plain = make(1, 8), [make(6, 8), make(4, 8)], [make(6), make(4)]
    for numbers in ([], plain):
        assert step_kernels.use_matvec(x, weights, numbers)
        assert step_kernels.use_matvec(x, weights, [], numbers)
    for numbers in ([make(6), make(4, 2)[:, 0]], [make(1), make(4)], [make(6), make(1).expand(4)]):
        assert not step_kernels.use_matvec(x, weights, numbers)
        assert not step_kernels.use_matvec(x, weights, plain, numbers)
    assert not step_kernels.use_matvec(x, [make(8, 6).t()])


def test_products_without_vectors_or_of_another_width_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would read beyond the end of a matrix that is too narrow, where PyTorch raises an error."""
    monkeypatch.setattr(step_kernels, "enabled", lambda _: True)
    monkeypatch.setattr(step_kernels, "supports_dtype", lambda *_: True)
    make = partial(torch.zeros, dtype=torch.bfloat16)
    assert step_kernels.use_matvec(make(4, 8), [make(6, 8)])
    assert not step_kernels.use_matvec(make(0, 8), [make(6, 8)])
    assert not step_kernels.use_matvec(make(4, 8), [make(6, 8), make(6, 7)])


def test_attention_with_dropout_or_a_mask_for_all_slots_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops nothing, and loads a value of the mask for every slot."""
    monkeypatch.setattr(step_kernels, "enabled", lambda _: True)
    q, k, mask = torch.zeros(2, 4, 1, 8), torch.zeros(2, 2, 5, 8), torch.zeros(2, 1, 1, 5)
    assert step_kernels.use_attend(q, k, k, mask, 0.0)
    assert not step_kernels.use_attend(q, k, k, mask, 0.1)
    assert not step_kernels.use_attend(q, k, k, mask[..., :1], 0.0)
    calls = []
    monkeypatch.setattr(step_kernels, "attend", lambda *_: calls.append(1) or q)
    for dropout in (0.0, 0.1):
        scaled_dot_product_attention(q, k, k, bias=mask, dropout=dropout)
    assert calls == [1]


def test_a_compiler_takes_the_type_of_a_gpu_as_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    def capability(_: torch.device) -> tuple[int, int]:
        subprocess.run(["true"], check=True)  # which no compiler traces
        return 8, 0

    monkeypatch.setattr("torch.cuda.get_device_capability", capability)

    def call(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if step_kernels.supports_dtype(x.device, torch.bfloat16) else x

    found = torch.compile(call, fullgraph=True, backend="eager")(torch.zeros(2))
    assert torch.equal(found, torch.ones(2))


@pytest.mark.skipif(not step_kernels.HAS_TRITON, reason="Triton is not installed")
def test_kernels_equal_formulas() -> None:
    """In a process of its own: the interpreter is chosen when Triton is imported."""
    code = "from tests.nn.kernels import test_step_kernels as tests; tests.all_kernels()"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})


def all_kernels() -> None:
    torch.manual_seed(0)
    for check in (products, attention, slots_of_a_cache, norms, rotations, vectors_with_gaps):
        check()


def products() -> None:
    from glassformer.nn.kernels import triton_programs as programs

    for d_in, rows in ((96, 1), (768, 3), (2048, 2), (5000, 1)):
        x, weights = normal(rows, 1, d_in), [normal(d_out, d_in) for d_out in (33, 7, 20)]
        biases = [normal(len(weight)) for weight in weights]
        together = torch.cat([F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)], -1)
        assert relative_difference(programs.matvec(x, weights, biases, []), together) < 1e-5
        assert relative_difference(programs.matvec(x, weights[:1], [], []), F.linear(x, weights[0])) < 1e-5
        values, scales = torch.randint(-127, 128, (33, d_in), dtype=torch.int8), torch.rand(33)
        product = F.linear(x, values.float()) * scales
        assert relative_difference(programs.matvec(x, [values], [], [scales]), product) < 1e-5
        small = normal(33, d_in).to(torch.float8_e4m3fn)
        product = F.linear(x, small.float()) * scales
        assert relative_difference(programs.matvec(x, [small], [], [scales]), product) < 1e-5


def attention() -> None:
    from glassformer.nn.kernels import triton_programs as programs

    for heads, groups, tokens, slots, width in ((4, 4, 1, 40, 16), (4, 2, 1, 300, 64), (6, 6, 4, 70, 20)):
        q = normal(3, tokens, heads, width).transpose(1, 2)
        k, v = normal(3, groups, slots, width), normal(3, groups, slots, width)
        full = [x.repeat_interleave(heads // groups, 1) for x in (k, v)]
        mask = torch.rand(3, 1, 1, slots) < 0.6
        mask[0, ..., : slots - 1] = False
        bias = normal(3, heads, 1, slots).masked_fill(~mask, -torch.inf)
        for hiding in (mask, bias):
            expected = F.scaled_dot_product_attention(q, *full, hiding, scale=0.3)
            assert largest_difference(programs.attend(q, k, v, hiding, 0.3), expected) < 1e-5
        assert not programs.attend(q, k, v, torch.zeros_like(mask), 0.3).any()


def slots_of_a_cache() -> None:
    from glassformer.nn.kernels import triton_programs as programs

    k, v = torch.zeros(2, 3, 9, 16), torch.zeros(2, 3, 9, 8)
    new_k, new_v = normal(2, 1, 3, 16).transpose(1, 2), normal(2, 1, 3, 8).transpose(1, 2)
    programs.write_slot(new_k, new_v, k, v, torch.tensor([4]))
    assert torch.equal(k[:, :, 4:5], new_k)
    assert torch.equal(v[:, :, 4:5], new_v)
    assert not k[:, :, [0, 3, 5, 8]].any()
    x, rows = normal(6, 2, 40, 5), torch.tensor([0, 0, 1, 5, 4, 3])
    moved = x.clone()
    programs.reorder([moved], rows, torch.tensor([33]), beams=3, since=8)
    expected = x.clone()
    expected[:, :, 8:33] = x[rows][:, :, 8:33]
    assert torch.equal(moved, expected)


def norms() -> None:
    from glassformer.nn.kernels import triton_programs as programs

    x, weight, bias = normal(5, 1, 100), normal(100), normal(100)
    assert (
        largest_difference(
            programs.normalise(x, weight, bias, 1e-5, centre=True), F.layer_norm(x, (100,), weight, bias, 1e-5)
        )
        < 1e-5
    )
    rms = F.rms_norm(x, (100,), weight, 1e-5)
    assert largest_difference(programs.normalise(x, weight, None, 1e-5, centre=False), rms) < 1e-5


def rotations() -> None:
    from glassformer.nn.kernels import triton_programs as programs

    for pairs in (8, 5):
        x, angles = normal(3, 1, 4, 16), normal(3, 1, 1, pairs)
        for halves, pairing in ((True, "halves"), (False, "interleaved")):
            expected = RotaryAngles(angles.cos(), angles.sin(), pairing).apply_rotary(x)  # type: ignore[arg-type]
            assert largest_difference(programs.rotate(x, angles.cos(), angles.sin(), halves=halves), expected) < 1e-5


def vectors_with_gaps() -> None:
    """As products of a matrix with an odd number of rows leave them."""
    from glassformer.nn.kernels import triton_programs as programs

    weight, bias = normal(16, 2)[:, 0], normal(16, 2)[:, 1]
    x = step_kernels.transposed_linear(normal(6, 1, 10), normal(16, 10), None)
    heads = x.view(6, 1, 2, 8)
    assert heads.stride(-1) != 1
    found = programs.normalise(x, weight, bias, 1e-5, centre=True)
    assert largest_difference(found, F.layer_norm(x, (16,), weight, bias, 1e-5)) < 1e-5
    angles = normal(4, 6).t().view(6, 1, 1, 4)
    expected = RotaryAngles(angles.cos(), angles.sin(), "halves").apply_rotary(heads)
    assert largest_difference(programs.rotate(heads, angles.cos(), angles.sin(), halves=True), expected) < 1e-5
    k, v = torch.zeros(6, 2, 3, 8), torch.zeros(6, 2, 3, 8)
    programs.write_slot(heads.transpose(1, 2), 2 * heads.transpose(1, 2), k, v, torch.tensor([1]))
    assert torch.equal(k[:, :, 1], heads[:, 0])
    assert torch.equal(v[:, :, 1], 2 * heads[:, 0])
