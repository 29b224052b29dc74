"""Muon: momentum whose step is turned into an orthogonal matrix (Jordan et al., 2024).

Shapes: ``m`` × ``n`` a matrix of weights.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from glassformer.config.checks import check_number, check_probability


class Muon(Optimizer):
    """For matrices alone: every singular value of the step becomes about 1.

    The step is scaled by 0.2 · √(larger side), which makes it about as long as AdamW's (Liu et al., 2025), so that
    learning rates carry over. ``torch.optim.Muon`` computes in bfloat16 on every device; here the rounds run in the
    parameter's own type, but on a GPU in bfloat16.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, *, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        check_number(lr=lr)
        check_probability(momentum=momentum)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(f"Muon is for matrices; a parameter of shape {tuple(p.shape)} is one for AdamW.")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._change(p, p.grad, group)
        return loss

    def _change(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        state["momentum"].lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(state["momentum"], group["momentum"])  # Nesterov's
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(orthogonal(ahead).to(p.dtype), alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))


def orthogonal(matrix: Float[Tensor, "m n"], rounds: int = 5) -> Float[Tensor, "m n"]:
    """A matrix with the same singular vectors and singular values of about 1 (0.7 to 1.2): Newton-Schulz rounds."""
    a, b, c = 3.4445, -4.7750, 2.0315  # a quintic that climbs as steeply as possible from 0 (Jordan et al., 2024)
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if is_tall else x
