"""Parameter groups and learning-rate schedules."""

import math

from torch import nn
from torch.optim import AdamW


def adamw(model: nn.Module, lr: float, *, weight_decay: float = 0.1, betas: tuple[float, float] = (0.9, 0.95)) -> AdamW:
    """AdamW (Loshchilov and Hutter, 2019) that decays matrices and tables, and leaves gains and biases alone."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=betas, fused=True)


def warmup_cosine(progress: float, *, warmup: float = 0.05, floor: float = 0.05) -> float:
    """Factor on the learning rate when a share ``progress`` of the run is done: linear up, half a cosine down.

    Both ends are at ``floor`` and not at 0, so that no step is done for nothing.
    """
    if progress < warmup:
        return floor + (1 - floor) * progress / warmup
    done = min(1.0, (progress - warmup) / (1 - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))
