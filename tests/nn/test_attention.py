"""Attention: the two paths mean the same, heads and groups, dropout, scale, modules, and errors."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import glassformer as gf
from glassformer import config
from glassformer.nn import masks
from glassformer.nn.masks import Mask
from glassformer.nn.multi_head import Attention
from tests.helpers import FLOATS, PATHS, largest_difference, normal, randomise, right_padded, types_unchecked

# Largest difference between the two paths on standard normal inputs.
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-2, torch.float16: 5e-3}

each_path = pytest.mark.parametrize("path", PATHS)
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def attend(q, k, v, mask=None, **options):
    return gf.scaled_dot_product_attention(q, k, v, mask, **options)


def inputs(leading, queries=6, keys=6, kv_heads=None, device="cpu", dtype=torch.float64):
    shared = leading if kv_heads is None else (*leading[:-1], kv_heads)
    return (
        normal(*leading, queries, 8, device=device, dtype=dtype),
        normal(*shared, keys, 8, seed=1, device=device, dtype=dtype),
        normal(*shared, keys, 5, seed=2, device=device, dtype=dtype),
    )


def make_mask(kind, leading, queries, keys, device):
    """A mask of each kind; those with a batch cover all axes but the heads, or all but the sequence."""
    batch = leading[:-1]
    real = (normal(*batch, keys, seed=3) < 0.7).to(device)
    real_queries = (normal(*batch, queries, seed=4) < 0.7).to(device)
    pairs = (normal(*leading, queries, keys, seed=5) < 0.5).to(device)
    return {
        "none": None,
        "causal": masks.causal(),
        "window": masks.window(2),
        "past window": masks.causal() & masks.window(3),
        "wide window": masks.causal() & masks.window(keys),
        "padding": masks.padding(real),
        "causal and padding": masks.causal() & masks.padding(real),
        "cross": masks.cross(real_queries, real),
        "pairs": Mask(pairs=pairs),
        "bare": pairs,
        "bare square": (normal(queries, keys, seed=6) < 0.5).to(device),
    }[kind]


KINDS = (
    "none",
    "causal",
    "window",
    "past window",
    "wide window",
    "padding",
    "causal and padding",
    "cross",
    "pairs",
    "bare",
    "bare square",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leading", [(), (2,), (2, 4), (3, 2, 4)], ids=lambda leading: f"{len(leading) + 2}axes")
def test_paths_agree(kind, leading, device):
    for queries, keys in ((6, 6), (3, 6), (6, 4)):
        q, k, v = inputs(leading, queries, keys, device=device)
        mask = make_mask(kind, leading, queries, keys, device)
        difference = largest_difference(attend(q, k, v, mask, path="eager"), attend(q, k, v, mask, path="sdpa"))
        assert difference < BOUNDS[torch.float64]


@each_dtype
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_paths_agree_on_grouped_heads_in_every_type(dtype, kind, kv_heads, device):
    q, k, v = inputs((2, 4), kv_heads=kv_heads, device=device, dtype=dtype)
    mask = make_mask(kind, (2, 4), 6, 6, device)
    eager, fused = attend(q, k, v, mask, path="eager"), attend(q, k, v, mask, path="sdpa")
    assert eager.dtype == fused.dtype == dtype
    assert largest_difference(eager, fused) < BOUNDS[dtype]


@each_path
@pytest.mark.parametrize("size", [1.0, 100.0], ids=["usual", "large"])
def test_half_precision_is_near_the_exact_result(path, size, device):
    """Large: q · k is beyond the largest half-precision number, q · k / √K is not."""
    q, k, v = (x.half() for x in inputs((2, 4), device=device))
    q, k = q * size, k * size
    largest = float((q.double() @ k.double().mT).abs().max())
    assert size == 1.0 or largest / math.sqrt(8) < torch.finfo(torch.half).max < largest
    exact = attend(q.double(), k.double(), v.double(), path=path)
    assert largest_difference(attend(q, k, v, path=path), exact) < 1e-2


@each_path
def test_batch_axes_of_size_one_serve_all(path, device):
    q, k, v = inputs((3, 2), device=device)
    shared = attend(q, k[:1], v[:1], masks.causal(), path=path)
    assert (
        largest_difference(shared, attend(q, k[:1].expand_as(k), v[:1].expand_as(v), masks.causal(), path=path)) < 1e-12
    )


@each_path
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["none", "causal"])
def test_nothing_in_nothing_out(path, batch, queries, keys, mask, device):
    """No batch rows, no queries, or no keys: an empty answer, or zeros as for any query with nothing to attend."""
    q, k, v = inputs((batch, 2), queries, keys, device=device)
    out = attend(q, k, v, mask, path=path)
    assert out.shape == (batch, 2, queries, 5)
    assert not out.any()


@each_path
def test_attention_is_a_soft_dictionary(path):
    """Weights of 0.6, 0.4 and 0 over the values 10, 5 and 2 look up 8."""
    query = torch.ones(1, 1, dtype=torch.float64)
    keys = torch.tensor([[math.log(0.6)], [math.log(0.4)], [-1e4]], dtype=torch.float64)
    values = torch.tensor([[10.0], [5.0], [2.0]], dtype=torch.float64)
    output = gf.scaled_dot_product_attention(query, keys, values, scale=1.0, path=path)
    assert output.item() == pytest.approx(8.0, abs=1e-12)


# ---- groups of heads


@each_path
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "pairs"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_key_head_serves_neighbouring_query_heads(path, kind, kv_heads, device):
    q, k, v = inputs((2, 4), kv_heads=kv_heads, device=device)
    mask = make_mask(kind, (2, 4), 6, 6, device)
    repeated = (x.repeat_interleave(4 // kv_heads, dim=1) for x in (k, v))
    assert largest_difference(attend(q, k, v, mask, path=path), attend(q, *repeated, mask, path=path)) < 1e-12


class LargestStorage(TorchDispatchMode):
    """Notes the largest storage behind any result; a view that repeats without copying stays small."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["none", "causal"])
