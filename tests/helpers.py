"""What several test modules share."""

import torch
from torch import nn


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter anew, norms included: with the usual starting values swapped norms would not show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.15
            is_gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(noise + 1 if is_gain else noise)
    return module


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max |a − b| in float64; NaN anywhere gives NaN, which no bound accepts."""
    return float((a.double() - b.double()).abs().max())
