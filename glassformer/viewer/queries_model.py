"""Queries about the model itself, the tokens of an input, and what a pass costs."""

import json
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from glassformer.config import Stack, to_dict
from glassformer.config.parts import PretrainingHead, TaskHead
from glassformer.inspect.account.tree import PartCost
from glassformer.inspect.listeners import convolves
from glassformer.inspect.parts import part_tree
from glassformer.text.languages import languages_of
from glassformer.text.pieces import TokenizerError
from glassformer.viewer import work
from glassformer.viewer.inputs import Input
from glassformer.viewer.kinds import AttentionKind, kinds_of, layers_of, stack_of
from glassformer.viewer.mechanisms import score_bias_name, window_name
from glassformer.viewer.subject import QueryError, Subject


@dataclass(frozen=True)
class Nothing:
    """No parameters."""


@dataclass(frozen=True)
class OfInput:
    """The input alone."""

    input: Input = field(default_factory=Input)


def model(subject: Subject, params: Nothing) -> dict[str, Any]:  # noqa: ARG001
    """Return what the model is, and texts to begin with.

    Result: ``{"name", "lineage": name | null, "family", "pairs": whether it reads two texts, "facts": nested tables,
    "parts": tree of {"name", "description", "parameters", "copies", "parts"}, "stacks": {"encoder" | "decoder":
    {"layers": as they run, "heads", "kv_heads", "head_dim", "width", "placement", "causal", "cross", "ffn": {"hidden",
    "activation", "gated"}, "rotary": bool, "qk_norm": kind of the norm of each head's queries and keys | null,
    "score_bias": "buckets" | "alibi" | "disentangled" | null, "windows": [of each layer: null | int | "block-sparse"],
    "unique_layers", "final_norm", "mask_decoder": how often the last layer runs | null, "convolution": {"kernel",
    "groups", "activation"}, beside the first layer | null}}, "norm", "abilities", "vocab", "longest": tokens that
    the positions allow | null, "max_tokens": that the page accepts, "labels": [names] | null, "parity": {"bound",
    "error", "float32", "bfloat16", "cases"} | null, the largest differences of tiny models of this lineage from the
    reference (float64, then the others), "defaults": {"text", "text_b", "target"}, "languages": [codes] | null,
    "examples": [texts], "mask": the mask token | null}``.
    """
    facts = subject.facts
    head = facts.head.pair if isinstance(facts.head, PretrainingHead) else facts.head
    kinds: list[AttentionKind] = [kind for kind in kinds_of(subject) if kind != "cross"]
    return {
        "name": subject.name,
        "lineage": subject.loaded.lineage,
        "family": facts.family,
        "pairs": not subject.writes_text,
        "facts": to_dict(facts),
        "parts": asdict(part_tree(facts)),
        "stacks": {kind: _stack(subject, kind) for kind in kinds},
        "norm": to_dict(facts.norm),
        "abilities": list(subject.loaded.abilities),
        "vocab": facts.vocab,
        "longest": facts.max_length,
        "max_tokens": subject.max_tokens,
        "labels": list(head.labels) if isinstance(head, TaskHead) and head.labels else None,
        "parity": _parity().get(subject.loaded.lineage or ""),
        "defaults": {"text": subject.examples[0], "text_b": None, "target": None},
        "languages": _languages(subject),
        "examples": list(subject.examples),
        "mask": subject.tokenizer.special.get("mask"),
    }


@cache
def _parity() -> dict[str, dict[str, Any]]:
    """Return the measured differences from the reference implementation, by lineage; `make parity` writes them."""
    found: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "parity.json").read_text(encoding="utf-8"))
    return found


def _stack(subject: Subject, kind: AttentionKind) -> dict[str, Any]:
    facts, layers = stack_of(subject, kind), layers_of(subject, kind)
    attention = facts.attention
    windows = [facts.window(number) for number in range(layers)]
    names = [window_name(window) for window in windows]
    return {
        "layers": layers,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_dim,
        "width": subject.facts.width,
        "placement": facts.placement,
        "causal": facts.causal,
        "cross": facts.cross,
        "ffn": {"hidden": facts.ffn.hidden, "activation": facts.ffn.activation, "gated": facts.ffn.gated},
        "rotary": attention.rotary is not None,
        "qk_norm": None if attention.qk_norm is None else attention.qk_norm.kind,
        "score_bias": None if attention.score_bias is None else score_bias_name(attention.score_bias),
        "windows": [name if name == "block-sparse" else window for name, window in zip(names, windows, strict=True)],
        "unique_layers": facts.unique_layers or facts.layers,
        "final_norm": facts.final_norm,
        "mask_decoder": layers - facts.layers + 1 if layers > facts.layers else None,
        "convolution": _convolution(subject, facts),
    }


def _convolution(subject: Subject, stack: Stack) -> dict[str, Any] | None:
    facts = stack.convolution
    if facts is None or not convolves(subject.facts):
        return None
    return {"kernel": facts.kernel, "groups": facts.groups, "activation": facts.activation}


