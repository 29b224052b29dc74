"""Cross-entropy of the vectors before the head: by the formula, and without holding all logits."""

import math
import subprocess
import sys

import pytest
import torch

from glassformer.inspect.account.trace import trace_module
from glassformer.models.output_heads import Targets
from glassformer.models.transformer import Transformer
from glassformer.nn.cross_entropy import IGNORE
from glassformer.nn.kernels import cross_entropy
from glassformer.nn.kernels.cross_entropy import linear_cross_entropy
from glassformer.training.adapters import add_adapters
from tests.configs import CONFIGS
from tests.helpers import normal, randomise, relative_difference, types_unchecked
from tests.inspect.levels import peak

BOUNDS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2}
each_type = pytest.mark.parametrize("dtype", BOUNDS, ids=str)
N, D, V = 11, 6, 17


def inputs(dtype=torch.float64, *, bias=True, count=N, ignored=(0, 4)):
    """Vectors, matrix, bias, labels."""
    labels = torch.randint(V, (count,), generator=torch.Generator().manual_seed(3))
    labels[[index for index in ignored if index < count]] = IGNORE
    leaves = [normal(count, D, dtype=dtype), normal(V, D, seed=1, dtype=dtype), normal(V, seed=2, dtype=dtype)]
    return *(leaf.requires_grad_() for leaf in leaves[:2]), leaves[2].requires_grad_() if bias else None, labels


def gradients(result, *leaves, factor=0.3):
    """Of the loss times a factor, as a mean over targets is."""
    return torch.autograd.grad(result.total * factor, [leaf for leaf in leaves if leaf is not None])


