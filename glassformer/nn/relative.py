"""Positions that change the scores of attention: buckets of distances, ALiBi, disentangled content and position.

Shapes: ``T`` queries, ``S`` keys, ``H`` heads, ``K`` width of a head, ``R`` rows of a table of relative positions.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config import BucketBias, Disentangled


def distances(queries: Int[Tensor, "... T"], keys: Int[Tensor, "... S"]) -> Int[Tensor, "... T S"]:
    """Return the position of the key minus position of the query: negative for earlier keys."""
    return keys.unsqueeze(-2) - queries.unsqueeze(-1)


def distance_bucket(distance: Int[Tensor, "..."], facts: BucketBias, *, bidirectional: bool) -> Int[Tensor, "..."]:
    """Return the bucket of each distance: one per near distance, logarithmically wider ones for far distances.

    ``bidirectional``: keys after the query get the upper half of the buckets; else they count as distance 0.
    """
    buckets = facts.buckets // 2 if bidirectional else facts.buckets
    start = (distance > 0).long() * buckets if bidirectional else torch.zeros_like(distance)
    magnitude = distance.abs() if bidirectional else (-distance).clamp(min=0)
    # The first half of the buckets is exact, the second logarithmic up to max_distance. Logarithms are in float32, as
    # the published models were trained: in another precision a quotient that is an integer up to rounding would fall
    # on the other side of its bucket's edge.
    exact = buckets // 2
    ratio = torch.log(magnitude.clamp(min=1).float() / exact) / math.log(facts.max_distance / exact)
    far = exact + (ratio * (buckets - exact)).long()
    return start + torch.where(magnitude < exact, magnitude, far.clamp(max=buckets - 1))


def bucket_bias(
    table: Float[Tensor, "R H"], facts: BucketBias, distance: Int[Tensor, "... T S"], *, causal: bool
) -> Float[Tensor, "... H T S"]:
    """Return the learned bias of every head for each query and key."""
    rows = distance_bucket(distance, facts, bidirectional=not causal)  # ... T S
    # The backward pass of index_select is reproducible, unlike that of table[rows].
    flat = table.index_select(0, rows.reshape(-1))
    return flat.reshape(*rows.shape, -1).movedim(-1, -3)  # ... T S H to ... H T S


def alibi_slopes(
    heads: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Float[Tensor, "H"]:
    """Return the slope of each head: 2^(−8/n), 2^(−16/n), … 2^−8 for a power of two n (Press et al., 2022, section 3).

    Other numbers of heads have the slopes of the largest power of two n below, then the first, third, fifth … slope of
    2n heads, as in the published code.
    """
    power = 1 << (heads.bit_length() - 1)
    # The exponents are exact: integers times a power of two.
    first = torch.arange(1, power + 1, dtype=dtype, device=device) * (8 / power)
    missing = (2 * torch.arange(heads - power, dtype=dtype, device=device) + 1) * (4 / power)
    return torch.exp2(-torch.cat((first, missing)))


def alibi_bias(heads: int, distance: Int[Tensor, "... T S"], dtype: torch.dtype) -> Float[Tensor, "... H T S"]:
    """−slope · |distance|, in at least float32 and rounded once: bfloat16 is exact for integers up to 256 only."""
    wide = torch.promote_types(dtype, torch.float32)
    slopes = alibi_slopes(heads, wide, distance.device)
    return (slopes[:, None, None] * -distance.abs().unsqueeze(-3)).to(dtype)


def signed_log_bucket(distance: Int[Tensor, "..."], buckets: int, max_distance: int) -> Int[Tensor, "..."]:
    """Return distances up to half the buckets unchanged and farther ones on a logarithmic scale, with their sign."""
    middle = buckets // 2
    magnitude = distance.abs().clamp(min=middle)
    # In float32 for the reason given in ``distance_bucket``.
    # ``full`` computes on the device; ``tensor`` would copy to it, which a CUDA graph cannot.
    log_range = torch.full((), (max_distance - 1) / middle, dtype=torch.float32, device=distance.device).log()
    ratio = torch.log(magnitude.float() / middle) / log_range
    far = torch.ceil(ratio * (middle - 1)).long() + middle
    return torch.where(distance.abs() <= middle, distance, far * distance.sign())


def relative_rows(facts: Disentangled, distance: Int[Tensor, "... T S"]) -> Int[Tensor, "... T S"]:
    """Return the row of the table of relative positions for each query and key."""
    offset = -distance  # the table is indexed by query position − key position
    if facts.buckets:
        offset = signed_log_bucket(offset, facts.buckets, facts.max_distance)
    return (offset + facts.span).clamp(0, 2 * facts.span - 1)


def disentangled_bias(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H S K"],
    position_q: Float[Tensor, "H R K"] | None,
    position_k: Float[Tensor, "H R K"] | None,
    rows: Int[Tensor, "... T S"],
) -> Float[Tensor, "B H T S"]:
    """q · (position as key) + (position as query) · k, each position looked up by its row.

    A term whose positions are None is left out. The caller scales q and k.
    """
    shape = (*q.shape[:-1], k.shape[-2])  # B H T S
    index = (rows if rows.ndim == 2 else rows.unsqueeze(-3)).expand(shape)
    total = q.new_zeros(())
    # Content to position: (B, H, T, K) @ (H, K, R) → (B, H, T, R), then the row of each (t, s): (B, H, T, S).
    if position_k is not None:
        total = total + (q @ position_k.transpose(-1, -2)).gather(-1, index)
    # Position to content: the same from the keys, (B, H, S, R) → (B, H, S, T), transposed.
    if position_q is not None:
        from_keys = (k @ position_q.transpose(-1, -2)).gather(-1, index.transpose(-1, -2))
        total = total + from_keys.transpose(-1, -2)
    return total.expand(shape)
