"""Dropout (Srivastava et al., 2014), as a function: whether it acts is said by whoever calls it.

Outside training, or at a rate of 0, it returns its input as it is and costs nothing.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def dropout(x: Float[Tensor, "..."], rate: float, training: bool) -> Float[Tensor, "..."]:
    """``x`` with each number set to 0 with probability ``rate`` and the others scaled by 1 / (1 − rate)."""
    return F.dropout(x, rate) if training and rate else x
