"""The position-wise feed-forward network and its activations; a convolution over neighbouring tokens.

Two linear layers with a non-linearity between them (Vaswani et al., 2017, section 3.3); gated, a third layer decides
how much of each hidden value passes (Shazeer, 2020). Every position is transformed independently with the same weights.
The ``Convolution`` beside the first block of some encoders mixes neighbours (He et al., 2021, for n-grams).

Shapes: ``...`` any leading axes, ``d`` model width, ``f`` hidden width. Of the convolution: ``B`` batch, ``T`` tokens,
``D`` model width, ``N`` kernel size, and ``g`` groups of ``c`` input and ``o`` output channels.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer import config
from glassformer.config.checks import check_choice, check_positive_integer, check_probability
from glassformer.nn.kernels import operators, step_kernels
from glassformer.nn.kernels.joint import joint_linear
from glassformer.nn.linear import Linear, truncated_normal_
from glassformer.nn.modes import dropout
from glassformer.nn.norm import make_norm, upcast
from glassformer.nn.observer import Observer, observe


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
    """Approximate ``gelu`` by tanh; they differ by up to 5e-4, so the two are different facts of a model."""
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


def activated(x: Float[Tensor, "... f"], activation: Callable[[Tensor], Tensor]) -> Float[Tensor, "... f"]:
    """activation(x); float16 is clamped before and after."""
    return clamp_half(activation(clamp_half(x)))


def gated(gate: Float[Tensor, "... f"], up: Float[Tensor, "... f"]) -> Float[Tensor, "... f"]:
    """gate · up, where ``gate`` has passed its activation; float16 is clamped."""
    return clamp_half(gate * clamp_half(up))


def clamp_half(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Clamp float16 to its finite range, because −∞ · 0 and ∞ − ∞ are NaN; other dtypes are returned as they are."""
    if x.dtype != torch.float16:
        return x
    largest = torch.finfo(torch.float16).max
    return x.clamp(-largest, largest)


class FeedForward(nn.Module):
    """down(activation(up(x))), or gated down(activation(gate(x)) · up(x)), with or without biases.

    ``dropout`` acts on the output, as in the 2017 paper, ``inner_dropout`` on the hidden vector; both only in
    training mode.
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

    def forward(self, x: Float[Tensor, "... d"], observer: Observer | None = None) -> Float[Tensor, "... d"]:
        """Transform every vector of ``x`` independently. An ``observer`` sees the ``hidden`` vectors."""
        activation = (operators.ACTIVATIONS if self.fused else ACTIVATIONS)[self.activation]
        # Expand to the hidden width. The gate is computed first: its pre-activation is freed before up(x) is allocated.
        if self.gate is None:
            hidden = activated(self.up(x), activation)  # ... f
        elif torch.compiler.is_compiling() or step_kernels.capturing(x):
            gate, up = joint_linear(x, (self.gate, self.up))
            hidden = gated(activated(gate, activation), up)  # ... f
        else:
            hidden = gated(activated(self.gate(x), activation), self.up(x))  # ... f
        hidden = observe(observer, "hidden", hidden)
        # Project back to the model width.
        y = self.down(dropout(hidden, self.inner_dropout, self.training))  # ... d
        return dropout(y, self.dropout, self.training)


class SwiGLU(nn.Module):
    """W2(SiLU(W1 x) · W3 x): the gated network under the names its paper gives the matrices, without biases.

    ``d_ff`` defaults to ``swiglu_width(d_model)``.
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
        check_positive_integer(d_model=d_model)
        d_ff = swiglu_width(d_model) if d_ff is None else d_ff
        self.w1 = Linear(d_model, d_ff, device, dtype)  # gate
        self.w2 = Linear(d_ff, d_model, device, dtype)  # down
        self.w3 = Linear(d_model, d_ff, device, dtype)  # up

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Transform every vector of ``x`` independently."""
        gate = activated(self.w1(x), operators.ACTIVATIONS["silu"] if self.fused else silu)  # ... f
        return self.w2(gated(gate, self.w3(x)))


def swiglu_width(d_model: int, multiple: int = 64) -> int:
    """8/3 · d_model rounded up to a multiple: three matrices then cost what two of width 4 · d_model do."""
    return multiple * math.ceil(8 * d_model / (3 * multiple))


class Convolution(nn.Module):
    """norm(y + activation(dropout(convolution(x)))), where y is the output of the block whose input is x."""

    fused = False

    def __init__(self, facts: config.Convolution, norm: config.Norm, width: int) -> None:
        super().__init__()
        self.groups = facts.groups
        self.activation = facts.activation
        self.weight = nn.Parameter(torch.empty(width, width // facts.groups, facts.kernel))  # out, in, neighbour
        self.bias = nn.Parameter(torch.empty(width))
        self.norm = make_norm(norm, width)
        self.dropout = facts.dropout
        self.reset_parameters()

    def reset_parameters(self, std: float | None = None) -> None:
        """Reinitialise the weights; ``std`` overrides the default standard deviation."""
        fan_in = self.weight.shape[1] * self.weight.shape[2]
        default_std = (2 / (fan_in + self.weight.shape[0])) ** 0.5
        truncated_normal_(self.weight, default_std if std is None else std)
        nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        y: Float[Tensor, "B T D"],
        token_mask: Bool[Tensor, "B T"] | None = None,
        *,
        observer: Observer | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Convolve ``x`` and add it to ``y``; padding counts as zeros, as do neighbours beyond the ends."""
        y = observe(observer, "input", y)
        if token_mask is not None:
            x = x.where(token_mask.unsqueeze(-1), 0.0)
        # Gather the N neighbours of each token.
        kernel = self.weight.shape[-1]
        neighbours = F.pad(x, (0, 0, kernel // 2, kernel // 2)).unfold(1, kernel, 1)  # B T D N
        # Each group of channels is one matrix product over its channels and neighbours.
        neighbours = rearrange(neighbours, "b t (g c) n -> b t g (c n)", g=self.groups)
        weight = rearrange(self.weight, "(g o) c n -> g (c n) o", g=self.groups)
        convolved = torch.einsum("btgi,gio->btgo", neighbours, weight)
        convolved = rearrange(convolved, "b t g o -> b t (g o)") + self.bias  # B T D
        activation = (operators.ACTIVATIONS if self.fused else ACTIVATIONS)[self.activation]
        convolved = activation(dropout(convolved, self.dropout, self.training))
        return self.norm(y + observe(observer, "output", convolved))
