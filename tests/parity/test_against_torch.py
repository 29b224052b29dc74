"""Every block against its counterpart in PyTorch: outputs, gradients of the inputs, gradients of the parameters.

The reference always computes in float64. For a narrower type the weights and inputs are rounded to it first, so that
the difference is the rounding of our own arithmetic.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import glassformer as gf
from glassformer.nn import masks
from glassformer.nn.feedforward import ACTIVATIONS, relu
from tests.helpers import PATHS, normal, randomise, relative_difference, right_padded

# Largest difference allowed, in units of the largest reference value (or of 1): outputs, gradients.
BOUNDS = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (1e-5, 2e-5),
    torch.bfloat16: (3e-2, 1e-1),
}

each_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: str(dtype).removeprefix("torch."))
each_path = pytest.mark.parametrize("path", PATHS)
with_and_without_bias = pytest.mark.parametrize("bias", [True, False])

Named = dict[str, Tensor]
Run = Callable[..., Tensor]
Bounds = dict[torch.dtype, tuple[float, float]]


def plain_call(module: nn.Module, *inputs: Tensor) -> Tensor:
    return module(*inputs)


def same_names(tensors: Named) -> Named:
    return tensors


def rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two leaves of the same value: ours in ``dtype``, the reference's in float64."""
    if not x.is_floating_point():
        return x, x
    ours = x.detach().to(dtype, copy=True)
    return ours.requires_grad_(), ours.detach().to(torch.float64, copy=True).requires_grad_()


def check_functions(
    ours: Run,
    reference: Run,
    inputs: Sequence[Tensor],
    dtype: torch.dtype,
    keep: Tensor | None = None,
    bounds: Bounds = BOUNDS,
):
    """Compare outputs and input gradients; ``keep`` is True at the outputs that count."""
    mine, theirs = zip(*(rounded(x, dtype) for x in inputs), strict=True)
    out, expected = ours(*mine), reference(*theirs)
    assert out.dtype == dtype
    keep = torch.ones_like(expected, dtype=torch.bool) if keep is None else keep.expand_as(expected)
    forward, backward = bounds[dtype]
    assert relative_difference(out[keep], expected[keep]) < forward

    upstream, upstream_reference = (g.detach() for g in rounded(normal(*expected.shape, seed=99) * keep, dtype))
    out.backward(upstream)
    expected.backward(upstream_reference)
    for a, b in zip(mine, theirs, strict=True):
        if b.requires_grad:
            assert relative_difference(a.grad, b.grad) < backward


def check_modules(
    ours: nn.Module,
    reference: nn.Module,
    inputs: Sequence[Tensor],
    dtype: torch.dtype,
    *,
    names: Callable[[Named], Named] = same_names,
    run: Run = plain_call,
    run_reference: Run = plain_call,
    keep: Tensor | None = None,
    bounds: Bounds = BOUNDS,
):
    """The same for modules; ``names`` turns the reference's parameters, or their gradients, into ours."""
    reference = randomise(reference).to(dtype).double()  # rounded to dtype, kept in float64
    weights = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}
    ours = ours.to(dtype)
    ours.load_state_dict(names(weights))
    check_functions(lambda *x: run(ours, *x), lambda *x: run_reference(reference, *x), inputs, dtype, keep, bounds)
    expected = names({name: parameter.grad for name, parameter in reference.named_parameters()})
    for name, parameter in ours.named_parameters():
        assert relative_difference(parameter.grad, expected[name]) < bounds[dtype][1], name


# ---- small parts


@each_dtype
@with_and_without_bias
def test_linear(dtype, bias):
    check_modules(gf.Linear(7, 5, bias=bias), nn.Linear(7, 5, bias=bias), [normal(2, 3, 7)], dtype)


@each_dtype
def test_embedding(dtype):
    ids = torch.tensor([[0, 3, 3], [9, 0, 3]])
    check_modules(gf.Embedding(10, 4), nn.Embedding(10, 4), [ids], dtype)


@each_dtype
@pytest.mark.parametrize("eps", [1e-5, 1e-3])
@pytest.mark.parametrize("size", [1.0, 1e-4], ids=["usual", "tiny"])
def test_rms_norm(dtype, eps, size):
    check_modules(gf.RMSNorm(12, eps), nn.RMSNorm(12, eps), [normal(2, 3, 12) * size], dtype)


