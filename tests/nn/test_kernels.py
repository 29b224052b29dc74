"""Formulas and kernels: two ways to the same numbers, and which of them a call takes."""

import threading

import pytest
import torch
import torch.nn.functional as F

import glassformer as gf
from glassformer.models.transformer import Transformer
from glassformer.nn import kernels
from glassformer.nn.feedforward import ACTIVATIONS, activation_named
from glassformer.nn.kernels import along
from glassformer.nn.linear import linear
from glassformer.nn.norm import LayerNorm, layer_norm
from glassformer.train.memory import checkpoint_blocks
from tests.helpers import largest_difference, normal, randomise, relative_difference
from tests.pages import PAGES

BOUNDS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
each_type = pytest.mark.parametrize("dtype", BOUNDS, ids=str)


def both_ways(call, *given):
    """(Result and gradients by the kernel, the same by the formula)."""
    found = []
    for path in ("sdpa", "eager"):
        leaves = [x.detach().clone().requires_grad_() for x in given]
        with along(path):
            out = call(*leaves)
        out.backward(normal(*out.shape, seed=9).to(out))
        found.append([out, *(leaf.grad for leaf in leaves)])
    return found


def check_equal(call, *given, dtype):
    for kernel, formula in zip(*both_ways(call, *given), strict=True):
        assert kernel.dtype == formula.dtype
        assert relative_difference(kernel, formula) < BOUNDS[dtype]


# ---- the same numbers


@each_type
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype):
    check_equal(lambda x: activation_named(name)(x), normal(3, 50, dtype=dtype) * 3, dtype=dtype)


def test_every_activation_has_a_kernel():
    assert kernels.ACTIVATIONS.keys() == ACTIVATIONS.keys()


@each_type
@pytest.mark.parametrize("bias", [True, False])
def test_linear_maps(bias, dtype):
    given = normal(2, 3, 8, dtype=dtype), normal(5, 8, seed=1, dtype=dtype), normal(5, seed=2, dtype=dtype)
    check_equal(lambda *x: linear(*x, *(() if bias else (None,))), *given[: 2 + bias], dtype=dtype)


@each_type
@pytest.mark.parametrize("weights", [None, torch.float32], ids=["same", "float32 weights"])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norms(bias, weights, dtype):
    if weights == torch.float32 and dtype == torch.float64:
        pytest.skip("the weights are then the coarser of the two")
    weight, shift = (normal(16, seed=seed, dtype=weights or dtype) for seed in (1, 2))

    def call(x, weight, shift=None):
        return layer_norm(x, weight, shift, 1e-5)

    check_equal(call, normal(4, 16, dtype=dtype) * 2 + 1, *(weight, shift)[: 1 + bias], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_leaves_the_type_of_a_norm_alone(dtype):
    """PyTorch's own would give float32, and the stream behind it would be twice as wide."""
    layer, x = randomise(LayerNorm(16)), normal(4, 16, dtype=torch.float32)
    expected = layer(x)
    with torch.autocast("cpu", dtype), along("sdpa"):
        assert layer(x.to(dtype)).dtype == dtype
        assert largest_difference(layer(x), expected) < 1e-6


# ---- which way is taken


def kernels_called(monkeypatch, call):
    """How often ``call`` asks each kernel."""
    counts = dict.fromkeys(("layer_norm", "linear", "gelu"), 0)
    for name in counts:
        plain = getattr(F, name)

        def counted(*args, name=name, plain=plain, **kwargs):
            counts[name] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(F, name, counted)
    monkeypatch.setitem(kernels.ACTIVATIONS, "gelu", lambda x: F.gelu(x))
    call()
    return counts


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_a_whole_model_follows_its_path(name, monkeypatch):
    """Embeddings, blocks, the last norm and the head; on the way back too, where blocks run again."""
    model, ids = Transformer(PAGES[name]), torch.tensor([[5, 6, 7]])
    checkpoint_blocks(model)
    given = {"ids": ids} | ({"target": ids} if name == "bart" else {})

    def learn(path):
        answer = model(**given, path=path)
        sum(part.sum() for part in (answer if isinstance(answer, tuple) else (answer,))).backward()

    assert not any(kernels_called(monkeypatch, lambda: learn("eager")).values())
    fast = kernels_called(monkeypatch, lambda: learn("sdpa"))
    assert all(fast.values())


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


def test_the_last_word_counts_and_ends_with_its_block_even_after_an_error():
    def fail():
        with along("sdpa"):
            assert kernels.in_use()
            with along("eager"):
                assert not kernels.in_use()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not kernels.in_use()


def test_another_thread_is_not_concerned():
    seen = []
    with along("sdpa"):
        thread = threading.Thread(target=lambda: seen.append(kernels.in_use()))
        thread.start()
        thread.join()
    assert seen == [False]
