"""Formulas and kernels: two ways to the same numbers, and which of them a call takes."""

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import glassformer as gf
from glassformer.models.output_heads import LMHead
from glassformer.models.transformer import Transformer
from glassformer.nn.feedforward import ACTIVATIONS
from glassformer.nn.kernels import operators
from glassformer.nn.linear import linear, look_up
from glassformer.nn.norm import LayerNorm, layer_norm
from glassformer.training.block_calls import checkpoint_blocks
from tests.configs import CONFIGS
from tests.helpers import largest_difference, normal, randomise, relative_difference, types_unchecked
from tests.inspect.levels import peak

BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
each_type = pytest.mark.parametrize("dtype", BOUNDS, ids=str)


def both_ways(call, *inputs):
    """(Result and gradients by the kernel, the same by the formula)."""
    results = []
    for fused in (True, False):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        out = call(*leaves, fused=fused)
        out.backward(normal(*out.shape, seed=9).to(out))
        results.append([out, *(leaf.grad for leaf in leaves)])
    return results


def check_equal(call, *inputs, dtype):
    for kernel, formula in zip(*both_ways(call, *inputs), strict=True):
        assert kernel.dtype == formula.dtype
        assert relative_difference(kernel, formula) < BOUNDS[dtype]


# ---- the same numbers


@each_type
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype):
    def call(x, *, fused):
        return (operators.ACTIVATIONS if fused else ACTIVATIONS)[name](x)

    check_equal(call, normal(3, 50, dtype=dtype) * 3, dtype=dtype)


def test_every_activation_has_a_kernel():
    assert operators.ACTIVATIONS.keys() == ACTIVATIONS.keys()


@each_type
@pytest.mark.parametrize("bias", [True, False])
def test_linear_maps(bias, dtype):
    inputs = normal(2, 3, 8, dtype=dtype), normal(5, 8, seed=1, dtype=dtype), normal(5, seed=2, dtype=dtype)
    check_equal(lambda *x, fused: linear(*x, *(() if bias else (None,)), fused=fused), *inputs[: 2 + bias], dtype=dtype)


@pytest.fixture
def amd(monkeypatch):
    """As on an AMD processor with AVX-512, whose large products go to oneDNN; others compute the same more slowly."""
    if not torch._C._has_mkldnn:
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(operators, "CAPABILITY", "AVX512")
    monkeypatch.setattr(operators, "PREFERS_ONEDNN", True)


on_amd = pytest.mark.usefixtures("amd")