@each_dtype
@with_and_without_bias
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-3])
@pytest.mark.parametrize("size", [1.0, 1e-4], ids=["usual", "tiny"])
def test_layer_norm(dtype, bias, eps, size):
    ours, reference = gf.LayerNorm(12, eps, bias), nn.LayerNorm(12, eps, bias=bias)
    check_modules(ours, reference, [normal(2, 3, 12) * size], dtype)


def test_layer_norm_of_a_small_variance_on_a_large_mean():
    x = normal(2, 3, 12) * 1e-2 + 1e3
    check_functions(gf.LayerNorm(12).double(), nn.LayerNorm(12).double(), [x], torch.float64)


@each_dtype
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_softmax(dtype, dim, size):
    check_functions(lambda x: gf.softmax(x, dim), lambda x: F.softmax(x, dim), [normal(3, 4, 5) * size], dtype)


FUNCTIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": F.tanh,
}


@each_dtype
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [1.0, 20.0])
def test_activation(dtype, name, size):
    assert FUNCTIONS.keys() == ACTIVATIONS.keys()
    check_functions(ACTIVATIONS[name], FUNCTIONS[name], [normal(300) * size], dtype)


def test_public_names_are_the_same_functions():
    assert (gf.gelu, gf.silu, relu) == (ACTIVATIONS["gelu"], ACTIVATIONS["silu"], ACTIVATIONS["relu"])


# ---- feed-forward networks


class FeedForwardReference(nn.Module):
    def __init__(self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor], gated: bool, bias: bool):
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


@each_dtype
@with_and_without_bias
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_feed_forward(dtype, bias, gated, activation):
    ours = gf.FeedForward(6, 10, activation=activation, gated=gated, bias=bias)
    reference = FeedForwardReference(6, 10, FUNCTIONS[activation], gated, bias)
    check_modules(ours, reference, [normal(2, 3, 6)], dtype)


@each_dtype
def test_swiglu(dtype):
    def names(tensors: Named) -> Named:
        return {f"{to}.weight": tensors[f"{at}.weight"] for to, at in (("w1", "gate"), ("w2", "down"), ("w3", "up"))}

    reference = FeedForwardReference(6, 10, F.silu, gated=True, bias=False)
    check_modules(gf.SwiGLU(6, 10), reference, [normal(2, 3, 6)], dtype, names=names)


# ---- attention


@each_dtype
@each_path
@pytest.mark.parametrize("axes", [2, 3, 4, 5])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_scaled_dot_product_attention(dtype, path, axes, masked, scale):
    leading = (2, 3, 2)[: axes - 2]
    q, k, v = normal(*leading, 4, 6), normal(*leading, 5, 6, seed=1), normal(*leading, 5, 7, seed=2)
    mask = None
    if masked:
        mask = normal(*leading, 4, 5, seed=3) < 0.5
        mask[..., 0] = True  # the reference has no answer for a query that sees nothing

    def ours(q, k, v):
        return gf.scaled_dot_product_attention(q, k, v, mask, scale=scale, path=path)

    check_functions(ours, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, scale=scale), [q, k, v], dtype)


