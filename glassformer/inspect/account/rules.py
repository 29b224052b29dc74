"""What one operator costs: a table from operators to rules, which anyone may extend with ``register_rule``.

A rule states the matrix products of an operator, by 2 · m · n · p FLOPs each, how many element-wise operations it takes
for each number of its largest operand, and how it moves memory. Operators that PyTorch tags as pointwise or as
reductions, and views, need no entry; any other operator without one raises ``UnknownOperatorError``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from glassformer.inspect.account.counts import Kind, Product, Work

Traffic = Literal["all", "output", "none"]
Count = Callable[..., Work]


@dataclass(frozen=True)
class Rule:
    """How an operator is counted.

    Args:
        kind: under which its work is reported where a module that has children does it itself.
        steps: element-wise operations for each number of its largest operand.
        work: from the arguments and the result to ``Work``, where ``steps`` does not say it all.
        traffic: what it reads and writes: ``all`` operands and results, twice its ``output`` (lookups and factories
            read about as much as they write), or ``none``.
        is_mask: it fills its operand with the mask of a dropout, which is accounted with one byte per number.
    """

    kind: Kind = "elementwise"
    steps: int = 0
    work: Count | None = None
    traffic: Traffic = "all"
    is_mask: bool = False


class UnknownOperatorError(NotImplementedError):
    """An operator for which the account has no rule."""


def rule_for(operator: OpOverload) -> Rule | None:
    """The rule of an operator; None if it has none."""
    name = name_of(operator)
    for known in (name, name.removesuffix("_")):  # add_ costs what add does
        if known in _RULES:
            return _RULES[known]
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
    """Whether an operator is made of others, and has no kernel of its own."""
    keys = torch._C.DispatchKey
    has = operator.has_kernel_for_dispatch_key
    return has(keys.CompositeImplicitAutograd) and not has(keys.CPU)


def check_types(name: str, inputs: Sequence[Tensor], where: str) -> None:
    """Refuse a product of numbers of different types, which fake tensors let pass."""
    types = {str(one.dtype).removeprefix("torch.") for one in inputs} if name in _OF_ONE_TYPE else set()
    if len(types) > 1:
        raise TypeError(
            f"{where} multiplies numbers of {' and '.join(sorted(types))} ({name}), which PyTorch refuses to do; "
            f"convert the module with .to(dtype), or its inputs."
        )


def register_rule(operator: OpOverload | OpOverloadPacket | str, rule: Rule) -> None:
    """Let the account know an operator, such as one of your own: all of its overloads are counted by ``rule``.

    Args:
        operator: ``torch.ops.mylib.scan``, or its name, ``"mylib.scan"``.
        rule: how to count it. ``Rule(steps=3)`` is three element-wise operations for each number;
            ``Rule("product", work=lambda a, b, out: Work((Product(len(a), len(b), b.shape[1]),)))`` a matrix product:
            ``work`` is called with the operator's arguments and, as ``out``, its result.
    """
    _RULES[operator if isinstance(operator, str) else name_of(operator)] = rule


def name_of(operator: OpOverload | OpOverloadPacket) -> str:
    """``aten.mm`` for every overload of it."""
    packet = operator.overloadpacket if isinstance(operator, OpOverload) else operator
    return str(packet)


def _product(a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    """(… m n) · (… n p)."""
    *times, m, n = a.shape
    return Work((Product(m, n, b.shape[-1], prod(times)),))


def _added_product(added: Tensor, a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> Work:
    del added
    return Work(_product(a, b).products, elementwise=out.numel())


def _matrix_vector(matrix: Tensor, vector: Tensor, *_: Any, **__: Any) -> Work:
    del vector
    rows, columns = matrix.shape
    return Work((Product(rows, columns, 1),))


def _dot(a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    del b
    return Work((Product(1, a.numel(), 1),))


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any, out: Tensor, **__: Any) -> Work:
    """Each output number is a sum over the kernel and the channels of its group."""
    groups, transposed = rest[-1], rest[3]
    positions = x.numel() // x.shape[1] if transposed else out.numel() // out.shape[1]
    into, made = (weight.shape[0], weight.shape[1] * groups) if transposed else (x.shape[1], weight.shape[0])
    one = Product(positions, into // groups * prod(weight.shape[2:]), made // groups, groups)
    return Work((one,), elementwise=0 if bias is None else out.numel())


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **__: Any) -> Work:
    """The gradients of the input and of the weight, where they are asked for."""
    *_, transposed, _, groups, (needs_x, needs_weight, _) = rest
    positions = (x.numel() // x.shape[1]) if transposed else grad.numel() // grad.shape[1]
    into, made = (weight.shape[0], weight.shape[1] * groups) if transposed else (x.shape[1], weight.shape[0])
    n, p = into // groups * prod(weight.shape[2:]), made // groups
    products = [Product(positions, p, n, groups)] * needs_x + [Product(n, positions, p, groups)] * needs_weight
    return Work(tuple(products))


SCORE_STEPS = 5  # softmax of a score: largest, difference, power, sum, quotient


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Work:
    """A fused kernel: the scores, and the weighted sum of the values. Nothing is written down for dropout."""
    batch, heads, queries, width = q.shape
    keys, value_width = k.shape[-2], v.shape[-1]
    times = batch * heads
    scores = Product(queries, width, keys, times, role="scores")
    weighted = Product(queries, keys, value_width, times, role="weighted_sum")
    return Work((scores, weighted), elementwise=SCORE_STEPS * times * queries * keys)


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Work:
    """The scores once more, then the gradients of weights, values, queries and keys."""
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
    """A sum of products of three factors over some axes, each factor having but some of the axes."""
    *places, summed = rest[:4]
    shapes = []
    for one, missing in zip((a, b, c), places, strict=True):
        shape = list(one.shape)
        for axis in sorted(missing):
            shape.insert(axis, 1)
        shapes.append(shape)
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    length = prod(shape[axis] for axis in summed)
    return Work((Product(prod(shape) // length, length, 1),), elementwise=prod(shape))


def _distances(a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> Work:
    """Of every row to every other: difference, power and sum."""
    del b
    return Work(elementwise=3 * a.shape[-1] * out.numel())


def _distances_by_product(a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> Work:
    """Both squares and the product of rows that are two longer."""
    *times, m, n = a.shape
    return Work((Product(m, n + 2, b.shape[-2], prod(times)),), elementwise=2 * (a.numel() + b.numel() + out.numel()))


def _distances_back(grad: Tensor, a: Tensor, *_: Any, **__: Any) -> Work:
    return Work(elementwise=4 * a.shape[-1] * grad.numel())


def _layer_norm(x: Tensor, shape: Sequence[int], *learned: Any, **__: Any) -> Work:
    """Mean, difference, square, sum, quotient, and one more for each learned vector; / width, + ε, 1 / √ per row."""
    given = sum(isinstance(one, Tensor) for one in learned)
    return Work(elementwise=(5 + given) * x.numel() + 3 * (x.numel() // prod(shape)))


def _multiply(a: Any, b: Any, *_: Any, out: Tensor, **__: Any) -> Work:
    """A product of complex numbers is four products and two sums."""
    del a, b
    return Work(elementwise=(6 if out.is_complex() else 1) * out.numel())


def _gelu(x: Tensor, *, approximate: str = "none", **__: Any) -> Work:
    return Work(elementwise=(8 if approximate == "tanh" else 5) * x.numel())


FREE = Rule("free", traffic="none")
_ELEMENTWISE = Rule(steps=1)
_COPY, _FACTORY, _LOOKUP = Rule("copy"), Rule("copy", traffic="output"), Rule("lookup", traffic="output")
_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names.split()}


_RULES: dict[str, Rule] = {
    "prim.device": FREE,
    **_named("_trilinear", Rule("product", work=_trilinear)),
    **_named("_cdist_forward", Rule(work=_distances)),
    **_named("_euclidean_dist", Rule("product", work=_distances_by_product)),
    **_named("_cdist_backward", Rule(work=_distances_back)),
    **_named("mm bmm _int_mm _scaled_mm", Rule("product", work=_product)),
    **_named("addmm baddbmm _addmm_activation", Rule("product", work=_added_product)),
    **_named("mv", Rule("product", work=_matrix_vector)),
    **_named("addmv", Rule("product", work=lambda _, *given, **more: _matrix_vector(*given, **more))),
    **_named("dot vdot", Rule("product", work=_dot)),
    **_named("convolution", Rule("product", work=_convolution)),
    **_named("convolution_backward", Rule("product", work=_convolution_backward)),
    **{f"aten._scaled_dot_product_{kind}": Rule("kernel", work=_attention) for kind in _FUSED},
    **{f"aten._scaled_dot_product_{kind}_backward": Rule("kernel", work=_attention_backward) for kind in _FUSED},
    **_named("native_layer_norm", Rule("normalisation", work=_layer_norm)),
    **_named("_fused_rms_norm", Rule("normalisation", steps=5)),
    **_named(
        "native_group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "_batch_norm_with_update",
        Rule("normalisation", steps=7),
    ),
    **_named(
        "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward batch_norm_backward "
        "_fused_rms_norm_backward",
        Rule("normalisation", steps=12),
    ),
    **_named("mul", Rule(work=_multiply)),
    **_named("gelu", Rule("activation", work=_gelu)),
    **_named("silu", Rule("activation", steps=2)),
    **_named("relu tanh sigmoid elu leaky_relu hardtanh hardswish softplus mish", Rule("activation", steps=1)),
    **_named("_softmax _safe_softmax _log_softmax", Rule("softmax", steps=5)),
    **_named("_softmax_backward_data _log_softmax_backward_data", Rule("softmax", steps=4)),
    **_named("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward", Rule(steps=0)),
    **_named("bernoulli", Rule(traffic="output", is_mask=True)),
    **_named("native_dropout native_dropout_backward", Rule(steps=1)),
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
