"""A stack of blocks: an encoder or a decoder, as a page of facts says.

The stack computes once what all of its layers share (masks, rotary angles, biases) and passes it to them as an
``AttentionContext``.

Shapes: ``B`` batch, ``T`` tokens of this call, ``S`` tokens so far, ``M`` tokens of the memory, ``D`` width.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from glassformer import config
from glassformer.nn.attention import KNOWS_CAUSAL, AttentionPath, hidden_or_biased
from glassformer.nn.block import Block
from glassformer.nn.cache import KVCache, LayerCache
from glassformer.nn.context import AttentionContext
from glassformer.nn.convolution import Convolution
from glassformer.nn.dropout import dropout
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.linear import Embedding
from glassformer.nn.masks import DenseMask, Mask, padding, resolve
from glassformer.nn.multi_head import Attention
from glassformer.nn.norm import make_norm
from glassformer.nn.relative import alibi_bias, bucket_bias, distances, relative_rows
from glassformer.nn.rotary import rotary_angles


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a stack must know of the tokens besides their vectors."""

    positions: Int[Tensor, "... T"]
    real: Bool[Tensor, "B T"] | None = None  # None: all of them
    documents: Integer[Tensor, "B T"] | None = None  # tokens see their own document alone; None: it is one
    memory: Float[Tensor, "Q M D"] | None = None  # each row serves as many rows of the batch as any other
    memory_token_mask: Bool[Tensor, "Q M"] | None = None
    cache: KVCache | None = None
    places: Float[Tensor, "... T D"] | None = None  # absolute positions for a mask decoder; see config.MaskDecoder
    place_steps: int = 0