def test_grouped_keys_are_not_copied_for_each_query_head(mask):
    batch, heads, kv_heads, queries, keys, width = 2, 8, 2, 3, 40, 16
    q = normal(batch, heads, queries, width)
    k, v = normal(batch, kv_heads, keys, width), normal(batch, kv_heads, keys, width, seed=1)
    largest_needed = max(q.numel(), k.numel(), batch * heads * queries * keys)  # queries, keys, scores
    assert largest_needed < batch * heads * keys * width  # what repeated keys would take
    with torch.no_grad(), LargestStorage() as seen:
        attend(q, k, v, mask, path="eager")
    assert 0 < seen.largest <= largest_needed


# ---- scale and dropout


@each_path
def test_scale(path, device):
    q, k, v = inputs((2, 3), device=device)
    assert largest_difference(attend(q, k, v, path=path), attend(q, k, v, scale=1 / math.sqrt(8), path=path)) < 1e-12
    assert (
        largest_difference(attend(q, k, v, scale=0.7, path=path), attend(0.7 * q, k, v, scale=1.0, path=path)) < 1e-12
    )
    mean = v.mean(-2, keepdim=True).expand(2, 3, 6, 5)
    assert largest_difference(attend(q, k, v, scale=0.0, path=path), mean) < 1e-12


@each_path
def test_dropout_zeroes_its_share_and_keeps_the_expectation(path, device):
    """Even weights over an identity of values: the output is the row of weights itself."""
    queries, keys, share = 2000, 50, 0.3
    zeros, identity = torch.zeros(queries, 8, device=device), torch.eye(keys, device=device)
    out = attend(zeros, zeros[:keys], identity, dropout=share, path=path)
    dropped = (out == 0).float().mean().item()
    assert dropped == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / out.numel()))
    assert out[out != 0].sub(1 / keys / (1 - share)).abs().max() < 1e-6
    assert out.sum(-1).mean().item() == pytest.approx(1.0, abs=0.01)


