"""Queries about the arithmetic of one token in one sublayer: norm, products, sums, and the weights behind them.

Shapes: ``D`` width, ``K`` width of a head, ``H`` heads, ``S`` keys, ``F`` hidden width.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.inspect.listeners import convolves
from glassformer.inspect.record import value_names
from glassformer.nn.block import Block
from glassformer.nn.norm import LayerNorm, RMSNorm
from glassformer.viewer.encode import array
from glassformer.viewer.inputs import Input
from glassformer.viewer.kinds import AttentionKind, check_head, check_layer, stack_name, stack_of
from glassformer.viewer.queries_attention import query_and_keys
from glassformer.viewer.subject import QueryError, Subject


@dataclass(frozen=True)
class Sublayer:
    """One token in a sublayer of a layer; kind ``cross`` is the cross-attention, whatever the part."""

    input: Input = field(default_factory=Input)
    kind: AttentionKind = "decoder"
    layer: int = 0
    part: Literal["attention", "ffn"] = "attention"
    token: int = 0
    head: int = 0


def sublayer(subject: Subject, params: Sublayer) -> dict[str, Any]:
    """Return everything that happens to one token in one sublayer, with the numbers.

    Result, for both parts: ``{"input": f4 (D), the stream before, "norm": NORM | null, before the sublayer, "read": f4
    (D), what it reads, "output": f4 (D), as it is added, "added": f4 (D), input + output (in parallel: + all outputs),
    "others": [names of the other sublayers of a parallel layer], "post_norm": NORM | null, "result": f4 (D), the stream
    after it}``; NORM is ``{"kind": "layer" | "rms", "mean": float | null, "variance", "eps", "gain": f4 (D), "bias": f4
    (D) | null, "output": f4 (D)}``, the variance of an RMSNorm being the mean square. ``"convolution"`` is what follows
    the network of the first layer, if there is one, else null: ``{"kernel", "activation", "output": f4 (D), as it is
    added to ``result``, "added": f4 (D), "norm": NORM, "result": f4 (D), the stream after the layer}``.

    Attention adds the result of ``neuron`` for this query, and ``{"heads", "kv_heads", "v": f4 (S, K), "head_output":
    f4 (K), "concat": f4 (H · K), "head_share": f4 (D), what this head alone adds, "output_bias": bool, "keys":
    "encoder" | "decoder", whose tokens the keys are}``. The network adds ``{"hidden_width", "activation", "gated",
    "gate": f4 (F) | null, before the activation, "up": f4 (F), "hidden": f4 (F)}``.
    """
    check_head(subject, params.kind, params.layer, params.head)
    queries, _ = subject.lengths(params.input, params.kind)
    if not 0 <= params.token < queries:
        raise QueryError(f"token must be from 0 to {queries - 1}, got {params.token}.")
    name = "cross" if params.kind == "cross" else params.part
    prefix = f"{stack_name(params.kind)}.blocks.{params.layer}"
    inside = [each for each in value_names(subject.facts) if each.startswith(f"{prefix}.")]
    subject.values(params.input, inside)  # all of the layer in one pass
    stream = _stream(subject, params, name)
    if name == "ffn":
        return {**stream, **_network(subject, params), "convolution": _convolution(subject, params)}
    return {**stream, **_attention(subject, params, name), "convolution": None}


def block_of(subject: Subject, kind: AttentionKind, layer: int) -> Block:
    """Return the module of a layer; neighbouring layers may share one, and a mask decoder runs the last one again."""
    stack = subject.model.encoder if kind == "encoder" else subject.model.decoder
    assert stack is not None
    layers = stack.facts.layers
    block = stack.blocks[min(layer, layers - 1) * len(stack.blocks) // layers]
    assert isinstance(block, Block)
    return block


def _stream(subject: Subject, params: Sublayer, name: str) -> dict[str, Any]:
    """Return the residual stream around a sublayer."""
    facts, block = stack_of(subject, params.kind), block_of(subject, params.kind, params.layer)
    prefix, token = f"{stack_name(params.kind)}.blocks.{params.layer}", params.token
    order = ["attention", *(["cross"] if facts.cross else []), "ffn"]
    wanted = [f"{prefix}.input"]
    wanted += [f"{prefix}.{each}.{end}" for each in order for end in ("input", "output")]
    values = {key: value[token] for key, value in subject.values(params.input, wanted).items()}
    outputs = [values[f"{prefix}.{each}.output"] for each in order]
    number, read = order.index(name), values[f"{prefix}.{name}.input"]
    # The norm of this sublayer; a parallel layer may have only the first.
    norms = {"attention": block.attention_norm, "cross": block.cross_norm, "ffn": block.ffn_norm}
    norm = norms[name] or block.attention_norm
    before, others = values[f"{prefix}.input"], [each for each in order if each != name]
    match facts.placement:
        case "pre":
            before = sum(outputs[:number], start=before)
            added, others = before + outputs[number], []
        case "post":
            before, others = read, []
            added = before + outputs[number]
        case "parallel" | "parallel_norms":
            added = sum(outputs, start=before)
        case unknown:
            raise ValueError(
                f"there is no arithmetic of the placement {unknown!r}; add it to _stream in viewer/queries_sublayer.py."
            )
    normed = _after_norm(subject, params, order[number + 1 :]) if facts.placement == "post" else None
    return {
        "placement": facts.placement,
        "input": array(before),
        "norm": describe_norm(subject, norm, before, read) if normed is None else None,
        "read": array(read),
        "output": array(outputs[number]),
        "added": array(added),
        "others": others,
        "post_norm": None if normed is None else describe_norm(subject, norm, added, normed),
        "result": array(added if normed is None else normed),
    }


def _after_norm(subject: Subject, params: Sublayer, later: list[str]) -> Tensor:
    """Return the stream after the norm of a post-norm sublayer, which what follows reads."""
    after = f"{later[0]}.input" if later else "convolution.input" if has_convolution(subject, params) else "output"
    name = f"{stack_name(params.kind)}.blocks.{params.layer}.{after}"
    return subject.values(params.input, [name])[name][params.token]


def has_convolution(subject: Subject, params: Sublayer) -> bool:
    """Whether a convolution follows the network of this layer."""
    return params.kind == "encoder" and params.layer == 0 and convolves(subject.facts)


def _convolution(subject: Subject, params: Sublayer) -> dict[str, Any] | None:
    if not has_convolution(subject, params):
        return None
    names = [f"encoder.blocks.0.{each}" for each in ("convolution.input", "convolution.output", "output")]
    found = subject.values(params.input, names)
    before, output, result = (found[name][params.token] for name in names)
    assert subject.model.encoder is not None
    assert subject.model.encoder.convolution is not None
    facts = stack_of(subject, "encoder").convolution
    assert facts is not None
    return {
        "kernel": facts.kernel,
        "activation": facts.activation,
        "output": array(output),
        "added": array(before + output),
        "norm": describe_norm(subject, subject.model.encoder.convolution.norm, before + output, result),
        "result": array(result),
    }


def describe_norm(subject: Subject, norm: nn.Module, x: Tensor, output: Tensor) -> dict[str, Any]:
    """Return a norm with its statistics of a vector."""
    mean, bias = None, None
    match norm:
        case LayerNorm():
            kind, mean, gain, bias = "layer", float(x.mean()), norm.weight.float(), norm.bias
        case RMSNorm():
            kind, gain = "rms", norm.weight.float() + float(norm.offset)
        case unknown:
            raise TypeError(
                f"there is no arithmetic of the norm {type(unknown).__name__}; add it to describe_norm in "
                f"viewer/queries_sublayer.py."
            )
    return {
        "kind": kind,
        "mean": mean,
        "variance": float((x - (mean or 0.0)).pow(2).mean()),
        "eps": subject.facts.norm.eps,
        "gain": array(gain),
        "bias": None if bias is None else array(bias),
        "output": array(output),
    }


def _attention(subject: Subject, params: Sublayer, name: str) -> dict[str, Any]:
    facts = stack_of(subject, params.kind).attention
    prefix = f"{stack_name(params.kind)}.blocks.{params.layer}.{name}"
    values = subject.values(params.input, [f"{prefix}.v", f"{prefix}.heads"])
    found = query_and_keys(subject, params.input, params.kind, params.layer, params.head, params.token)
    block = block_of(subject, params.kind, params.layer)
    module = block.cross if name == "cross" else block.attention
    assert module is not None
    heads = values[f"{prefix}.heads"][:, params.token]  # H K
    width = heads.shape[-1]
    weight = module.o.weight.detach()[:, params.head * width : (params.head + 1) * width].float().cpu()  # D K
    return {
        **found,
        "heads": facts.heads,
        "kv_heads": facts.kv_heads or facts.heads,
        "v": array(values[f"{prefix}.v"][found["kv_head"]]),
        "head_output": array(heads[params.head]),
        "concat": array(heads.flatten()),
        "head_share": array(weight @ heads[params.head]),
        "output_bias": module.o.bias is not None,
        "keys": "decoder" if params.kind == "decoder" else "encoder",
    }


def _network(subject: Subject, params: Sublayer) -> dict[str, Any]:
    facts = stack_of(subject, params.kind).ffn
    prefix = f"{stack_name(params.kind)}.blocks.{params.layer}.ffn"
    values = subject.values(params.input, [f"{prefix}.input", f"{prefix}.hidden"])
    module: Any = block_of(subject, params.kind, params.layer).ffn
    weight = next(subject.model.parameters())
    with subject.alone():
        read = values[f"{prefix}.input"][params.token].to(weight)
        up, gate = module.up(read), None if module.gate is None else module.gate(read)
    return {
        "hidden_width": facts.hidden,
        "activation": facts.activation,
        "gated": facts.gated,
        "gate": None if gate is None else array(gate),
        "up": array(up),
        "hidden": array(values[f"{prefix}.hidden"][params.token]),
    }


# --- weights ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """A weight of a layer by its name; of q, k, v and o the part of one head, or null: the whole."""

    kind: AttentionKind = "decoder"
    layer: int = 0
    name: Literal["q", "k", "v", "o", "up", "gate", "down"] = "q"
    head: int | None = None
    size: int = 64


def matrix(subject: Subject, params: Matrix) -> dict[str, Any]:
    """Return a weight as a picture: means of blocks where it is larger than ``size``.

    Result: ``{"rows", "columns": of the weight (out, in), or of the head's part, "values": f4 (r, c), r and c at most
    ``size``, "largest": largest absolute value, "bias": bool}``.
    """
    check_layer(subject, params.kind, params.layer)
    if not 4 <= params.size <= 256:
        raise QueryError(f"size must be from 4 to 256, got {params.size}.")
    # The module: of the feed-forward network or of attention.
    block: Any = block_of(subject, params.kind, params.layer)
    facts = stack_of(subject, params.kind).attention
    if params.name in ("up", "gate", "down"):
        module = getattr(block.ffn, params.name)
        if module is None:
            raise QueryError("this network has no gate.")
    else:
        module = getattr(block.cross if params.kind == "cross" else block.attention, params.name)
    # The part of one head; heads of a group share keys and values.
    weight = module.weight.detach()
    if params.head is not None and params.name in ("q", "k", "v", "o"):
        check_head(subject, params.kind, params.layer, params.head)
        group = params.head
        if params.name in ("k", "v"):
            group = params.head * (facts.kv_heads or facts.heads) // facts.heads
        part = slice(group * facts.head_dim, (group + 1) * facts.head_dim)
        weight = weight[:, part] if params.name == "o" else weight[part]
    # Average blocks down to the size of the picture.
    weight = weight.float().cpu()
    rows, columns = weight.shape
    small = torch.nn.functional.adaptive_avg_pool2d(weight[None], (min(rows, params.size), min(columns, params.size)))[
        0
    ]
    return {
        "rows": rows,
        "columns": columns,
        "values": array(small),
        "largest": float(weight.abs().max()),
        "bias": module.bias is not None,
    }


# --- embeddings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EmbeddingParams:
    """A token of a stack."""

    input: Input = field(default_factory=Input)
    stack: Literal["encoder", "decoder"] = "decoder"
    token: int = 0


def embedding(subject: Subject, params: EmbeddingParams) -> dict[str, Any]:
    """Return how the vector of one token begins: what is added up, the norm, the projection.

    Result: ``{"id", "text", "token": f4 (E), after the scale, "scale", "position", "segment", "language": f4 (E) |
    null, "sum": f4 (E), "norm": NORM | null, "projected": bool, "output": f4 (D)}``; see ``sublayer`` for NORM.
    """
    sequences = subject.sequences(params.input)
    ids = sequences.encoder if params.stack == "encoder" else sequences.decoder
    if ids is None:
        raise QueryError(f"this model has no {params.stack}.")
    if not 0 <= params.token < len(ids):
        raise QueryError(f"token must be from 0 to {len(ids) - 1}, got {params.token}.")
    is_target = params.stack == "decoder" and sequences.encoder is not None
    part, module = ("target_embed", subject.model.target_embed) if is_target else ("embed", subject.model.embed)
    assert module is not None
    # The vectors that are added up (E), their sum, and the output (D).
    names = [name for name in value_names(subject.facts) if name == part or name.startswith(f"{part}.")]
    found = subject.values(params.input, names)
    vectors = {name.rpartition(".")[2]: found[name][params.token] for name in names if name != part and name in found}
    total = sum(vectors.values(), start=torch.zeros(()))
    output = found[part][params.token]
    number = ids[params.token]
    # The norm of the sum, computed once more for its mean and deviation.
    normed = None
    if module.norm is not None:
        with subject.alone():
            weight = next(subject.model.parameters())
            result = module.norm(total.to(weight)).float().cpu()
        normed = describe_norm(subject, module.norm, total, result)
    shown = {key: array(vectors[key]) if key in vectors else None for key in ("position", "segment", "language")}
    return {
        "id": number,
        "text": subject.token_texts([number])[0],
        "token": array(vectors["token"]),
        "scale": subject.facts.embed.scale,
        **shown,
        "sum": array(total),
        "norm": normed,
        "projected": module.project is not None,
        "output": array(output),
    }


QUERIES = {"sublayer": (sublayer, Sublayer), "matrix": (matrix, Matrix), "embedding": (embedding, EmbeddingParams)}
