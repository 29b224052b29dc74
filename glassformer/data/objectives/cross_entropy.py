"""Cross-entropy as a sum over the places that are judged, whole or a few places at a time.

Label smoothing (Szegedy et al., 2016, section 7) gives the right token 1 − ε and spreads ε evenly over the whole
vocabulary, the right token included. A place whose label is ``IGNORE`` adds exactly 0.

Shapes: ``...`` any axes, ``V`` vocabulary, ``D`` model width, ``N`` places that are judged.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from glassformer.config.checks import check_positive, check_probability
from glassformer.data.objectives.base import IGNORE
from glassformer.nn.norm import upcast


class TokenLoss(NamedTuple):
    """Sums over the places that are judged."""

    total: Float[Tensor, ""]  # cross-entropy in nats
    right: Int[Tensor, ""]  # at how many of them the label has the highest score; while learning, a tie is right


def token_cross_entropy(
    logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], smoothing: float = 0.0
) -> TokenLoss:
    """Cross-entropy and right guesses; how many places they are over is for whoever made the labels to know."""
    check_probability(smoothing=smoothing)
    rows, flat = upcast(logits).reshape(-1, logits.shape[-1]), labels.reshape(-1)
    total = F.cross_entropy(rows, flat, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    return TokenLoss(total, _count_right(logits.detach(), labels, exactly=not torch.is_grad_enabled()))


def _count_right(logits: Tensor, labels: Tensor, exactly: bool) -> Tensor:
    if exactly:
        return ((logits.argmax(-1) == labels) & (labels != IGNORE)).sum()
    # While learning, every step: the highest score is found several times quicker than which token has it.
    own = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # of the label; any where it is IGNORE
    return ((own >= logits.amax(-1)) & (labels != IGNORE)).sum()


def token_losses(
    logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], int]:
    """(Sum of the cross-entropies in nats, number of places it is over)."""
    return token_cross_entropy(logits, labels, smoothing).total, int((labels != IGNORE).sum())


def judge_in_chunks(
    hidden: Float[Tensor, "... D"],
    head: Callable[[Tensor], Tensor],
    labels: Int[Tensor, "..."],
    chunk: int,
    smoothing: float = 0.0,
) -> TokenLoss:
    """``token_cross_entropy`` of ``head(hidden)``, without ever holding the logits of more than ``chunk`` places.

    Logits are made anew in the backward pass, which costs one more product with the vocabulary. Places that are not
    judged are left out before the head, which for masked words is most of its work.

    Args:
        hidden: vectors before the head.
        head: from vectors ``(1, places, D)`` to logits ``(1, places, V)``, each place by itself.
        labels: what is right at each place, or ``IGNORE``.
        chunk: places at a time.
        smoothing: as in ``token_losses``.
    """
    check_positive(chunk=chunk)

    def judge(some: Tensor, right: Tensor) -> TokenLoss:
        return token_cross_entropy(head(some[None]), right[None], smoothing)

    judged = labels != IGNORE
    vectors, wanted = hidden[judged], labels[judged]  # N D, N
    parts = [
        TokenLoss(*checkpoint(judge, some, right, use_reentrant=False, preserve_rng_state=False))
        for some, right in zip(torch.split(vectors, chunk), torch.split(wanted, chunk), strict=True)
    ]
    if not len(wanted):
        parts = [TokenLoss(vectors.sum(), wanted.sum())]  # 0 that still hangs on the model
    return TokenLoss(torch.stack([p.total for p in parts]).sum(), torch.stack([p.right for p in parts]).sum())


def chunked_token_loss(
    hidden: Float[Tensor, "... D"],
    head: Callable[[Tensor], Tensor],
    labels: Int[Tensor, "..."],
    chunk: int,
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], int]:
    """``token_losses`` of ``head(hidden)`` by ``judge_in_chunks``: the same number and gradients in less memory."""
    return judge_in_chunks(hidden, head, labels, chunk, smoothing).total, int((labels != IGNORE).sum())