def test_only_processors_of_amd_prefer_onednn(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("processor : 0\nvendor_id : AuthenticAMD\n")
    assert "AuthenticAMD" in operators.processor_vendor(tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.processor", lambda: "Intel64 Family 6 Model 167 Stepping 1, GenuineIntel")
    assert operators.processor_vendor(tmp_path / "missing").endswith("GenuineIntel")
    if "AuthenticAMD" not in operators.processor_vendor():
        assert not operators.PREFERS_ONEDNN


@on_amd
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_products_without_gradients(seed, bias):
    """oneDNN's, for vectors and weights of any shape and order in memory, beside the product in float64."""
    draw = torch.Generator().manual_seed(seed)
    rows, inner = (int(torch.randint(1, 200, (), generator=draw)) for _ in range(2))
    x = normal(inner, 2, rows, seed=seed, dtype=torch.float32).movedim(0, -1)[:, :: 1 + seed % 2]  # strided
    outer = operators.MIN_ONEDNN_SIZE // x.numel() + int(torch.randint(1, 200, (), generator=draw))
    weight = normal(outer, inner, seed=seed + 1, dtype=torch.float32)
    weight = weight.t().contiguous().t() if seed % 3 == 0 else weight
    shift = normal(outer, seed=2, dtype=torch.float32) if bias else None
    with torch.inference_mode():
        assert operators.use_onednn(x, weight)
        ours = linear(x, weight, shift, fused=True)
        exact = linear(x.double(), weight.double(), None if shift is None else shift.double())
    assert ours.dtype == torch.float32
    assert ours.shape == (*x.shape[:-1], outer)
    assert relative_difference(ours.double(), exact) < BOUNDS[torch.float32]


@on_amd
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [None, 0, 1])
def test_gradients_of_products_of_many_rows(bias, frozen):
    """oneDNN's product and its gradients, beside those of the formula; what is frozen has none."""
    inputs = [normal(4, 96, 160), normal(200, 160, seed=1), *([normal(200, seed=2)] if bias else [])]
    inputs = [x.float().requires_grad_(number != frozen) for number, x in enumerate(inputs)]
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
    ours = operators.onednn_linear(*inputs[:2], inputs[2] if bias else None)
    reference = linear(*exact[:2], exact[2] if bias else None)
    grad = normal(*ours.shape, seed=3)
    ours.backward(grad.float())
    reference.backward(grad)
    assert "OneDNN" in type(ours.grad_fn).__name__
    for mine, other in zip(inputs, exact, strict=True):
        assert (mine.grad is None) == (other.grad is None) == (not other.requires_grad)
        if mine.grad is not None:
            assert relative_difference(mine.grad.double(), other.grad) < BOUNDS[torch.float32]


@on_amd
def test_nothing_is_kept_for_gradients_that_nobody_wants():
    x, weight, bias = normal(64, 6).float(), normal(5, 6).float(), normal(5).float()
    for needs, expected in (((1, 0, 0), 1), ((0, 1, 0), 1), ((0, 0, 1), 0), ((1, 1, 0), 2)):
        leaves = [leaf.clone().requires_grad_(bool(need)) for leaf, need in zip((x, weight, bias), needs, strict=True)]
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda saved: saved):
            operators.onednn_linear(*leaves)
        assert len(kept) == expected


@on_amd
@pytest.mark.parametrize("how", ["strided", "expanded", "scalar", "row"])
def test_a_bias_in_any_order_of_memory(how):
    x, weight, several = normal(256, 128).float(), normal(128, 128, seed=1).float(), normal(128, 3, seed=2).float()
    biases = {"strided": several[:, 1], "expanded": several[:1, 0].expand(128), "scalar": several[:1, 0]}
    bias = biases.get(how, several.T[:1])
    exact = x.double() @ weight.double().T + bias.double()
    for needs_grad in (True, False):
        with types_unchecked():  # which know one shape of a bias alone
            ours = linear(x.requires_grad_(needs_grad), weight, bias, fused=True)
        assert relative_difference(ours.double(), exact) < BOUNDS[torch.float32]


@on_amd
def test_products_of_onednn_have_gradients_of_gradients():
    x, weight = (normal(*shape).float().requires_grad_() for shape in ((64, 6), (5, 6)))
    (first,) = torch.autograd.grad(operators.onednn_linear(x, weight, None).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), weight)
    wide, matrix = (y.detach().double().requires_grad_() for y in (x, weight))
    (first,) = torch.autograd.grad(linear(wide, matrix, None).pow(3).sum(), wide, create_graph=True)
    (expected,) = torch.autograd.grad(first.pow(2).sum(), matrix)
    assert relative_difference(second.double(), expected) < BOUNDS[torch.float32]


@on_amd
def test_the_flops_of_a_backward_pass_alone_are_counted():
    x, weight = (normal(*shape).float().requires_grad_() for shape in ((256, 128), (128, 128)))
    y = linear(x, weight, None, fused=True)
    assert "OneDNN" in type(y.grad_fn).__name__
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 256 * 128 * 128


@on_amd
def test_large_products_are_trained_by_onednn_but_not_where_it_has_no_rule():
    x, weight = normal(256, 128, dtype=torch.float32).requires_grad_(), normal(128, 128, dtype=torch.float32)
    assert operators.use_onednn(x, weight)
    assert not operators.use_onednn(x[:128], weight)  # too small to pay for the Python around it
    expected = torch.autograd.grad(torch.nn.functional.linear(x, weight).sum(), x)[0]
    assert relative_difference(torch.func.grad(lambda y: linear(y, weight, None, fused=True).sum())(x), expected) < 1e-5
    with torch.autograd.forward_ad.dual_level():
        assert not operators.use_onednn(x, weight)


