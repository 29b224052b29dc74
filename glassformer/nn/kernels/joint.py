"""Linear layers with the same input, such as those of queries, keys and values, as one product.

Shapes: ``...`` any leading axes, ``d_in`` and ``d_out`` vector widths.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.nn.kernels import step_kernels
from glassformer.nn.kernels.operators import has_global_hooks, runs_plain_forward
from glassformer.nn.kernels.quantized import QuantizedLinear
from glassformer.nn.linear import Linear, linear


def joint_linear(x: Float[Tensor, "... d_in"], layers: Sequence[nn.Module]) -> tuple[Float[Tensor, "... _"], ...]:
    """Return the outputs of several layers for the same vectors; one product in compiled training and decoding steps.

    The compiler copies the matrices side by side in the pass that casts them for autocast anyway; without it, the copy
    would cost more than the product saves. The kernel of a decoding step loads them where they are. What is not a plain
    ``Linear`` (an adapter, say), has hooks or another ``forward`` is called as it is.
    """
    trains_compiled = torch.compiler.is_compiling() and torch.is_grad_enabled()
    joined = None
    if trains_compiled or (x.is_cuda and step_kernels.enabled(x)):
        is_plain = all(map(runs_plain_forward, layers)) and not has_global_hooks()
        joined = None if not is_plain else _joint_product(x, layers) if trains_compiled else _joint_matvec(x, layers)
    return tuple(layer(x) for layer in layers) if joined is None else joined


def _joint_product(
    x: Float[Tensor, "... d_in"], layers: Sequence[nn.Module]
) -> tuple[Float[Tensor, "... _"], ...] | None:
    """Return the outputs of plain linear layers by one product; None for others."""
    plain = [layer for layer in layers if isinstance(layer, Linear) and type(layer) is Linear and layer.fused]
    if len(plain) < len(layers) or any(layer.in_features != x.shape[-1] for layer in plain):
        return None
    weight = torch.cat([layer.weight for layer in plain])  # (Σ d_out, d_in)
    bias = None
    if any(layer.bias is not None for layer in plain):
        zeros = (weight.new_zeros(layer.out_features) for layer in plain)
        bias = torch.cat([zero if layer.bias is None else layer.bias for layer, zero in zip(plain, zeros, strict=True)])
    return torch.split(linear(x, weight, bias, fused=True), [layer.out_features for layer in plain], dim=-1)


def _joint_matvec(
    x: Float[Tensor, "... d_in"], layers: Sequence[nn.Module]
) -> tuple[Float[Tensor, "... _"], ...] | None:
    """Return the outputs of layers of one kind by one kernel of a decoding step; None where it does not apply."""
    kind = type(layers[0])
    if kind not in (Linear, QuantizedLinear):
        return None
    same = [layer for layer in layers if type(layer) is kind and isinstance(layer, Linear | QuantizedLinear)]
    matrices = [layer.weight if isinstance(layer, Linear) else layer.stored for layer in same if layer.fused]
    scales = [layer.scales for layer in same if isinstance(layer, QuantizedLinear)]
    biases = [layer.bias for layer in same if layer.bias is not None]
    all_apply = len(matrices) == len(layers) and len(biases) in (0, len(layers))
    if not all_apply or len({matrix.dtype for matrix in matrices}) > 1:
        return None
    if not step_kernels.use_matvec(x, matrices, biases, scales):
        return None
    y = step_kernels.matvec(x, matrices, biases, scales)
    return torch.split(y, [len(matrix) for matrix in matrices], dim=-1)
