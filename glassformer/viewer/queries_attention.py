"""Queries about attention: weights, patterns of heads, and the product of queries and keys.

Shapes: ``L`` layers, ``H`` heads, ``T`` queries, ``S`` keys, ``R`` rows asked for, ``K`` width of a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.inspect.record import value_names
from glassformer.viewer.encode import array, in_8_bits
from glassformer.viewer.inputs import Input
from glassformer.viewer.kinds import AttentionKind, check_head, check_layer, check_rows, layers_of, name_of, stack_of
from glassformer.viewer.masks import allowed_pairs
from glassformer.viewer.subject import QueryError, Subject

WHOLE = 256  # queries up to which weights are sent in full precision
SELF = ("previous", "self", "next", "first", "separator", "broad")
CROSS = ("first", "separator", "broad", "aligned")
VALUES = 2**18  # numbers of one answer to ``values``


@dataclass(frozen=True)
class AttentionParams:
    """A layer; which heads and which rows (start, stop) of it, null: all."""

    input: Input = field(default_factory=Input)
    kind: AttentionKind = "decoder"
    layer: int = 0
    heads: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None


def attention(subject: Subject, params: AttentionParams) -> dict[str, Any]:
    """Return the attention weights of a layer.

    Result: ``{"queries": T, "keys": S, "heads": [numbers], "rows": [start, stop], "weights": f4 (H, R, S), or for more
    than 256 queries u1 with "scale" f4 (H, R): weight = u1 / 255 · scale; else scale is null, "allowed": u1 (R, S) |
    null (every key), "per_head_allowed": u1 (H, R, S) | null (unless the heads of a block-sparse layer differ)}``.
    """
    frame = attention_frame(subject, params)
    start, stop = frame["rows"]
    if frame["queries"] <= WHOLE:
        weights = subject.weights(params.input, params.kind, params.layer)[frame["heads"], start:stop]
        return {**frame, "weights": array(weights), "scale": None}
    numbers, scale = subject.coarse_weights(params.input, params.kind, params.layer)
    rows = (frame["heads"], slice(start, stop))
    return {**frame, "weights": array(numbers[rows], "u1"), "scale": array(scale[rows])}


def attention_frame(subject: Subject, params: AttentionParams) -> dict[str, Any]:
    """Return the result of ``attention`` without the weights."""
    check_layer(subject, params.kind, params.layer)
    heads = _heads(subject, params)
    queries, keys = subject.lengths(params.input, params.kind)
    start, stop = check_rows(params.rows, queries)
    allowed = allowed_pairs(subject, params.kind, params.layer, queries, keys)
    shown = None if allowed is None else allowed[:, start:stop]
    return {
        "queries": queries,
        "keys": keys,
        "heads": heads,
        "rows": [start, stop],
        "allowed": array(shown[0], "u1") if shown is not None and len(shown) == 1 else None,
        "per_head_allowed": array(shown[heads], "u1") if shown is not None and len(shown) > 1 else None,
    }


def encoded_weights(weights: Tensor, *, exact: bool) -> dict[str, Any]:
    """Return weights (H, R, S) in full, or in 8 bits with a factor per row."""
    if exact:
        return {"weights": array(weights), "scale": None}
    numbers, scale = in_8_bits(weights)
    return {"weights": array(numbers, "u1"), "scale": array(scale)}


def _heads(subject: Subject, params: AttentionParams) -> list[int]:
    count = stack_of(subject, params.kind).attention.heads
    if params.heads is None:
        return list(range(count))
    if not params.heads or len(params.heads) > count:
        raise QueryError(f"heads has 1 to {count} numbers, or is null; got {len(params.heads)}.")
    for head in params.heads:
        check_head(subject, params.kind, params.layer, head)
    return list(params.heads)


# --- all heads at a glance --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OverviewParams:
    """A kind of attention, and the size of its small pictures."""

    input: Input = field(default_factory=Input)
    kind: AttentionKind = "decoder"
    size: int = 48


@dataclass(frozen=True)
class KindParams:
    """A kind of attention."""

    input: Input = field(default_factory=Input)
    kind: AttentionKind = "decoder"


@dataclass(frozen=True)
class Summary:
    """All heads of one kind: pictures (L, H, n, m) of the largest weights, and numbers for patterns."""

    thumbs: Tensor
    patterns: Tensor  # L H P
    entropy: Tensor  # L H
    distance: Tensor  # L H
    even: Tensor  # L P: patterns of a head that attends evenly


def attention_overview(subject: Subject, params: OverviewParams) -> dict[str, Any]:
    """Return every head as a small picture: the largest weight of each cell.

    Result: ``{"layers", "heads", "queries": T, "keys": S, "thumbs": u1 (L, H, n, m)}``, n and m at most ``size``; 255
    is a weight of 1.
    """
    if not 4 <= params.size <= 128:
        raise QueryError(f"size must be from 4 to 128, got {params.size}.")
    queries, keys = subject.lengths(params.input, params.kind)
    pictures = summary(subject, params.input, params.kind, params.size).thumbs
    return {
        "layers": pictures.shape[0],
        "heads": pictures.shape[1],
        "queries": queries,
        "keys": keys,
        "thumbs": array((pictures * 255).round(), "u1"),
    }


def head_stats(subject: Subject, params: KindParams) -> dict[str, Any]:
    """Return what each head looks at, as numbers.

    Result: ``{"patterns": [names], "values": f4 (L, H, P), "entropy": f4 (L, H), in nats, mean over queries,
    "distance": f4 (L, H), mean of |query − key| by weight; null for cross}``. Patterns are mean shares of a query's
    weight: on the ``previous`` token (of queries that have one), on ``self``, the token itself, on the ``next``, on the
    ``first`` token (of queries after it), on ``separator`` (special tokens other than the first); ``broad`` =
    Σ min(weight, 1 / visible keys), of queries with several visible keys: 1 for uniform attention. For cross also
    ``aligned``: within one token of the diagonal of the two texts. ``"even"``: f4 (L, P), the same shares of a head
    that attends evenly to all keys it sees.
    """
    found = summary(subject, params.input, params.kind)
    return {
        "patterns": list(CROSS if params.kind == "cross" else SELF),
        "values": array(found.patterns),
        "even": array(found.even),
        "entropy": array(found.entropy),
        "distance": None if params.kind == "cross" else array(found.distance),
    }


def summary(subject: Subject, model_input: Input, kind: AttentionKind, size: int = 48) -> Summary:
    """Return all heads of one kind, from one pass that keeps the weights of long texts in 8 bits if they fit."""
    return subject.once(("summary", model_input, kind, size), lambda: _summary(subject, model_input, kind, size))


def _summary(subject: Subject, model_input: Input, kind: AttentionKind, size: int) -> Summary:
    queries, keys = subject.lengths(model_input, kind)
    sequences = subject.sequences(model_input)
    ids = (sequences.decoder if kind == "decoder" else sequences.encoder) or ()
    special = torch.tensor([number in subject.special and index > 0 for index, number in enumerate(ids)])
    layers = range(layers_of(subject, kind))
    names = [f"{name_of(kind, layer)}.weights" for layer in layers]
    seen: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
    keeps = queries > WHOLE and subject.fits_coarse(model_input, kind)
    pairs = [allowed_pairs(subject, kind, layer, queries, keys) for layer in layers]
    counts = [torch.full((1, queries), keys) if allowed is None else allowed.sum(-1) for allowed in pairs]

    def see(name: str, value: Tensor) -> None:
        weights = value.float().cpu()
        layer = len(seen)
        seen[name] = thumbs(weights, size), *patterns(weights, special, counts[layer], is_cross=kind == "cross")
        if keeps:
            subject.put_coarse(model_input, kind, layer, weights)

    subject.show(model_input, names, see)
    columns = zip(*(seen[name] for name in names), strict=True)
    pictures, shares, entropy, distance = (torch.stack(column) for column in columns)
    even = even_patterns(pairs, counts, special, keys, is_cross=kind == "cross")
    return Summary(pictures, shares, entropy, distance, even)


def thumbs(weights: Tensor, size: int) -> Tensor:
    """Return the largest weight (H, n, m) of each cell of a picture with at most ``size`` rows and columns."""
    queries, keys = weights.shape[-2:]
    return torch.nn.functional.adaptive_max_pool2d(weights, (min(size, queries), min(size, keys)))


def patterns(weights: Tensor, special: Tensor, counts: Tensor, *, is_cross: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the shares of the weights (H, T, S) by pattern (H, P), their entropy (H) and the mean distance (H)."""
    queries, keys = weights.shape[-2:]
    entropy = torch.stack([torch.special.entr(head).sum(-1) for head in weights])  # H T; large temporaries are slow
    # Broad: what an even spread has too, of each key at most an even share; over queries that see several keys.
    several = (counts > 1).expand(len(weights), queries)
    even = (1 / counts.clamp(min=1)).expand(len(weights), queries)
    broad = torch.stack([head.minimum(row[:, None]).sum(-1) for head, row in zip(weights, even, strict=True)])  # H T
    broad = broad.where(several, 0.0).sum(-1) / several.sum(-1).clamp(min=1)
    separator = weights[..., special].sum(-1).mean(-1)
    # Aligned: keys at the same relative place as the query, give or take one.
    if is_cross:
        at = torch.arange(queries)[:, None] * (max(1, keys - 1) / max(1, queries - 1))
        near = (torch.arange(keys) - at).abs() <= 1
        aligned = torch.stack([(head * near).sum(-1).mean(-1) for head in weights])
        shares = [weights[..., 0].mean(-1), separator, broad, aligned]
        return torch.stack(shares, -1), entropy.mean(-1), torch.zeros(len(weights))

    # The previous token, the token itself, the next one: diagonals of the weights.
    def diagonal(offset: int) -> Tensor:
        found = weights.diagonal(offset, -2, -1)
        return found.mean(-1) if found.shape[-1] else torch.zeros(len(weights))

    first = weights[:, 1:, 0].mean(-1) if queries > 1 else torch.zeros(len(weights))
    shares = [diagonal(-1), diagonal(0), diagonal(1), first, separator, broad]
    away = (torch.arange(queries)[:, None] - torch.arange(keys)).abs().float()
    distance = torch.stack([(head * away).sum(-1).mean(-1) for head in weights])
    return torch.stack(shares, -1), entropy.mean(-1), distance


