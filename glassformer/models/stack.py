"""A stack of blocks, an encoder or a decoder, built from ``config.Stack``.

The stack computes once what all of its layers share (masks, rotary angles, biases) and passes it to them as an
``AttentionContext``.

Shapes: ``B`` batch, ``T`` tokens of this call, ``S`` tokens so far, ``M`` tokens of the memory, ``N`` rows of the
memory, ``D`` model width.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from glassformer import config
from glassformer.nn.attention import CAUSAL_PATHS, AttentionPath, merge_mask
from glassformer.nn.block import Block
from glassformer.nn.cache import KVCache, LayerCache
from glassformer.nn.feedforward import Convolution, FeedForward
from glassformer.nn.kernels.packed import has_packed_kernel, make_packed_mask
from glassformer.nn.kernels.windows import has_blocks, make_window_mask
from glassformer.nn.linear import Embedding
from glassformer.nn.masks import DenseMask, Mask, padding, resolve
from glassformer.nn.modes import dropout
from glassformer.nn.multi_head import Attention, AttentionContext
from glassformer.nn.norm import make_norm, product_dtype
from glassformer.nn.observer import Observer, observe
from glassformer.nn.relative import alibi_bias, bucket_bias, distances, relative_rows
from glassformer.nn.rotary import rotary_angles


@dataclass(frozen=True, eq=False)
class StackInput:
    """The input of a stack besides the token vectors."""

    positions: Int[Tensor, "... T"]
    token_mask: Bool[Tensor, "B T"] | None = None  # True at real tokens; None: all are
    documents: Integer[Tensor, "B T"] | None = None  # tokens attend within their document; None: a row is one document
    memory: Float[Tensor, "N M D"] | None = None  # each of its rows serves B / N rows of the batch
    memory_token_mask: Bool[Tensor, "N M"] | None = None
    cache: KVCache | None = None
    mask_decoder_positions: Float[Tensor, "... T D"] | None = None  # position vectors; see config.MaskDecoder
    mask_decoder_steps: int = 0
    observer: Observer | None = None  # sees the values of the stack and may replace them


class Stack(nn.Module):
    """A sequence of blocks, and the final norm that pre-norm blocks need."""

    def __init__(self, facts: config.Stack, norm: config.Norm, width: int) -> None:
        super().__init__()
        self.facts = facts
        self.blocks = nn.ModuleList(_block(facts, norm, width) for _ in range(facts.unique_layers or facts.layers))
        self.norm = make_norm(norm, width) if facts.final_norm else None
        self.convolution = Convolution(facts.convolution, norm, width) if facts.convolution is not None else None
        self.layer_windows = [facts.window(number) for number in range(facts.layers)]
        self.relative = self.relative_norm = None
        bias = facts.attention.score_bias
        if isinstance(bias, config.BucketBias):
            self.relative = Embedding(bias.buckets, facts.attention.heads)
        if isinstance(bias, config.Disentangled):
            self.relative = Embedding(2 * bias.span, width)
            self.relative_norm = make_norm(norm, width) if bias.norm_table else None

    def forward(
        self, x: Float[Tensor, "B T D"], inputs: StackInput, *, path: AttentionPath = "sdpa"
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states after the last block and the final norm."""
        layers = self.facts.layers
        contexts = self.contexts(x, inputs, path)
        caches = [None] * layers if inputs.cache is None else self._layer_caches(inputs.cache)
        for layer, (context, cache) in enumerate(zip(contexts, caches, strict=True)):
            # Where blocks are fewer than layers, neighbouring layers share one.
            block, repeats = self.blocks[layer * len(self.blocks) // layers], 1
            # A mask decoder repeats the last layer: queries start from x + positions, keys come from x.
            if inputs.mask_decoder_positions is not None and layer == layers - 1:
                context, repeats = replace(context, key_input=x), inputs.mask_decoder_steps
                x = x + inputs.mask_decoder_positions
            for number in range(layer, layer + repeats):
                observer = None if inputs.observer is None else inputs.observer.part(f"blocks.{number}")
                context = context if observer is context.observer else replace(context, observer=observer)
                x = observe(observer, "input", x)
                y = block(x, context=context, cache=cache)
                # The convolution, if there is one, runs in parallel with the first block and is added to its output.
                if number == 0 and self.convolution is not None and context.key_input is None:
                    inner = None if observer is None else observer.part("convolution")
                    y = self.convolution(x, y, inputs.token_mask, observer=inner)
                x = observe(observer, "output", y)
        x = x if self.norm is None else self.norm(x)
        return observe(inputs.observer, "output", dropout(x, self.facts.final_dropout, self.training))

    def contexts(self, x: Float[Tensor, "B T D"], inputs: StackInput, path: AttentionPath) -> list[AttentionContext]:
        """Return the attention context of every layer; layers with the same window share one."""
        cache, (batch, new) = inputs.cache, x.shape[:2]
        token_mask, key_positions = inputs.token_mask, inputs.positions
        # Append this call's tokens to the cached ones: from here on, masks and positions of keys have S slots.
        if cache is not None:
            cache.claim(self, batch)
            token_mask = cache.extend_token_mask(token_mask, batch, new)
            key_positions = cache.extend_positions(inputs.positions)
        # Positions inside attention, and the memory: the same for all layers.
        shared = self._position_context(inputs.positions, key_positions, x.dtype)
        memory_mask = None
        if inputs.memory_token_mask is not None:
            rows, slots = inputs.memory_token_mask.shape
            memory_mask = resolve(padding(inputs.memory_token_mask), (rows, 1, 1, slots), x.device, keep_causal=False)
        shared = replace(shared, token_mask=token_mask, memory=inputs.memory, memory_mask=memory_mask, path=path)
        if cache is not None and cache.is_static:
            return self._static_contexts(x, shared, inputs.positions, key_positions)
        # The mask without a window.
        base, documents = Mask(causal=self.facts.causal, keys=token_mask), inputs.documents
        if documents is not None:
            self._check_documents()
        # Kernels without a bias need no booleans (T, S) for causal masks and windows.
        fused = path in CAUSAL_PATHS and shared.bias is None and shared.relative is None
        packed = None
        if documents is not None and fused and self.has_packed_kernel(x.device, product_dtype(x)):
            packed = make_packed_mask(documents, causal=base.causal)
        # One context per window.
        scores = (batch, 1, new, key_positions.shape[-1])  # B 1 T S
        by_window: dict[int | config.BlockSparse | None, AttentionContext] = {}
        for window in dict.fromkeys(self.facts.attention.windows):
            if isinstance(window, config.BlockSparse):
                by_window[window] = replace(shared, pattern=window)
                continue
            if isinstance(window, int) and cache is not None and new == 1 and token_mask is None:
                by_window[window] = replace(shared, last_keys=window)
                continue
            mask = replace(base, window=window)
            over_slots = has_blocks(mask, *scores[-2:]) and _is_contiguous(token_mask)
            if over_slots and fused:
                by_window[window] = replace(shared, mask=make_window_mask(mask, new, x.device, documents))
                continue
            if packed is not None:
                by_window[window] = replace(shared, mask=packed)
                continue
            if window is not None and token_mask is not None and not over_slots:
                mask = base & _window_over_tokens(window, token_mask, new)
            if documents is not None:
                mask = mask & Mask(pairs=documents.unsqueeze(-1) == documents.unsqueeze(-2))
            context = replace(shared, mask=resolve(mask, scores, x.device, keep_causal=fused))
            # With a cache each layer may keep other slots, and an observer sees the bias: mask and bias stay apart.
            apart = shared.bias is None or cache is not None or inputs.observer is not None
            by_window[window] = context if apart else _merge_mask_into_bias(context)
        return [by_window[window] for window in self.layer_windows]

    def has_packed_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether documents packed into rows are computed without a mask of all pairs, by a kernel for them."""
        facts = self.facts.attention
        plain = facts.score_bias is None and set(facts.windows) == {None} and self.facts.convolution is None
        is_compiled = any(block._compiled_call_impl is not None for block in self.blocks)  # no kernel in such code
        return plain and not is_compiled and has_packed_kernel(device, dtype, facts.head_dim)

    def _static_contexts(
        self, x: Float[Tensor, "B 1 D"], shared: AttentionContext, queries: Int[Tensor, "B 1"], keys: Int[Tensor, "B S"]
    ) -> list[AttentionContext]:
        """Return the contexts of a single token with a static cache: empty slots and those beyond a window are masked.

        There is no triangle, since no slot is later than the token; and windows count positions, since slots that no
        token will attend to any more stay where they are. On the fused path, mask and bias are one tensor from here on.
        """
        assert shared.token_mask is not None
        by_window: dict[int | config.BlockSparse | None, AttentionContext] = {}
        for window in dict.fromkeys(self.facts.attention.windows):
            allowed = shared.token_mask
            if isinstance(window, int):
                allowed = allowed & (distances(queries, keys).squeeze(-2).abs() < window)
            elif window is not None:
                raise TypeError(f"a step with a static cache cannot mask a window of {type(window).__name__}.")
            context = replace(shared, mask=DenseMask(allowed[:, None, None]))  # B 1 1 S
            if shared.path != "eager" and shared.bias is None and shared.relative is None:
                context = replace(context, bias=torch.zeros_like(allowed[:, None, None], dtype=x.dtype))
            by_window[window] = _merge_mask_into_bias(context)
        return [by_window[window] for window in self.layer_windows]

    def _layer_caches(self, cache: KVCache) -> list[LayerCache | None]:
        """Return the cache of every layer; layers with a window may evict old slots."""
        return [
            cache.layer(number, window if isinstance(window, int) else None)
            for number, window in enumerate(self.layer_windows)
        ]

    def _check_documents(self) -> None:
        """Refuse packed rows where tokens attend across documents."""
        patterns = any(not isinstance(window, int | None) for window in self.facts.attention.windows)
        if patterns or self.convolution is not None:
            raise ValueError(
                "block-sparse attention and convolutions cross document boundaries, so this model cannot take packed "
                "rows. If the mask is 1 and 0 for tokens and padding, pass mask.bool()."
            )

    def _position_context(
        self, queries: Int[Tensor, "... T"], keys: Int[Tensor, "... S"], dtype: torch.dtype
    ) -> AttentionContext:
        """Return how positions act in attention: rotary angles, a bias on the scores, or relative position vectors."""
        facts, scheme = self.facts.attention, self.facts.attention.score_bias
        rope = None if facts.rotary is None else rotary_angles(facts.rotary, queries).for_heads(dtype)
        if scheme is None:
            return AttentionContext(rope=rope)
        distance = distances(queries, keys)  # ... T S
        if isinstance(scheme, config.BucketBias) and self.relative is not None:
            bias = bucket_bias(self.relative.weight, scheme, distance, causal=self.facts.causal)
            return AttentionContext(rope=rope, bias=bias)
        if isinstance(scheme, config.Alibi):
            return AttentionContext(rope=rope, bias=alibi_bias(facts.heads, distance, dtype))
        if isinstance(scheme, config.Disentangled) and self.relative is not None:
            table = self.relative.weight
            vectors = table if self.relative_norm is None else self.relative_norm(table)
            return AttentionContext(rope=rope, relative=(vectors, relative_rows(scheme, distance)))
        raise TypeError(f"a stack cannot build {type(scheme).__name__} as score_bias.")


def _merge_mask_into_bias(context: AttentionContext) -> AttentionContext:
    """Merge mask and bias into one tensor, as fused kernels take them: once for all layers."""
    mask, bias = context.mask, context.bias
    if not isinstance(mask, DenseMask) or mask.allowed is None or bias is None or context.path == "eager":
        return context
    return replace(context, bias=merge_mask(bias, mask.allowed), bias_includes_mask=True)


def _is_contiguous(token_mask: Bool[Tensor, "B S"] | None) -> bool:
    """Whether padding is at the ends of each row alone, so that windows over slots and over tokens are the same.

    Compiled code cannot depend on the values of a mask: there, padding may be anywhere.
    """
    if token_mask is None or torch.compiler.is_compiling():
        return token_mask is None
    starts = token_mask[:, 1:] & ~token_mask[:, :-1]
    return bool((starts.sum(-1) + token_mask[:, 0] <= 1).all())


def _window_over_tokens(window: int, token_mask: Bool[Tensor, "B S"], new: int) -> Mask:
    """Return a window that counts real tokens, as positions do, and skips the padding between them."""
    order = token_mask.long().cumsum(-1)  # B S
    return Mask(pairs=distances(order[:, token_mask.shape[-1] - new :], order).abs() < window)


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