class Stack(nn.Module):
    """Blocks one after the other, and the final norm that pre-norm blocks need."""

    def __init__(self, facts: config.Stack, norm: config.Norm, width: int) -> None:
        super().__init__()
        self.facts = facts
        self.blocks = nn.ModuleList(_block(facts, norm, width) for _ in range(facts.unique_layers or facts.layers))
        self.norm = make_norm(norm, width) if facts.final_norm else None
        self.convolution = Convolution(facts.convolution, norm, width) if facts.convolution is not None else None
        self.relative = self.relative_norm = None
        bias = facts.attention.score_bias
        if isinstance(bias, config.BucketBias):
            self.relative = Embedding(bias.buckets, facts.attention.heads)
        if isinstance(bias, config.Disentangled):
            self.relative = Embedding(2 * bias.span, width)
            self.relative_norm = make_norm(norm, width) if bias.norm_table else None

    def forward(
        self, x: Float[Tensor, "B T D"], tokens: Tokens, *, path: AttentionPath = "sdpa"
    ) -> Float[Tensor, "B T D"]:
        """Vectors after the last block and the final norm."""
        contexts, caches = self.contexts(x, tokens, path), self._caches(tokens.cache)
        for number, (context, cache) in enumerate(zip(contexts, caches, strict=True)):
            before, block = x, self.blocks[number * len(self.blocks) // self.facts.layers]
            if tokens.places is not None and number == self.facts.layers - 1:
                x = x + tokens.places
                for _ in range(tokens.place_steps):
                    x = block(x, context=replace(context, source=before))
                break
            x = block(x, context=context, cache=cache)
            if number == 0 and self.convolution is not None:
                x = self.convolution(before, x, tokens.real)
        return dropout(x if self.norm is None else self.norm(x), self.facts.final_dropout, self.training)

    def contexts(self, x: Float[Tensor, "B T D"], tokens: Tokens, path: AttentionPath) -> list[AttentionContext]:
        """The surroundings of every layer; the same for layers with the same window."""
        cache, (batch, new) = tokens.cache, x.shape[:2]
        real, key_positions = tokens.real, tokens.positions
        if cache is not None:
            cache.claim(self, batch)
            real = cache.extend_real(real, batch, new)
            key_positions = cache.extend_positions(tokens.positions)
        scores = (batch, 1, new, key_positions.shape[-1])
        shared = self._positions(tokens.positions, key_positions, x.dtype)
        memory_mask = None
        if tokens.memory_token_mask is not None:
            rows, slots = tokens.memory_token_mask.shape
            memory_mask = resolve(padding(tokens.memory_token_mask), (rows, 1, 1, slots), x.device, keep_causal=False)
        shared = replace(shared, real=real, memory=tokens.memory, memory_mask=memory_mask, path=path)
        keep_causal = path in KNOWS_CAUSAL and shared.bias is None and shared.relative is None
        everyone = Mask(causal=self.facts.causal, keys=real, pairs=self._same_document(tokens.documents))
        around: dict[int | config.BlockSparse | None, AttentionContext] = {}
        for window in dict.fromkeys(self.facts.attention.windows):
            if isinstance(window, config.BlockSparse):
                around[window] = replace(shared, pattern=window)
            elif window is not None and cache is not None and new == 1 and real is None:
                around[window] = replace(shared, last=window)
            else:
                mask = resolve(everyone & _near(window, real, new), scores, x.device, keep_causal=keep_causal)
                around[window] = _hide(shared, mask) if cache is None else replace(shared, mask=mask)
        return [around[self._window(number)] for number in range(self.facts.layers)]

    def _window(self, layer: int) -> int | config.BlockSparse | None:
        windows = self.facts.attention.windows
        return windows[layer % len(windows)]

    def _caches(self, cache: KVCache | None) -> list[LayerCache | None]:
        """The cache of every layer; one with a window need not keep more than it sees."""
        if cache is None:
            return [None] * self.facts.layers
        windows = (self._window(number) for number in range(self.facts.layers))
        return [cache.layer(n, window if isinstance(window, int) else None) for n, window in enumerate(windows)]

    def _same_document(self, documents: Integer[Tensor, "B T"] | None) -> Bool[Tensor, "B T T"] | None:
        """Who is of the same document as whom."""
        if documents is None:
            return None
        sparse = any(isinstance(window, config.BlockSparse) for window in self.facts.attention.windows)
        if sparse or self.convolution is not None:
            raise ValueError(
                "block-sparse attention and convolutions look across documents, so rows cannot be packed here; a mask "
                "of 1 and 0 is turned into one of True and False by mask.bool()."
            )
        return documents.unsqueeze(-1) == documents.unsqueeze(-2)

    def _positions(
        self, queries: Int[Tensor, "... T"], keys: Int[Tensor, "... S"], dtype: torch.dtype
    ) -> AttentionContext:
        """How positions act inside attention: turns, a bias on the scores, or vectors of relative positions."""
        facts, scheme = self.facts.attention, self.facts.attention.score_bias
        rope = None if facts.rotary is None else rotary_angles(facts.rotary, queries).for_heads(dtype)
        if scheme is None:
            return AttentionContext(rope=rope)
        distance = distances(queries, keys)
        if isinstance(scheme, config.BucketBias) and self.relative is not None:
            bias = bucket_bias(self.relative.weight, scheme, distance, causal=self.facts.causal)
            return AttentionContext(rope=rope, bias=bias)
        if isinstance(scheme, config.Alibi):
            return AttentionContext(rope=rope, bias=alibi_bias(facts.heads, distance, dtype))
        if isinstance(scheme, config.Disentangled) and self.relative is not None:
            table = self.relative.weight
            vectors = table if self.relative_norm is None else self.relative_norm(table)
            return AttentionContext(rope=rope, relative=(vectors, relative_rows(scheme, distance)))
        raise TypeError(f"a stack does not know what to do with {type(scheme).__name__} as score_bias.")


def _hide(shared: AttentionContext, mask: DenseMask | None) -> AttentionContext:
    """The surroundings with a mask. Kernels take it and the bias as one tensor, which is made here for all layers.

    Not with a cache, of which each layer may see another part.
    """
    if mask is None or mask.allowed is None or shared.bias is None or shared.path == "eager":
        return replace(shared, mask=mask)
    bias = hidden_or_biased(mask.allowed, shared.bias, shared.bias.dtype)
    return replace(shared, mask=mask, bias=bias, bias_includes_mask=True)


def _near(window: int | None, real: Bool[Tensor, "B S"] | None, new: int) -> Mask:
    """A window counts real tokens, as positions do: padding between them takes up no room."""
    if window is None or real is None:
        return Mask(window=window)
    order = real.long().cumsum(-1)
    return Mask(pairs=distances(order[:, real.shape[-1] - new :], order).abs() < window)


def _block(facts: config.Stack, norm: config.Norm, width: int) -> Block:
    ffn = facts.ffn
    return Block(
        Attention(facts.attention, width),
        FeedForward(
            width,
            ffn.hidden,
            activation=ffn.activation,
            gated=ffn.gated,
            bias=ffn.bias,
            inner_dropout=ffn.dropout,
        ),
        partial(make_norm, norm, width),
        cross=Attention(facts.attention, width, cross=True) if facts.cross else None,
        placement=facts.placement,
        dropout=facts.dropout,
        dropout_on=facts.dropout_on,
    )