def test_returned_weights_are_those_before_dropout():
    q, k, v = inputs((2, 3))
    _, weights = attend(q, k, v, dropout=0.5, path="eager", return_weights=True)
    assert largest_difference(weights.sum(-1), torch.ones(2, 3, 6)) < 1e-12


@each_path
def test_module_drops_only_while_training(path, device):
    attention = gf.MultiHeadAttention(8, 2, dropout=0.5, device=device)
    plain = gf.MultiHeadAttention(8, 2, device=device)
    plain.load_state_dict(attention.state_dict())
    x = normal(2, 5, 8, dtype=torch.float32, device=device)
    assert not torch.equal(attention(x, path=path), attention(x, path=path))
    assert torch.equal(attention.eval()(x, path=path), plain(x, path=path))


# ---- modules


@each_path
@pytest.mark.parametrize("has_key", [True, False])
def test_a_single_head(path, has_key):
    head = randomise(gf.AttentionHead(6, 4)).double()
    x, memory = normal(2, 3, 6), normal(2, 5, 6, seed=1) if has_key else normal(2, 3, 6)
    mask = masks.padding(right_padded(2, 3, width=memory.shape[1]))
    expected = attend(head.q(x), head.k(memory), head.v(memory), mask, path=path)
    assert largest_difference(head(x, memory if has_key else None, mask=mask, path=path), expected) == 0


@each_path
def test_heads_side_by_side_equal_multi_head_attention(path):
    width, heads = 16, 4
    attention = randomise(gf.MultiHeadAttention(width, heads)).double()
    size, outputs = width // heads, []
    x = normal(2, 5, width)
    for h in range(heads):
        head = gf.AttentionHead(width, size, dtype=torch.float64)
        rows = slice(h * size, (h + 1) * size)
        head.load_state_dict(
            {
                f"{name}.{kind}": getattr(getattr(attention, name), kind)[rows]
                for name in "qkv"
                for kind in ("weight", "bias")
            }
        )
        outputs.append(head(x, path=path))
    assert largest_difference(attention.o(torch.cat(outputs, dim=-1)), attention(x, path=path)) < 1e-12


@each_path
@pytest.mark.parametrize("kind", ["pairs", "padding", "causal"])
def test_a_single_head_equals_multi_head_attention_with_one(path, kind):
    """With the identity as output projection; rows of the batch must not be taken for heads."""
    head, many = randomise(gf.AttentionHead(6, 6)).double(), gf.MultiHeadAttention(6, 1).double()
    identity = {"o.weight": torch.eye(6), "o.bias": torch.zeros(6)}
    many.load_state_dict(head.state_dict() | identity)
    x, memory, real = normal(4, 3, 6), normal(4, 5, 6, seed=1), right_padded(5, 2, 1, 4, width=5)
    mask = {"pairs": normal(4, 3, 5, seed=2) < 0.5, "padding": masks.padding(real), "causal": masks.causal()}[kind]
    assert largest_difference(head(x, memory, mask=mask, path=path), many(x, memory, mask=mask, path=path)) < 1e-12


def test_a_single_head_returns_a_matrix_of_weights():
    head, x = randomise(gf.AttentionHead(6, 4)).double(), normal(2, 3, 6)
    memory, mask = normal(2, 5, 6, seed=1), masks.padding(right_padded(2, 5, width=5))
    out, weights = head(x, memory, mask=mask, path="eager", return_weights=True)
    assert weights.shape == (2, 3, 5)
    assert largest_difference(weights @ head.v(memory), out) < 1e-12
    assert not weights[0, :, 2:].any()
    assert head(x[0], memory[0], path="eager", return_weights=True)[1].shape == (3, 5)


@each_path
def test_value_input_of_its_own(path):
    attention = randomise(gf.MultiHeadAttention(8, 2)).double()
    x, memory, value = normal(2, 3, 8), normal(2, 5, 8, seed=1), normal(2, 5, 8, seed=2)
    assert largest_difference(attention(x, memory, path=path), attention(x, memory, memory, path=path)) == 0
    assert largest_difference(attention(x, memory, path=path), attention(x, memory, value, path=path)) > 1e-3


