"""The name and shape of every weight, from the facts alone, before a model is built.

Weights, accounting and plots use the same part names: ``encoder.blocks.0.attention.q.weight``.
"""

from collections.abc import Iterator
from math import prod

from glassformer.config.checks import check_choice
from glassformer.config.model import ModelConfig
from glassformer.config.parts import (
    PLACEMENTS,
    Attention,
    Convolution,
    Embed,
    EmbeddingHead,
    FeedForward,
    Head,
    LMHead,
    Norm,
    PretrainingHead,
    Stack,
    TaskHead,
)
from glassformer.config.positions import Alibi, BucketBias, Disentangled

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]


def shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return the shape of every stored weight by name; a tied head has no matrix."""
    named = dict(_inside("embed", _embed(config.embed, config, has_tokens=True)))
    if config.encoder is not None:
        named |= _inside("encoder", _stack(config.encoder, config))
    if config.decoder is not None:
        if config.encoder is not None:
            named |= _inside("target_embed", _embed(config.embed, config, has_tokens=False))
        named |= _inside("decoder", _stack(config.decoder, config))
    if config.head is not None:
        named |= _inside("head", _head(config.head, config))
    return named


def count(config: ModelConfig) -> int:
    """Return the number of parameters, without stored buffers."""
    excluded = buffers(config)
    return sum(prod(shape) for name, shape in shapes(config).items() if name not in excluded)


def buffers(config: ModelConfig) -> frozenset[str]:
    """Return the names of stored weights that are not parameters: they are not trained and not counted."""
    parts = {"head.lm": config.head.lm} if isinstance(config.head, PretrainingHead) else {"head": config.head}
    return frozenset(
        f"{part}.bias" for part, facts in parts.items() if isinstance(facts, LMHead) and not facts.bias_trained
    )


def _inside(part: str, named: Named) -> dict[str, Shape]:
    return {f"{part}.{name}": shape for name, shape in named}


def _linear(name: str, d_in: int, d_out: int, bias: bool) -> Named:
    yield f"{name}.weight", (d_out, d_in)
    if bias:
        yield f"{name}.bias", (d_out,)


def _norm(name: str, facts: Norm, width: int) -> Named:
    check_choice("norm.kind", facts.kind, ("layer", "rms"))
    yield f"{name}.weight", (width,)
    if facts.kind == "layer" and facts.bias:
        yield f"{name}.bias", (width,)


def _embed(facts: Embed, config: ModelConfig, *, has_tokens: bool) -> Named:
    width, position = facts.width or config.width, facts.position
    if position is not None:
        check_choice("embed.position.kind", position.kind, ("learned", "sinusoidal"))
    tables = {
        "token": config.vocab if has_tokens else 0,
        "segment": facts.segments,
        "language": facts.languages,
        "position": position.length + position.offset if position is not None and position.kind == "learned" else 0,
    }
    for name, rows in tables.items():
        if rows:
            yield f"{name}.weight", (rows, width)
    if facts.norm:
        yield from _norm("norm", config.norm, width)
    if facts.width is not None:
        yield from _linear("project", width, config.width, bias=True)


def _stack(facts: Stack, config: ModelConfig) -> Named:
    check_choice("placement", facts.placement, PLACEMENTS)
    norm, width, one_norm = config.norm, config.width, facts.placement == "parallel"
    # The blocks; a parallel one has a single norm.
    for number in range(facts.unique_layers or facts.layers):
        block = f"blocks.{number}"
        yield from _attention(f"{block}.attention", facts.attention, width)
        yield from _norm(f"{block}.attention_norm", norm, width)
        if facts.cross:
            yield from _attention(f"{block}.cross", facts.attention, width, cross=True)
            if not one_norm:
                yield from _norm(f"{block}.cross_norm", norm, width)
        yield from _feed_forward(f"{block}.ffn", facts.ffn, width)
        if not one_norm:
            yield from _norm(f"{block}.ffn_norm", norm, width)
    # What the blocks share.
    if facts.final_norm:
        yield from _norm("norm", norm, width)
    if facts.convolution is not None:
        yield from _convolution("convolution", facts.convolution, norm, width)
    yield from _score_bias(facts.attention, norm, width)


def _score_bias(facts: Attention, norm: Norm, width: int) -> Named:
    match facts.score_bias:
        case BucketBias(buckets=buckets):
            yield "relative.weight", (buckets, facts.heads)
        case Disentangled(span=span, norm_table=norm_table):
            yield "relative.weight", (2 * span, width)
            if norm_table:
                yield from _norm("relative_norm", norm, width)
        case None | Alibi():
            return
        case unknown:
            raise TypeError(f"no weight shapes are defined for {type(unknown).__name__} as score_bias.")


def _attention(name: str, facts: Attention, width: int, *, cross: bool = False) -> Named:
    inner, kv_inner = facts.heads * facts.head_dim, (facts.kv_heads or facts.heads) * facts.head_dim
    sizes = {"q": (width, inner), "k": (width, kv_inner), "v": (width, kv_inner), "o": (inner, width)}
    for projection, (d_in, d_out) in sizes.items():
        yield from _linear(f"{name}.{projection}", d_in, d_out, projection in facts.biases)
    if facts.qk_norm is not None:
        for projection in ("q", "k"):
            yield from _norm(f"{name}.{projection}_norm", facts.qk_norm, facts.head_dim)
    relative = facts.score_bias
    if isinstance(relative, Disentangled) and not relative.shared_projections and not cross:
        if "p2c" in relative.terms:
            yield from _linear(f"{name}.position_q", width, inner, bias=True)
        if "c2p" in relative.terms:
            yield from _linear(f"{name}.position_k", width, inner, relative.key_bias)


def _feed_forward(name: str, facts: FeedForward, width: int) -> Named:
    yield from _linear(f"{name}.up", width, facts.hidden, facts.bias)
    if facts.gated:
        yield from _linear(f"{name}.gate", width, facts.hidden, facts.bias)
    yield from _linear(f"{name}.down", facts.hidden, width, facts.bias)


def _convolution(name: str, facts: Convolution, norm: Norm, width: int) -> Named:
    yield f"{name}.weight", (width, width // facts.groups, facts.kernel)
    yield f"{name}.bias", (width,)
    yield from _norm(f"{name}.norm", norm, width)


def _head(facts: Head, config: ModelConfig) -> Named:
    if isinstance(facts, LMHead):
        # A transform maps to the width of the embeddings, which a tied head reads its logits from.
        embedding_width = facts.tied or facts.transform is not None
        width = (config.embed.width or config.width) if embedding_width else config.width
        if facts.transform is not None:
            yield from _linear("transform", config.width, width, bias=True)
            yield from _norm("norm", config.norm, width)
        if not facts.tied:
            yield from _linear("out", width, config.vocab, bias=False)
        if facts.bias:
            yield "bias", (config.vocab,)
        if facts.mask_decoder is not None:
            yield "position.weight", (facts.mask_decoder.length, config.width)
    elif isinstance(facts, TaskHead):
        if facts.hidden is not None:
            yield from _linear("hidden", config.width, config.width, bias=True)
        if facts.labels:
            yield from _linear("out", config.width, len(facts.labels), facts.bias)
    elif isinstance(facts, PretrainingHead):
        for part, inner in (("lm", facts.lm), ("pair", facts.pair)):
            yield from _inside(part, _head(inner, config)).items()
    elif not isinstance(facts, EmbeddingHead):
        raise TypeError(f"no weight shapes are defined for a head {type(facts).__name__}.")
