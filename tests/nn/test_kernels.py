"""Formulas and kernels: two ways to the same numbers, and which of them a call takes."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import glassformer as gf
from glassformer.config import change
from glassformer.models.heads import LMHead
from glassformer.models.transformer import Transformer
from glassformer.nn import kernels
from glassformer.nn.feedforward import ACTIVATIONS, activation_named
from glassformer.nn.kernels import along
from glassformer.nn.linear import linear, look_up
from glassformer.nn.norm import LayerNorm, layer_norm
from glassformer.train.memory import checkpoint_blocks
from tests.helpers import largest_difference, normal, randomise, relative_difference, types_unchecked
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_narrows_linear_maps_either_way(dtype):
    given = normal(2, 8, dtype=torch.float32), normal(5, 8, seed=1, dtype=torch.float32), normal(5, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        check_equal(lambda *x: linear(*x), *given, dtype=dtype)
        assert linear(*given).dtype == dtype


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


MANY = 4096
narrow = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def sums_over_rows(call, *given, dtype):
    """The largest errors of gradients that are sums over many rows, beside those in float64."""
    found = []
    for kind in (dtype, torch.float64):
        leaves = [x.to(dtype).to(kind).requires_grad_() for x in given]
        with along("sdpa"):
            out = call(*leaves)
        out.backward((normal(*out.shape, seed=9) + 0.5).to(dtype).to(kind))
        found.append([leaf.grad for leaf in leaves])
    return [relative_difference(ours.double(), exact) for ours, exact in zip(*found, strict=True)]


@narrow
@pytest.mark.parametrize("weights", [None, torch.float32], ids=["same", "float32 weights"])
def test_norms_add_their_gradients_up_in_float32(weights, dtype):
    def call(x, weight, shift):
        return layer_norm(x, *(each.to(weights or each.dtype) for each in (weight, shift)), 1e-5)

    errors = sums_over_rows(call, normal(MANY, 16), normal(16, seed=1), normal(16, seed=2), dtype=dtype)
    assert max(errors) < BOUNDS[dtype]


@narrow
@pytest.mark.parametrize("wide", [False, True])
def test_a_bias_that_learns_alone_is_added_up_in_float32_too(wide, dtype):
    x, weight = normal(MANY, 16, dtype=dtype), normal(16, seed=1, dtype=dtype)
    bias = torch.zeros(16, dtype=torch.float32 if wide else dtype, requires_grad=True)
    with along("sdpa"):
        layer_norm(x, weight, bias, 1e-5).sum().backward()
    assert largest_difference(bias.grad.float(), torch.full((16,), float(MANY))) < MANY * BOUNDS[dtype]


@narrow
def test_tables_add_their_gradients_up_in_float32(dtype):
    ids = torch.arange(MANY) % 3
    (error,) = sums_over_rows(lambda table: look_up(table, ids, what="id"), normal(3, 16), dtype=dtype)
    assert error < BOUNDS[dtype]


@narrow
def test_a_bias_may_be_wider_than_its_weights(dtype):
    given = normal(2, 8, dtype=dtype), normal(5, 8, seed=1, dtype=dtype), normal(5, seed=2, dtype=torch.float32)
    check_equal(lambda *x: linear(*x), *given, dtype=dtype)


@pytest.mark.parametrize("path", ["sdpa", "eager"])
@pytest.mark.parametrize("page", ["gpt2", "gptj", "llama"])
def test_autocast_narrows_what_a_model_says(page, path):
    with torch.autocast("cpu", torch.bfloat16):
        assert Transformer(PAGES[page])(torch.tensor([[5, 6, 7]]), path=path).dtype == torch.bfloat16


# ---- which way is taken


def kernels_called(monkeypatch, call):
    """How often ``call`` asks each kernel."""
    counts = dict.fromkeys(("layer_norm", "linear", "gelu", "embedding"), 0)
    with monkeypatch.context() as patch:
        for name in counts:
            plain = getattr(F, name)

            def counted(*args, name=name, plain=plain, **kwargs):
                counts[name] += 1
                return plain(*args, **kwargs)

            patch.setattr(F, name, counted)
        patch.setitem(kernels.ACTIVATIONS, "gelu", lambda x: F.gelu(x))
        call()
    return counts


def learn(model, path):
    """A step there and back."""
    ids = torch.tensor([[5, 6, 7]])
    given = {"target": ids} if model.config.family == "encoder-decoder" else {}
    given |= {"segments": torch.zeros_like(ids)} if model.config.embed.segments else {}
    answer = model(ids, path=path, **given)
    sum(part.sum() for part in (answer if isinstance(answer, tuple) else (answer,))).backward()


@pytest.mark.parametrize("name", ["bert", "bart", "gpt2"])
def test_a_whole_model_follows_its_path(name, monkeypatch):
    """Embeddings, every block, the last norm and the head, each once."""
    model = Transformer(PAGES[name])
    assert not any(kernels_called(monkeypatch, lambda: learn(model, "eager")).values())
    fast = kernels_called(monkeypatch, lambda: learn(model, "sdpa"))
    parts = list(model.modules())
    tied = sum(isinstance(part, LMHead) and part.out is None for part in parts)
    assert fast["layer_norm"] == sum(isinstance(part, LayerNorm) for part in parts)
    assert fast["linear"] == sum(isinstance(part, gf.Linear) for part in parts) + tied
    assert fast["embedding"] == sum(isinstance(part, gf.Embedding) for part in parts) + (name == "bart")  # read twice


@pytest.mark.parametrize("path", ["sdpa", "eager"])
def test_every_way_into_a_model_follows_its_path(path, monkeypatch):
    model, ids = Transformer(PAGES["bart"]), torch.tensor([[5, 6, 7]])
    memory = model.encode(ids)
    hidden = model.decode(ids, memory=memory)
    ways = {
        "encode": lambda: model.encode(ids, path=path),
        "decode": lambda: model.decode(ids, memory=memory, path=path),
        "answer": lambda: model.answer(hidden, path=path),
    }
    for name, way in ways.items():
        assert any(kernels_called(monkeypatch, way).values()) == (path == "sdpa"), name


def test_a_path_that_is_none_is_refused():
    with pytest.raises(ValueError, match="eagre"), types_unchecked():
        Transformer(PAGES["gpt2"]).answer(normal(1, 2, 16), path="eagre")


@pytest.mark.parametrize("path", ["sdpa", "eager"])
def test_blocks_that_run_again_go_the_same_way(path, monkeypatch):
    model = Transformer(PAGES["bert"])
    once = kernels_called(monkeypatch, lambda: learn(model, path))
    checkpoint_blocks(model)
    again = kernels_called(monkeypatch, lambda: learn(model, path))
    blocks = sum(isinstance(part, LayerNorm) for part in model.encoder.blocks.modules())
    assert again["layer_norm"] == once["layer_norm"] + (blocks if path == "sdpa" else 0)


@pytest.mark.parametrize("path", ["sdpa", "eager"])
@pytest.mark.parametrize("part", ["encoder", "encoder.blocks.0.ffn", "encoder.norm", "head", "embed"])
def test_parts_that_pytorch_runs_again_go_the_same_way(part, path):
    """With ``as_now``, whatever is in use around the way back."""
    model = randomise(Transformer(change(PAGES["bert"], "encoder.final_norm", True))).double()
    gradients = []
    for again in (False, True):
        if again:
            inner = model.get_submodule(part)
            plain = inner.forward
            inner.forward = lambda *args, plain=plain, **kwargs: checkpoint(
                plain, *args, use_reentrant=False, context_fn=kernels.as_now, **kwargs
            )
        model.zero_grad()
        with along("sdpa" if path == "eager" else "eager"):
            learn(model, path)
        gradients.append([weight.grad for weight in model.parameters() if weight.grad is not None])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


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
