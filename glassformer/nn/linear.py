"""Linear layer and embedding table: the two modules that hold most of a Transformer's parameters.

Shapes: ``...`` any leading axes (batch, sequence, heads), ``d_in`` and ``d_out`` vector widths, ``V`` table rows,
``d`` width of a row. Initialisation: normal, truncated at three standard deviations; see ``Linear`` and ``Embedding``
for the standard deviations.
"""

import math
from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float, Integer
from torch import Tensor, nn

from glassformer.config.checks import check_positive
from glassformer.config.options import Quantization
from glassformer.nn import kernels, step_kernels
from glassformer.nn.norm import loses_gradient_sums


def truncated_normal_(weight: Tensor, std: float) -> None:
    """Fill ``weight`` in place from N(0, std²) truncated at ±3·std."""
    nn.init.trunc_normal_(weight, mean=0.0, std=std, a=-3 * std, b=3 * std)


def linear(
    x: Float[Tensor, "... d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, "d_out"] | None,
    *,
    fused: bool = False,
) -> Float[Tensor, "... d_out"]:
    """W x (+ b); see ``nn.kernels`` for ``fused``."""
    if fused:
        if bias is not None and bias.dtype != weight.dtype:
            bias = bias.to(weight.dtype)
        if step_kernels.takes_matvec(x, weight):
            return step_kernels.matvec(x, [weight], [] if bias is None else [bias], [])
        if step_kernels.takes_transposed(x, weight):
            return step_kernels.transposed_linear(x, weight, bias)
        product = kernels.onednn_linear if kernels.takes_onednn(x, weight) else kernels.linear
        return product(x, weight, bias)
    # The same as einsum(x, W, "... d_in, d_out d_in -> ... d_out"), written as one matrix product because its
    # backward then yields W's gradient in W's own memory order, without a transposing copy.
    y = x @ rearrange(weight, "d_out d_in -> d_in d_out")  # ... d_out
    return y if bias is None else y + bias.to(y.dtype)  # dtype of the weights, or of autocast


class Linear(nn.Module):
    """y = W x (+ b), with W stored as ``(out_features, in_features)``.

    W starts from N(0, 2 / (in_features + out_features)) truncated at ±3σ (Glorot and Bengio, 2010), b at zero.
    """

    fused = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_positive(in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, std: float | None = None) -> None:
        """Reinitialise the weights; ``std`` overrides the default standard deviation."""
        default_std = math.sqrt(2 / (self.in_features + self.out_features))
        truncated_normal_(self.weight, default_std if std is None else std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """Apply the layer to the last axis of ``x``."""
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"Linear({self.in_features}, {self.out_features}) needs vectors of width {self.in_features}; "
                f"the input has shape {tuple(x.shape)}."
            )
        return linear(x, self.weight, self.bias, fused=self.fused)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


def joint_linear(x: Float[Tensor, "... d_in"], layers: Sequence[nn.Module]) -> tuple[Float[Tensor, "... _"], ...]:
    """Return the outputs of several layers for the same vectors; one product in compiled training and decoding steps.

    The compiler copies the matrices side by side in the pass that casts them for autocast anyway; without it, the copy
    would cost more than the product saves. The kernel of a decoding step reads them where they are. What is not a plain
    ``Linear``, an adapter for one, is called as it is.
    """
    if (joined := _joint_matvec(x, layers)) is not None:
        return joined
    plain = [layer for layer in layers if isinstance(layer, Linear) and type(layer) is Linear and layer.fused]
    if len(plain) < len(layers):
        return tuple(layer(x) for layer in layers)
    if not torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return tuple(layer(x) for layer in layers)
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
    if kind not in (Linear, QuantizedLinear) or not step_kernels.chosen(x):
        return None
    same = [layer for layer in layers if type(layer) is kind and isinstance(layer, Linear | QuantizedLinear)]
    matrices = [layer.weight if isinstance(layer, Linear) else layer.stored for layer in same if layer.fused]
    factors = [layer.factors for layer in same if isinstance(layer, QuantizedLinear)]
    biases = [layer.bias for layer in same if layer.bias is not None]
    is_whole = len(matrices) == len(layers) and len(biases) in (0, len(layers))
    if not is_whole or len({matrix.dtype for matrix in matrices}) > 1 or not step_kernels.takes_matvec(x, *matrices):
        return None
    y = step_kernels.matvec(x, matrices, biases, factors)
    return torch.split(y, [len(matrix) for matrix in matrices], dim=-1)


class QuantizedLinear(nn.Module):
    """y = W x (+ b) for inference, with W in one byte a number, and a factor for each row of W.

    ``int8``: integers from −127 to 127; rounding changes each weight by at most half of its row's factor. ``fp8``:
    floats with three bits of mantissa (e4m3, up to 448), each rounded by at most a sixteenth of itself. A quarter of
    the memory of float32, and of the time to read it, which a decoding step waits for; fp8 is fast on a GPU alone.

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
        factors = wide.abs().amax(-1) / (127 if kind == "int8" else 448)  # d_out
        factors = factors.where(factors > 0, 1.0)  # a row of zeros
        scaled = wide / factors.unsqueeze(-1)
        # As bytes, fp8 stays what it is where a model is cast to another type.
        values = scaled.round().to(torch.int8) if kind == "int8" else scaled.to(torch.float8_e4m3fn).view(torch.uint8)
        self.values = nn.Parameter(values, requires_grad=False)  # d_out d_in
        self.factors = nn.Parameter(factors, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def weight(self) -> Float[Tensor, "d_out d_in"]:
        """W as floats, computed anew at each access."""
        return self.stored.float() * self.factors.unsqueeze(-1)

    @property
    def stored(self) -> Tensor:
        """W as it is stored, to be multiplied by the factors."""
        return self.values if self.kind == "int8" else self.values.view(torch.float8_e4m3fn)

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """Apply the layer to the last axis of ``x``; the factors multiply the products, not the weights."""
        if self.fused and step_kernels.takes_matvec(x, self.values):
            return step_kernels.matvec(x, [self.stored], [] if self.bias is None else [self.bias], [self.factors])
        if self.fused and self.kind == "int8" and kernels.takes_int8(x):
            y = kernels.int8_product(x, self.values)  # ... d_out
        else:
            y = linear(x, self.stored.to(x.dtype), None, fused=self.fused)
        y = y * self.factors.to(y.dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {self.kind}"


class Embedding(nn.Module):
    """A table of ``num_embeddings`` vectors, looked up by id. Starts from N(0, 1) truncated at ±3."""

    fused = False

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self, std: float = 1.0) -> None:
        """Reinitialise the table."""
        truncated_normal_(self.weight, std)

    def forward(self, token_ids: Integer[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Return the table row of each id. An id outside the table raises an error that names it."""
        return look_up(self.weight, token_ids, what="token id", fused=self.fused)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows in parentheses."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


def look_up(
    table: Float[Tensor, "V d"], ids: Integer[Tensor, "..."], *, what: str, fused: bool = False
) -> Float[Tensor, "... d"]:
    """Return the rows of ``table`` at ``ids``; ``what`` names the ids in errors; see ``nn.kernels`` for ``fused``.

    ``index_select`` instead of ``table[ids]``: its backward sums the gradients of repeated rows in a fixed order, so
    that training is reproducible on many threads, and it refuses negative ids, which indexing would silently count
    from the end.
    """
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"a {what} must be an integer; got a tensor of {ids.dtype}.")
    flat = ids.reshape(-1)  # N
    flat = flat if flat.dtype in (torch.int32, torch.int64) else flat.long()
    fused = fused and not (table.is_cpu and loses_gradient_sums(table))
    try:
        rows = kernels.embedding(flat, table) if fused else table.index_select(0, flat)  # N d
    except IndexError:
        lowest, highest = int(flat.min()), int(flat.max())
        wrong = lowest if lowest < 0 else highest
        raise IndexError(f"{what} {wrong} is outside the table: it has rows 0 to {table.shape[0] - 1}.") from None
    return rows.reshape(*ids.shape, table.shape[-1])
