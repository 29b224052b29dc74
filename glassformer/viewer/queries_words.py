"""Queries behind the teaching figures that look into a model: a word in two sentences, and one matrix product."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.viewer.encode import array
from glassformer.viewer.inputs import Input
from glassformer.viewer.kinds import AttentionKind, check_head, check_layer, name_of, stack_of
from glassformer.viewer.queries_sublayer import block_of
from glassformer.viewer.subject import EXAMPLES, QueryError, Subject

WORDS = 200  # of each text
ROWS = 48  # tokens in the figure of a product


@dataclass(frozen=True)
class WordsParams:
    """A word and two texts that have it."""

    word: str = "flies"
    texts: tuple[str, ...] = EXAMPLES[:2]


def words(subject: Subject, params: WordsParams) -> dict[str, Any]:
    """Return every word that both texts share: the cosine of its two vectors before the first and after every layer.

    The vector of a word is that of its last token, in the encoder's or else the decoder's residual stream; ``vectors``
    are those of the chosen word, one row per layer.
    """
    if len(params.texts) != 2:
        raise QueryError(f"texts are two texts, got {len(params.texts)}.")
    stack = "encoder" if subject.facts.encoder is not None else "decoder"
    inputs = [_input(subject, text) for text in params.texts]
    spelled = [_words(subject, model_input, stack) for model_input in inputs]
    if not all(spelled):
        raise QueryError("this model's vocabulary holds no word of these texts; type others.", "unknown")
    shared = [word for word in spelled[0] if word in spelled[1]]
    if not shared:
        raise QueryError("the two texts share no word; type one into both.", "unshared")
    word = params.word.strip().lower()
    if word not in shared:
        known = ", ".join(shared)[:200]
        message = f"both texts must have the word {params.word!r:.40}; they share {known}."
        raise QueryError(message, "word", word=params.word[:40], shared=known)
    streams = [subject.streams(model_input, stack) for model_input in inputs]
    rows = {name: _pairs(streams, [texts[name][-1] for texts in spelled]) for name in shared}
    return {
        "stack": stack,
        "layers": len(streams[0]) - 1,
        "word": word,
        "shared": [
            {"word": name, "tokens": [texts[name] for texts in spelled], "cosine": array(_cosines(rows[name]))}
            for name in shared
        ],
        "vectors": [array(torch.stack(vectors)) for vectors in zip(*rows[word], strict=True)],
    }


def _input(subject: Subject, text: str) -> Input:
    """Return a text alone; nothing is generated for an encoder-decoder, whose encoder is looked at."""
    return Input(text=text, target="" if subject.facts.family == "encoder-decoder" else None)


def _words(subject: Subject, model_input: Input, stack: str) -> dict[str, list[int]]:
    """Return the words of a text, in lower case and without punctuation, each with the numbers of its first tokens."""
    sequences = subject.sequences(model_input)
    ids = sequences.encoder if stack == "encoder" else sequences.decoder
    assert ids is not None
    pieces: list[tuple[str, list[int]]] = []
    was_special = True
    for number, (token, text) in enumerate(zip(ids, subject.token_texts(ids), strict=True)):
        if token in subject.special:
            was_special = True
            continue
        if was_special or text[:1].isspace():
            pieces.append(("", []))
        was_special = False
        pieces[-1] = (pieces[-1][0] + text, [*pieces[-1][1], number])
    found: dict[str, list[int]] = {}
    for text, numbers in pieces[:WORDS]:
        word = text.strip().lower().strip(".,;:!?\"'()")
        if word:
            found.setdefault(word, numbers)
    return found


def _pairs(streams: list[list[Tensor]], at: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Return the two vectors at every layer."""
    return [(first[at[0]], second[at[1]]) for first, second in zip(*streams, strict=True)]


def _cosines(pairs: list[tuple[Tensor, Tensor]]) -> list[float]:
    return [float(torch.cosine_similarity(a.double(), b.double(), dim=0)) for a, b in pairs]


@dataclass(frozen=True)
class ProductParams:
    """Which product: of a layer's input with the part of a projection that belongs to one head."""

    kind: AttentionKind = "decoder"
    layer: int = 0
    head: int = 0
    name: Literal["q", "k", "v"] = "q"
    input: Input = field(default_factory=Input)


def product(subject: Subject, params: ProductParams) -> dict[str, Any]:
    """X · W (+ b) = Y with its numbers: X (T, D) is what the sublayer reads, W (D, K) belongs to one head.

    Keys and values of grouped heads belong to several heads; those of cross-attention read the encoder's output.
    """
    kind, name = params.kind, params.name
    check_layer(subject, kind, params.layer)
    check_head(subject, kind, params.layer, params.head)
    stack = stack_of(subject, kind)
    if params.layer >= stack.layers and name != "q":
        raise QueryError("the keys and values of the repeated last layer are those of an earlier input.")
    # X: what the sublayer reads, or the encoder's output for keys and values of cross-attention.
    sublayer = name_of(kind, params.layer)
    source = "encoder.output" if kind == "cross" and name != "q" else f"{sublayer}.input"
    rows = subject.values(params.input, [source])[source]
    # W: the rows of the projection that belong to this head, or to its group.
    block = block_of(subject, kind, params.layer)
    linear = getattr(block.cross if kind == "cross" else block.attention, name)
    size, heads = stack.attention.head_dim, stack.attention.heads
    groups = 1 if name == "q" else heads // (stack.attention.kv_heads or heads)
    head = params.head // groups
    part = slice(head * size, (head + 1) * size)
    with torch.no_grad():
        weight = linear.weight[part].float().T  # D K
        bias = None if linear.bias is None else linear.bias[part].float()
        shown = rows[:ROWS].float().to(weight.device)
        output = shown @ weight if bias is None else shown @ weight + bias
    return {
        "x": array(shown),
        "w": array(weight),
        "bias": None if bias is None else array(bias),
        "y": array(output),
        "tokens": len(rows),
        "own": head,
        "groups": groups,
        "keys": "encoder" if source == "encoder.output" or kind == "encoder" else "decoder",
    }


QUERIES = {"words": (words, WordsParams), "product": (product, ProductParams)}