@each_path
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("cross", [False, True])
def test_queries_and_keys_are_normalised_head_by_head_before_rotary_positions(path, kind, cross):
    """Head by head with a loop; two query heads share each key head, and heads are not width / heads wide."""
    norm = config.Norm(kind=kind, eps=0.1)
    facts = config.Attention(heads=4, kv_heads=2, head_dim=6, biases="qkv", qk_norm=norm)
    module = randomise(Attention(facts, 8, dtype=torch.float64))
    x = normal(2, 5, 8)
    memory = normal(2, 3, 8, seed=1) if cross else x
    module.rope = None if cross else gf.RotaryPositionalEmbedding(100.0, 6, 16)
    turn = (lambda y: y) if cross else lambda y: module.rope(y, torch.arange(5))
    rows = []
    for head in range(4):
        of_query, of_key = slice(6 * head, 6 * head + 6), slice(6 * (head // 2), 6 * (head // 2) + 6)
        q = turn(module.q_norm(module.q(x)[..., of_query]))
        k = turn(module.k_norm(module.k(memory)[..., of_key]))
        rows.append(attend(q, k, module.v(memory)[..., of_key], path="eager"))
    assert largest_difference(module(x, memory if cross else None, path=path), module.o(torch.cat(rows, -1))) < 1e-12


def test_norms_of_queries_and_keys_start_at_one_in_the_dtype_and_device_of_the_rest():
    facts = config.Attention(heads=2, head_dim=6, qk_norm=config.Norm(bias=True))
    module = Attention(facts, 8, dtype=torch.float64)
    for norm in (module.q_norm, module.k_norm):
        assert torch.equal(norm.weight, torch.ones(6, dtype=torch.float64))
        assert torch.equal(norm.bias, torch.zeros(6, dtype=torch.float64))
    assert {p.device.type for p in Attention(facts, 8, "meta").parameters()} == {"meta"}


def test_module_masks_in_every_shape_mean_the_same():
    attention = randomise(gf.MultiHeadAttention(8, 2)).double()
    x, square = normal(3, 5, 8), torch.ones(5, 5, dtype=torch.bool).tril()
    expected = attention(x, mask=masks.causal())
    for mask in (square, square.expand(3, 5, 5), square.expand(3, 2, 5, 5), Mask(pairs=square)):
        assert largest_difference(attention(x, mask=mask), expected) < 1e-12


def test_module_without_batch_axis():
    attention = randomise(gf.MultiHeadAttention(8, 2)).double()
    x = normal(3, 5, 8)
    out, weights = attention(x[0], mask=masks.causal(), path="eager", return_weights=True)
    assert largest_difference(out, attention(x, mask=masks.causal())[0]) < 1e-12
    assert weights.shape == (2, 5, 5)


def test_causal_module_equals_the_general_one():
    rope = gf.RotaryPositionalEmbedding(100.0, 4, 16)
    causal = randomise(gf.CausalMultiHeadSelfAttention(8, 2, rope=rope)).double()
    general = gf.MultiHeadAttention(8, 2, bias=False, rope=rope).double()
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "output_proj": "o"}
    general.load_state_dict({f"{names[name.split('.')[0]]}.weight": w for name, w in causal.state_dict().items()})
    x, positions = normal(2, 5, 8), torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 15]])
    expected = general(x, mask=masks.causal(), token_positions=positions)
    assert largest_difference(causal(x, positions), expected) < 1e-12


# ---- errors


