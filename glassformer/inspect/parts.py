"""The submodules of a model (its parts) as a tree, from its config alone: a description and the parameters of each."""

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
    ModelConfig,
    Stack,
    TaskHead,
    buffers,
    shapes,
)
from glassformer.config.positions import ScoreBias
from glassformer.text.plain_text import counted

# A kind without a description is a KeyError, not a wrong description.
NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
PLACEMENTS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "parallel": "parallel",
    "parallel_norms": "parallel, each sublayer with its norm",
}


@dataclass
class Part:
    """One part: its name, a description, its parameters (of one copy) and its inner parts."""

    name: str
    description: str = ""
    parameters: int = 0
    copies: int = 1  # with separate weights
    parts: list["Part"] = field(default_factory=list)


def part_tree(config: ModelConfig) -> Part:
    """Return the whole model as a tree; the equal blocks of a stack are one part with a number of copies."""
    root = Part("model", f"{config.family}, width {config.width:,}, vocabulary {config.vocab:,}")
    descriptions = dict(_descriptions(config))
    for name, shape in shapes(config).items():
        path = name.split(".")
        if name in buffers(config) or (path[1:2] == ["blocks"] and path[2] != "0"):
            continue  # no parameter, or equal to the first block
        _add_weight(root, path, prod(shape), descriptions)
    for stack_name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack is not None:
            _repeat(root, stack_name, stack.unique_layers or stack.layers)
    if "head" in descriptions and not any(part.name == "head" for part in root.parts):
        root.parts.append(Part("head", descriptions["head"]))  # a head without weights
    return root


def _add_weight(root: Part, path: list[str], size: int, descriptions: dict[str, str]) -> None:
    """Add one weight to all parts on its path; ``weight`` and ``bias`` belong to their module and are no parts."""
    root.parameters += size
    part = root
    names: list[str] = []
    for name in path[:-1] if path[-1] in ("weight", "bias") and len(path) > 2 else path:
        if name == "0" and names[-1:] == ["blocks"]:
            continue
        names.append(name)
        child = next((child for child in part.parts if child.name == name), None)
        if child is None:
            child = Part(name, descriptions.get(".".join(names), ""))
            part.parts.append(child)
        child.parameters += size
        part = child


def _repeat(root: Part, stack_name: str, copies: int) -> None:
    """Count all blocks of a stack instead of one."""
    stack = next(part for part in root.parts if part.name == stack_name)
    blocks = next(part for part in stack.parts if part.name == "blocks")
    blocks.copies = copies
    root.parameters += blocks.parameters * (copies - 1)
    stack.parameters += blocks.parameters * (copies - 1)


def _descriptions(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield path and short description of each part."""
    norm = NORMS[config.norm.kind] + (" (1 + gain)" if config.norm.offset else "")
    yield "embed", _embed(config.embed)
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack is None:
            continue
        yield name, _stack(stack, norm, config.norm.eps)
        yield f"{name}.blocks.attention", _attention(stack.attention)
        yield f"{name}.blocks.cross", "to the encoder's output"
        yield f"{name}.blocks.ffn", _feed_forward(stack.ffn, config.width)
    head = config.head
    if isinstance(head, LMHead):
        yield "head", ("tied to the embedding table" if head.tied else "a separate matrix") + _transform(head.transform)
    if isinstance(head, TaskHead):
        yield "head", f"{head.task}: {counted(len(head.labels), 'label')}, pools {head.pool or 'nothing'}"
    if isinstance(head, EmbeddingHead):
        yield "head", f"{head.pool} of the vectors"


def _transform(activation: str | None) -> str:
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
        words.append(f"{facts.unique_layers} with separate weights")
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
            raise TypeError(f"there is no description of {type(unknown).__name__} as score_bias.")


def _feed_forward(facts: FeedForward, width: int) -> str:
    return f"{width:,} → {facts.hidden:,} → {width:,}, {facts.activation}{', gated' if facts.gated else ''}"