@on_amd
def test_only_large_plain_products_in_float32_go_to_onednn(monkeypatch):
    """Its operator has no gradient, autocast does not see it, and for small products it is slower."""
    x, weight = normal(64, 64, dtype=torch.float32), normal(128, 64, dtype=torch.float32).requires_grad_()
    linear(x, weight, None, fused=True).sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        assert operators.use_onednn(x, weight)
        assert not operators.use_onednn(x[1:], weight)
        assert not operators.use_onednn(x.double(), weight)
        assert not operators.use_onednn(x.bfloat16(), weight.bfloat16())
        assert not operators.use_onednn(x.to("meta"), weight)
        assert not operators.use_onednn(x, weight.detach().to_sparse_coo())
        assert not operators.use_onednn(x, weight, weight[:, 0])
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            assert not operators.use_onednn(fake.from_tensor(x), weight)
        with FlopCounterMode(display=False) as counter:
            linear(x, weight, None, fused=True)
        assert counter.get_total_flops() == 2 * 64 * 128 * 64
        with monkeypatch.context() as patch:
            patch.setattr(torch._C, "_get_mkldnn_enabled", lambda: False)  # torch.backends.mkldnn.enabled = False
            assert not operators.use_onednn(x, weight)
        with torch.autocast("cpu", torch.bfloat16):
            assert not operators.use_onednn(x, weight)
            assert linear(x, weight, None, fused=True).dtype == torch.bfloat16
    assert not operators.use_onednn(x, weight)  # with gradients, only larger ones


LARGE_PRODUCT = """
import torch
from glassformer.nn.kernels import operators
from glassformer.nn.linear import linear

operators.PREFERS_ONEDNN, operators.MAX_ONEDNN_ROWS = True, {operators.CAPABILITY: float("inf")}
x, weight = torch.randn(256, 128), torch.randn(256, 128, requires_grad=True)
compiled = torch.compile(lambda x: linear(x, weight, None, fused=True), fullgraph=True, backend="eager")
assert torch.allclose(compiled(x), x @ weight.T, atol=1e-4)
with torch.inference_mode():
    assert torch.allclose(compiled(x), x @ weight.T, atol=1e-4)
"""


def test_a_compiler_traces_large_products():
    """In a process of its own, without run-time shape checks; as on a processor that prefers oneDNN for them."""
    subprocess.run([sys.executable, "-c", LARGE_PRODUCT], check=True)


