"""Linear layer and embedding table: the two modules that hold most of a Transformer's parameters.

Shapes: ``...`` any leading axes (batch, sequence, heads), ``d_in`` and ``d_out`` vector widths, ``V`` table rows,
``d`` width of a row. Initialisation: normal, truncated at three standard deviations; see ``Linear`` and ``Embedding``
for the standard deviations.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, Integer
from torch import Tensor, nn

from glassformer.config.checks import check_positive_integer
from glassformer.nn.kernels import operators, step_kernels
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
        if x.is_cuda:
            biases = [] if bias is None else [bias]
            if step_kernels.use_matvec(x, [weight], biases):
                return step_kernels.matvec(x, [weight], biases, [])
            if step_kernels.use_transposed(x, weight):
                return step_kernels.transposed_linear(x, weight, bias)
        product = operators.onednn_linear if operators.use_onednn(x, weight, bias) else operators.linear
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
        check_positive_integer(in_features=in_features, out_features=out_features)
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
        check_positive_integer(num_embeddings=num_embeddings, embedding_dim=embedding_dim)
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
        rows = operators.embedding(flat, table) if fused else table.index_select(0, flat)  # N d
    except IndexError:
        lowest, highest = int(flat.min()), int(flat.max())
        wrong = lowest if lowest < 0 else highest
        raise IndexError(f"{what} {wrong} is outside the table: it has rows 0 to {table.shape[0] - 1}.") from None
    return rows.reshape(*ids.shape, table.shape[-1])