def check_equal(dtype, *leaves, labels, smoothing=0.0, chunk=None):
    """Compare loss, correct predictions and gradients with those of the formula in float64."""
    wide = [None if leaf is None else leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = linear_cross_entropy(*wide, labels, smoothing=smoothing)
    result = linear_cross_entropy(*leaves, labels, smoothing=smoothing, fused=True, chunk=chunk)
    assert result.total.dtype == torch.promote_types(dtype, torch.float32)
    assert relative_difference(result.total, expected.total) < BOUNDS[dtype]
    assert result.correct.dtype == torch.long
    assert int(result.correct) == int(linear_cross_entropy(*leaves, labels).correct)
    for ours, leaf, exact in zip(
        gradients(result, *leaves), filter(_is_given, leaves), gradients(expected, *wide), strict=True
    ):
        assert (ours.dtype, ours.shape) == (leaf.dtype, leaf.shape)
        assert relative_difference(ours, exact) < BOUNDS[dtype]


def _is_given(leaf):
    return leaf is not None


@each_type
@pytest.mark.parametrize("chunk", [None, 1, 4, 11, 50])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("bias", [True, False])
def test_numbers_and_gradients_are_those_of_the_formula(dtype, chunk, smoothing, bias):
    *leaves, labels = inputs(dtype, bias=bias)
    check_equal(dtype, *leaves, labels=labels, smoothing=smoothing, chunk=chunk)


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes(seed):
    generator = torch.Generator().manual_seed(seed)
    rows, length, width, vocab, chunk = (int(torch.randint(1, 40, (), generator=generator)) for _ in range(5))
    x, weight = normal(rows, length, width).requires_grad_(), normal(vocab, width, seed=1).requires_grad_()
    labels = torch.randint(vocab, (rows, length), generator=generator)
    labels[torch.rand(rows, length, generator=generator) < 0.3] = IGNORE
    check_equal(torch.float64, x, weight, None, labels=labels, smoothing=0.1 * (seed % 2), chunk=chunk)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_are_the_differences_of_the_loss(smoothing):
    *leaves, labels = inputs()
    assert torch.autograd.gradcheck(
        lambda *x: linear_cross_entropy(*x, labels, smoothing=smoothing, fused=True, chunk=3).total, leaves
    )


def test_ignored_positions_add_nothing_whatever_they_hold():
    x, weight, bias, labels = inputs()
    wild = x.detach().clone()
    wild[0], wild[4] = float("nan"), 1e300
    wild.requires_grad_()
    plain, ours = (linear_cross_entropy(v, weight, bias, labels, fused=True, chunk=4) for v in (x, wild))
    assert ours.total.item() == plain.total.item()
    for one, other in zip(gradients(ours, wild, weight, bias), gradients(plain, x, weight, bias), strict=True):
        assert torch.equal(one, other)
    labels = torch.full_like(labels, IGNORE)
    nothing = linear_cross_entropy(wild, weight, bias, labels, smoothing=0.1, fused=True)
    assert nothing.total.item() == 0.0
    assert all(not gradient.any() for gradient in gradients(nothing, wild, weight, bias))


@pytest.mark.parametrize("frozen", range(3))
def test_gradients_that_nobody_wants_are_not_computed(frozen):
    *leaves, labels = inputs()
    leaves[frozen].requires_grad_(False)
    result = linear_cross_entropy(*leaves, labels, fused=True, chunk=4)
    assert result.total.grad_fn.saved_tensors[frozen] is None
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    for ours, formula in zip(
        gradients(result, *wanted), gradients(linear_cross_entropy(*leaves, labels), *wanted), strict=True
    ):
        assert relative_difference(ours, formula) < 1e-13
    linear_cross_entropy(*leaves, labels, fused=True).total.backward()
    assert leaves[frozen].grad is None


def test_without_gradients_only_the_loss_is_computed_and_ties_are_not_right():
    x, weight = torch.zeros(2, 3), torch.zeros(5, 3)
    labels = torch.tensor([0, 4])
    with torch.no_grad():
        for fused in (True, False):
            assert int(linear_cross_entropy(x, weight, None, labels, fused=fused).correct) == 1  # argmax is 0
    assert int(linear_cross_entropy(x, weight.requires_grad_(), None, labels, fused=True).correct) == 2


def test_a_graph_that_is_kept_can_be_differentiated_again():
    *leaves, labels = inputs()
    total = linear_cross_entropy(*leaves, labels, fused=True, chunk=4).total
    first = torch.autograd.grad(total, leaves, retain_graph=True)
    copies = [gradient.clone() for gradient in first]
    again = torch.autograd.grad(3 * total, leaves)
    for one, copy, three in zip(first, copies, again, strict=True):
        assert torch.equal(one, copy)
        assert relative_difference(three, 3 * one) < 1e-14


@pytest.mark.parametrize("transform", [False, True])
def test_a_batch_of_factors_is_differentiated_at_once(transform):
    *leaves, labels = inputs()
    factors = torch.tensor([1.0, -0.5, 3.0], dtype=torch.float64)

    def batched(fused):
        total = linear_cross_entropy(*leaves, labels, fused=fused, chunk=4).total
        if transform:
            return torch.func.vmap(lambda factor: torch.autograd.grad(total, leaves, factor))(factors)
        return torch.autograd.grad(total, leaves, factors, is_grads_batched=True)

    for ours, formula in zip(batched(True), batched(False), strict=True):
        assert ours.shape == formula.shape
        assert relative_difference(ours, formula) < 1e-13


def test_gradients_of_gradients_are_refused():
    *leaves, labels = inputs()
    total = linear_cross_entropy(*leaves, labels, fused=True).total
    with pytest.raises(RuntimeError, match="no gradients of its gradients; set fused = False"):
        torch.autograd.grad(total, leaves[:1], create_graph=True)


def test_autocast_multiplies_in_half_precision_and_sums_gradients_in_float32():
    *leaves, labels = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        results = [linear_cross_entropy(*leaves, labels, fused=fused, chunk=4) for fused in (True, False)]
    assert all(result.total.dtype == torch.float32 for result in results)
    assert relative_difference(results[0].total, results[1].total) < 2e-2
    for ours, formula in zip(*(gradients(result, *leaves) for result in results), strict=True):
        assert ours.dtype == formula.dtype == torch.float32
        assert relative_difference(ours, formula) < 2e-2
    with torch.autocast("cpu", torch.float16), pytest.raises(ValueError, match="float16 needs fused=False"):
        linear_cross_entropy(*leaves, labels, fused=True)


def test_wrong_labels_and_options_are_refused():
    *leaves, labels = inputs()
    for wrong in (V, -1):
        labels[1] = wrong
        with pytest.raises(IndexError, match="out of bounds"):
            linear_cross_entropy(*leaves, labels, fused=True)
    with pytest.raises(ValueError, match="smoothing must be"):
        linear_cross_entropy(*leaves, labels, smoothing=1.0, fused=True)
    with pytest.raises(ValueError, match="chunk must be"):
        linear_cross_entropy(*leaves, labels, fused=True, chunk=0)


COMPILED = """
import torch
from glassformer.nn.kernels.cross_entropy import linear_cross_entropy
leaves = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((11, 6), (17, 6), (17,))]
labels = torch.randint(17, (11,))
labels[3] = -100
loss = lambda *x: linear_cross_entropy(*x, labels, smoothing=0.1, fused=True, chunk=4).total * 0.3
compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
gradients = [torch.autograd.grad(call(*leaves), leaves) for call in (compiled, loss)]
assert all(torch.allclose(one, other, rtol=1e-12) for one, other in zip(*gradients))
print("fine")
"""


@pytest.mark.slow
def test_compiled_it_is_one_graph():
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "fine", run.stderr[-2000:]


def test_all_logits_are_never_in_memory():
    x, weight = normal(512, 8, dtype=torch.float32).requires_grad_(), normal(1000, 8, dtype=torch.float32)
    labels, weight = torch.randint(1000, (512,)), weight.requires_grad_()
    with types_unchecked():
        plain = peak(lambda: linear_cross_entropy(x, weight, None, labels).total.backward())
        ours = peak(lambda: linear_cross_entropy(x, weight, None, labels, fused=True, chunk=32).total.backward())
    assert plain > 2 * 4 * 512 * 1000
    assert ours < 4 * 512 * 1000 // 4


# ---- of a model


@pytest.mark.parametrize("name", [name for name in CONFIGS if type(CONFIGS[name].head).__name__ == "LMHead"])
def test_the_loss_of_every_language_model_head(name):
    model = randomise(Transformer(CONFIGS[name])).double().train()
    hidden = normal(2, 5, model.config.width).requires_grad_()
    labels = torch.randint(model.config.vocab, (2, 5))
    expected = cross_entropy.token_cross_entropy(model.apply_head(hidden), labels, 0.1)
    assert model.fuses_loss(hidden)
    ours = model.token_loss(hidden, Targets(labels, 0.1, 3))
    assert relative_difference(ours.total, expected.total) < 1e-12
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    grads = [torch.autograd.grad(r.total, [hidden, *weights], allow_unused=True) for r in (ours, expected)]
    for one, other in zip(*grads, strict=True):
        assert (one is None) == (other is None)
        assert one is None or relative_difference(one, other) < 1e-11


@pytest.mark.parametrize("shape", [(0, D), (2, 0, D)])
def test_without_rows_gradients_are_zeros_as_those_of_the_formula(shape):
    _, weight, bias, _ = inputs()
    x, labels = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape[:-1], dtype=torch.long)
    for fused in (True, False):
        result = linear_cross_entropy(x, weight, bias, labels, fused=fused)
        assert not any(grad.any() for grad in torch.autograd.grad(result.total, (weight, bias)))


