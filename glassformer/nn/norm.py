"""Normalisation of each vector: LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019).

Both compute in at least float32, because a square in float16 overflows from 256 on, and return the input's dtype.
Helpers for mixed precision that other modules need are here too.

Shapes: ``...`` any leading axes, ``d`` the width that is normalised.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config import Norm
from glassformer.config.checks import check_eps, check_positive_integer
from glassformer.nn.kernels import operators, step_kernels

_NO_CONTEXT = nullcontext()


def upcast(x: Tensor) -> Tensor:
    """Return ``x`` in float32; float32 and float64 stay as they are."""
    if x.dtype == torch.float32 or x.dtype == torch.float64:
        return x
    if not x.is_floating_point():
        raise TypeError(f"expected a floating-point tensor; got {x.dtype}.")
    return x.to(torch.float32)


def is_autocast(x: Tensor) -> bool:
    """Whether ``torch.autocast`` is on for the device of ``x``."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Return a context in which ``torch.autocast`` does not downcast products on the device of ``x``."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else _NO_CONTEXT


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which vectors are multiplied: their own, or that of autocast."""
    return x.dtype if x.dtype == torch.float64 or not is_autocast(x) else torch.get_autocast_dtype(x.device.type)


def loses_gradient_sums(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether a fused kernel would sum the gradients of these parameters, or of ``x``, in half precision.

    The gradient of a weight or bias is a sum over all rows, and CPU kernels add half-precision numbers in half
    precision: over 4,096 rows half of a bias's gradient is lost.
    """
    if x.dtype.itemsize >= 4 or not torch.is_grad_enabled():
        return False
    return any(tensor is not None and tensor.requires_grad for tensor in (x, *parameters))


def rms_norm(x: Float[Tensor, "... d"], weight: Float[Tensor, "d"], eps: float) -> Float[Tensor, "... d"]:
    """x / √(mean(x²) + eps) · weight."""
    if x.is_cuda and step_kernels.capturing(x):
        return step_kernels.normalise(x, weight, None, eps, centre=False)
    return (_divide_by_rms(upcast(x), eps) * weight).to(x.dtype)


def layer_norm(
    x: Float[Tensor, "... d"],
    weight: Float[Tensor, "d"],
    bias: Float[Tensor, "d"] | None,
    eps: float,
    *,
    fused: bool = False,
) -> Float[Tensor, "... d"]:
    """(x − mean) / √(variance + eps) · weight (+ bias); the variance divides by d, not by d − 1.

    See ``nn.kernels`` for ``fused``.
    """
    # The kernel, unless it would sum gradients in half precision. GPU kernels do not, but one rule for all devices lets
    # an account predict the memory of each.
    if fused and not (x.dtype == weight.dtype and loses_gradient_sums(x, weight, bias)):
        if x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype) and not is_autocast(x):
            if x.is_cuda and step_kernels.capturing(x):
                return step_kernels.normalise(x, weight, bias, eps, centre=True)
            return operators.layer_norm(x, weight.shape, weight, bias, eps)
        # Mixed dtypes: bring all tensors to one; autocast would return float32.
        wide = x if x.dtype == weight.dtype else upcast(x)
        weight, bias = weight.to(wide.dtype), None if bias is None else bias.to(wide.dtype)
        with without_autocast(x):
            return operators.layer_norm(wide, weight.shape, weight, bias, eps).to(x.dtype)
    # By formula: after centring, the root mean square is the standard deviation.
    wide = upcast(x)
    centred = wide - wide.mean(-1, keepdim=True)
    y = _divide_by_rms(centred, eps) * weight
    return (y if bias is None else y + bias).to(x.dtype)


def _divide_by_rms(x: Float[Tensor, "... d"], eps: float) -> Float[Tensor, "... d"]:
    with without_autocast(x):
        mean_square = torch.linalg.vecdot(x, x).unsqueeze(-1) / x.shape[-1]  # ... 1
    return x * torch.rsqrt(mean_square + eps)


def _width_error(x: Tensor, weight: Tensor) -> ValueError:
    return ValueError(f"this norm is for vectors of width {weight.shape[0]}; got shape {tuple(x.shape)}.")


class RMSNorm(nn.Module):
    """Scale each vector to a root mean square of 1, then each dimension by a learned gain.

    The gain is the weight, or 1 + weight with ``offset``.
    """

    def __init__(
        self,
        d_model: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        offset: bool = False,
    ) -> None:
        super().__init__()
        check_positive_integer(d_model=d_model)
        check_eps(eps)
        self.eps = eps
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the gains to 1."""
        nn.init.constant_(self.weight, 0.0 if self.offset else 1.0)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Normalise the last axis of ``x``."""
        if x.shape[-1] != self.weight.shape[0]:
            raise _width_error(x, self.weight)
        gain = 1 + upcast(self.weight) if self.offset else self.weight
        return rms_norm(x, gain, self.eps)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
        return f"{self.weight.shape[0]}, eps={self.eps}{', offset=True' if self.offset else ''}"


class LayerNorm(nn.Module):
    """Shift each vector to mean 0, scale it to variance 1, then apply a learned gain and (optional) bias."""

    fused = False

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_integer(dim=dim)
        check_eps(eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(dim, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the gains to 1 and the biases to 0."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Normalise the last axis of ``x``."""
        if x.shape[-1] != self.weight.shape[0]:
            raise _width_error(x, self.weight)
        return layer_norm(x, self.weight, self.bias, self.eps, fused=self.fused)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
        return f"{self.weight.shape[0]}, eps={self.eps}, bias={self.bias is not None}"


def make_norm(
    facts: Norm, width: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> nn.Module:
    """Build the norm that the facts describe."""
    if facts.kind == "rms":
        return RMSNorm(width, facts.eps, device, dtype, offset=facts.offset)
    if facts.kind == "layer":
        return LayerNorm(width, facts.eps, facts.bias, device, dtype)
    raise ValueError(f"unknown kind of norm: {facts.kind!r}.")