def _languages(subject: Subject) -> list[str] | None:
    if subject.facts.family != "encoder-decoder":
        return None
    try:
        return sorted(languages_of(subject.tokenizer, subject.loaded.folder).ids) or None
    except TokenizerError:
        return None


def tokens(subject: Subject, params: OfInput) -> dict[str, Any]:
    """Return the tokens that each stack reads.

    Result: ``{"encoder": [TOKEN], "decoder": [TOKEN], "expected": [TOKEN], "given": n, "target": text, "seconds"}``,
    those that there are; TOKEN is ``{"id", "text", "special", "segment": 0 | 1}``. ``expected`` is what an
    encoder-decoder's decoder should predict at each position: its tokens one position earlier, then EOS; ``given`` is
    how many tokens of its start come before those of the target, and ``target`` is the text of the latter.
    """
    begin = time.perf_counter()
    sequences = subject.sequences(params.input)
    result: dict[str, Any] = {}
    if sequences.encoder is not None:
        result["encoder"] = _tokens(subject, sequences.encoder, sequences.segments)
    if sequences.decoder is not None:
        result["decoder"] = _tokens(subject, sequences.decoder)
    if sequences.expected is not None:
        written = [number for number in (sequences.decoder or ())[sequences.given :] if number not in subject.special]
        target = subject.tokenizer.decode(written)
        result |= {"expected": _tokens(subject, sequences.expected), "given": sequences.given, "target": target}
    return {**result, "seconds": time.perf_counter() - begin}


def _tokens(subject: Subject, ids: tuple[int, ...], segments: tuple[int, ...] | None = None) -> list[dict[str, Any]]:
    texts = subject.token_texts(ids)
    return [
        {"id": number, "text": text, "special": number in subject.special, "segment": segment}
        for number, text, segment in zip(ids, texts, segments or (0,) * len(ids), strict=True)
    ]


@dataclass(frozen=True)
class IdsParams:
    """Token ids."""

    ids: tuple[int, ...] = ()


def token_texts(subject: Subject, params: IdsParams) -> dict[str, Any]:
    """Return the texts of token ids, at most 4,096, and the text that they make together.

    Result: ``{"texts": ["…", …], "text": "…"}``; special tokens are not in the latter.
    """
    if len(params.ids) > 4096:
        raise QueryError(f"at most 4096 ids at a time, got {len(params.ids)}.")
    for number in params.ids:
        if not 0 <= number < subject.facts.vocab:
            raise QueryError(f"the vocabulary goes from 0 to {subject.facts.vocab - 1}; got {number}.")
    written = [number for number in params.ids if number not in subject.special]
    return {"texts": subject.token_texts(params.ids), "text": subject.tokenizer.decode(written)}


def costs(subject: Subject, params: OfInput) -> dict[str, Any]:
    """Return parameters, FLOPs and bytes of each part, for one pass over this input.

    Result: ``{"tokens": {"encoder": n, "decoder": n}, "parameters", "flops", "bytes": {"weights", "kv_cache",
    "kv_cache_per_token", "peak"}, "dtype", "parts": PART}``, where PART is ``{"path", "name", "parameters", "flops",
    "elementwise", "bytes", "products": [{"name", "sizes": [m, n, p, times], "flops", "runs"}], "parts": [PART]}``;
    ``bytes`` are read and written. Paths are those of the modules, such as ``decoder.blocks.0.attention.q``.
    """
    sequences = subject.sequences(params.input)
    source, length = len(sequences.encoder or ()), len(sequences.decoder or sequences.encoder or ())
    return subject.once(("costs", source, length), lambda: _costs(subject, source, length))


def _costs(subject: Subject, source: int, length: int) -> dict[str, Any]:
    both = subject.facts.family == "encoder-decoder"
    with work.holding(subject.lock):
        counted = subject.loaded.account(context=length, source=source if both else None)
    lengths = {"encoder": source} if subject.facts.encoder is not None else {}
    return {
        "tokens": {**lengths, **({"decoder": length} if subject.facts.decoder is not None else {})},
        "parameters": counted.parameters,
        "flops": counted.flops,
        "bytes": {
            "weights": counted.memory.weights,
            "kv_cache": counted.memory.kv_cache,
            "kv_cache_per_token": counted.memory.kv_cache_per_token,
            "peak": counted.memory.peak,
        },
        "dtype": counted.dtype,
        "parts": _cost(counted.root),
    }


def _cost(part: PartCost) -> dict[str, Any]:
    return {
        "path": part.path,
        "name": part.name,
        "parameters": part.parameters,
        "flops": part.flops,
        "elementwise": part.elementwise,
        "bytes": part.bytes_moved,
        "products": [
            {"name": each.name, "sizes": each.product[:4], "flops": each.flops, "runs": each.runs}
            for each in part.products
        ],
        "parts": [_cost(child) for child in part.parts],
    }


QUERIES = {
    "model": (model, Nothing),
    "tokens": (tokens, OfInput),
    "token_texts": (token_texts, IdsParams),
    "costs": (costs, OfInput),
}
