"""The query about positions: tables, rotations and biases on the scores, with the similarity of positions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.config import Alibi, BucketBias, Disentangled, InputPosition, Rotary, Stack
from glassformer.nn.input_positions import frequencies, sinusoids
from glassformer.nn.relative import alibi_slopes, distance_bucket, relative_rows
from glassformer.nn.rotary import scale_frequencies
from glassformer.viewer.encode import array
from glassformer.viewer.mechanisms import score_bias_name
from glassformer.viewer.subject import QueryError, Subject

LONGEST = 512


@dataclass(frozen=True)
class Positions:
    """How many positions, and of which kind; null: those that the model has."""

    length: int = 64
    kind: Literal["sinusoidal", "rotary", "alibi", "buckets"] | None = None


def positions(subject: Subject, params: Positions) -> dict[str, Any]:
    """Return how the model tells positions apart; or another scheme, in the model's sizes, for comparison.

    Result: ``{"length": L, "schemes": […]}``, each scheme with ``kind``, ``stack`` (null: at the input) and:

    * ``sinusoidal``: ``layout`` (of the model), ``tables`` (``{"interleaved": f4 (L, D), "halves": f4 (L, D)}``, and
      ``"fairseq"`` if that is the model's), ``similarity`` f4 (L, L), cosines.
    * ``learned``: ``table`` f4 (L, D), ``similarity`` f4 (L, L), cosines.
    * ``rotary``: ``angles`` f4 (L, P), in radians, ``similarity`` f4 (L, L): the product of a vector with
      itself at two positions, averaged over pairs; ``theta``, ``pairing``, ``dim``.
    * ``buckets``, ``alibi``: ``distances`` i4 (2L − 1), key minus query, ``bias`` f4 (H, 2L − 1); of ``buckets`` also
      ``bucket`` i4 (2L − 1), of ``alibi`` ``slopes`` f4 (H). Without learned values (``kind`` asked for) bias is null.
    * ``disentangled``: ``distances``, ``row`` i4 (2L − 1), ``similarity`` f4 (2L − 1, 2L − 1) of the vectors.

    No scheme at all is possible: such a decoder tells positions apart by its causal mask alone.
    """
    longest = min(LONGEST, subject.facts.max_length or LONGEST)
    if not 1 <= params.length <= longest:
        raise QueryError(f"length must be from 1 to {longest}, got {params.length}.")
    schemes = _own(subject, params.length) if params.kind is None else [_lesson(subject, params.kind, params.length)]
    return {"length": params.length, "schemes": list(schemes)}


def _own(subject: Subject, length: int) -> Iterator[dict[str, Any]]:
    """Yield the schemes that the model has: at the input, then of each stack."""
    facts, model = subject.facts, subject.model
    if facts.embed.position is not None:
        yield _at_input(subject, facts.embed.position, length)
    for name, stack, module in (("encoder", facts.encoder, model.encoder), ("decoder", facts.decoder, model.decoder)):
        if stack is None or module is None:
            continue
        if stack.attention.rotary is not None:
            yield _rotary(name, stack.attention.rotary, length)
        if stack.attention.score_bias is not None:
            yield _score_bias(name, stack, module, length)


def _at_input(subject: Subject, facts: InputPosition, length: int) -> dict[str, Any]:
    """Return the positions that are added to the embeddings."""
    match facts.kind:
        case "sinusoidal":
            width = subject.facts.embed.width or subject.facts.width
            return _sinusoidal(length, width, facts.layout, facts.offset)
        case "learned":
            assert subject.model.embed.position is not None
            table = subject.model.embed.position.weight[facts.offset : facts.offset + length].detach().float().cpu()
            return {"kind": "learned", "stack": None, "table": array(table), "similarity": array(_cosines(table))}
        case unknown:
            raise ValueError(
                f"there is no picture of {unknown!r} as positions of the input; add it to _at_input in "
                f"viewer/queries_positions.py."
            )


def _lesson(subject: Subject, kind: str, length: int) -> dict[str, Any]:
    """Return a scheme in the sizes of the model, whether the model has it or not."""
    stack = subject.facts.decoder or subject.facts.encoder
    assert stack is not None
    heads, dim = stack.attention.heads, stack.attention.head_dim
    if kind == "sinusoidal":
        return _sinusoidal(length, subject.facts.width, "interleaved", 0)
    if kind == "rotary":
        return _rotary("decoder", Rotary(dim=dim - dim % 2, length=length), length)
    distance = _distances(length)
    result = {"kind": kind, "stack": "decoder", "distances": array(distance, "i4"), "bias": None}
    if kind == "alibi":
        return {**result, **_alibi(heads, distance)}
    if kind == "buckets":
        return {**result, "bucket": array(distance_bucket(distance, BucketBias(), bidirectional=True), "i4")}
    raise ValueError(f"there is no picture of {kind!r} without a model that has it; add it to _lesson.")


def _sinusoidal(length: int, width: int, layout: Any, offset: int) -> dict[str, Any]:
    layouts = dict.fromkeys(("interleaved", "halves", layout))
    tables = {name: sinusoids(torch.arange(length) + offset, width, layout=name) for name in layouts}
    return {
        "kind": "sinusoidal",
        "stack": None,
        "layout": layout,
        "tables": {name: array(table) for name, table in tables.items()},
        "similarity": array(_cosines(tables[layout])),
    }


def _rotary(stack: str, facts: Rotary, length: int) -> dict[str, Any]:
    freqs = frequencies(facts.dim, facts.theta, torch.device("cpu"))  # P
    if facts.scaling is not None:
        freqs = scale_frequencies(freqs, facts, facts.scaling)
    angles = torch.arange(length)[:, None] * freqs  # L P
    # cos(a − b) = cos a · cos b + sin a · sin b, averaged over the pairs.
    similarity = (angles.cos() @ angles.cos().T + angles.sin() @ angles.sin().T) / len(freqs)
    return {
        "kind": "rotary",
        "stack": stack,
        "angles": array(angles),
        "similarity": array(similarity),
        "theta": facts.theta,
        "pairing": facts.pairing,
        "dim": facts.dim,
    }


def _score_bias(name: str, stack: Stack, module: Any, length: int) -> dict[str, Any]:
    scheme, distance = stack.attention.score_bias, _distances(length)
    assert scheme is not None
    result: dict[str, Any] = {"kind": score_bias_name(scheme), "stack": name, "distances": array(distance, "i4")}
    match scheme:
        case BucketBias():
            bucket = distance_bucket(distance, scheme, bidirectional=not stack.causal)
            bias = module.relative.weight.detach().float().cpu()[bucket].T
            return {**result, "bucket": array(bucket, "i4"), "bias": array(bias)}
        case Alibi():
            return {**result, **_alibi(stack.attention.heads, distance)}
        case Disentangled():
            table = module.relative.weight
            table = table if module.relative_norm is None else module.relative_norm(table)
            rows = relative_rows(scheme, distance[None])[0]
            vectors = table.detach().float().cpu()[rows]
            return {**result, "row": array(rows, "i4"), "similarity": array(_cosines(vectors))}
        case unknown:
            raise TypeError(
                f"there is no picture of {type(unknown).__name__} as score_bias; add it to _score_bias in "
                f"viewer/queries_positions.py."
            )


def _alibi(heads: int, distance: Tensor) -> dict[str, Any]:
    slopes = alibi_slopes(heads)
    return {"slopes": array(slopes), "bias": array(-slopes[:, None] * distance.abs())}


def _distances(length: int) -> Tensor:
    return torch.arange(1 - length, length)


def _cosines(vectors: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(vectors.float(), dim=-1)
    return unit @ unit.T


QUERIES = {"positions": (positions, Positions)}
