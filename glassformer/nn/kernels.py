"""PyTorch's fused kernels for what the other modules write out: the same numbers in one pass over memory.

By itself ``nn`` computes its formulas. A part with ``fused = True`` (``Linear``, ``Embedding``, ``LayerNorm``,
``FeedForward``, … and the parts of ``models`` around them) calls these kernels instead. Which of the two a part uses is
a plain attribute: it is the same for every call, in any thread, and for a block that runs again in the backward pass.
A ``Transformer`` sets it for all of its parts: ``model.fused = False`` computes everything by formula. Attention has a
choice of its own, the argument ``path``.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
}


def set_fused(module: nn.Module, fused: bool) -> None:
    """Choose kernels (True) or formulas (False) for every part inside ``module`` that has the choice."""
    for part in module.modules():
        if part is not module and hasattr(part, "fused"):
            part.fused = fused  # type: ignore[assignment]  # a plain attribute, not a submodule


def linear(
    x: Float[Tensor, "... d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None
) -> Float[Tensor, "... d_out"]:
    """W x (+ b)."""
    return F.linear(x, weight, bias)


def look_up(table: Float[Tensor, "V d"], ids: Int[Tensor, "N"]) -> Float[Tensor, "N d"]:
    """Rows of a table. The backward pass adds repeated rows in a fixed order; ids outside the table are refused."""
    return F.embedding(ids, table)


def layer_norm(
    x: Float[Tensor, "... d"], weight: Float[Tensor, "d"], bias: Float[Tensor, "d"] | None, eps: float
) -> Float[Tensor, "... d"]:
    """(x − mean) / √(variance + eps) · weight (+ bias), of tensors of one type."""
    return torch.layer_norm(x, weight.shape, weight, bias, eps)


def lose_sums(x: Tensor, *learned: Tensor | None) -> bool:
    """Whether gradients that are sums over rows would come out wrong if ``x`` and the others went through a kernel.

    CPU kernels add half-precision numbers in half precision: over 4,096 rows half of a bias's gradient is lost.
    """
    if x.dtype.itemsize >= 4 or not torch.is_grad_enabled():
        return False
    return any(tensor is not None and tensor.requires_grad for tensor in (x, *learned))
