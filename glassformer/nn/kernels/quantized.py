"""A linear layer with int8 or fp8 weights, one byte each, for inference.

Shapes: ``...`` any leading axes, ``d_in`` and ``d_out`` vector widths.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config.options import Quantization
from glassformer.nn.kernels import operators, step_kernels
from glassformer.nn.linear import linear
from glassformer.nn.norm import product_dtype


class QuantizedLinear(nn.Module):
    """y = W x (+ b) for inference, with one byte per weight, and a scale for each row of W.

    ``int8``: integers from −127 to 127; rounding changes each weight by at most half of its row's scale. ``fp8``:
    floats with three bits of mantissa (e4m3, up to 448); rounding changes each weight by at most a sixteenth of itself.
    Both take a quarter of the memory of float32, and of the time to load it, on which a decoding step waits; fp8 is
    fast only on a GPU.

    Args:
        weight: W, ``(out_features, in_features)``.
        bias: b.
        kind: ``int8`` or ``fp8``.
    """

    fused = False

    def __init__(
        self,
        weight: Float[Tensor, "d_out d_in"],
        bias: Float[Tensor, "d_out"] | None = None,
        kind: Quantization = "int8",
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.kind: Quantization = kind
        wide = weight.detach().float()
        scales = wide.abs().amax(-1) / (127 if kind == "int8" else 448)  # d_out
        if not scales.isfinite().all():
            row = int(scales.isfinite().logical_not().nonzero()[0])
            raise ValueError(
                f"weights that are not finite cannot be quantised: row {row} of a {tuple(wide.shape)} matrix."
            )
        scales = scales.where(scales > 0, 1.0)  # a row of zeros
        scaled = wide / scales.unsqueeze(-1)
        # As bytes, fp8 stays what it is where a model is cast to another type.
        values = scaled.round().to(torch.int8) if kind == "int8" else scaled.to(torch.float8_e4m3fn).view(torch.uint8)
        self.values = nn.Parameter(values, requires_grad=False)  # d_out d_in
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:
        """W as floats, computed anew at each access."""
        return self.stored.float() * self.scales.unsqueeze(-1)

    @property
    def stored(self) -> Tensor:
        """W as it is stored, to be multiplied by the scales."""
        return self.values if self.kind == "int8" else self.values.view(torch.float8_e4m3fn)

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """Apply the layer to the last axis of ``x``.

        The scales multiply the outputs, of which there are fewer than weights. In float16 they multiply the weights,
        because the outputs before scaling can overflow.
        """
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"QuantizedLinear({self.in_features}, {self.out_features}) needs vectors of width {self.in_features}; "
                f"the input has shape {tuple(x.shape)}."
            )
        if self.fused:
            matrix = [self.stored], [] if self.bias is None else [self.bias], [self.scales]
            if step_kernels.use_matvec(x, *matrix):
                return step_kernels.matvec(x, *matrix)
        if product_dtype(x) == torch.float16:
            return linear(x, self.weight.to(x.dtype), self.bias, fused=self.fused)
        if self.fused and self.kind == "int8" and operators.use_int8(x):
            y = operators.int8_product(x, self.values)  # ... d_out
        else:
            y = linear(x, self.stored.to(x.dtype), None, fused=self.fused)
        y = y * self.scales.to(y.dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {self.kind}"
