"""The fast path of decoding: the same decoder, its weights taken out of their modules and run by fused kernels.

One step of decoding is a handful of products with a single vector; what the modules do around them (checks, contexts,
formulae written out) would cost as much as the products. Everything here has its readable twin in ``nn`` and ``models``
and is tested equal to it. The first pass over a prompt is left to the model itself.

Shapes: ``B`` rows, ``T`` new tokens, ``N`` = B · T, ``S`` tokens so far, ``M`` tokens of the memory, ``D`` width, ``H``
heads, ``G`` key/value heads, ``K`` width of a head, ``L`` positions, ``V`` vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from glassformer import config
from glassformer.models.embed import Embed
from glassformer.models.heads import LMHead
from glassformer.models.stack import Stack
from glassformer.models.transformer import Transformer
from glassformer.nn import kernels
from glassformer.nn.block import Block
from glassformer.nn.cache import KVCache, LayerCache
from glassformer.nn.feedforward import FeedForward, finite_in_half
from glassformer.nn.heads import Attention
from glassformer.nn.linear import Embedding, Linear
from glassformer.nn.norm import LayerNorm, RMSNorm, rms_norm
from glassformer.nn.positions import sinusoids
from glassformer.nn.relative import bucket
from glassformer.nn.rotary import Turns, rotary_turns

KNOWN = {
    Transformer, Embed, Stack, Block, Attention, FeedForward, Linear, Embedding, LayerNorm, RMSNorm, LMHead,
    nn.ModuleList, nn.Dropout,
}  # fmt: skip
METHODS = {kind: frozenset(name for name in dir(kind) if callable(getattr(kind, name))) for kind in KNOWN}
Map = Callable[[Tensor], Tensor]


def is_plain(model: Transformer) -> bool:
    """Whether the model does what its facts say and nothing besides: no hooks, no parts from elsewhere."""
    if _global_forward_hooks or _global_forward_pre_hooks or not isinstance(model.head, LMHead):
        return False
    return all(
        type(part) in KNOWN
        and part.__dict__.keys().isdisjoint(METHODS[type(part)])  # no method of its own
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for part in model.modules()
    )


@dataclass(frozen=True, eq=False)
class _Around:
    """What all layers of one step share."""

    rows: int
    new: int
    turns: Turns | None
    bias: Float[Tensor, "1 H L"] | None  # of every distance, the farthest first
    real: Bool[Tensor, "B 1 1 S"] | None
    memory_real: Bool[Tensor, "Q 1 1 M"] | None
    is_open: bool  # every query sees every key, and no bias tells them apart


class Engine:
    """A decoder that reads the next tokens of every row and says what comes after them.

    Padding stands on the left of all tokens. Weights are bound when the engine is made: make one per text.

    Args:
        model: a plain one (see ``is_plain``), in evaluation mode.
        length: the most slots that a cache will hold.
    """

    def __init__(self, model: Transformer, length: int) -> None:
        assert model.decoder is not None
        self.model = model
        self.length = length
        self.facts = model.decoder.facts
        self.embed = model.embed if model.target_embed is None else model.target_embed
        assert model.embed.token is not None
        self.table = model.embed.token.weight
        like = self.table
        self._positions = _added(self.embed, length, like)
        self._turns = _turns(self.facts.attention, length, like)
        self._bias = _bias(model.decoder, length, like)
        windows = self.facts.attention.windows
        shared = [_Layer(block, self.facts) for block in model.decoder.blocks]  # type: ignore[arg-type]
        layers = self.facts.layers
        self._layers = [(shared[i * len(shared) // layers], windows[i % len(windows)]) for i in range(layers)]
        self._norm = None if model.decoder.norm is None else _norm(model.decoder.norm)
        self._embed_norm = None if self.embed.norm is None else _norm(self.embed.norm)
        self._project = None if self.embed.project is None else _linear(self.embed.project)

    def step(
        self, ids: Integer[Tensor, "B T"], cache: KVCache, memory_real: Bool[Tensor, "Q M"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The decoder's vectors of tokens that follow those in the cache, before the head.

        A memory may have fewer rows than ``ids``: each serves the same number of rows that follow each other.
        """
        rows, new = ids.shape
        if cache.length + new > self.length:
            raise ValueError(f"this engine was made for {self.length} slots; {cache.length + new} are too many.")
        padded = cache.real is not None
        places = cache.next_positions(ids.shape, None) if padded else slice(cache.length, cache.length + new)
        real = cache.extend_real(None, rows, new)
        added = places if isinstance(places, Tensor) else torch.arange(places.start, places.stop, device=ids.device)
        cache.extend_positions(added)
        around = _Around(
            rows,
            new,
            None if self._turns is None else _chosen(self._turns, places),
            self._bias,
            None if real is None else real[:, None, None],
            None if memory_real is None else memory_real[:, None, None],
            new == 1 and real is None and self._bias is None,
        )
        x = self._vectors(ids, places)
        for number, (layer, window) in enumerate(self._layers):
            assert not isinstance(window, config.BlockSparse)
            x = layer(x, around, cache.layer(number, window), window)
        x = x if self._norm is None else self._norm(x)
        return x.view(rows, new, -1)

    def answer(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """What the head says of these vectors."""
        head = self.model.head
        assert isinstance(head, LMHead)
        if head.transform is not None or head.facts.scale != 1.0:
            return head(hidden, None, self.table)
        return F.linear(hidden, self.table if head.out is None else head.out.weight, head.bias)

    def _vectors(self, ids: Tensor, places: Tensor | slice) -> Float[Tensor, "N D"]:
        x = F.embedding(ids, self.table)
        if self.embed.facts.scale != 1.0:
            x = x * self.embed.facts.scale
        if self.embed.segment is not None:
            x = x + self.embed.segment.weight[0]
        if self._positions is not None:
            x = x + self._positions[places]
        x = x.view(-1, x.shape[-1])
        x = x if self._embed_norm is None else self._embed_norm(x)
        return x if self._project is None else self._project(x)


class _Layer:
    """One block: the same sums as ``nn.block.residual``, with the weights at hand."""

    def __init__(self, block: Block, facts: config.Stack) -> None:
        self.placement = facts.placement
        self.attention, self.attention_norm = _Attention(block.attention), _norm(block.attention_norm)
        self.cross = None if block.cross is None else _Attention(block.cross)
        self.cross_norm = self.attention_norm if block.cross_norm is None else _norm(block.cross_norm)
        self.ffn_norm = self.attention_norm if block.ffn_norm is None else _norm(block.ffn_norm)
        ffn = block.ffn
        assert isinstance(ffn, FeedForward)
        self.up, self.down = _linears(*([ffn.up] if ffn.gate is None else [ffn.gate, ffn.up])), _linear(ffn.down)
        self.is_gated = ffn.gate is not None
        self.activation = kernels.ACTIVATIONS[ffn.activation]

    def __call__(self, x: Tensor, around: _Around, cache: LayerCache, window: int | None) -> Tensor:
        if self.placement == "parallel":
            shared = self.attention_norm(x)
            x = x + finite_in_half(self.attention.around(shared, around, cache, window))
            if self.cross is not None:
                x = x + finite_in_half(self.cross.across(shared, around, cache))
            return finite_in_half(x + finite_in_half(self._think(shared)))
        x = self._add(x, self.attention_norm, self.attention.around, around, cache, window)
        if self.cross is not None:
            x = self._add(x, self.cross_norm, self.cross.across, around, cache)
        return self._add(x, self.ffn_norm, self._think)

    def _add(self, x: Tensor, norm: Map, sublayer: Callable[..., Tensor], *given: object) -> Tensor:
        """The residual rule; a sublayer's result is new memory and may be written to."""
        if self.placement == "pre":
            return finite_in_half(sublayer(norm(x), *given).add_(x))
        return norm(finite_in_half(sublayer(x, *given).add_(x)))

    def _think(self, x: Tensor) -> Tensor:
        hidden = finite_in_half(self.up(x))
        if self.is_gated:
            gate, up = hidden.chunk(2, dim=-1)
            return self.down(finite_in_half(self.activation(gate) * up))
        return self.down(finite_in_half(self.activation(hidden)))


class _Attention:
    """Attention in heads, as ``nn.heads.multi_head`` has it."""

    def __init__(self, attention: Attention) -> None:
        self.q, self.o = _linear(attention.q), _linear(attention.o)
        self.qkv = _linears(attention.q, attention.k, attention.v)
        self.heads, self.kv_heads, self.scale = attention.num_heads, attention.kv_heads, attention.scale

    def around(self, x: Float[Tensor, "N D"], around: _Around, cache: LayerCache, window: int | None) -> Tensor:
        """Self-attention: to this row's tokens so far."""
        rows, new, y = around.rows, around.new, self.qkv(x)
        heads, groups = self.heads, self.kv_heads
        if new == 1:  # heads before tokens, as they are
            y = y.view(rows, heads + 2 * groups, 1, -1)
        else:
            y = y.view(rows, new, heads + 2 * groups, -1).transpose(1, 2)
        if around.turns is None:
            q, k, v = torch.split_with_sizes(y, (heads, groups, groups), 1)
        else:
            turning, v = torch.split_with_sizes(y, (heads + groups, groups), 1)
            q, k = torch.split_with_sizes(around.turns.rotate(turning), (heads, groups), 1)
        keys, values = cache.extend(k, v)
        if window is not None and new == 1 and keys.shape[-2] > window:  # one query: what it sees is a slice
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        hidden = None if around.is_open else _mask(around, keys.shape[-2], window, keys.device)
        if new == 1 and groups != heads:  # the query heads of a group as queries of one head
            q = q.view(rows, groups, heads // groups, -1)
            if hidden is not None and hidden.shape[1] > 1:
                hidden = hidden.view(len(hidden), groups, -1, hidden.shape[-1])
        shared = q.shape[1] != groups
        y = F.scaled_dot_product_attention(q, keys, values, hidden, scale=self.scale, enable_gqa=shared)
        return self.o((y if new == 1 else y.transpose(1, 2)).reshape(rows * new, -1))

    def across(self, x: Float[Tensor, "N D"], around: _Around, cache: LayerCache) -> Tensor:
        """Cross-attention: rows that share a memory ask together, so that its keys are stored and read once."""
        assert cache.memory is not None
        k, v = (y.view(*y.shape[:2], self.kv_heads, -1).transpose(1, 2) for y in cache.memory)
        q = self.q(x).view(len(k), -1, self.heads, k.shape[-1]).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v, around.memory_real, scale=self.scale, enable_gqa=self.heads != self.kv_heads
        )
        return self.o(y.transpose(1, 2).reshape(len(x), -1))


def _mask(around: _Around, keys: int, window: int | None, device: torch.device) -> Tensor | None:
    """What is added to the scores, or which of them count; None where every slot does."""
    seen = None if around.real is None else around.real[..., -keys:]
    if around.new == 1:
        bias = None if around.bias is None else around.bias[:, :, None, -keys:]
    else:
        query = torch.arange(keys - around.new, keys, device=device)[:, None]
        behind = query - torch.arange(keys, device=device)
        near = behind >= 0 if window is None else (behind >= 0) & (behind < window)
        seen = near if seen is None else near & seen
        bias = None if around.bias is None else around.bias[:, :, (-1 - behind).clamp(max=-1)]
    if bias is None:
        return seen
    return bias if seen is None else bias.masked_fill(~seen, -torch.inf)


def _norm(norm: nn.Module) -> Map:
    assert isinstance(norm, LayerNorm | RMSNorm)
    weight, eps = norm.weight, norm.eps
    if isinstance(norm, RMSNorm):
        return lambda x: rms_norm(x, weight, eps)
    shape, bias, kernel = tuple(weight.shape), norm.bias, torch.layer_norm
    return lambda x: kernel(x, shape, weight, bias, eps)


def _linear(linear: Linear) -> Map:
    return _product(linear.weight, linear.bias)


def _product(weight: Tensor, bias: Tensor | None) -> Map:
    """W x (+ b) of vectors ``(N, D)``, by the kernel that such a product ends in: one call less on the way there."""
    turned, add, plain = weight.t(), torch.addmm, torch.mm
    return (lambda x: plain(x, turned)) if bias is None else (lambda x: add(bias, x, turned))


def _linears(*linears: Linear) -> Map:
    """Maps of the same vector, their results side by side: one product, if their weights lie side by side in memory."""
    if len(linears) == 1:
        return _linear(linears[0])
    weight, together = linears[0].weight, _one_matrix([linear.weight for linear in linears])
    if together is None:
        maps = [_linear(linear) for linear in linears]
        return lambda x: torch.cat([one(x) for one in maps], dim=-1)
    biases = [linear.bias for linear in linears]
    if all(bias is None for bias in biases):
        return _product(together, None)
    filled = [weight.new_zeros(x.out_features) if x.bias is None else x.bias for x in linears]
    return _product(together, torch.cat(filled))


def _one_matrix(weights: list[Tensor]) -> Tensor | None:
    """All rows of several matrices as one view of memory, if they follow each other there."""
    first, rows = weights[0], 0
    for weight in weights:
        follows = weight.storage_offset() == first.storage_offset() + rows * first.shape[1]
        same = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (follows and same and weight.is_contiguous() and weight.shape[1] == first.shape[1]):
            return None
        rows += len(weight)
    return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))