def even_patterns(
    pairs: Sequence[Tensor | None], counts: Sequence[Tensor], special: Tensor, keys: int, *, is_cross: bool
) -> Tensor:
    """Return the shares by pattern (L, P) of a head that attends evenly to all keys it sees: what chance would give."""
    known: dict[bytes, Tensor] = {}  # layers with the same mask
    rows = []
    for allowed, count in zip(pairs, counts, strict=True):
        key = count.numpy().tobytes()
        if key not in known:
            seen = torch.ones(1, count.shape[-1], keys) if allowed is None else allowed[:1].float()
            spread = seen / seen.sum(-1, keepdim=True).clamp(min=1)
            known[key] = patterns(spread, special, count[:1], is_cross=is_cross)[0][0]
        rows.append(known[key])
    return torch.stack(rows)


# --- queries and keys -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryParams:
    """One query of one head."""

    input: Input = field(default_factory=Input)
    kind: AttentionKind = "decoder"
    layer: int = 0
    head: int = 0
    row: int = 0


def neuron(subject: Subject, params: QueryParams) -> dict[str, Any]:
    """Return how the weights of one query come about: q · k · scale + bias, then softmax.

    As in BertViz's neuron view; no neuron of a feed-forward network is meant.

    Result: ``{"queries": T, "keys": S, "head_dim": K, "kv_head", "rotary": bool, "q": f4 (K), "k": f4 (S, K), as they
    are multiplied, "q_before", "k_before": before rotary positions | null, "products": f4 (S) = q · k, "scale", "bias":
    f4 (S) | null, "allowed": u1 (S), "scores": f4 (S), −inf where hidden, "weights": f4 (S)}``.
    """
    check_head(subject, params.kind, params.layer, params.head)
    queries, _ = subject.lengths(params.input, params.kind)
    if not 0 <= params.row < queries:
        raise QueryError(f"row must be from 0 to {queries - 1}, got {params.row}.")
    return query_and_keys(subject, params.input, params.kind, params.layer, params.head, params.row)


