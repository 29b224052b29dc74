"""A model as a tree of its parts, from the facts alone: what each is and how many parameters it holds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from glassformer.config import (
    Alibi,
    Attention,
    BlockSparse,
    BucketBias,
    Disentangled,
    Embed,
    EmbeddingHead,
    FeedForward,
    LMHead,
    Model,
    Stack,
    TaskHead,
    buffers,
    shapes,
)
from glassformer.config.positions import ScoreBias
from glassformer.text.visible import counted

# Words for every kind; one that has none here is a KeyError, not a wrong description.
NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
PLACEMENTS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "parallel": "parallel",
    "parallel_norms": "parallel, each sublayer with its norm",
}


@dataclass
class Part:
    """One part: its name, what the facts say of it, its parameters (of one copy) and its own parts."""

    name: str
    says: str = ""
    parameters: int = 0
    times: int = 1  # copies with weights of their own
    parts: list["Part"] = field(default_factory=list)


def part_tree(model: Model) -> Part:
    """The whole model as a tree; the blocks of a stack, which are all alike, as one part with its number."""
    root = Part("model", f"{model.family}, width {model.width:,}, vocabulary {model.vocab:,}")
    said = dict(_said(model))
    for name, shape in shapes(model).items():
        path = name.split(".")
        if name in buffers(model) or (path[1:2] == ["blocks"] and path[2] != "0"):
            continue  # no parameter, or like the first
        _grow(root, path, prod(shape), said)
    for stack_name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None:
            _repeat(root, stack_name, stack.unique_layers or stack.layers)
    if "head" in said and not any(part.name == "head" for part in root.parts):
        root.parts.append(Part("head", said["head"]))  # it has no weights of its own, but it is there
    return root


def _grow(root: Part, path: list[str], size: int, said: dict[str, str]) -> None:
    """Add one weight to the part it belongs to; weight and bias are not parts but numbers of their module."""
    root.parameters += size
    part = root
    walked: list[str] = []
    for step in path[:-1] if path[-1] in ("weight", "bias") and len(path) > 2 else path:
        if step == "0" and walked[-1:] == ["blocks"]:
            continue
        walked.append(step)
        known = next((child for child in part.parts if child.name == step), None)
        if known is None:
            known = Part(step, said.get(".".join(walked), ""))
            part.parts.append(known)
        known.parameters += size
        part = known


def _repeat(root: Part, stack_name: str, times: int) -> None:
    stack = next(part for part in root.parts if part.name == stack_name)
    blocks = next(part for part in stack.parts if part.name == "blocks")
    blocks.times = times
    root.parameters += blocks.parameters * (times - 1)
    stack.parameters += blocks.parameters * (times - 1)


def _said(model: Model) -> Iterator[tuple[str, str]]:
    """What the facts say of each part, in a few words."""
    norm = NORMS[model.norm.kind] + (" (1 + gain)" if model.norm.offset else "")
    yield "embed", _embed(model.embed)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        yield name, _stack(stack, norm, model.norm.eps)
        yield f"{name}.blocks.attention", _attention(stack.attention)
        yield f"{name}.blocks.cross", "to the encoder's output"
        yield f"{name}.blocks.ffn", _feed_forward(stack.ffn, model.width)
    head = model.head
    if isinstance(head, LMHead):
        yield "head", ("reads the embedding table" if head.tied else "a matrix of its own") + _if(head.transform)
    if isinstance(head, TaskHead):
        yield "head", f"{head.task}: {counted(len(head.labels), 'label')}, pools {head.pool or 'nothing'}"
    if isinstance(head, EmbeddingHead):
        yield "head", f"{head.pool} of the vectors"


def _if(activation: str | None) -> str:
    return "" if activation is None else f" after a transform ({activation})"


def _embed(facts: Embed) -> str:
    words = [] if facts.width is None else [f"factorised, width {facts.width}"]
    words += [f"× {facts.scale:.4g}"] if facts.scale != 1 else []
    if facts.position is not None:
        words.append(f"{facts.position.kind} positions up to {facts.position.length:,}")
    return ", ".join(words)


def _stack(facts: Stack, norm: str, eps: float) -> str:
    words = [counted(facts.layers, "layer"), PLACEMENTS[facts.placement]]
    words += [f"{norm} ε {eps:g}", "causal" if facts.causal else "both ways"]
    if facts.unique_layers is not None:
        words.append(f"{facts.unique_layers} with weights of their own")
    return ", ".join(words)


def _attention(facts: Attention) -> str:
    words = [f"{counted(facts.heads, 'head')} of {facts.head_dim}"]
    if facts.kv_heads is not None:
        words.append(counted(facts.kv_heads, "key/value head"))
    words.append(f"biases on {facts.biases}" if facts.biases else "no biases")
    if facts.scale is not None:
        words.append(f"scale {facts.scale:.4g}")
    if facts.rotary is not None:
        words.append(f"rotary θ {facts.rotary.theta:,.0f} up to {facts.rotary.length:,}")
    if facts.qk_norm is not None:
        words.append(f"{NORMS[facts.qk_norm.kind]} of queries and keys")
    if facts.score_bias is not None:
        words.append(_score_bias(facts.score_bias))
    if facts.windows != (None,):
        shown = [
            "block-sparse" if isinstance(w, BlockSparse) else "full" if w is None else str(w) for w in facts.windows
        ]
        words.append(f"windows {', '.join(dict.fromkeys(shown))}")
    return ", ".join(words)


def _score_bias(facts: ScoreBias) -> str:
    match facts:
        case BucketBias():
            return f"{counted(facts.buckets, 'bucket')} of distances"
        case Alibi():
            return "ALiBi"
        case Disentangled():
            return "disentangled positions"
        case unknown:
            raise TypeError(f"there are no words for {type(unknown).__name__} as score_bias.")


def _feed_forward(facts: FeedForward, width: int) -> str:
    return f"{width:,} → {facts.hidden:,} → {width:,}, {facts.activation}{', gated' if facts.gated else ''}"
