"""Attention of any library on the page: plain tensors and the names of tokens, without a model.

Shapes: ``H`` heads, ``T`` queries, ``S`` keys.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.viewer.encode import array
from glassformer.viewer.export import LIMIT, Answers, HeadKey, Sizes, file_page, put_attention
from glassformer.viewer.kinds import AttentionKind
from glassformer.viewer.queries_attention import CROSS, SELF, even_patterns, patterns, thumbs

Layers = Sequence[Any]  # of each layer (H, T, S) or (1, H, T, S)
AnyAttention = Layers | Mapping[str, Layers]
AnyTokens = Sequence[str] | Mapping[str, Sequence[str]]
SPECIAL = re.compile(r"\[[A-Z]+\d*\]|<[^<>\s]+>|__\w+__")


class TensorAttention:
    """Attention weights as the page takes them; errors say which layer is wrong.

    Args:
        attention: a list with the weights of each layer; for encoder-decoders a dictionary of such lists, by
            ``"encoder"``, ``"decoder"`` and ``"cross"``.
        tokens: a list of tokens, or a dictionary by ``"encoder"`` and ``"decoder"``.
        sentence_b_start: index of the first token of the second sentence.
    """

    name = "attention"

    def __init__(self, attention: AnyAttention, tokens: AnyTokens, sentence_b_start: int | None = None) -> None:
        self.held = _by_kind(attention)
        self.tokens = _by_stack(tokens, self.held)
        _check_tokens(self.held, self.tokens)
        self.sizes: Mapping[AttentionKind, Sizes] = {
            kind: Sizes(len(layers), *layers[0].shape) for kind, layers in self.held.items()
        }
        longest = max(map(len, self.tokens.values()))
        if sentence_b_start is not None and not 0 < sentence_b_start < longest:
            raise ValueError(f"sentence_b_start must be from 1 to {longest - 1}, got {sentence_b_start}.")
        self.sentence_b_start = sentence_b_start

    @property
    def is_causal(self) -> bool:
        """Whether no query of the decoder sees a later key."""
        return all(_is_causal(layer) for layer in self.held.get("decoder", []))

    def show(self, kind: AttentionKind, see: Callable[[int, Tensor], None]) -> None:
        """Show the weights (H, T, S) of every layer, one after the other."""
        for number, layer in enumerate(self.held[kind]):
            see(number, layer)

    def frame(self, kind: AttentionKind, layer: int, rows: list[int] | None) -> dict[str, Any]:  # noqa: ARG002
        """Return the answer to the query ``attention`` without the weights."""
        sizes = self.sizes[kind]
        start, stop = rows or (0, sizes.queries)
        allowed = None
        if kind == "decoder" and self.is_causal:
            allowed = array(torch.ones(sizes.queries, sizes.keys).tril()[start:stop], "u1")
        return {
            "queries": sizes.queries,
            "keys": sizes.keys,
            "heads": list(range(sizes.heads)),
            "rows": [start, stop],
            "allowed": allowed,
            "per_head_allowed": None,
        }

    def model(self, text: str) -> dict[str, Any]:
        """Return the answer to the query ``model``: what the weights show, and nothing of what they do not."""
        unknown = dict.fromkeys(
            ("lineage", "facts", "parts", "norm", "longest", "labels", "parity", "languages", "mask")
        )
        stacks = {name: self._stack(name) for name in ("encoder", "decoder") if self._kind(name) is not None}
        return {
            **unknown,
            "name": self.name,
            "family": "encoder-decoder" if len(stacks) == 2 else next(iter(stacks)),
            "pairs": False,
            "stacks": stacks,
            "abilities": [],
            "vocab": 0,
            "max_tokens": max(map(len, self.tokens.values())),
            "defaults": {"text": text, "text_b": None, "target": None},
            "examples": [text],
        }

    def _kind(self, stack: str) -> AttentionKind | None:
        kinds: tuple[AttentionKind, ...] = ("encoder",) if stack == "encoder" else ("decoder", "cross")
        return next((kind for kind in kinds if kind in self.held), "encoder" if stack in self.tokens else None)

    def _stack(self, name: str) -> dict[str, Any]:
        kind = self._kind(name)
        sizes = self.sizes.get(kind or "encoder") or next(iter(self.sizes.values()))
        return {
            "layers": sizes.layers,
            "heads": sizes.heads,
            "kv_heads": sizes.heads,
            "head_dim": None,
            "width": None,
            "causal": name == "decoder" and self.is_causal,
            "cross": name == "decoder" and "cross" in self.held,
            "rotary": False,
            "score_bias": None,
            "windows": [None] * sizes.layers,
        }

    def token_list(self, stack: str) -> list[dict[str, Any]]:
        """Return the tokens of a stack as the query ``tokens`` returns them."""
        second = self.sentence_b_start
        return [
            {
                "id": index,
                "text": text,
                "special": SPECIAL.fullmatch(text.strip()) is not None,
                "segment": int(second is not None and index >= second),
            }
            for index, text in enumerate(self.tokens[stack])
        ]


def tensor_page(source: TensorAttention, state: Mapping[str, Any], heads: Sequence[HeadKey] = ()) -> str:
    """Return the page of attention weights as the text of one HTML file.

    Args:
        source: the weights and tokens.
        state: what the page has chosen at first.
        heads: heads to hold in full if not all can be.
    """
    from glassformer.viewer.contents import Contents

    text = " ".join(next(iter(source.tokens.values())))
    base = {"model": 0, "input": {"text": text, "text_b": None, "target": None, "ablate": []}}
    answers = Answers(Contents(), LIMIT)
    answers.put("model", base, source.model(text), always=True)
    answers.put("tokens", base, {stack: source.token_list(stack) for stack in source.tokens}, always=True)
    note = put_attention(answers, base, source, heads)
    for kind, sizes in source.sizes.items():
        layers = source.held[kind]
        pictures = torch.stack([thumbs(layer, 48) for layer in layers])
        shape = {"layers": sizes.layers, "heads": sizes.heads, "queries": sizes.queries, "keys": sizes.keys}
        overview = {**shape, "thumbs": array((pictures * 255).round().clamp(max=255), "u1")}
        answers.put("attention_overview", {**base, "kind": kind, "size": 48}, overview, always=True)
        answers.put("head_stats", {**base, "kind": kind}, _stats(source, kind, layers), always=True)
    bootstrap = {"models": [source.name], "runs": [], "views": ["heads", "grid"], "state": {"text": text, **state}}
    return file_page(bootstrap, answers, [note])


def _stats(source: TensorAttention, kind: AttentionKind, layers: Sequence[Tensor]) -> dict[str, Any]:
    """Return the answer to the query ``head_stats``."""
    keys = source.token_list("decoder" if kind == "decoder" else "encoder")
    special = torch.tensor([token["special"] and index > 0 for index, token in enumerate(keys)])
    sizes = source.sizes[kind]
    counts = torch.full((1, sizes.queries), sizes.keys)
    if kind == "decoder" and source.is_causal:
        counts = torch.arange(1, sizes.queries + 1)[None].clamp(max=sizes.keys)
    found = [patterns(layer, special, counts, is_cross=kind == "cross") for layer in layers]
    values, entropy, distance = (torch.stack(column) for column in zip(*found, strict=True))
    seen = torch.ones(1, sizes.queries, sizes.keys, dtype=torch.bool)
    pairs = seen.tril() if kind == "decoder" and source.is_causal else seen
    even = even_patterns([pairs] * len(layers), [counts] * len(layers), special, sizes.keys, is_cross=kind == "cross")
    return {
        "patterns": list(CROSS if kind == "cross" else SELF),
        "values": array(values),
        "even": array(even),
        "entropy": array(entropy),
        "distance": None if kind == "cross" else array(distance),
    }


# --- what users pass --------------------------------------------------------------------------------------------------


def _by_kind(attention: AnyAttention) -> dict[AttentionKind, list[Tensor]]:
    """Return the layers of each kind; a single list is of an encoder, or of a decoder if no query sees a later key."""
    if isinstance(attention, Mapping):
        unknown = set(attention) - {"encoder", "decoder", "cross"}
        if unknown or not attention:
            raise ValueError(f"attention is by encoder, decoder and cross; got {sorted(map(str, attention))}.")
        return {kind: _layers(attention[kind], kind) for kind in ("encoder", "decoder", "cross") if kind in attention}
    layers = _layers(attention, "attention")
    causal = len(layers[0][0]) > 1 and all(_is_causal(layer) for layer in layers)
    return {"decoder": layers} if causal else {"encoder": layers}


def _is_causal(layer: Tensor) -> bool:
    return layer.shape[-1] == layer.shape[-2] and bool((layer.triu(1) == 0).all())


def _layers(layers: Layers, what: str) -> list[Tensor]:
    if layers is None or len(layers) == 0:
        raise ValueError(
            f"{what} has no layers; pass a list with the weights of each layer, (heads, queries, keys). "
            "transformers returns none unless the model is loaded with attn_implementation='eager'."
        )
    found = [_matrix(layer, f"{what}, layer {number}") for number, layer in enumerate(layers)]
    shapes = {tuple(layer.shape) for layer in found}
    if len(shapes) > 1:
        listed = ", ".join(map(str, sorted(shapes)))
        raise ValueError(f"the layers of {what} have different shapes: {listed}. Pass those of a single pass.")
    return found


def _matrix(layer: Any, where: str) -> Tensor:
    """Return the weights of a layer (H, T, S) in float32; anything that torch or numpy reads."""
    if layer is None:
        raise ValueError(f"{where} is None; some models return no weights unless attn_implementation is 'eager'.")
    weights = layer if isinstance(layer, Tensor) else torch.as_tensor(np.asarray(layer))
    weights = weights.detach().to("cpu", torch.float32)
    if weights.ndim == 4:
        if len(weights) != 1:
            raise ValueError(f"{where} has a batch of {len(weights)} rows; pass one of them, such as layer[:1].")
        weights = weights[0]
    if weights.ndim != 3 or not weights.numel():
        raise ValueError(f"{where} must have the shape (heads, queries, keys), got {tuple(weights.shape)}.")
    if not bool(weights.isfinite().all()) or float(weights.min()) < -1e-6 or float(weights.max()) > 1 + 1e-3:
        raise ValueError(f"{where} has values outside 0 to 1; pass weights after the softmax, not scores.")
    return weights.clamp(0, 1)


def _by_stack(tokens: AnyTokens, held: Mapping[AttentionKind, Sequence[Tensor]]) -> dict[str, list[str]]:
    if isinstance(tokens, Mapping):
        return {stack: [str(token) for token in tokens[stack]] for stack in ("encoder", "decoder") if stack in tokens}
    if isinstance(tokens, str):
        raise TypeError("tokens must be a list of tokens, got a text.")
    if "cross" in held or len(held) > 1:
        raise ValueError("several kinds of attention need the tokens of each stack: {'encoder': […], 'decoder': […]}.")
    return {next(iter(held)): [str(token) for token in tokens]}


def _check_tokens(held: Mapping[AttentionKind, Sequence[Tensor]], tokens: Mapping[str, Sequence[str]]) -> None:
    """Raise unless there is a token for every query and key."""
    for kind, layers in held.items():
        stacks = ("decoder", "encoder") if kind == "cross" else (kind, kind)
        for axis, stack in zip((1, 2), stacks, strict=True):
            if stack not in tokens:
                raise ValueError(f"the {kind} attention needs the tokens of the {stack}.")
            if layers[0].shape[axis] != len(tokens[stack]):
                what = "queries" if axis == 1 else "keys"
                raise ValueError(
                    f"the {kind} attention has {layers[0].shape[axis]} {what}, and the {stack} has "
                    f"{len(tokens[stack])} tokens."
                )
