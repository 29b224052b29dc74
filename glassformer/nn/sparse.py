"""Block-sparse self-attention, at a cost that grows linearly with the length (Zaheer et al., 2020).

The sequence is split into blocks. A query attends to its own block and its neighbours, the first and the last block,
and a few random ones; queries of the first and of the last block attend to everything. Sequences of at most
``pattern.full_length`` tokens get full attention. There are two readings of that, named in ``BlockSparse.semantics``:

* ``reference``: blocks divide the slots of the batch, padding included, so padding changes the output. Every random
  block is the first one: its keys count 1 + ``random`` times for the queries of all blocks but the first and the last.
* ``set``: blocks divide the real tokens of each row, so padding changes nothing. Each key of the union counts once.

A bias on the score of a key states how often it counts: the logarithm of the count, −inf for 0.

Shapes: ``B`` batch, ``H`` heads, ``T`` tokens, ``K`` width of a head, ``V`` width of a value, ``N`` blocks of ``s``
slots, ``M`` = N − 2 blocks in the middle, ``R`` random blocks for each of them, ``D`` any width. Blocks and rows are
counted from 0.
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
from glassformer.nn.observer import Observer, needs_formula, observe

BlockSparseOutput = Float[Tensor, "B H T V"] | tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T T"]]


def block_sparse_attention(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T V"],
    pattern: BlockSparse,
    token_mask: Bool[Tensor, "B T"] | None = None,
    *,
    scale: float,
    dropout: float = 0.0,
    return_weights: bool = False,
    observer: Observer | None = None,
) -> BlockSparseOutput:
    """Average the values of the keys that each query attends to by ``pattern``, weighted by softmax(q · k · scale).

    Args:
        q: queries of the same tokens as keys and values, with the same number of heads.
        k: keys.
        v: values.
        pattern: the blocks and their semantics; see the top of this file.
        token_mask: True at real tokens; None if all are. No query attends to the other slots; they may hold anything,
            NaN included, and get zeros.
        scale: factor on q · k, usually 1 / √K.
        dropout: share of the weights set to zero. Pass 0 outside training.
        return_weights: also return the weights ``(B, H, T, T)``, before dropout, at the cost of full attention.
        observer: sees ``scores`` and ``weights``, if it wants them, at the same cost.
    """
    check_probability(dropout=dropout)
    _check_inputs(q, k, v, token_mask)
    # Zero the padding, of the queries too: their scores are computed, and 0 · NaN in the backward pass is NaN.
    tokens = None if token_mask is None else rearrange(token_mask, "b t -> b 1 t 1")
    if tokens is not None:
        q, k, v = (x.where(tokens, 0.0) for x in (q, k, v))
    token_mask = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if token_mask is None else token_mask
    # Scores in at least float32: half precision overflows at 65,504.
    q, k = upcast(q) * scale, upcast(k)
    weights = None
    with without_autocast(q):
        if return_weights or needs_formula(observer):
            out, weights = _attend(q, k, v, _batch_bias(token_mask, pattern, q), dropout, observer)
        else:
            attend = {"set": _attend_per_row, "reference": _attend_on_one_grid}[pattern.semantics]
            out = attend(q, k, v, token_mask, pattern, dropout)
    out = out if tokens is None else out.where(tokens, 0.0)
    return (out, weights) if return_weights and weights is not None else out


def block_sparse_mask(
    length: int,
    pattern: BlockSparse,
    heads: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "H T T"]:
    """Return the pattern for ``length`` tokens without padding as a bias on the scores of full attention.

    0 where a query attends to a key, −inf where it does not, log(1 + random) where the key counts 1 + random times.
    """
    if length <= pattern.full_length:
        return torch.zeros(heads, length, length, dtype=dtype, device=device)
    # Neighbouring blocks attend to each other; the first and the last block, to and from all.
    last = -(-length // pattern.block) - 1
    block = torch.arange(last + 1, device="cpu")
    is_end = (block == 0) | (block == last)
    attends = ((block[:, None] - block).abs() <= 1) | is_end | is_end[:, None]  # N N
    counts = repeat(attends.double(), "n o -> h n o", h=heads).clone()
    # Random blocks of the middle ones.
    if pattern.semantics == "set":
        counts[:, 1:-1].scatter_(-1, random_blocks(block[-1:], last - 1, heads, pattern)[0], 1.0)
    else:
        counts[:, 1:-1, 0] = 1 + pattern.random
    # From blocks to tokens.
    bias = repeat(counts.log().to(device, dtype), "h n o -> h (n s) (o u)", s=pattern.block, u=pattern.block)
    return bias[:, :length, :length]


def random_blocks(
    last: Int[Tensor, "B"], middle: int, heads: int, pattern: BlockSparse
) -> Int[Tensor, "B {heads} {middle} {pattern.random}"]:
    """For each head and each block 1 … ``middle``, draw distinct blocks that are neither its neighbours nor at an end.

    ``last`` is the last block of each row. A row's draw depends on that, on the head, the block and the seed, and on
    nothing else: the numbers drawn for a longer row begin with those of a shorter one.
    """
    generator = torch.Generator("cpu").manual_seed(pattern.seed)  # on the CPU, so that every device draws the same
    numbers = torch.randint(2**62, (middle, heads, pattern.random), generator=generator, device="cpu")
    end = rearrange(last.cpu(), "b -> b 1 1")
    # Left and right neighbour of each middle block, without the ends; blocks beyond the last of a row do not matter.
    block = torch.arange(1, middle + 1, device="cpu").minimum(end - 1)  # B 1 M
    left, right = (block - 1).clamp(min=1), (block + 1).minimum(end - 1)
    excluded = right - left + 1
    # Floyd's algorithm: sample without replacement among the blocks that are not excluded.
    chosen = end.new_zeros(len(last), heads, middle, 0)
    for step, number in enumerate(rearrange(numbers, "m h r -> r h m")):
        top = end - 1 - excluded - pattern.random + step
        number = number % (top + 1)  # B H M
        taken = (chosen == number.unsqueeze(-1)).any(-1)
        chosen = torch.cat((chosen, torch.where(taken, top, number).unsqueeze(-1)), dim=-1)
    # Skip the first block and the neighbours.
    chosen = chosen + 1
    return chosen + excluded.unsqueeze(-1) * (chosen >= left.unsqueeze(-1))


class _Plan(NamedTuple):
    """The key blocks that the middle query blocks attend to, besides their neighbours and the first block."""

    block: int  # slots in a block
    last: Int[Tensor, "B"]  # the last block of each row
    chosen: Int[Tensor, "B H M R"]
    first: int = 1  # how often the keys of the first block count


def _attend_on_one_grid(
    q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor, pattern: BlockSparse, dropout: float
) -> Float[Tensor, "B H T V"]:
    """``reference``: one grid of blocks over all slots of the batch."""
    batch, heads, length = q.shape[:3]
    if length <= pattern.full_length:
        return _attend(q, k, v, _padding_bias(token_mask, q), dropout)[0]
    blocks = -(-length // pattern.block)
    last = torch.full((batch,), blocks - 1, device=q.device)
    plan = _Plan(pattern.block, last, last.new_zeros(batch, heads, blocks - 2, 0), first=1 + pattern.random)
    return _attend_by_blocks(q, k, v, token_mask, plan, dropout)


def _attend_per_row(
    q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor, pattern: BlockSparse, dropout: float
) -> Float[Tensor, "B H T V"]:
    """``set``: a grid of blocks over the real tokens of each row, which are moved to its front and back again."""
    lengths = token_mask.sum(-1)
    if bool((token_mask[:, 1:] <= token_mask[:, :-1]).all()):  # padded on the right already, as most batches are
        return _attend_by_length(q, k, v, lengths, pattern, dropout)
    # Slots in the order tokens, padding; and the index of each token in that order. A padded slot gets the index of a
    # token: the caller sets its output to 0.
    order = rearrange(torch.argsort(token_mask.byte(), descending=True, stable=True), "b t -> b 1 t 1")
    inverse = rearrange((token_mask.cumsum(-1) - 1).clamp(min=0), "b t -> b 1 t 1")
    q, k, v = (x.take_along_dim(order, dim=2) for x in (q, k, v))
    return _attend_by_length(q, k, v, lengths, pattern, dropout).take_along_dim(inverse, dim=2)


def _attend_by_length(
    q: Tensor, k: Tensor, v: Tensor, lengths: Int[Tensor, "B"], pattern: BlockSparse, dropout: float
) -> Float[Tensor, "B H T V"]:
    """Attend in rows padded on the right: in full in the short ones, by blocks in the others."""
    out = torch.zeros_like(v)
    short = lengths <= pattern.full_length
    for rows in (short, ~short):
        if not rows.any():
            continue
        # These rows without the padding that all of them have.
        row_lengths, longest = lengths[rows], int(lengths[rows].max())
        q_, k_, v_ = (x[rows, :, :longest] for x in (q, k, v))
        token_mask = torch.arange(longest, device=q.device) < row_lengths[:, None]
        if rows is short:
            out[rows, :, :longest], _ = _attend(q_, k_, v_, _padding_bias(token_mask, q), dropout)
        else:
            last = (row_lengths - 1) // pattern.block
            chosen = random_blocks(last, (longest - 1) // pattern.block - 1, q.shape[1], pattern).to(q.device)
            plan = _Plan(pattern.block, last, chosen)
            out[rows, :, :longest] = _attend_by_blocks(q_, k_, v_, token_mask, plan, dropout)
    return out


def _attend_by_blocks(
    q: Tensor, k: Tensor, v: Tensor, token_mask: Bool[Tensor, "B T"], plan: _Plan, dropout: float
) -> Float[Tensor, "B H T V"]:
    """Attend from the first and the last block of each row to all keys, from the others to the blocks of the plan."""
    # Pad to whole blocks: (B, H, N · s, K).
    length = q.shape[2]
    if missing := -length % plan.block:
        q, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, k, v))
        token_mask = F.pad(token_mask, (0, missing))
    q_, k_, v_ = (rearrange(x, "b h (n s) d -> b h n s d", s=plan.block) for x in (q, k, v))
    # The two end blocks attend to everything.
    ends, _ = _attend(_end_blocks(q_, plan.last), k, v, _padding_bias(token_mask, q), dropout)
    ends = rearrange(ends, "b h (e s) v -> b h e s v", e=2)
    middle = _attend_from_middle(q_, k_, v_, token_mask, plan, dropout)
    # Put the blocks together; the last block of a shorter row comes before the last of the batch.
    out = torch.cat((ends[:, :, :1], middle, ends[:, :, 1:]), dim=2)  # B H N s V
    out[torch.arange(len(out), device=out.device), :, plan.last] = ends[:, :, 1]
    return rearrange(out, "b h n s v -> b h (n s) v")[:, :, :length]


def _attend_from_middle(
    q: Float[Tensor, "B H N s K"],
    k: Float[Tensor, "B H N s K"],
    v: Float[Tensor, "B H N s V"],
    token_mask: Bool[Tensor, "B T"],
    plan: _Plan,
    dropout: float,
) -> Float[Tensor, "B H M s V"]:
    """Attend from all blocks but two, each to C = (5 + R) · s keys: the ends, the neighbours, the chosen blocks."""
    bias = _middle_bias(rearrange(token_mask, "b (n s) -> b n s", s=plan.block), plan, q.dtype)  # B 1 M 1 C
    k_ends, v_ends = _end_blocks(k, plan.last), _end_blocks(v, plan.last)
    k_near, v_near = _near_blocks(k, plan.chosen), _near_blocks(v, plan.chosen)
    # Scores against the keys of the ends, which all blocks share, and against those of each block: (B, H, M, s, C).
    q = q[:, :, 1:-1]
    to_ends = einsum(q, k_ends, "b h m t k, b h s k -> b h m t s")
    to_near = einsum(q, k_near, "b h m t k, b h m s k -> b h m t s")
    scores = torch.cat((to_ends, to_near), dim=-1).add_(bias)
    del to_ends, to_near  # as large as all scores together, and not needed again
    weights = softmax(scores, dim=-1).to(v.dtype)
    # Average the values of both.
    w_ends, w_near = F.dropout(weights, dropout).tensor_split([k_ends.shape[2]], dim=-1)
    from_ends = einsum(w_ends, v_ends, "b h m t s, b h s v -> b h m t v")
    return from_ends + einsum(w_near, v_near, "b h m t s, b h m s v -> b h m t v")


def _middle_bias(token_mask: Bool[Tensor, "B N s"], plan: _Plan, dtype: torch.dtype) -> Float[Tensor, "B 1 M 1 C"]:
    """Return the logarithm of how often each key counts, in the order of ``_attend_from_middle``."""
    batch, blocks, _ = token_mask.shape
    middle, chosen = plan.chosen.shape[-2:]
    block = torch.arange(blocks, device=token_mask.device)
    # As neighbours, the ends would count a second time.
    inside = (block > 0) & (block < plan.last[:, None])  # B N
    usable = token_mask & inside[..., None]
    near = torch.cat([usable[:, start : start + middle] for start in range(3)], dim=-1)  # B M 3·s
    # The ends are the same for all middle blocks.
    last = token_mask[torch.arange(batch, device=token_mask.device), plan.last]
    ends = repeat(torch.cat((token_mask[:, 0] * plan.first, last), dim=-1), "b s -> b m s", m=middle)
    # Random blocks hold real tokens only.
    random = near.new_ones(batch, middle, chosen * plan.block)
    return torch.cat((ends, near, random), dim=-1).to(dtype).log()[:, None, :, None]


def _batch_bias(token_mask: Bool[Tensor, "B T"], pattern: BlockSparse, q: Tensor) -> Float[Tensor, "B H T T"]:
    """Return the pattern for a padded batch as a bias: ``block_sparse_mask``, with −inf for padding."""
    batch, heads, length = q.shape[:3]
    if pattern.semantics == "reference":
        bias = block_sparse_mask(length, pattern, heads, dtype=q.dtype, device=q.device)
        pairs = token_mask[:, :, None] & token_mask[:, None, :]  # B T T
        return bias.masked_fill(~pairs[:, None], -torch.inf)
    bias = q.new_full((batch, heads, length, length), -torch.inf)
    for row in range(batch):
        (slots,) = token_mask[row].nonzero(as_tuple=True)
        row_bias = block_sparse_mask(len(slots), pattern, heads, dtype=q.dtype, device=q.device)
        bias[row, :, slots[:, None], slots] = row_bias
    return bias


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Float[Tensor, "B _ _ S"], dropout: float, observer: Observer | None = None
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T S"]]:
    """Attend from every query to every key; return the outputs and the weights."""
    scores = observe(observer, "scores", einsum(q, k, "b h t k, b h s k -> b h t s") + bias)
    weights = observe(observer, "weights", softmax(scores, dim=-1).to(v.dtype))
    return einsum(F.dropout(weights, dropout), v, "b h t s, b h s v -> b h t v"), weights


def _padding_bias(token_mask: Bool[Tensor, "B T"], like: Tensor) -> Float[Tensor, "B 1 1 T"]:
    return rearrange(token_mask.to(like.dtype).log(), "b t -> b 1 1 t")


def _end_blocks(x: Float[Tensor, "B H N s D"], last: Int[Tensor, "B"]) -> Float[Tensor, "B H S D"]:
    """Return the first block of each row and its last one, S = 2 · s."""
    rows = torch.arange(len(x), device=x.device)
    return torch.cat((x[:, :, 0], x[rows, :, last]), dim=2)


def _near_blocks(x: Float[Tensor, "B H N s D"], chosen: Int[Tensor, "B H M R"]) -> Float[Tensor, "B H M S D"]:
    """Return for each middle block the one before it, itself, the one after it and the chosen ones; S = (3 + R) · s."""
    batch, heads, blocks = x.shape[:3]
    block = torch.arange(1, blocks - 1, device=x.device)
    neighbours = torch.stack((block - 1, block, block + 1), dim=-1).expand(batch, heads, -1, -1)
    index = rearrange(torch.cat((neighbours, chosen), dim=-1), "b h m r -> (b h) (m r)")
    start = torch.arange(batch * heads, device=x.device)[:, None] * blocks  # first block of each row and head
    # Whole blocks are copied, and their gradients added: much faster than gather, which works number by number.
    blocks_read = rearrange(x, "b h n s d -> (b h n) (s d)").index_select(0, (index + start).flatten())
    return blocks_read.view(batch, heads, blocks - 2, -1, x.shape[-1])


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim != 4 or q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"block-sparse attention is self-attention, (batch, heads, tokens, width), with as many key and value "
            f"heads as query heads; got {shapes}. Repeat shared key and value heads before calling."
        )
    if token_mask is None:
        return
    if token_mask.dtype != torch.bool:
        raise TypeError(
            f"token_mask is boolean, True at real tokens; got {token_mask.dtype}. Convert 1/0 with token_mask.bool()."
        )
    if token_mask.shape != (q.shape[0], q.shape[2]):
        raise ValueError(f"token_mask has the shape (batch, tokens); got {tuple(token_mask.shape)} for {shapes}.")
