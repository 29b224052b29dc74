"""The largest of many scores, found in two rounds: a vocabulary is wide, and few of its tokens matter.

Shapes: ``...`` leading axes, ``V`` vocabulary, ``C`` tokens in a piece, ``P`` pieces, ``n`` tokens wanted.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

PIECE = 128  # tokens


def largest(scores: Float[Tensor, "... V"], count: int) -> tuple[Float[Tensor, "... n"], Int[Tensor, "... n"]]:
    """The ``count`` largest scores (all, if there are fewer) and their tokens, the largest first.

    The same as ``scores.topk``, which sorts with one thread per row what it need not look at: no more than ``count``
    pieces of the vocabulary can hold a winner, and those with the largest maxima do.
    """
    vocabulary = scores.shape[-1]
    pieces = vocabulary // PIECE
    if pieces <= 2 * count or scores.device.type != "cpu":
        top = scores.topk(min(count, vocabulary), dim=-1)
        return top.values, top.indices
    whole = pieces * PIECE
    cut = torch.unflatten(scores[..., :whole], -1, (pieces, PIECE))  # ... P C
    chosen = cut.amax(-1).topk(count, dim=-1).indices.unsqueeze(-1)  # ... n 1
    places = torch.arange(PIECE, device=scores.device)
    candidates = cut.gather(-2, chosen.expand(*chosen.shape[:-1], PIECE)).flatten(-2)
    tokens = (chosen * PIECE + places).flatten(-2)
    rest = torch.arange(whole, vocabulary, device=scores.device).expand(*scores.shape[:-1], -1)
    candidates, tokens = torch.cat((candidates, scores[..., whole:]), -1), torch.cat((tokens, rest), -1)
    top = candidates.topk(count, dim=-1)
    return top.values, tokens.gather(-1, top.indices)


def likeliest(scores: Float[Tensor, "... V"]) -> Int[Tensor, "..."]:
    """The token with the largest score, of equals the first: the same as ``scores.argmax``, in two rounds."""
    pieces = scores.shape[-1] // PIECE
    if pieces <= 2 or scores.device.type != "cpu":
        return scores.argmax(-1)
    whole = pieces * PIECE
    cut = torch.unflatten(scores[..., :whole], -1, (pieces, PIECE))  # ... P C
    piece = cut.amax(-1).argmax(-1, keepdim=True)  # ... 1
    inside = cut.gather(-2, piece.unsqueeze(-1).expand(*piece.shape, PIECE)).squeeze(-2)  # ... C
    at = torch.cat((inside, scores[..., whole:]), -1).argmax(-1, keepdim=True)
    return torch.where(at < PIECE, piece * PIECE + at, whole - PIECE + at).squeeze(-1)