def _added(embed: Embed, length: int, like: Tensor) -> Float[Tensor, "L D"] | None:
    """The vectors that are added at each position."""
    facts = embed.facts.position
    if facts is None:
        return None
    if embed.position is not None:
        return embed.position.weight[facts.offset :]
    places = torch.arange(facts.offset, facts.offset + length, device=like.device)
    return sinusoids(places, like.shape[-1], layout=facts.layout).to(like.dtype)


def _turns(facts: config.Attention, length: int, like: Tensor) -> Turns | None:
    """The turns of every position."""
    if facts.rotary is None:
        return None
    turns = rotary_turns(facts.rotary, torch.arange(length, device=like.device))
    wide = torch.promote_types(like.dtype, torch.float32)
    return Turns(turns.cos.to(wide), turns.sin.to(wide), turns.pairing)


def _chosen(turns: Turns, places: Tensor | slice) -> Turns:
    """The turns of tokens at these places, for vectors that stand as (B, H, T, K)."""
    cos, sin = turns.cos[places], turns.sin[places]
    if isinstance(places, Tensor):  # of each row its own: (B, 1, T, P)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return Turns(cos, sin, turns.pairing)


def _bias(stack: Stack, length: int, like: Tensor) -> Float[Tensor, "1 H L"] | None:
    """The bias of every distance, the farthest first: that of one query is then the end of it."""
    facts = stack.facts.attention.score_bias
    if not isinstance(facts, config.BucketBias) or stack.relative is None:
        return None
    distance = torch.arange(1 - length, 1, device=like.device)
    return stack.relative.weight[bucket(distance, facts, both_ways=False)].T[None].contiguous()