@each_dtype
@each_path
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_grouped_query_heads(dtype, path, leading, kv_heads):
    q = normal(*leading, 6, 4, 8)
    k, v = normal(*leading, kv_heads, 5, 8, seed=1), normal(*leading, kv_heads, 5, 3, seed=2)
    mask = torch.ones(4, 5, dtype=torch.bool).tril(1)

    def reference(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    check_functions(
        lambda q, k, v: gf.scaled_dot_product_attention(q, k, v, mask, path=path), reference, [q, k, v], dtype
    )


WIDTH, HEADS, HIDDEN = 12, 3, 20
REAL = right_padded(5, 3, width=5)  # two sequences of five slots, the second with two pads
REAL_MEMORY = right_padded(2, 4, width=4)
BLOCKED = (normal(5, 4, seed=7) > 0.8).index_fill(1, torch.tensor([0]), False)  # PyTorch's way: True is blocked


def attention_names(tensors: Named, source: str = "", to: str = "") -> Named:
    """PyTorch packs the three input projections into one matrix."""
    renamed: Named = {}
    for kind in ("weight", "bias"):
        parts = tensors[f"{source}in_proj_{kind}"].chunk(3)
        renamed |= {f"{to}{name}.{kind}": part for name, part in zip("qkv", parts, strict=True)}
        renamed[f"{to}o.{kind}"] = tensors[f"{source}out_proj.{kind}"]
    return renamed


@each_dtype
@each_path
def test_self_attention(dtype, path):
    check_modules(
        gf.MultiHeadAttention(WIDTH, HEADS),
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        [normal(2, 5, WIDTH)],
        dtype,
        names=attention_names,
        run=lambda module, x: module(x, path=path),
        run_reference=lambda module, x: module(x, x, x, need_weights=False)[0],
    )


@each_dtype
@each_path
@pytest.mark.parametrize("kind", ["nothing", "pairs", "padding", "both"])
def test_cross_attention(dtype, path, kind):
    blocked = BLOCKED if kind in ("pairs", "both") else None
    padded = ~REAL_MEMORY if kind in ("padding", "both") else None
    mask = masks.Mask(
        pairs=None if blocked is None else ~blocked,
        keys=None if padded is None else ~padded,
    )
    check_modules(
        gf.MultiHeadAttention(WIDTH, HEADS),
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        [normal(2, 5, WIDTH), normal(2, 4, WIDTH, seed=1), normal(2, 4, WIDTH, seed=2)],
        dtype,
        names=attention_names,
        run=lambda module, q, k, v: module(q, k, v, mask, path=path),
        run_reference=lambda module, q, k, v: module(q, k, v, padded, need_weights=False, attn_mask=blocked)[0],
    )


def test_bare_booleans_as_mask():
    check_modules(
        gf.MultiHeadAttention(WIDTH, HEADS),
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        [normal(2, 5, WIDTH), normal(2, 4, WIDTH, seed=1)],
        torch.float64,
        names=attention_names,
        run=lambda module, q, k: module(q, k, mask=~BLOCKED),
        run_reference=lambda module, q, k: module(q, k, k, need_weights=False, attn_mask=BLOCKED)[0],
    )


# ---- layers

LAYER_NAMES = {
    "norm1": "attention_norm",
    "linear1": "ffn.up",
    "linear2": "ffn.down",
}


def layer_names(tensors: Named) -> Named:
    table = LAYER_NAMES | (
        {"norm2": "cross_norm", "norm3": "ffn_norm"} if "norm3.weight" in tensors else {"norm2": "ffn_norm"}
    )
    renamed = {f"{to}.{kind}": tensors[f"{at}.{kind}"] for at, to in table.items() for kind in ("weight", "bias")}
    renamed |= attention_names(tensors, "self_attn.", "attention.")
    if "norm3.weight" in tensors:
        renamed |= attention_names(tensors, "multihead_attn.", "cross.")
    return renamed


each_placement = pytest.mark.parametrize("placement", ["pre", "post"])
# Without relu in bfloat16: a hidden value near its bend falls on the other side, and the gradient jumps.
each_bend = pytest.mark.parametrize(
    ("dtype", "activation"),
    [(dtype, bend) for dtype in BOUNDS for bend in ("relu", "gelu") if (dtype, bend) != (torch.bfloat16, "relu")],
    ids=lambda value: str(value).removeprefix("torch."),
)


@each_path
@each_placement
@each_bend
def test_encoder_layer(path, placement, dtype, activation):
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": placement == "pre"}
    check_modules(
        gf.EncoderLayer(WIDTH, HEADS, HIDDEN, placement=placement, activation=activation),
        nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options),
        [normal(2, 5, WIDTH)],
        dtype,
        names=layer_names,
        run=lambda module, x: module(x, masks.padding(REAL), path=path),
        run_reference=lambda module, x: module(x, src_key_padding_mask=~REAL),
        keep=REAL[..., None],
    )


@each_path
@each_placement
@each_bend
def test_decoder_layer(path, placement, dtype, activation):
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": placement == "pre"}
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    check_modules(
        gf.DecoderLayer(WIDTH, HEADS, HIDDEN, placement=placement, activation=activation),
        nn.TransformerDecoderLayer(WIDTH, HEADS, HIDDEN, **options),
        [normal(2, 5, WIDTH), normal(2, 4, WIDTH, seed=1)],
        dtype,
        names=layer_names,
        run=lambda module, x, memory: module(x, memory, memory_mask=masks.padding(REAL_MEMORY), path=path),
        run_reference=lambda module, x, memory: module(
            x, memory, tgt_mask=future, memory_key_padding_mask=~REAL_MEMORY
        ),
    )
