"""The position-wise feed-forward network and its activations.

Two linear maps with a bend between them (Vaswani et al., 2017, section 3.3); gated, a third map decides how much of
each hidden value passes (Shazeer, 2020). Every position is treated alike and alone.

Shapes: ``...`` any leading axes, ``d`` model width, ``f`` hidden width.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.config.checks import check_choice, check_positive, check_probability
from glassformer.nn import kernels
from glassformer.nn.dropout import dropout
from glassformer.nn.linear import Linear
from glassformer.nn.norm import upcast


def relu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """max(0, x)."""
    return torch.relu(x)


def silu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x · σ(x), also called Swish (Elfwing et al., 2017)."""
    wide = upcast(x)
    return (wide * torch.sigmoid(wide)).to(x.dtype)


def gelu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x · Φ(x) with the exact normal distribution function Φ (Hendrycks and Gimpel, 2016)."""
    wide = upcast(x)
    return (wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))).to(x.dtype)


def gelu_tanh(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The tanh approximation of ``gelu``: up to 5e-4 away from it, so the two are different facts of a model."""
    wide = upcast(x)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (wide * 0.5 * (1 + torch.tanh(inner))).to(x.dtype)


def tanh(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """(eˣ − e⁻ˣ) / (eˣ + e⁻ˣ)."""
    return torch.tanh(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "tanh": tanh,
}


def activation_named(name: str, *, fused: bool = False) -> Callable[[Tensor], Tensor]:
    """The activation of this name, as a formula or as a kernel; see ``nn.kernels``."""
    return kernels.ACTIVATIONS[name] if fused else ACTIVATIONS[name]


def activated(x: Float[Tensor, "... f"], activation: Callable[[Tensor], Tensor]) -> Float[Tensor, "... f"]:
    """activation(x), in float16 within its range."""
    return clamp_half(activation(clamp_half(x)))


def gated(gate: Float[Tensor, "... f"], up: Float[Tensor, "... f"]) -> Float[Tensor, "... f"]:
    """gate · up, of a gate that went through its activation; in float16 within its range."""
    return clamp_half(gate * clamp_half(up))


def clamp_half(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """``x``, in float16 kept within what that type can hold: −∞ · 0 and ∞ − ∞ would make NaN of an infinity."""
    if x.dtype != torch.float16:
        return x
    largest = torch.finfo(torch.float16).max
    return x.clamp(-largest, largest)


class FeedForward(nn.Module):
    """down(activation(up(x))), or gated down(activation(gate(x)) · up(x)), with or without biases.

    ``dropout`` acts on the output, as in the 2017 paper, ``inner_dropout`` on the hidden vector; both only while
    training.
    """

    fused = False

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        inner_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("activation", activation, ACTIVATIONS)
        check_probability(dropout=dropout, inner_dropout=inner_dropout)
        self.activation = activation
        self.up = Linear(d_model, d_ff, device, dtype, bias=bias)
        self.gate = Linear(d_model, d_ff, device, dtype, bias=bias) if gated else None
        self.down = Linear(d_ff, d_model, device, dtype, bias=bias)
        self.dropout = dropout
        self.inner_dropout = inner_dropout

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Transform every vector of ``x`` by itself."""
        activation = activation_named(self.activation, fused=self.fused)
        if self.gate is None:
            hidden = activated(self.up(x), activation)  # ... f
        else:  # gate(x) itself is freed before up(x) is computed
            hidden = gated(activated(self.gate(x), activation), self.up(x))
        y = self.down(dropout(hidden, self.inner_dropout, self.training))
        return dropout(y, self.dropout, self.training)


class SwiGLU(nn.Module):
    """W2(SiLU(W1 x) · W3 x): the gated network under the names its paper gives the matrices, without biases.

    Without ``d_ff`` the hidden width is ``swiglu_width`` of ``d_model``.
    """

    fused = False

    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(d_model=d_model)
        d_ff = swiglu_width(d_model) if d_ff is None else d_ff
        self.w1 = Linear(d_model, d_ff, device, dtype)  # gate
        self.w2 = Linear(d_ff, d_model, device, dtype)  # down
        self.w3 = Linear(d_model, d_ff, device, dtype)  # up

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Transform every vector of ``x`` by itself."""
        gate = activated(self.w1(x), activation_named("silu", fused=self.fused))
        return self.w2(gated(gate, self.w3(x)))


def swiglu_width(d_model: int, multiple: int = 64) -> int:
    """8/3 · d_model rounded up to a multiple: three matrices then cost what two of width 4 · d_model do."""
    return multiple * math.ceil(8 * d_model / (3 * multiple))