@pytest.mark.parametrize(
    ("q", "k", "v", "says"),
    [
        ((2, 3, 4), (3, 4), (3, 4), "same number of axes"),
        ((3, 4), (5, 6), (5, 6), "same width"),
        ((3, 4), (5, 4), (6, 4), "k and v must have the same length"),
        ((4, 3, 4), (3, 5, 4), (3, 5, 4), "divide the query heads"),
        ((4, 3, 4), (2, 5, 4), (4, 5, 4), "same number"),
    ],
)
def test_shapes_that_do_not_fit_are_named(q, k, v, says):
    shapes = rf"{says}.*q \({q[0]}, .*k \({k[0]}, .*v \({v[0]}, "
    with types_unchecked(), pytest.raises(ValueError, match=shapes):
        attend(normal(*q), normal(*k), normal(*v))


def test_unknown_path():
    with types_unchecked(), pytest.raises(ValueError, match=r"eager, sdpa; got 'eagre'. Did you mean 'eager'\?"):
        attend(*inputs(()), path="eagre")


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_out_of_range(dropout):
    with pytest.raises(ValueError, match=f"dropout must be .*{dropout}"):
        attend(*inputs(()), dropout=dropout)


def test_module_errors():
    with pytest.raises(ValueError, match=r"num_heads=3 does not divide embed_dim=8; .* 2, 4"):
        gf.MultiHeadAttention(8, 3)
    with pytest.raises(ValueError, match="kv_heads=3 does not divide num_heads=4"):
        gf.MultiHeadAttention(8, 4, kv_heads=3)
    with pytest.raises(ValueError, match="got value without key"):
        gf.MultiHeadAttention(8, 2)(normal(3, 8), value=normal(3, 8))
    rope = gf.RotaryPositionalEmbedding(100.0, 4, 16)
    with pytest.raises(ValueError, match="cross-attention is built without rope"):
        gf.MultiHeadAttention(8, 2, rope=rope)(normal(3, 8), normal(3, 8))
    with pytest.raises(ValueError, match="max_seq_len and theta together"):
        gf.CausalMultiHeadSelfAttention(8, 2, max_seq_len=16)
    with pytest.raises(ValueError, match="either rope, or max_seq_len"):
        gf.CausalMultiHeadSelfAttention(8, 2, 16, 100.0, rope=rope)


def fours_against_twos(kind):
    """A call of each kind with four rows of queries and two of keys."""
    x, memory = normal(4, 3, 8, dtype=torch.float32), normal(2, 5, 8, dtype=torch.float32)
    return {
        "attention": lambda: attend(normal(4, 2, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8)),
        "head": lambda: gf.AttentionHead(8, 8)(x, memory),
        "heads": lambda: gf.MultiHeadAttention(8, 2)(x, memory),
        "padded heads": lambda: gf.MultiHeadAttention(8, 2)(
            x, memory, mask=masks.padding(torch.ones(2, 5, dtype=torch.bool))
        ),
        "decoder layer": lambda: gf.DecoderLayer(8, 2, 12)(x, memory),
    }[kind]


@pytest.mark.parametrize("kind", ["attention", "head", "heads", "padded heads", "decoder layer"])
def test_batches_that_do_not_fit_are_named(kind):
    """Rows of a batch are never taken for a group of heads, and never repeated."""
    with types_unchecked(), pytest.raises(ValueError, match=r"(?s)\(4, .*\(2, "):
        fours_against_twos(kind)()


@pytest.mark.parametrize("call", [attend, lambda *x: gf.MultiHeadAttention(8, 2, dtype=torch.float64)(*x)])
def test_a_mask_of_another_library_is_named(call):
    x = normal(3, 8)
    with types_unchecked(), pytest.raises(TypeError, match="ndarray"):
        call(x, x, x, np.ones((3, 3), dtype=bool))


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_a_bare_mask_with_one_axis_is_too_short_and_not_ambiguous(axes):
    x = normal(*(2, 2)[: axes - 2], 3, 8)
    with types_unchecked(), pytest.raises(ValueError, match=r"\(3,\)") as error:
        attend(x, x, x, torch.ones(3, dtype=torch.bool))
    assert "two ways" not in str(error.value)


def test_whole_numbers_have_no_softmax():
    with types_unchecked(), pytest.raises(TypeError, match="floating-point"):
        gf.softmax(torch.arange(3), -1)