def test_transforms_of_torch_func_are_given_the_formula():
    x, weight, bias, labels = inputs()

    def loss(x, *, fused=True):
        return linear_cross_entropy(x, weight, bias, labels, fused=fused).total

    expected = torch.autograd.grad(loss(x, fused=False), x)[0]
    assert relative_difference(torch.func.grad(loss)(x), expected) < 1e-13
    assert torch.func.vmap(loss)(torch.stack([x, x])).shape == (2,)


def test_meta_tensors_have_a_loss():
    x, weight, bias, labels = (tensor.detach().to("meta") for tensor in inputs())
    assert linear_cross_entropy(x, weight, bias, labels, fused=True).total.is_meta


def test_a_chunk_in_half_precision_is_freed_before_the_next():
    x, weight = normal(512, 8, dtype=torch.bfloat16), normal(2000, 8, seed=1, dtype=torch.bfloat16)
    labels = torch.zeros(512, dtype=torch.long)

    def loss(rows):
        linear_cross_entropy(x[:rows], weight, None, labels[:rows], fused=True, chunk=128)

    assert peak(lambda: loss(512)) < 1.2 * peak(lambda: loss(128))


def test_a_head_that_runs_other_code_keeps_its_logits():
    model = randomise(Transformer(CONFIGS["llama"]))
    hidden, targets = normal(1, 3, model.config.width, dtype=torch.float32), Targets(torch.tensor([[1, 2, 3]]))
    model.head.out.forward = lambda x: x.new_zeros(*x.shape[:-1], model.config.vocab)
    assert not model.fuses_loss(hidden)
    assert float(model.token_loss(hidden, targets).total) == pytest.approx(3 * math.log(model.config.vocab))
    del model.head.out.forward
    assert model.fuses_loss(hidden)


def test_a_plain_attribute_chooses(monkeypatch):
    model, hidden = randomise(Transformer(CONFIGS["gpt2"])), normal(1, 3, CONFIGS["gpt2"].width, dtype=torch.float32)
    assert model.fuses_loss(hidden)
    with torch.autocast("cpu", torch.float16):
        assert not model.fuses_loss(hidden)
    handle = model.head.register_forward_hook(lambda *_: None)
    assert not model.fuses_loss(hidden)  # it must see the logits
    handle.remove()
    model.fused = False
    assert not model.fuses_loss(hidden)
    monkeypatch.setattr(cross_entropy, "_Sums", None)
    model.token_loss(hidden, Targets(torch.tensor([[1, 2, 3]]))).total.backward()  # by the formula


def test_an_adapter_on_the_head_keeps_the_logits_and_a_frozen_head_does_not():
    model = randomise(Transformer(CONFIGS["llama"]))
    hidden = normal(1, 3, model.config.width, dtype=torch.float32).requires_grad_()
    model.head.out.weight.requires_grad_(False)
    assert model.fuses_loss(hidden)
    model.token_loss(hidden, Targets(torch.tensor([[1, 2, 3]]))).total.backward()
    assert model.head.out.weight.grad is None
    assert hidden.grad.any()
    add_adapters(model, targets=["head.out"])
    assert not model.fuses_loss(hidden)


@pytest.mark.parametrize("kernels", ["gpu", "cpu"])
def test_an_account_counts_the_chunks_of_its_device(kernels):
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(5000, 2))

        def forward(self, x, labels):
            return linear_cross_entropy(x, self.weight, None, labels, fused=True).total

    values = torch.zeros(10_000, 2), torch.zeros(10_000, dtype=torch.long)
    ops = trace_module(Loss(), values, "train", kernels=kernels).recorder.ops
    chunks = [op.shape for op in ops if op.operator == "aten.log_softmax"]
    assert chunks == ([(10_000, 5000)] if kernels == "gpu" else [(3334, 5000), (3334, 5000), (3332, 5000)])
