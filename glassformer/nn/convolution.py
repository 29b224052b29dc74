"""A convolution over neighbouring tokens, beside the first block of an encoder (He et al., 2021, for n-grams).

Shapes: ``B`` batch, ``T`` tokens, ``D`` width, ``C`` width of a group, ``N`` neighbours (the kernel).
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer import config
from glassformer.nn.dropout import dropout
from glassformer.nn.feedforward import activation_named
from glassformer.nn.linear import truncated_normal_
from glassformer.nn.norm import make_norm


class Convolution(nn.Module):
    """norm(y + activation(dropout(convolution(x)))), where y is the output of the block that x went into."""

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
        """Draw the starting weights anew; with another standard deviation, if one is given."""
        into = self.weight.shape[1] * self.weight.shape[2]
        usual = (2 / (into + self.weight.shape[0])) ** 0.5
        truncated_normal_(self.weight, usual if std is None else std)
        nn.init.zeros_(self.bias)

    def forward(
        self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Padding, and what lies beyond the ends, counts as zeros."""
        if real is not None:
            x = x.where(real.unsqueeze(-1), 0.0)
        reach = self.weight.shape[-1] // 2
        around = nn.functional.pad(x, (0, 0, reach, reach)).unfold(1, self.weight.shape[-1], 1)  # B T D N
        around = rearrange(around, "b t (g c) n -> b t g (c n)", g=self.groups)
        weight = rearrange(self.weight, "(g o) c n -> g (c n) o", g=self.groups)
        seen = rearrange(torch.einsum("btgi,gio->btgo", around, weight), "b t g o -> b t (g o)") + self.bias
        activation = activation_named(self.activation, fused=self.fused)
        return self.norm(y + activation(dropout(seen, self.dropout, self.training)))
