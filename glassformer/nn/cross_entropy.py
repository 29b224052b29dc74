"""Cross-entropy of tokens, and how many of them are predicted correctly.

Label smoothing (Szegedy et al., 2016, section 7) gives the label the probability 1 − ε and spreads ε evenly over the
whole vocabulary, the label included. A position whose label is ``IGNORE`` adds exactly 0.

Shapes: ``...`` any axes, ``V`` vocabulary.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config.checks import check_probability
from glassformer.nn.norm import upcast

IGNORE = -100  # the label of a position that is not counted in the loss


class TokenLoss(NamedTuple):
    """Sums over the positions that are counted in the loss."""

    total: Float[Tensor, ""]  # cross-entropy in nats
    correct: Int[Tensor, ""]  # the number of correct predictions; during training a tie counts as correct


def token_cross_entropy(
    logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], smoothing: float = 0.0
) -> TokenLoss:
    """Return cross-entropy and correct predictions, summed; positions with the label ``IGNORE`` add exactly 0."""
    if not 0.0 <= smoothing < 1.0:
        check_probability(smoothing=smoothing)
    rows, flat = upcast(logits).reshape(-1, logits.shape[-1]), labels.reshape(-1)  # (positions, V), (positions,)
    total = F.cross_entropy(rows, flat, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    return TokenLoss(total, correct_predictions(logits.detach(), labels, ties=torch.is_grad_enabled()))


def correct_predictions(logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], *, ties: bool) -> Int[Tensor, ""]:
    """Return the number of correct predictions. In training this runs every step, and amax is faster than argmax."""
    if ties:
        label_logits = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # any where IGNORE
        is_correct = label_logits >= logits.amax(-1)
    else:
        is_correct = logits.argmax(-1) == labels
    return (is_correct & (labels != IGNORE)).sum()
