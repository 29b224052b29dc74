"""Which query may see which key: the masks that the model itself makes, as pictures with reasons.

Shapes: ``H`` heads (1 where they do not differ), ``T`` queries, ``S`` keys.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.config import BlockSparse
from glassformer.models.embed import positions_from_mask
from glassformer.models.stack import StackInput
from glassformer.nn.masks import DenseMask
from glassformer.nn.sparse import block_sparse_mask
from glassformer.viewer.encode import array
from glassformer.viewer.inputs import Input
from glassformer.viewer.kinds import AttentionKind, check_head, stack_of
from glassformer.viewer.mechanisms import window_name
from glassformer.viewer.subject import QueryError, Subject

REASONS = ("allowed", "causal", "padding", "window", "block-sparse")
PADDING = 16


def allowed_pairs(
    subject: Subject, kind: AttentionKind, layer: int, queries: int, keys: int, padding: int = 0
) -> Tensor | None:
    """Return booleans (1, T, S), or (H, T, S) where heads differ; None: every key.

    ``padding``: how many of the last keys are no tokens.
    """
    window = _window(subject, kind, layer)
    key = "allowed", kind, window, queries, keys, padding
    found: Tensor | None = subject.results.find(key)
    if found is None:
        found = _allowed_pairs(subject, kind, layer, queries, keys, padding)
        if found is not None:
            subject.results.put(key, found, found.nbytes)
    return found


def _allowed_pairs(
    subject: Subject, kind: AttentionKind, layer: int, queries: int, keys: int, padding: int
) -> Tensor | None:
    window = _window(subject, kind, layer)
    if isinstance(window, BlockSparse):
        match window.semantics:
            case "reference":
                bias = block_sparse_mask(queries, window, 1)
            case "set":
                bias = block_sparse_mask(queries - padding, window, stack_of(subject, kind).attention.heads)
                bias = torch.nn.functional.pad(bias, (0, padding, 0, padding), value=-torch.inf)
            case unknown:
                raise ValueError(
                    f"there is no picture of block-sparse attention with the semantics {unknown!r}; add it to "
                    f"_allowed_pairs in viewer/masks.py."
                )
        bias[..., keys - padding :] = -torch.inf
        allowed = bias > -torch.inf
        return allowed if window.semantics == "set" or not bool(allowed.all()) else None
    if kind == "cross":
        return None if not padding else (torch.arange(keys) < keys - padding).expand(1, queries, keys)
    # Self-attention: the mask that the stack makes.
    mask = _own_mask(subject, kind, layer, queries, padding)
    if mask is None:
        return None
    if mask.allowed is None:
        return torch.ones(1, queries, keys, dtype=torch.bool).tril()
    return mask.allowed.cpu().expand(1, -1, queries, keys)[0] if mask.allowed.ndim == 4 else mask.allowed.cpu()[None]


def _window(subject: Subject, kind: AttentionKind, layer: int) -> int | BlockSparse | None:
    """Return the window of a layer; cross-attention has none."""
    return None if kind == "cross" else stack_of(subject, kind).window(layer)


def _own_mask(subject: Subject, kind: AttentionKind, layer: int, length: int, padding: int) -> DenseMask | None:
    """Return the mask that the stack makes for itself."""
    module = subject.model.encoder if kind == "encoder" else subject.model.decoder
    assert module is not None
    weight = next(subject.model.parameters())
    token_mask = None
    positions = torch.arange(length, device=weight.device)
    if padding:
        token_mask = (torch.arange(length, device=weight.device) < length - padding)[None]
        positions = positions_from_mask(token_mask)
    with torch.inference_mode():
        x = torch.zeros(1, length, subject.facts.width, dtype=weight.dtype, device=weight.device)
        contexts = module.contexts(x, StackInput(positions, token_mask), "eager")
    mask = contexts[min(layer, len(contexts) - 1)].mask
    assert mask is None or isinstance(mask, DenseMask)
    return mask


@dataclass(frozen=True)
class OfMask:
    """A head of a layer; ``padding``: slots after the text, as in a batch with a longer one."""

    input: Input = field(default_factory=Input)
    kind: AttentionKind = "decoder"
    layer: int = 0
    head: int = 0
    padding: int = 0


def mask(subject: Subject, params: OfMask) -> dict[str, Any]:
    """Return which query may see which key, and why not.

    Result: ``{"queries": T, "keys": S, "allowed": u1 (T, S), "reason": u1 (T, S), an index of "reasons" ["allowed",
    "causal", "padding", "window", "block-sparse"], "causal": bool, "window": int | null, "block": int | null, "random":
    int | null, "counts": u1 (T, S) | null, how often a key counts in block-sparse attention as the reference computes
    it, "per_head": whether heads differ}``. With padding, T and S (for cross: S) include it.
    """
    check_head(subject, params.kind, params.layer, params.head)
    if not 0 <= params.padding <= PADDING:
        raise QueryError(f"padding must be from 0 to {PADDING}, got {params.padding}.")
    stack, window = stack_of(subject, params.kind), _window(subject, params.kind, params.layer)
    # Which pairs are allowed, (T, S), and why others are not.
    queries, keys = subject.lengths(params.input, params.kind)
    keys += params.padding
    queries += params.padding if params.kind != "cross" else 0
    pairs = allowed_pairs(subject, params.kind, params.layer, queries, keys, params.padding)
    per_head = pairs is not None and len(pairs) > 1
    allowed = torch.ones(queries, keys, dtype=torch.bool) if pairs is None else pairs[params.head if per_head else 0]
    is_causal = stack.causal and params.kind != "cross"
    padded = torch.arange(keys) >= keys - params.padding
    reason = _reasons(allowed, padded, window, is_causal=is_causal, is_self=params.kind != "cross")
    sparse = window if isinstance(window, BlockSparse) else None
    counts = None
    if sparse is not None and sparse.semantics == "reference":
        counts = array(block_sparse_mask(queries, sparse, 1)[0].exp().round(), "u1")
    return {
        "queries": queries,
        "keys": keys,
        "allowed": array(reason == 0, "u1"),
        "reason": array(reason, "u1"),
        "reasons": list(REASONS),
        "causal": is_causal,
        "window": window if isinstance(window, int) else None,
        "block": None if sparse is None else sparse.block,
        "random": None if sparse is None else sparse.random,
        "counts": counts,
        "per_head": per_head,
    }


def _reasons(
    allowed: Tensor, padded: Tensor, window: int | BlockSparse | None, *, is_causal: bool, is_self: bool
) -> Tensor:
    """Return why each pair (T, S) is hidden, as an index of ``REASONS``; of padded queries nothing is used."""
    queries, keys = allowed.shape
    name = window_name(window)
    reason = torch.where(allowed, 0, REASONS.index("causal" if name == "full" else name))
    if is_causal:
        later = torch.ones(queries, keys, dtype=torch.bool).triu(1)
        reason = reason.masked_fill(later & ~allowed, REASONS.index("causal"))
    hidden = padded[None, :] | (padded[:, None] if is_self else torch.zeros(queries, 1, dtype=torch.bool))
    return reason.masked_fill(hidden, REASONS.index("padding"))


QUERIES = {"mask": (mask, OfMask)}