def query_and_keys(
    subject: Subject, model_input: Input, kind: AttentionKind, layer: int, head: int, row: int
) -> dict[str, Any]:
    """Return the result of ``neuron``."""
    facts, name = stack_of(subject, kind).attention, name_of(kind, layer)
    is_rotary = facts.rotary is not None and kind != "cross"
    has_bias = f"{name}.bias" in value_names(subject.facts)
    wanted = ["q", "k", "scores", "weights"]
    wanted += ["q_rotary", "k_rotary"] if is_rotary else []
    wanted += ["bias"] if has_bias else []
    values = subject.values(model_input, [f"{name}.{value}" for value in wanted])
    # Query (K) and keys (S, K), before and after rotation.
    group = head * (facts.kv_heads or facts.heads) // facts.heads
    before = values[f"{name}.q"][head, row], values[f"{name}.k"][group]
    after = (values[f"{name}.q_rotary"][head, row], values[f"{name}.k_rotary"][group]) if is_rotary else before
    scores = values[f"{name}.scores"][head, row]
    return {
        "queries": values[f"{name}.scores"].shape[-2],
        "keys": len(scores),
        "head_dim": facts.head_dim,
        "kv_head": group,
        "rotary": is_rotary,
        "q": array(after[0]),
        "k": array(after[1]),
        "q_before": array(before[0]) if is_rotary else None,
        "k_before": array(before[1]) if is_rotary else None,
        "products": array(after[1] @ after[0]),
        "scale": 1 / math.sqrt(facts.head_dim) if facts.scale is None else facts.scale,
        "bias": array(values[f"{name}.bias"][head, row]) if has_bias else None,
        "allowed": array(scores != -torch.inf, "u1"),
        "scores": array(scores),
        "weights": array(values[f"{name}.weights"][head, row]),
    }


