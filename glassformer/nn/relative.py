"""Positions that change the scores of attention: buckets of distances, ALiBi, disentangled content and position.

Shapes: ``T`` queries, ``S`` keys, ``H`` heads, ``K`` width of a head, ``R`` rows of a table of relative positions.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config import BucketBias, Disentangled


def distances(queries: Int[Tensor, "... T"], keys: Int[Tensor, "... S"]) -> Int[Tensor, "... T S"]:
    """Position of the key minus position of the query: negative for what came before."""
    return keys.unsqueeze(-2) - queries.unsqueeze(-1)


def bucket(distance: Int[Tensor, "..."], facts: BucketBias, *, both_ways: bool) -> Int[Tensor, "..."]:
    """The bucket of each distance: near ones have their own, far ones share it with others, logarithmically.

    ``both_ways``: keys after the query get the upper half of the buckets; else they count as distance 0.
    """
    buckets = facts.buckets // 2 if both_ways else facts.buckets
    start = (distance > 0).long() * buckets if both_ways else torch.zeros_like(distance)
    away = distance.abs() if both_ways else (-distance).clamp(min=0)
    exact = buckets // 2
    # Logarithms of whole numbers in float32, as the published models were trained: in another precision a quotient
    # that is a whole number up to rounding would fall on the other side of its bucket's edge.
    ratio = torch.log(away.clamp(min=1).float() / exact) / math.log(facts.max_distance / exact)
    far = exact + (ratio * (buckets - exact)).long()
    return start + torch.where(away < exact, away, far.clamp(max=buckets - 1))


def bucket_bias(
    table: Float[Tensor, "R H"], facts: BucketBias, distance: Int[Tensor, "... T S"], *, causal: bool
) -> Float[Tensor, "... H T S"]:
    """The learned bias of every head for each query and key."""
    rows = bucket(distance, facts, both_ways=not causal)
    flat = table.index_select(0, rows.reshape(-1))  # its backward is reproducible, unlike that of table[rows]
    return flat.reshape(*rows.shape, -1).movedim(-1, -3)


def alibi_slopes(
    heads: int, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Float[Tensor, "H"]:
    """The slope of each head: 2^(−8/n), 2^(−16/n), … 2^−8 for a power of two n (Press et al., 2022, section 3).

    Other numbers of heads take the slopes of the largest power of two n below, followed by as many as are missing of
    the first, third, fifth … slope of 2n heads, as the published code does.
    """
    power = 1 << (heads.bit_length() - 1)
    # The exponents are exact: whole numbers times a power of two.
    first = torch.arange(1, power + 1, dtype=dtype, device=device) * (8 / power)
    missing = (2 * torch.arange(heads - power, dtype=dtype, device=device) + 1) * (4 / power)
    return torch.exp2(-torch.cat((first, missing)))


def alibi_bias(heads: int, distance: Int[Tensor, "... T S"], dtype: torch.dtype) -> Float[Tensor, "... H T S"]:
    """Minus slope times absolute distance, in at least float32 and rounded once: half precision cannot even count."""
    wide = torch.promote_types(dtype, torch.float32)
    slopes = alibi_slopes(heads, wide, distance.device)
    return (slopes[:, None, None] * -distance.abs().unsqueeze(-3)).to(dtype)


def logarithmic(distance: Int[Tensor, "..."], buckets: int, max_distance: int) -> Int[Tensor, "..."]:
    """Distances up to half the buckets as they are, farther ones pressed together logarithmically, sign kept."""
    middle = buckets // 2
    away = distance.abs().clamp(min=middle)
    # In float32 for the reason given in ``bucket``.
    whole = torch.log(torch.tensor((max_distance - 1) / middle, dtype=torch.float32, device=distance.device))
    ratio = torch.log(away.float() / middle) / whole
    far = torch.ceil(ratio * (middle - 1)).long() + middle
    return torch.where(distance.abs() <= middle, distance, far * distance.sign())


def relative_rows(facts: Disentangled, distance: Int[Tensor, "... T S"]) -> Int[Tensor, "... T S"]:
    """Which row of the table of relative positions stands for each query and key."""
    behind = -distance  # the table counts how far the key lies behind the query
    if facts.buckets:
        behind = logarithmic(behind, facts.buckets, facts.max_distance)
    return (behind + facts.span).clamp(0, 2 * facts.span - 1)


def disentangled_bias(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H S K"],
    position_q: Float[Tensor, "H R K"] | None,
    position_k: Float[Tensor, "H R K"] | None,
    rows: Int[Tensor, "... T S"],
) -> Float[Tensor, "B H T S"]:
    """q · (position as key) + (position as query) · k, each position looked up by its row.

    A term whose positions are None is left out. Whoever wants the scores scaled scales q and k.
    """
    shape = (*q.shape[:-1], k.shape[-2])
    index = (rows if rows.ndim == 2 else rows.unsqueeze(-3)).expand(shape)
    total = q.new_zeros(())
    if position_k is not None:
        total = total + (q @ position_k.transpose(-1, -2)).gather(-1, index)
    if position_q is not None:
        backwards = (k @ position_q.transpose(-1, -2)).gather(-1, index.transpose(-1, -2))
        total = total + backwards.transpose(-1, -2)
    return total.expand(shape)
