"""The name and shape of every weight, from the facts alone: what a model will hold, before there is one.

Names are the vocabulary of parts that weights, counting and pictures share: ``encoder.blocks.0.attention.q.weight``.
"""

from collections.abc import Iterator
from math import prod

from glassformer.config.checks import check_choice
from glassformer.config.heads import EmbeddingHead, Head, LMHead, PretrainingHead, TaskHead
from glassformer.config.model import Model
from glassformer.config.parts import Attention, Convolution, Embed, FeedForward, Norm, Stack
from glassformer.config.positions import BucketBias, Disentangled

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]


def shapes(model: Model) -> dict[str, Shape]:
    """Every stored weight once; a tied head has none of its own."""
    named = dict(_inside("embed", _embed(model.embed, model, has_tokens=True)))
    if model.encoder is not None:
        named |= _inside("encoder", _stack(model.encoder, model))
    if model.decoder is not None:
        if model.encoder is not None:
            named |= _inside("target_embed", _embed(model.embed, model, has_tokens=False))
        named |= _inside("decoder", _stack(model.decoder, model))
    if model.head is not None:
        named |= _inside("head", _head(model.head, model))
    return named


def count(model: Model) -> int:
    """Number of parameters; stored buffers are none."""
    kept = buffers(model)
    return sum(prod(shape) for name, shape in shapes(model).items() if name not in kept)


def buffers(model: Model) -> frozenset[str]:
    """Names of the stored weights that are no parameters: they are not trained and not counted."""
    parts = {"head.lm": model.head.lm} if isinstance(model.head, PretrainingHead) else {"head": model.head}
    return frozenset(
        f"{part}.bias" for part, facts in parts.items() if isinstance(facts, LMHead) and not facts.bias_trained
    )


def _inside(part: str, named: Named) -> dict[str, Shape]:
    return {f"{part}.{name}": shape for name, shape in named}


def _linear(name: str, into: int, out: int, bias: bool) -> Named:
    yield f"{name}.weight", (out, into)
    if bias:
        yield f"{name}.bias", (out,)


def _norm(name: str, facts: Norm, width: int) -> Named:
    check_choice("norm.kind", facts.kind, ("layer", "rms"))
    yield f"{name}.weight", (width,)
    if facts.kind == "layer" and facts.bias:
        yield f"{name}.bias", (width,)


def _embed(facts: Embed, model: Model, *, has_tokens: bool) -> Named:
    width, place = facts.width or model.width, facts.position
    if place is not None:
        check_choice("embed.position.kind", place.kind, ("learned", "sinusoidal"))
    tables = {
        "token": model.vocab if has_tokens else 0,
        "segment": facts.segments,
        "language": facts.languages,
        "position": place.length + place.offset if place is not None and place.kind == "learned" else 0,
    }
    for name, rows in tables.items():
        if rows:
            yield f"{name}.weight", (rows, width)
    if facts.norm:
        yield from _norm("norm", model.norm, width)
    if facts.width is not None:
        yield from _linear("project", width, model.width, bias=True)


def _stack(facts: Stack, model: Model) -> Named:
    check_choice("placement", facts.placement, ("pre", "post", "parallel"))
    norm, width, one_norm = model.norm, model.width, facts.placement == "parallel"
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
    if facts.final_norm:
        yield from _norm("norm", norm, width)
    if facts.convolution is not None:
        yield from _convolution("convolution", facts.convolution, norm, width)
    bias = facts.attention.score_bias
    if isinstance(bias, BucketBias):
        yield "relative.weight", (bias.buckets, facts.attention.heads)
    elif isinstance(bias, Disentangled):
        yield "relative.weight", (2 * bias.span, width)
        if bias.norm_table:
            yield from _norm("relative_norm", norm, width)
    elif bias is not None:
        raise TypeError(f"the weights of {type(bias).__name__} as score_bias are not known.")


def _attention(name: str, facts: Attention, width: int, *, cross: bool = False) -> Named:
    inner, kv_inner = facts.heads * facts.head_dim, (facts.kv_heads or facts.heads) * facts.head_dim
    for letter, into, out in (("q", width, inner), ("k", width, kv_inner), ("v", width, kv_inner), ("o", inner, width)):
        yield from _linear(f"{name}.{letter}", into, out, letter in facts.biases)
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


def _head(facts: Head, model: Model) -> Named:
    if isinstance(facts, LMHead):
        narrow = facts.tied or facts.transform is not None  # the transform ends at the width of the embeddings
        width = (model.embed.width or model.width) if narrow else model.width
        if facts.transform is not None:
            yield from _linear("transform", model.width, width, bias=True)
            yield from _norm("norm", model.norm, width)
        if not facts.tied:
            yield from _linear("out", width, model.vocab, bias=False)
        if facts.bias:
            yield "bias", (model.vocab,)
        if facts.mask_decoder is not None:
            yield "position.weight", (facts.mask_decoder.length, model.width)
    elif isinstance(facts, TaskHead):
        if facts.hidden is not None:
            yield from _linear("hidden", model.width, model.width, bias=True)
        if facts.labels:
            yield from _linear("out", model.width, len(facts.labels), facts.bias)
    elif isinstance(facts, PretrainingHead):
        for part, inner in (("lm", facts.lm), ("pair", facts.pair)):
            yield from _inside(part, _head(inner, model)).items()
    elif not isinstance(facts, EmbeddingHead):
        raise TypeError(f"the weights of a head {type(facts).__name__} are not known.")