@on_amd
@pytest.mark.parametrize(("capability", "most"), operators.MAX_ONEDNN_ROWS.items())
def test_several_rows_go_to_onednn_only_where_it_is_faster(capability, most, monkeypatch):
    monkeypatch.setattr(operators, "CAPABILITY", capability)
    x, weight = normal(2, 1024, dtype=torch.float32), normal(1024, 1024, dtype=torch.float32)
    assert operators.use_onednn(x[:1], weight)
    assert operators.use_onednn(x, weight) == (most >= 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_narrows_linear_maps_either_way(dtype):
    inputs = (
        normal(2, 8, dtype=torch.float32),
        normal(5, 8, seed=1, dtype=torch.float32),
        normal(5, dtype=torch.float32),
    )
    with torch.autocast("cpu", dtype):
        check_equal(linear, *inputs, dtype=dtype)
        assert linear(*inputs, fused=True).dtype == dtype


@each_type
@pytest.mark.parametrize("weights", [None, torch.float32], ids=["same", "float32 weights"])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norms(bias, weights, dtype):
    if weights == torch.float32 and dtype == torch.float64:
        pytest.skip("the weights are then the coarser of the two")
    weight, shift = (normal(16, seed=seed, dtype=weights or dtype) for seed in (1, 2))

    def call(x, weight, shift=None, *, fused):
        return layer_norm(x, weight, shift, 1e-5, fused=fused)

    check_equal(call, normal(4, 16, dtype=dtype) * 2 + 1, *(weight, shift)[: 1 + bias], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_leaves_the_type_of_a_norm_alone(dtype):
    """PyTorch's own would give float32, and the stream behind it would be twice as wide."""
    layer, x = randomise(LayerNorm(16)), normal(4, 16, dtype=torch.float32)
    expected = layer(x)
    layer.fused = True
    with torch.autocast("cpu", dtype):
        assert layer(x.to(dtype)).dtype == dtype
        assert largest_difference(layer(x), expected) < 1e-6


MANY = 4096
narrow = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def sums_over_rows(call, *inputs, dtype):
    """The largest errors of gradients that are sums over many rows, beside those in float64."""
    results = []
    for kind in (dtype, torch.float64):
        leaves = [x.to(dtype).to(kind).requires_grad_() for x in inputs]
        out = call(*leaves)
        out.backward((normal(*out.shape, seed=9) + 0.5).to(dtype).to(kind))
        results.append([leaf.grad for leaf in leaves])
    return [relative_difference(ours.double(), exact) for ours, exact in zip(*results, strict=True)]


@narrow
@pytest.mark.parametrize("weights", [None, torch.float32], ids=["same", "float32 weights"])
def test_norms_add_their_gradients_up_in_float32(weights, dtype):
    def call(x, weight, shift):
        return layer_norm(x, *(each.to(weights or each.dtype) for each in (weight, shift)), 1e-5, fused=True)

    errors = sums_over_rows(call, normal(MANY, 16), normal(16, seed=1), normal(16, seed=2), dtype=dtype)
    assert max(errors) < BOUNDS[dtype]


@narrow
@pytest.mark.parametrize("wide", [False, True])
def test_a_bias_that_learns_alone_is_added_up_in_float32_too(wide, dtype):
    x, weight = normal(MANY, 16, dtype=dtype), normal(16, seed=1, dtype=dtype)
    bias = torch.zeros(16, dtype=torch.float32 if wide else dtype, requires_grad=True)
    layer_norm(x, weight, bias, 1e-5, fused=True).sum().backward()
    assert largest_difference(bias.grad.float(), torch.full((16,), float(MANY))) < MANY * BOUNDS[dtype]


@narrow
def test_tables_add_their_gradients_up_in_float32(dtype):
    ids = torch.arange(MANY) % 3
    (error,) = sums_over_rows(lambda table: look_up(table, ids, what="id", fused=True), normal(3, 16), dtype=dtype)
    assert error < BOUNDS[dtype]


@narrow
def test_a_bias_may_be_wider_than_its_weights(dtype):
    inputs = normal(2, 8, dtype=dtype), normal(5, 8, seed=1, dtype=dtype), normal(5, seed=2, dtype=torch.float32)
    check_equal(linear, *inputs, dtype=dtype)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("path", ["sdpa", "eager"])
@pytest.mark.parametrize("config", ["gpt2", "gptj", "llama"])
def test_autocast_narrows_what_a_model_says(config, path, fused):
    model = Transformer(CONFIGS[config])
    model.fused = fused
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.tensor([[5, 6, 7]]), path=path).dtype == torch.bfloat16


@pytest.mark.parametrize("config", CONFIGS)
def test_a_model_by_formula_equals_one_by_kernels(config):
    model = randomise(Transformer(CONFIGS[config], dtype=torch.float64)).eval()
    ids = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    kwargs = {"target": ids} if model.config.family == "encoder-decoder" else {}
    results = []
    for fused in (True, False):
        model.fused = fused
        results.append(model(ids, **kwargs))
    for kernel, formula in zip(*(part if isinstance(part, tuple) else (part,) for part in results), strict=True):
        assert relative_difference(kernel, formula) < 1e-12


# ---- which of the two is used


def kernels_called(monkeypatch, call):
    """How often ``call`` uses each kernel."""
    counts = dict.fromkeys(("layer_norm", "linear", "gelu", "embedding"), 0)
    with monkeypatch.context() as patch:
        for name in counts:
            plain = operators.ACTIVATIONS[name] if name == "gelu" else getattr(operators, name)

            def counted(*args, name=name, plain=plain, **kwargs):
                counts[name] += 1
                return plain(*args, **kwargs)

            if name == "gelu":
                patch.setitem(operators.ACTIVATIONS, name, counted)
            else:
                patch.setattr(operators, name, counted)
        call()
    return counts


def learn(model):
    """A forward and a backward pass."""
    ids = torch.tensor([[5, 6, 7]])
    kwargs = {"target": ids} if model.config.family == "encoder-decoder" else {}
    kwargs |= {"segments": torch.zeros_like(ids)} if model.config.embed.segments else {}
    output = model(ids, **kwargs)
    sum(part.sum() for part in (output if isinstance(output, tuple) else (output,))).backward()


@pytest.mark.parametrize("name", ["bert", "bart", "gpt2"])
def test_a_whole_model_follows_its_choice(name, monkeypatch):
    """Embeddings, every block, the last norm and the head, each once."""
    model = Transformer(CONFIGS[name])
    assert model.fused
    fast = kernels_called(monkeypatch, lambda: learn(model))
    parts = list(model.modules())
    tied = sum(isinstance(part, LMHead) and part.out is None for part in parts)
    assert fast["layer_norm"] == sum(isinstance(part, LayerNorm) for part in parts)
    assert fast["linear"] == sum(isinstance(part, gf.Linear) for part in parts) + tied
    assert fast["embedding"] == sum(isinstance(part, gf.Embedding) for part in parts) + (name == "bart")  # read twice
    model.fused = False
    assert not any(kernels_called(monkeypatch, lambda: learn(model)).values())


@pytest.mark.parametrize("fused", [True, False])
def test_every_method_of_a_model_follows_its_choice(fused, monkeypatch):
    model, ids = Transformer(CONFIGS["bart"]), torch.tensor([[5, 6, 7]])
    model.fused = fused
    memory = model.encode(ids)
    hidden = model.decode(ids, memory=memory)
    methods = {
        "encode": lambda: model.encode(ids),
        "decode": lambda: model.decode(ids, memory=memory),
        "output": lambda: model.apply_head(hidden),
    }
    for name, method in methods.items():
        assert any(kernels_called(monkeypatch, method).values()) == fused, name


@pytest.mark.parametrize("fused", [True, False])
def test_blocks_that_run_again_use_the_same_kernels(fused, monkeypatch):
    model = Transformer(CONFIGS["bert"])
    model.fused = fused
    once = kernels_called(monkeypatch, lambda: learn(model))
    checkpoint_blocks(model)
    again = kernels_called(monkeypatch, lambda: learn(model))
    blocks = sum(isinstance(part, LayerNorm) for part in model.encoder.blocks.modules())
    assert again["layer_norm"] == once["layer_norm"] + (blocks if fused else 0)


@pytest.mark.parametrize("path", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "made",
    [
        lambda: gf.MultiHeadAttention(8, 2),
        lambda: gf.EncoderLayer(8, 2, 16, activation="gelu"),
        lambda: gf.TransformerBlock(8, 2),
    ],
)
def test_parts_by_themselves_are_formulas(made, path, monkeypatch):
    x = normal(1, 3, 8, dtype=torch.float32)
    assert not any(kernels_called(monkeypatch, lambda: made()(x, path=path)).values())


def test_a_bias_per_head_reaches_a_fused_kernel():
    """With three axes PyTorch would write the scores down."""
    q, bias = normal(2, 3, 64, 16, dtype=torch.float32), normal(3, 64, 64, seed=1, dtype=torch.float32)
    with torch.profiler.profile() as seen:
        gf.scaled_dot_product_attention(q, q, q, bias=bias)
    assert any("flash_attention" in event.key for event in seen.key_averages())


@pytest.mark.parametrize("network", [gf.SwiGLU(8, 64), gf.FeedForward(8, 64, gated=True, activation="silu")])
def test_a_gate_is_freed_before_the_product(network):
    """Three hidden vectors at a time: activated gate, up and their product."""
    x = torch.ones(100, 8)
    with types_unchecked(), torch.no_grad():
        network(x)  # what the first call sets up is not counted
        assert peak(lambda: network(x)) == 4 * 100 * 3 * 64
