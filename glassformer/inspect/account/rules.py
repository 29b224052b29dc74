"""The cost of one operator: a table from operators to rules, which users extend with ``register_rule``.

A rule gives the matrix products of an operator, 2 · m · n · p FLOPs each, its element-wise operations per element of
its largest operand, and its memory traffic. Operators that PyTorch tags as pointwise or as reductions, and views, need
no entry; any other operator without an entry raises ``UnknownOperatorError``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from glassformer.inspect.account.counts import Product, Work, WorkKind

Traffic = Literal["all", "output", "none"]
WorkFunction = Callable[..., Work]


@dataclass(frozen=True)
class OperatorRule:
    """How an operator is counted.

    Args:
        kind: under which its work is reported if the calling module has children.
        steps: element-wise operations per element of its largest operand.
        work: maps the arguments and the result to ``Work``, if ``steps`` is not enough.
        traffic: what it reads and writes: ``all`` operands and results, twice its ``output`` (lookups and factories
            read about as much as they write), or ``none``.
        is_mask: it fills its operand with a dropout mask, which is counted as one byte per element.
    """

    kind: WorkKind = "elementwise"
    steps: int = 0
    work: WorkFunction | None = None
    traffic: Traffic = "all"
    is_mask: bool = False


class UnknownOperatorError(NotImplementedError):
    """An operator without a rule."""


def rule_for(operator: OpOverload) -> OperatorRule | None:
    """Return the rule of an operator; None if it has none."""
    name = name_of(operator)
    for key in (name, name.removesuffix("_")):  # add_ costs as much as add
        if key in _RULES:
            return _RULES[key]
    if is_composite(operator):
        return None
    if operator.is_view or torch.Tag.inplace_view in operator.tags:
        return FREE
    if torch.Tag.view_copy in operator.tags:
        return _COPY
    if torch.Tag.pointwise in operator.tags or torch.Tag.reduction in operator.tags:
        return _ELEMENTWISE
    return None


@cache
def is_composite(operator: OpOverload) -> bool:
    """Whether an operator is composed of others and has no kernel."""
    keys = torch._C.DispatchKey
    has = operator.has_kernel_for_dispatch_key
    return has(keys.CompositeImplicitAutograd) and not has(keys.CPU)


def check_types(name: str, inputs: Sequence[Tensor], where: Callable[[], str]) -> None:
    """Refuse a product of different dtypes, which fake tensors accept."""
    if name in _OF_ONE_TYPE and len({tensor.dtype for tensor in inputs}) > 1:
        types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in inputs})
        raise TypeError(
            f"{where()} multiplies {' and '.join(types)} ({name}), which PyTorch does not support; convert the module "
            f"with .to(dtype), or its inputs."
        )


def register_rule(operator: OpOverload | OpOverloadPacket | str, rule: OperatorRule) -> None:
    """Add the rule of an operator, such as a custom one, for all of its overloads.

    Args:
        operator: ``torch.ops.mylib.scan``, or its name, ``"mylib.scan"``.
        rule: how to count it. ``OperatorRule(steps=3)`` is three element-wise operations per element;
            ``OperatorRule("product", work=lambda a, b, out: Work((Product(len(a), len(b), b.shape[1]),)))`` is a matrix
            product: ``work`` is called with the operator's arguments and, as ``out``, its result.
    """
    _RULES[operator if isinstance(operator, str) else name_of(operator)] = rule


@cache
def name_of(operator: OpOverload | OpOverloadPacket) -> str:
    """``aten.mm`` for all of its overloads."""
    packet = operator.overloadpacket if isinstance(operator, OpOverload) else operator
    return str(packet)


def _product(a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    """(… m n) · (… n p)."""
    *times, m, n = a.shape
    return Work((Product(m, n, b.shape[-1], prod(times)),))


def _added_product(added: Tensor, a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> Work:
    """added + (… m n) · (… n p)."""
    del added
    return Work(_product(a, b).products, elementwise=out.numel())


def _product_with_rows(a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    """(m n) · (p n)ᵀ."""
    m, n = a.shape
    return Work((Product(m, n, b.shape[0]),))


def _matrix_vector(matrix: Tensor, vector: Tensor, *_: Any, **__: Any) -> Work:
    del vector
    rows, columns = matrix.shape
    return Work((Product(rows, columns, 1),))


def _dot(a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    del b
    return Work((Product(1, a.numel(), 1),))


def _convolution_product(x: Tensor, weight: Tensor, y: Tensor, groups: int, transposed: bool) -> Product:
    """Return the product of a convolution: per position and output channel, a sum over kernel and input channels."""
    positions = x.numel() // x.shape[1] if transposed else y.numel() // y.shape[1]
    inputs, outputs = (weight.shape[0], weight.shape[1] * groups) if transposed else (x.shape[1], weight.shape[0])
    return Product(positions, inputs // groups * prod(weight.shape[2:]), outputs // groups, groups)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any, out: Tensor, **__: Any) -> Work:
    product = _convolution_product(x, weight, out, groups=rest[-1], transposed=rest[3])
    return Work((product,), elementwise=0 if bias is None else out.numel())


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **__: Any) -> Work:
    """Return the work of the gradients of input and weight, where they are needed."""
    *_, transposed, _, groups, (needs_x, needs_weight, _) = rest
    positions, n, p, *_ = _convolution_product(x, weight, grad, groups, transposed)
    products = [Product(positions, p, n, groups)] * needs_x + [Product(n, positions, p, groups)] * needs_weight
    return Work(tuple(products))


SCORE_STEPS = 5  # softmax of a score: maximum, difference, exponential, sum, quotient


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Work:
    """Return the work of fused attention: q·kᵀ, then the weighted sum of v.

    Cross-attention differs only in the number of keys.
    """
    batch, heads, queries, width = q.shape
    keys, value_width = k.shape[-2], v.shape[-1]
    times = batch * heads
    scores = Product(queries, width, keys, times, role="scores")
    weighted = Product(queries, keys, value_width, times, role="weighted_sum")
    return Work((scores, weighted), elementwise=SCORE_STEPS * times * queries * keys)


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Work:
    """Return the work of recomputing the scores, then of the gradients of weights, values, queries and keys."""
    del grad
    batch, heads, queries, width = q.shape
    keys, value_width = k.shape[-2], v.shape[-1]
    times = batch * heads
    products = (
        Product(queries, value_width, keys, times, role="weighted_sum"),
        Product(keys, queries, value_width, times, role="weighted_sum"),
        Product(queries, keys, width, times, role="scores"),
        Product(keys, queries, width, times, role="scores"),
    )
    return Work(products, Product(queries, width, keys, times).flops, 2 * SCORE_STEPS * times * queries * keys)


def _trilinear(a: Tensor, b: Tensor, c: Tensor, *rest: Any, **__: Any) -> Work:
    """Return the work of summing products of three factors over some axes; each factor lacks some of the axes."""
    *expanded, summed = rest[:4]
    shapes = []
    for factor, missing in zip((a, b, c), expanded, strict=True):
        shape = list(factor.shape)
        for axis in sorted(missing):
            shape.insert(axis, 1)
        shapes.append(shape)
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    length = prod(shape[axis] for axis in summed)
    return Work((Product(prod(shape) // length, length, 1),), elementwise=prod(shape))


def _distances(a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> Work:
    """Return the work of the distances of all pairs of rows: difference, power and sum."""
    del b
    return Work(elementwise=3 * a.shape[-1] * out.numel())


def _distances_by_product(a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> Work:
    """Return the work of the squares of both, and of one product of rows extended by two columns."""
    *times, m, n = a.shape
    return Work((Product(m, n + 2, b.shape[-2], prod(times)),), elementwise=2 * (a.numel() + b.numel() + out.numel()))


def _distances_backward(grad: Tensor, a: Tensor, *_: Any, **__: Any) -> Work:
    return Work(elementwise=4 * a.shape[-1] * grad.numel())


def _layer_norm(x: Tensor, shape: Sequence[int], *learned: Any, **__: Any) -> Work:
    """Return the work of a layer norm.

    Per element: mean, difference, square, sum, quotient, and one step per learned vector. Per row: / width, + ε, 1 / √.
    """
    vectors = sum(isinstance(tensor, Tensor) for tensor in learned)
    return Work(elementwise=(5 + vectors) * x.numel() + 3 * (x.numel() // prod(shape)))


def _multiply(a: Any, b: Any, *_: Any, out: Tensor, **__: Any) -> Work:
    """Return the work of a product; one of complex numbers counts as four products and two sums."""
    del a, b
    return Work(elementwise=(6 if out.is_complex() else 1) * out.numel())


def _gelu(x: Tensor, *, approximate: str = "none", **__: Any) -> Work:
    return Work(elementwise=(8 if approximate == "tanh" else 5) * x.numel())


FREE = OperatorRule("free", traffic="none")
_ELEMENTWISE = OperatorRule(steps=1)
_COPY = OperatorRule("copy")
_FACTORY = OperatorRule("copy", traffic="output")
_LOOKUP = OperatorRule("lookup", traffic="output")
_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")


def _named(names: str, rule: OperatorRule) -> dict[str, OperatorRule]:
    return {f"aten.{name}": rule for name in names.split()}


_RULES: dict[str, OperatorRule] = {
    "prim.device": FREE,
    **_named("_trilinear", OperatorRule("product", work=_trilinear)),
    **_named("_cdist_forward", OperatorRule(work=_distances)),
    **_named("_euclidean_dist", OperatorRule("product", work=_distances_by_product)),
    **_named("_cdist_backward", OperatorRule(work=_distances_backward)),
    **_named("mm bmm _int_mm _scaled_mm", OperatorRule("product", work=_product)),
    **_named("_weight_int8pack_mm", OperatorRule("product", work=_product_with_rows)),
    **_named("addmm baddbmm _addmm_activation", OperatorRule("product", work=_added_product)),
    **_named("mv", OperatorRule("product", work=_matrix_vector)),
    **_named("addmv", OperatorRule("product", work=lambda _, *args, **kwargs: _matrix_vector(*args, **kwargs))),
    **_named("dot vdot", OperatorRule("product", work=_dot)),
    **_named("convolution", OperatorRule("product", work=_convolution)),
    **_named("convolution_backward", OperatorRule("product", work=_convolution_backward)),
    **{f"aten._scaled_dot_product_{kind}": OperatorRule("kernel", work=_attention) for kind in _FUSED},
    **{
        f"aten._scaled_dot_product_{kind}_backward": OperatorRule("kernel", work=_attention_backward) for kind in _FUSED
    },
    **_named("native_layer_norm", OperatorRule("normalisation", work=_layer_norm)),
    **_named("_fused_rms_norm", OperatorRule("normalisation", steps=5)),
    **_named(
        "native_group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "_batch_norm_with_update",
        OperatorRule("normalisation", steps=7),
    ),
    **_named(
        "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward batch_norm_backward "
        "_fused_rms_norm_backward",
        OperatorRule("normalisation", steps=12),
    ),
    **_named("mul", OperatorRule(work=_multiply)),
    **_named("gelu", OperatorRule("activation", work=_gelu)),
    **_named("silu", OperatorRule("activation", steps=2)),
    **_named("relu tanh sigmoid elu leaky_relu hardtanh hardswish softplus mish", OperatorRule("activation", steps=1)),
    **_named("_softmax _safe_softmax _log_softmax softmax log_softmax", OperatorRule("softmax", steps=5)),
    **_named("_softmax_backward_data _log_softmax_backward_data", OperatorRule("softmax", steps=4)),
    **_named("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward", OperatorRule(steps=0)),
    **_named("bernoulli", OperatorRule(traffic="output", is_mask=True)),
    **_named("native_dropout native_dropout_backward", OperatorRule(steps=1)),
    **_named(
        "empty empty_like empty_strided new_empty new_empty_strided empty_permuted _local_scalar_dense is_same_size "
        "_unsafe_view _reshape_alias lift lift_fresh resize set_ _efficientzerotensor _assert_async _assert_scalar "
        "_assert_tensor_metadata _functional_assert_async unsafe_split unsafe_split_with_sizes equal is_pinned",
        FREE,
    ),
    **_named(
        "zeros ones full arange eye linspace logspace scalar_tensor new_zeros new_ones new_full zeros_like ones_like "
        "full_like fill zero rand randn randint randperm rand_like randn_like randint_like uniform normal exponential "
        "random multinomial poisson log_normal geometric cauchy tril_indices triu_indices hann_window",
        _FACTORY,
    ),
    **_named(
        "clone copy _to_copy cat stack constant_pad_nd pad repeat roll flip rot90 tril triu unfold_backward "
        "slice_backward select_backward slice_scatter select_scatter as_strided_scatter diagonal_backward "
        "diagonal_scatter split_with_sizes_copy alias_copy lift_fresh_copy narrow_copy _reshape_copy complex polar "
        "block_diag diag_embed im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle reflection_pad1d "
        "reflection_pad2d replication_pad1d replication_pad2d reflection_pad1d_backward reflection_pad2d_backward "
        "replication_pad1d_backward replication_pad2d_backward",
        _COPY,
    ),
    **_named(
        "embedding embedding_dense_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_dense_backward "
        "index index_select gather scatter scatter_add index_add index_put _unsafe_index _unsafe_index_put index_copy "
        "index_fill masked_select masked_scatter masked_scatter_backward nonzero nonzero_static take sort argsort topk "
        "kthvalue mode searchsorted bucketize isin unique_dim unique_consecutive _unique _unique2 repeat_interleave "
        "scatter_reduce max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices "
        "max_pool3d_with_indices_backward adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d "
        "adaptive_max_pool3d_backward _embedding_bag_backward _embedding_bag_per_sample_weights_backward",
        _LOOKUP,
    ),
    **_named(
        "abs eq ne lt le gt ge floor_divide remainder copysign xlogy threshold rsub sum mean amax amin max min argmax "
        "argmin any all prod var var_mean std std_mean trace dist renorm logsumexp linalg_vector_norm norm cumsum "
        "cumprod cummax cummin logcumsumexp median nanmedian count_nonzero histc bincount masked_fill where "
        "linalg_cross glu glu_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss "
        "huber_loss_backward binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits "
        "soft_margin_loss soft_margin_loss_backward elu_backward gelu_backward hardsigmoid_backward hardswish_backward "
        "hardtanh_backward leaky_relu_backward log_sigmoid_forward log_sigmoid_backward softplus_backward "
        "threshold_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
        "avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
        "_weight_norm_interface _weight_norm_interface_backward _prelu_kernel _prelu_kernel_backward",
        _ELEMENTWISE,
    ),
    **{
        f"aten.upsample_{kind}{back}": _ELEMENTWISE
        for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
        for back in ("", "_backward")
    },
}  # fmt: skip
_OF_ONE_TYPE = set(_named("mm bmm addmm baddbmm _addmm_activation mv addmv dot vdot _trilinear", FREE))
