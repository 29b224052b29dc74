"""Self-attention between blocks of tokens, at a cost that grows with the length (Zaheer et al., 2020).

The sequence is cut into blocks. A query sees the blocks next to its own, the first and the last one, and a few at
random; queries of the first and of the last block see everything. Sequences of at most ``pattern.full_length`` tokens
are attended in full. There are two ways to read that, named in ``BlockSparse.semantics``:

* ``reference``: blocks lie over the slots of the batch, padding included, so padding changes the answer. Every random
  block is the first one: its keys count 1 + ``random`` times for the queries of all blocks but the first and the last.
* ``set``: blocks lie over the real tokens of each row, so padding changes nothing. Each key of the union counts once.

How often a key counts is said by a bias on its score: the logarithm of the count. −inf: it is not seen.

Shapes: ``B`` batch, ``H`` heads, ``T`` tokens, ``K`` width of a head, ``V`` width of a value, ``N`` blocks of ``s``
slots, ``M`` = N − 2 blocks in the middle, ``R`` random blocks for each of them. Blocks and rows are counted from 0.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.config.checks import check_probability
from glassformer.config.positions import BlockSparse
from glassformer.nn.attention import softmax
from glassformer.nn.norm import upcast, without_autocast

MaybeWeights = Float[Tensor, "B H T V"] | tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T T"]]


def block_sparse_attention(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T V"],
    pattern: BlockSparse,
    real: Bool[Tensor, "B T"] | None = None,
    *,
    scale: float,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> MaybeWeights:
    """Average the values of the keys that ``pattern`` lets each query see, with the weights softmax(q · k · scale).

    Args:
        q: of the same tokens as keys and values, with the same number of heads.
        k: see q.
        v: see q.
        pattern: the blocks and how to read them; see the top of this file.
        real: True where a slot holds a token; all do unless given. The others are seen by nobody, may hold anything,
            NaN included, and get zeros.
        scale: factor on q · k, usually 1 / √K.
        dropout: share of the weights set to zero. Pass 0 outside training.
        return_weights: also return the weights ``(B, H, T, T)``, before dropout. That costs what full attention does.
    """
    check_probability(dropout=dropout)
    _check_inputs(q, k, v, real)
    slots = None if real is None else rearrange(real, "b t -> b 1 t 1")
    if slots is not None:  # of the queries too: their scores are computed, and 0 · NaN in a backward pass is NaN
        q, k, v = (x.where(slots, 0.0) for x in (q, k, v))
    real = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if real is None else real
    q, k = upcast(q) * scale, upcast(k)  # half precision overflows at 65,504
    weights = None
    with without_autocast(q):
        if return_weights:
            out, weights = _attend(q, k, v, _bias_of_rows(real, pattern, q), dropout)
        else:
            attend = {"set": _each_row_alone, "reference": _all_rows_alike}[pattern.semantics]
            out = attend(q, k, v, real, pattern, dropout)
    out = out if slots is None else out.where(slots, 0.0)
    return out if weights is None else (out, weights)


def block_sparse_mask(
    length: int,
    pattern: BlockSparse,
    heads: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "H T T"]:
    """The pattern written out for ``length`` tokens without padding: what to add to the scores of full attention.

    0 where a query sees a key, −inf where it does not, log(1 + random) where the key counts 1 + random times.
    """
    if length <= pattern.full_length:
        return torch.zeros(heads, length, length, dtype=dtype, device=device)
    last = -(-length // pattern.block) - 1
    block = torch.arange(last + 1, device="cpu")
    at_an_end = (block == 0) | (block == last)
    seen = ((block[:, None] - block).abs() <= 1) | at_an_end | at_an_end[:, None]
    counts = repeat(seen.double(), "n o -> h n o", h=heads).clone()
    if pattern.semantics == "set":
        counts[:, 1:-1].scatter_(-1, random_blocks(block[-1:], last - 1, heads, pattern)[0], 1.0)
    else:
        counts[:, 1:-1, 0] = 1 + pattern.random
    bias = repeat(counts.log().to(device, dtype), "h n o -> h (n s) (o u)", s=pattern.block, u=pattern.block)
    return bias[:, :length, :length]


def random_blocks(
    last: Int[Tensor, "B"], middle: int, heads: int, pattern: BlockSparse
) -> Int[Tensor, "B {heads} {middle} {pattern.random}"]:
    """For each head and each block 1 … ``middle``, different blocks that are neither its neighbours nor at an end.

    ``last`` is the last block of each row. A row's draw depends on that, on the head, the block and the seed, and on
    nothing else: the numbers drawn for a longer row begin with those of a shorter one.
    """
    generator = torch.Generator("cpu").manual_seed(pattern.seed)  # there, so that every device gets the same
    numbers = torch.randint(2**62, (middle, heads, pattern.random), generator=generator, device="cpu")
    end = rearrange(last.cpu(), "b -> b 1 1")
    block = torch.arange(1, middle + 1, device="cpu").minimum(end - 1)  # B 1 M; after a row's last, anything will do
    left, right = (block - 1).clamp(min=1), (block + 1).minimum(end - 1)  # the neighbours that are not at an end
    near = right - left + 1
    chosen = end.new_zeros(len(last), heads, middle, 0)
    for step, number in enumerate(rearrange(numbers, "m h r -> r h m")):  # Floyd's draw without putting back
        top = end - 1 - near - pattern.random + step
        number = number % (top + 1)  # B H M
        taken = (chosen == number.unsqueeze(-1)).any(-1)
        chosen = torch.cat((chosen, torch.where(taken, top, number).unsqueeze(-1)), dim=-1)
    chosen = chosen + 1
    return chosen + near.unsqueeze(-1) * (chosen >= left.unsqueeze(-1))  # step over the neighbours


class _Plan(NamedTuple):
    """Which blocks of keys the middle blocks of queries see besides their neighbours and the first one."""

    block: int  # slots in a block
    last: Int[Tensor, "B"]  # the last block of each row
    chosen: Int[Tensor, "B H M R"]
    first: int = 1  # how often the keys of the first block count


def _all_rows_alike(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor, pattern: BlockSparse, dropout: float
) -> Float[Tensor, "B H T V"]:
    """``reference``: one grid of blocks over all slots of the batch."""
    batch, heads, length = q.shape[:3]
    if length <= pattern.full_length:
        return _attend(q, k, v, _hide(real, q), dropout)[0]
    blocks = -(-length // pattern.block)
    last = torch.full((batch,), blocks - 1, device=q.device)
    plan = _Plan(pattern.block, last, last.new_zeros(batch, heads, blocks - 2, 0), first=1 + pattern.random)
    return _by_blocks(q, k, v, real, plan, dropout)


def _each_row_alone(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor, pattern: BlockSparse, dropout: float
) -> Float[Tensor, "B H T V"]:
    """``set``: a grid of blocks over the real tokens of each row, which are moved to its front and back again."""
    lengths = real.sum(-1)
    if bool((real[:, 1:] <= real[:, :-1]).all()):  # there already, as in most batches
        return _by_length(q, k, v, lengths, pattern, dropout)
    order = rearrange(torch.argsort(real.byte(), descending=True, stable=True), "b t -> b 1 t 1")
    place = rearrange((real.cumsum(-1) - 1).clamp(min=0), "b t -> b 1 t 1")
    q, k, v = (x.take_along_dim(order, dim=2) for x in (q, k, v))
    return _by_length(q, k, v, lengths, pattern, dropout).take_along_dim(place, dim=2)


def _by_length(
    q: Tensor, k: Tensor, v: Tensor, lengths: Int[Tensor, "B"], pattern: BlockSparse, dropout: float
) -> Float[Tensor, "B H T V"]:
    """Rows whose ``lengths`` tokens lie at their front: full attention for the short ones, by blocks for the others."""
    out = torch.zeros_like(v)
    short = lengths <= pattern.full_length
    for rows in (short, ~short):
        if not rows.any():
            continue
        own, longest = lengths[rows], int(lengths[rows].max())
        q_, k_, v_ = (x[rows, :, :longest] for x in (q, k, v))
        real = torch.arange(longest, device=q.device) < own[:, None]
        if rows is short:
            out[rows, :, :longest], _ = _attend(q_, k_, v_, _hide(real, q), dropout)
        else:
            last = (own - 1) // pattern.block
            chosen = random_blocks(last, (longest - 1) // pattern.block - 1, q.shape[1], pattern).to(q.device)
            out[rows, :, :longest] = _by_blocks(q_, k_, v_, real, _Plan(pattern.block, last, chosen), dropout)
    return out


def _by_blocks(
    q: Tensor, k: Tensor, v: Tensor, real: Bool[Tensor, "B T"], plan: _Plan, dropout: float
) -> Float[Tensor, "B H T V"]:
    """The first and the last block of each row against all keys, those between against the blocks that they see."""
    length = q.shape[2]
    if missing := -length % plan.block:
        q, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, k, v))
        real = F.pad(real, (0, missing))
    q_, k_, v_ = (rearrange(x, "b h (n s) d -> b h n s d", s=plan.block) for x in (q, k, v))
    ends, _ = _attend(_ends(q_, plan.last), k, v, _hide(real, q), dropout)
    ends = rearrange(ends, "b h (e s) v -> b h e s v", e=2)
    middle = _attend_from_middle(q_, k_, v_, real, plan, dropout)
    out = torch.cat((ends[:, :, :1], middle, ends[:, :, 1:]), dim=2)
    out[torch.arange(len(out), device=out.device), :, plan.last] = ends[:, :, 1]  # rows shorter than others end before
    return rearrange(out, "b h n s v -> b h (n s) v")[:, :, :length]


def _attend_from_middle(
    q: Float[Tensor, "B H N s K"],
    k: Float[Tensor, "B H N s K"],
    v: Float[Tensor, "B H N s V"],
    real: Bool[Tensor, "B T"],
    plan: _Plan,
    dropout: float,
) -> Float[Tensor, "B H M s V"]:
    """The formula for all blocks but two, each against C = (5 + R) · s keys: the ends, the neighbours, those chosen."""
    bias = _bias_of_middle(rearrange(real, "b (n s) -> b n s", s=plan.block), plan, q.dtype)
    k_ends, v_ends = _ends(k, plan.last), _ends(v, plan.last)
    k_near, v_near = _near(k, plan.chosen), _near(v, plan.chosen)
    q = q[:, :, 1:-1]
    to_ends = einsum(q, k_ends, "b h m t k, b h s k -> b h m t s")
    to_near = einsum(q, k_near, "b h m t k, b h m s k -> b h m t s")
    scores = torch.cat((to_ends, to_near), dim=-1).add_(bias)
    del to_ends, to_near  # as large as all scores together, and not needed again
    weights = softmax(scores, dim=-1).to(v.dtype)
    w_ends, w_near = F.dropout(weights, dropout).tensor_split([k_ends.shape[2]], dim=-1)
    from_ends = einsum(w_ends, v_ends, "b h m t s, b h s v -> b h m t v")
    return from_ends + einsum(w_near, v_near, "b h m t s, b h m s v -> b h m t v")


def _bias_of_middle(real: Bool[Tensor, "B N s"], plan: _Plan, dtype: torch.dtype) -> Float[Tensor, "B 1 M 1 C"]:
    """The logarithm of how often each key counts, in the order of ``_attend_from_middle``."""
    batch, blocks, _ = real.shape
    middle, chosen = plan.chosen.shape[-2:]
    block = torch.arange(blocks, device=real.device)
    inside = (block > 0) & (block < plan.last[:, None])  # B N; as neighbours, the ends would count a second time
    usable = real & inside[..., None]
    near = torch.cat([usable[:, start : start + middle] for start in range(3)], dim=-1)
    last = real[torch.arange(batch, device=real.device), plan.last]
    ends = repeat(torch.cat((real[:, 0] * plan.first, last), dim=-1), "b s -> b m s", m=middle)
    random = near.new_ones(batch, middle, chosen * plan.block)  # they hold real tokens only
    return torch.cat((ends, near, random), dim=-1).to(dtype).log()[:, None, :, None]


def _bias_of_rows(real: Bool[Tensor, "B T"], pattern: BlockSparse, q: Tensor) -> Float[Tensor, "B H T T"]:
    """The pattern written out for a batch: what ``block_sparse_mask`` says, and nothing for slots without a token."""
    batch, heads, length = q.shape[:3]
    if pattern.semantics == "reference":
        bias = block_sparse_mask(length, pattern, heads, dtype=q.dtype, device=q.device)
        pairs = real[:, :, None] & real[:, None, :]
        return bias.masked_fill(~pairs[:, None], -torch.inf)
    bias = q.new_full((batch, heads, length, length), -torch.inf)
    for row in range(batch):
        (place,) = real[row].nonzero(as_tuple=True)
        written_out = block_sparse_mask(len(place), pattern, heads, dtype=q.dtype, device=q.device)
        bias[row, :, place[:, None], place] = written_out
    return bias


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Float[Tensor, "B _ _ S"], dropout: float
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T S"]]:
    """Every query against every key: the outputs and the weights."""
    scores = einsum(q, k, "b h t k, b h s k -> b h t s") + bias
    weights = softmax(scores, dim=-1).to(v.dtype)
    return einsum(F.dropout(weights, dropout), v, "b h t s, b h s v -> b h t v"), weights


def _hide(real: Bool[Tensor, "B T"], like: Tensor) -> Float[Tensor, "B 1 1 T"]:
    return rearrange(real.to(like.dtype).log(), "b t -> b 1 1 t")


def _ends(x: Float[Tensor, "B H N s D"], last: Int[Tensor, "B"]) -> Float[Tensor, "B H S D"]:
    """The first block of each row and its last one, S = 2 · s."""
    rows = torch.arange(len(x), device=x.device)
    return torch.cat((x[:, :, 0], x[rows, :, last]), dim=2)


def _near(x: Float[Tensor, "B H N s D"], chosen: Int[Tensor, "B H M R"]) -> Float[Tensor, "B H M S D"]:
    """For each middle block: the block before it, itself, the one after it, and those chosen; S = (3 + R) · s."""
    batch, heads, blocks = x.shape[:3]
    block = torch.arange(1, blocks - 1, device=x.device)
    neighbours = torch.stack((block - 1, block, block + 1), dim=-1).expand(batch, heads, -1, -1)
    index = rearrange(torch.cat((neighbours, chosen), dim=-1), "b h m r -> (b h) (m r)")
    start = torch.arange(batch * heads, device=x.device)[:, None] * blocks  # of each row and head
    # Whole blocks are copied, and their gradients added: much quicker than gather, which looks up number by number.
    picked = rearrange(x, "b h n s d -> (b h n) (s d)").index_select(0, (index + start).flatten())
    return picked.view(batch, heads, blocks - 2, -1, x.shape[-1])


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim != 4 or q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"block-sparse attention looks from a sequence at itself, (batch, heads, tokens, width), with as many key "
            f"and value heads as query heads; got {shapes}. Repeat shared key and value heads before calling."
        )
    if real is None:
        return
    if real.dtype != torch.bool:
        raise TypeError(f"real is boolean, True for a token; got {real.dtype}. Turn 1/0 into True/False with .bool().")
    if real.shape != (q.shape[0], q.shape[2]):
        raise ValueError(f"real says which slots (batch, tokens) hold a token; got {tuple(real.shape)} for {shapes}.")