# --- any value --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ValuesParams:
    """A value by its name, and the tokens (of its axis before the last) to show; null: all."""

    input: Input = field(default_factory=Input)
    name: str = ""
    tokens: tuple[int, ...] | None = None


def values(subject: Subject, params: ValuesParams) -> dict[str, Any]:
    """Return any recorded value; ``inspect.record`` lists the names.

    Result: ``{"name", "shape": of the whole value without its batch, "values": f4, of the chosen tokens, at most
    262,144 numbers, "min", "max", "mean", "std", "norm": f4, the length of each vector, without the last axis}``;
    statistics leave out values that are not finite.
    """
    if params.name not in value_names(subject.facts) or params.name == "head":
        raise QueryError(f"this model has no value {params.name!r:.60}.")
    value = subject.values(params.input, [params.name])[params.name]
    tokens = value.shape[-2]
    chosen = value
    if params.tokens is not None:
        if any(not 0 <= token < tokens for token in params.tokens) or len(params.tokens) > tokens:
            raise QueryError(f"tokens are numbers from 0 to {tokens - 1}.")
        chosen = value[..., list(params.tokens), :]
    if chosen.numel() > VALUES:
        raise QueryError(f"that is {chosen.numel()} numbers, and an answer has at most {VALUES}; choose fewer tokens.")
    finite = value[value.isfinite()]
    known = finite.numel() > 0
    return {
        "name": params.name,
        "shape": list(value.shape),
        "values": array(chosen),
        "min": float(finite.min()) if known else None,
        "max": float(finite.max()) if known else None,
        "mean": float(finite.mean()) if known else None,
        "std": float(finite.std(correction=0)) if known else None,
        "norm": array(value.nan_to_num(0.0, 0.0, 0.0).norm(dim=-1)),
    }


QUERIES = {
    "attention": (attention, AttentionParams),
    "attention_overview": (attention_overview, OverviewParams),
    "head_stats": (head_stats, KindParams),
    "neuron": (neuron, QueryParams),
    "values": (values, ValuesParams),
}
