"""Attention in a sliding window by blocks, at a cost that grows linearly with the length (Beltagy et al., 2020).

For a window, ``attend_in_window`` replaces the call of PyTorch's kernel with a mask ``(T, T)``, of which most is
hidden. The queries are cut into blocks, and each block attends to its own keys and those of the window around it: all
blocks in one call, as rows of a batch, with one small mask. The first and the last queries, whose window is cut off by
the ends of the sequence, are two more calls.

Shapes: ``B`` batch, ``H`` heads, ``G`` key/value heads, ``T`` tokens, ``K`` width of a head, ``V`` width of a value,
``N`` blocks of ``t`` queries and ``s`` keys each, ``D`` any width.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor

from glassformer.nn.masks import Mask

MIN_BLOCK = 16


class Blocks(NamedTuple):
    """Consecutive blocks of the same size: the first query of the first one, and its first key."""

    query: int
    key: int
    number: int  # N
    queries: int  # of each block, t
    keys: int  # of each block, s

    def split_queries(self, x: Shaped[Tensor, "B H T D"]) -> Shaped[Tensor, "BN H t D"]:
        """Return the queries of each block."""
        x = x[:, :, self.query : self.query + self.number * self.queries]
        return rearrange(x, "b h (n t) d -> (b n) h t d", n=self.number)

    def split_keys(self, x: Shaped[Tensor, "B G T D"]) -> Shaped[Tensor, "BN G s D"]:
        """Return the keys of each block. They overlap; a batch of one row is a view, larger ones are copied."""
        x = x[:, :, self.key : self.key + (self.number - 1) * self.queries + self.keys]
        return rearrange(x.unfold(2, self.keys, self.queries), "b g n d s -> (b n) g s d")


@dataclass(frozen=True, eq=False)
class WindowMask:
    """A window over T queries and as many keys, with a mask for each ``Blocks``: made once for many layers.

    Such a mask is ``(t, s)``, or ``(B · N, 1, t, s)`` with padding or documents; None: causal, and nothing else hidden.
    """

    mask: Mask  # the window, causal or not, and padding (B, T)
    documents: Integer[Tensor, "B T"] | None  # tokens attend within their document; None: a row is one document
    blocks: tuple[tuple[Blocks, Bool[Tensor, "... _ _"] | None], ...]

    def dense(self, score_shape: tuple[int, ...], device: torch.device) -> Bool[Tensor, "... T T"]:
        """Return the same mask for scores of shape ``(B, H, T, T)``, as the formula needs it."""
        pairs = None if self.documents is None else self.documents.unsqueeze(-1) == self.documents.unsqueeze(-2)
        return (self.mask & Mask(pairs=pairs)).dense(score_shape, device)


def window_block(window: int) -> int:
    """Return the queries per block: half a window, so that a block of t queries takes 3 · t keys."""
    return max(MIN_BLOCK, -(-window // 2))


def has_blocks(mask: Mask, queries: int, keys: int) -> bool:
    """Whether a mask has a window that blocks make cheaper: shorter than the sequence, with T queries and T keys."""
    if mask.window is None or queries != keys:
        return False
    return keys > (mask.window if mask.causal else 2 * mask.window)


def window_blocks(length: int, window: int, *, causal: bool, block: int) -> list[Blocks]:
    """Return the first queries, which see fewer keys; full blocks of ``block`` queries; and the remaining queries."""
    ahead = 0 if causal else window  # keys after a block; ``window`` keys are before it
    number = (length - window - ahead) // block
    last = window + number * block
    middle = Blocks(window, 0, number, block, window + block + ahead)
    rest = length - last
    return [
        Blocks(0, 0, 1, window, window + ahead),
        *([middle] if number else []),
        *([Blocks(last, last - window, 1, rest, window + rest)] if rest else []),
    ]


def make_window_mask(
    mask: Mask,
    length: int,
    device: torch.device | None,
    documents: Integer[Tensor, "B T"] | None = None,
    *,
    block: int | None = None,
) -> WindowMask:
    """Make the masks of the blocks of a window over ``length`` tokens; see ``has_blocks``.

    Args:
        mask: the window, causal or not, and padding ``(B, T)``.
        length: tokens, T.
        device: of the masks.
        documents: the document of each token.
        block: queries per block; default ``window_block``.
    """
    assert mask.window is not None, "blocks are those of a window"
    assert mask.pairs is None, "blocks have no booleans for all pairs; pass documents"
    found = window_blocks(length, mask.window, causal=mask.causal, block=block or window_block(mask.window))
    masks = (_mask_of(blocks, mask, device, documents) for blocks in found)
    return WindowMask(mask, documents, tuple(zip(found, masks, strict=True)))


def _mask_of(
    blocks: Blocks, mask: Mask, device: torch.device | None, documents: Integer[Tensor, "B T"] | None
) -> Bool[Tensor, "... t s"] | None:
    """Return which query may attend to which key in each block."""
    # Causal mask and window depend on the distance alone: they are the same in all blocks.
    if mask.causal and mask.keys is None and documents is None and blocks.queries == blocks.keys:
        return None
    query = torch.arange(blocks.query, blocks.query + blocks.queries, device=device)[:, None]
    distance = torch.arange(blocks.key, blocks.key + blocks.keys, device=device) - query  # t s
    assert mask.window is not None
    allowed = distance.abs() < mask.window
    if mask.causal:
        allowed = allowed & (distance <= 0)
    # Padding and documents differ between blocks.
    if mask.keys is not None:
        allowed = allowed & rearrange(blocks.split_keys(mask.keys[:, None, :, None]), "n 1 s 1 -> n 1 1 s")
    if documents is not None:
        documents = documents[:, None, :, None]  # B 1 T 1
        theirs = rearrange(blocks.split_keys(documents), "n 1 s 1 -> n 1 1 s")
        allowed = allowed & (blocks.split_queries(documents) == theirs)
    return allowed


def attend_in_window(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G T K"],
    v: Float[Tensor, "B G T V"],
    mask: WindowMask,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B H T V"]:
    """Return the attention of every query to the keys in its window, by the fused kernels of PyTorch."""
    attend = partial(
        F.scaled_dot_product_attention, dropout_p=dropout, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    parts = []
    for blocks, allowed in mask.blocks:
        inputs = blocks.split_queries(q), blocks.split_keys(k), blocks.split_keys(v)
        part = attend(*inputs, attn_mask=allowed, is_causal=allowed is None)  # B·N H t V
        parts.append(rearrange(part, "(b n) h t v -> b h (n t) v", n=blocks.number))
    return torch.cat(parts, dim=2)
