"""The page as one HTML file: which questions it answers, which of them approximately, and how much room that takes.

Attention takes most of the room. While it fits, all of it is in the file exactly; otherwise the chosen heads have all
their weights and the others the 16 largest of each row, as 8 bits and a factor per row, and the page says so. Then
follow the other questions that the page asks at first, and those for other tokens, heads and layers, as long as there
is room.
"""

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from glassformer.viewer import queries
from glassformer.viewer.contents import Contents
from glassformer.viewer.encode import LONE, array, in_8_bits, to_json
from glassformer.viewer.inputs import Input
from glassformer.viewer.kinds import AttentionKind, kinds_of, layers_of, name_of, stack_name, stack_of
from glassformer.viewer.page import whole_page
from glassformer.viewer.queries_attention import WHOLE, AttentionParams, attention_frame, encoded_weights
from glassformer.viewer.queries_predict import first_position
from glassformer.viewer.queries_runs import run_names
from glassformer.viewer.subject import QueryError, Subject
from glassformer.weights.saving import write_text

LIMIT = 13_000_000  # bytes of all answers
EXACT = 6_000_000  # bytes of attention that are still written exactly
CHOSEN = 4_000_000  # bytes of heads that are chosen by default when not all fit
TOP = 16  # weights of a row that are kept of the other heads
BLOCK = 128  # rows of attention that the page asks for at a time
MISSES = 4  # answers without room after which no more are computed
TOKENS = 64  # of a longer text, only the last few tokens are looked into
LAST = 4
LARGE = 65_536  # of a larger vocabulary, too: a distribution over it takes much room
LENS = 32  # positions of the lens that the page asks for at a time
FIGURE = 24  # tokens in the figure of all heads
PLAIN = 2_000  # bytes up to which an answer is not compressed

# What some views ask beside attention.
VIEWS = {"heads": (), "grid": ("attention_overview", "head_stats"), "neuron": ("neuron",)}

HeadKey = tuple[AttentionKind, int, int]
Question = tuple[str, dict[str, Any]]


@dataclass
class Answers:
    """The answers of a file, up to a size."""

    contents: Contents
    limit: int
    size: int = 0
    held: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0  # questions that found no room
    misses: int = 0  # those of them that were answered first

    def ask(self, name: str, body: dict[str, Any], *, always: bool = False) -> None:
        """Answer a question; one that this model cannot answer is not in the file."""
        if not always and self.misses >= MISSES:
            self.left_out += 1
            return
        try:
            answer = queries.answer(self.contents, queries.parse(name, body))
        except QueryError:
            return
        self.put(name, body, answer, always=always)

    def put(self, name: str, body: dict[str, Any], answer: dict[str, Any], *, always: bool = False) -> None:
        """Hold an answer, if there is room for it."""
        text = to_json(answer)
        held: Any = answer
        size = len(text)
        if size > PLAIN:
            held = base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")
            size = len(held)
        key = question_key(name, body)
        if key in self.held:
            return
        if not always and self.size + size + len(key) > self.limit:
            self.left_out += 1
            self.misses += 1
            return
        self.held[key] = held
        self.size += size + len(key)


def question_key(name: str, body: dict[str, Any]) -> str:
    """Return the name of an answer in a file: with defaults, and without what the query does not depend on."""
    query = queries.QUERIES[name]
    full = {**query.defaults, **body}
    if not depends_on_input(name):
        full.pop("input", None)
    if query.of != "model":
        full.pop("model", None)
    return f"{name} {canonical(full)}"


def depends_on_input(name: str) -> bool:
    """Whether a query reads the input."""
    return any(each.name == "input" for each in fields(queries.QUERIES[name].params))


def canonical(value: Any) -> str:
    """Return JSON as the page writes it: sorted keys, no spaces, integers without a point."""

    def plain(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: plain(inner) for key, inner in each.items()}
        if isinstance(each, list | tuple):
            return [plain(inner) for inner in each]
        return int(each) if isinstance(each, float) and each.is_integer() else each

    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return LONE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", text)


def write_page(contents: Contents, path: str | os.PathLike[str], *, heads: Sequence[str | HeadKey] = ()) -> int:
    """Write the page as one file; return its size in bytes.

    Args:
        contents: what the page shows.
        path: the file.
        heads: the heads whose attention is in the file in full if not all can be: ``"decoder.0.3"`` or
            ``("decoder", 0, 3)``.
    """
    html = exported_page(contents, heads=heads, limit=LIMIT)
    write_text(Path(path), html)
    return len(html.encode())


def exported_page(
    contents: Contents, *, heads: Sequence[str | HeadKey] = (), limit: int = LIMIT, views: Sequence[str] | None = None
) -> str:
    """Return the page as the text of one HTML file.

    Args:
        contents: what the page shows.
        heads: see ``write_page``.
        limit: bytes of all answers, beyond which only attention is still written.
        views: show only these views, of those in ``VIEWS``; None: all that there are.
    """
    answers = Answers(contents, limit)
    chosen = [_parse_head(head) for head in heads]
    notes = []
    for number, subject in enumerate(contents.subjects):
        base: dict[str, Any] = {"model": number, "input": _first_input(subject, contents)}
        answers.ask("model", base, always=True)
        answers.ask("tokens", base, always=True)
        source = ModelAttention(subject, _as_input(base["input"]))
        notes.append(put_attention(answers, base, source, chosen, len(contents.subjects)))
    wanted = None if views is None else {name for view in views for name in VIEWS[view]}
    for name, body in _questions(contents):
        if wanted is None or name in wanted:
            answers.ask(name, body)
    bootstrap = contents.bootstrap() | ({} if views is None else {"views": list(views)})
    if contents.subjects:
        bootstrap["state"] = {"text": contents.subjects[0].examples[0], **bootstrap["state"]}
    return file_page(bootstrap, answers, notes)


def file_page(bootstrap: dict[str, Any], answers: Answers, notes: Sequence[dict[str, Any]]) -> str:
    """Return the page as one file that holds these answers."""
    return whole_page(
        {
            **bootstrap,
            "mode": "file",
            "queries": {
                name: {"input": depends_on_input(name), "model": query.of == "model", "defaults": query.defaults}
                for name, query in queries.QUERIES.items()
            },
            "answers": answers.held,
            "note": {
                "approximate": any(note["approximate"] for note in notes),
                "heads": [head for note in notes for head in note["heads"]],
                "top": TOP,
                "bits": 8,
                "left_out": answers.left_out,
            },
        }
    )


def _parse_head(head: str | HeadKey) -> HeadKey:
    kind, layer, number = head.split(".") if isinstance(head, str) and head.count(".") == 2 else ("", "", "")
    if not isinstance(head, str):
        kind, layer, number = head[0], str(head[1]), str(head[2])
    if kind not in ("encoder", "decoder", "cross") or not layer.isdecimal() or not number.isdecimal():
        raise ValueError(f"a head is named KIND.LAYER.HEAD, such as decoder.0.3 or cross.2.1; got {head!r}.")
    return cast(AttentionKind, kind), int(layer), int(number)


def _first_input(subject: Subject, contents: Contents) -> dict[str, Any]:
    """Return the input that the page begins with."""
    state = contents.state or {}
    like = next(each for each in contents.subjects if each.facts.family == subject.facts.family)  # for comparison
    text = state.get("text", like.examples[0])
    return {"text": text, "text_b": state.get("text_b"), "target": state.get("target"), "ablate": []}


def _as_input(question: dict[str, Any]) -> Input:
    return Input(question["text"], question["text_b"], question["target"])


# --- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The sizes of one kind of attention."""

    layers: int
    heads: int
    queries: int
    keys: int

    @property
    def bytes_of_head(self) -> int:
        """What all weights of a head take as the page gets them: 8 bits each in long texts."""
        return self.queries * self.keys * (4 if self.queries <= WHOLE else 1)


class AttentionSource(Protocol):
    """Where attention comes from: a model, or tensors."""

    name: str

    @property
    def sizes(self) -> Mapping[AttentionKind, Sizes]:
        """The sizes of each kind of attention."""
        ...

    def show(self, kind: AttentionKind, see: Callable[[int, Tensor], None]) -> None:
        """Show the weights (H, T, S) of every layer, one after the other."""
        ...

    def frame(self, kind: AttentionKind, layer: int, rows: list[int] | None) -> dict[str, Any]:
        """Return the answer to the query ``attention`` without the weights."""
        ...


class ModelAttention:
    """The attention of a model for an input."""

    def __init__(self, subject: Subject, model_input: Input) -> None:
        self.subject, self.model_input, self.name = subject, model_input, subject.name
        self.sizes: Mapping[AttentionKind, Sizes] = {
            kind: Sizes(
                layers_of(subject, kind), stack_of(subject, kind).attention.heads, *subject.lengths(model_input, kind)
            )
            for kind in kinds_of(subject)
        }

    def show(self, kind: AttentionKind, see: Callable[[int, Tensor], None]) -> None:
        """Show the weights (H, T, S) of every layer, in one pass."""
        layers = {f"{name_of(kind, layer)}.weights": layer for layer in range(self.sizes[kind].layers)}
        self.subject.show(self.model_input, list(layers), lambda name, value: see(layers[name], value.float().cpu()))

    def frame(self, kind: AttentionKind, layer: int, rows: list[int] | None) -> dict[str, Any]:
        """Return the answer to the query ``attention`` without the weights."""
        chosen = None if rows is None else tuple(rows)
        return attention_frame(self.subject, AttentionParams(self.model_input, kind, layer, None, chosen))


def put_attention(
    answers: Answers, base: dict[str, Any], source: AttentionSource, chosen: Sequence[HeadKey], models: int = 1
) -> dict[str, Any]:
    """Hold the attention of all heads; return whether it is approximate, and the heads that are held in full.

    Args:
        answers: where to.
        base: the keys ``model`` and ``input`` of the questions.
        source: where from.
        chosen: heads to hold in full if not all can be; none: the first ones.
        models: how many models share the file.
    """
    total = sum(sizes.layers * sizes.heads * sizes.bytes_of_head for sizes in source.sizes.values())
    approximate = total > EXACT // models
    heads = list(chosen) or _default_heads(source.sizes, CHOSEN // models)
    # The chosen heads must exist.
    for kind, layer, head in chosen:
        sizes = source.sizes.get(kind)
        if sizes is None or layer >= sizes.layers or head >= sizes.heads:
            raise ValueError(f"{source.name} has no head {kind}.{layer}.{head}.")
    for kind, sizes in source.sizes.items():
        packed: dict[int, PackedWeights] = {}

        def see(
            layer: int, weights: Tensor, kind: AttentionKind = kind, packed: dict[int, PackedWeights] = packed
        ) -> None:
            full = {head for one, at, head in heads if (one, at) == (kind, layer)}
            packed[layer] = pack(weights, full) if approximate else weights.clone()

        source.show(kind, see)
        for layer in range(sizes.layers):
            for rows in _row_blocks(sizes.queries):
                frame = source.frame(kind, layer, rows)
                weights = unpack(packed[layer], *frame["rows"], exact=sizes.queries <= WHOLE)
                body = {**base, "kind": kind, "layer": layer, "heads": None, "rows": rows}
                answers.put("attention", body, {**frame, **weights}, always=True)
    return {"approximate": approximate, "heads": [list(head) for head in heads] if approximate else []}


def _row_blocks(queries_: int) -> list[list[int] | None]:
    """Return the rows that the page asks for at a time; None: all of them."""
    if queries_ <= WHOLE:
        return [None]
    return [[start, min(start + BLOCK, queries_)] for start in range(0, queries_, BLOCK)]


def _default_heads(sizes: Mapping[AttentionKind, Sizes], room: int) -> list[HeadKey]:
    """Return the first heads of the first layer of each kind, as many as there is room for."""
    chosen: list[HeadKey] = []
    for kind, each in sizes.items():
        fitting = room // len(sizes) // max(1, each.bytes_of_head)
        chosen += [(kind, 0, head) for head in range(min(each.heads, fitting))]
    return chosen


@dataclass(frozen=True)
class PartialWeights:
    """Weights in 8 bits with a factor per row: all of some heads, of the others the largest of each row."""

    keys: int
    scale: Tensor  # H T
    full: dict[int, Tensor]  # by head: T S
    others: list[int]
    index: Tensor  # of the others: H' T K
    value: Tensor


PackedWeights = PartialWeights | Tensor


def pack(weights: Tensor, full: set[int]) -> PartialWeights:
    """Keep all weights (H, T, S) of the heads ``full``, and the largest of the others."""
    numbers, scale = in_8_bits(weights)
    others = [head for head in range(len(weights)) if head not in full]
    index = weights[others].topk(min(TOP, weights.shape[-1]), dim=-1).indices
    value = numbers[others].gather(-1, index)
    return PartialWeights(weights.shape[-1], scale, {head: numbers[head] for head in full}, others, index.int(), value)


def unpack(packed: PackedWeights, start: int, stop: int, *, exact: bool) -> dict[str, Any]:
    """Return the rows [start, stop) of weights as the page takes them."""
    if isinstance(packed, Tensor):
        return encoded_weights(packed[:, start:stop], exact=exact)
    shape, parts = [len(packed.scale), stop - start, packed.keys], []
    for is_full, run in groupby(range(len(packed.scale)), lambda head: head in packed.full):
        heads = list(run)
        if is_full:
            parts.append(array(torch.stack([packed.full[head][start:stop] for head in heads]), "u1"))
            continue
        rows = [packed.others.index(head) for head in heads]
        index, value = packed.index[rows, start:stop], packed.value[rows, start:stop]
        sparse = {"index": array(index, "u2"), "value": array(value, "u1")}
        parts.append({"shape": [len(heads), *shape[1:]], "type": "u1", **sparse})
    weights = {"shape": shape, "type": "u1", "parts": parts}
    return {"weights": weights, "scale": array(packed.scale[:, start:stop])}


# --- the other questions ----------------------------------------------------------------------------------------------


def _questions(contents: Contents) -> Iterator[Question]:
    """Yield what the page asks beside attention, the most likely first."""
    for run in range(len(run_names(contents.runs))):
        yield "run_log", {"run": run}
    if contents.runs:
        yield "runs", {}
    waiting = [
        _of_model(subject, {"model": number, "input": _first_input(subject, contents)})
        for number, subject in enumerate(contents.subjects)
    ]
    yield from (question for questions in waiting for question in questions)
    if contents.subjects:
        for name in ("lineages", "activations", "toy"):
            yield name, {}
    for number, subject in enumerate(contents.subjects):
        base = {"model": number, "input": _first_input(subject, contents)}
        yield from _single_tokens(subject, base, contents.state or {})


def _of_model(subject: Subject, base: dict[str, Any]) -> Iterator[Question]:
    """Yield questions about the whole input."""
    kinds = kinds_of(subject)
    for kind in kinds:
        yield "attention_overview", {**base, "kind": kind, "size": 48}
        yield "head_stats", {**base, "kind": kind}
    yield "costs", base
    longest = first_length(subject.facts.max_length)
    yield "positions", {"model": base["model"], "length": longest, "kind": None}
    for scheme in ("sinusoidal", "rotary", "alibi", "buckets"):
        yield "positions", {"model": base["model"], "length": longest, "kind": scheme}
    yield "steps", base
    yield from _lenses(subject, base)
    for name in ("fill", "classify", "tag", "answer"):
        if name in subject.loaded.abilities:
            yield name, base
    yield "predict", base
    yield "beams", base
    yield "words", {"model": base["model"]}
    yield from _whole_values(subject, base)
    yield "generate", {**base, **_generated(subject, 0)}


def _lenses(subject: Subject, base: dict[str, Any]) -> Iterator[Question]:
    """Ask for the logit lens: of a longer text, the last tokens and those around the position where the page begins."""
    sequences = subject.sequences(_as_input(base["input"]))
    length = len(sequences.last)
    if length <= TOKENS:
        yield from (("lens", {**base, "top": top}) for top in (1, 5))
        return
    position = first_position(subject, sequences)
    for token in dict.fromkeys((position, *range(length - 1, length - 1 - LAST, -1))):
        yield "lens", {**base, "top": 1, "position": token}
    for start in range(max(0, position - LENS) // LENS * LENS, min(length, position + LENS // 2), LENS):
        yield "lens", {**base, "top": 5, "rows": [start, min(start + LENS, length)]}


def first_length(longest: int | None) -> int:
    """Return how many positions the view *Positions* shows at first (positions_math.js)."""
    return min(64, max(8, min(256, longest or 256)))


def _whole_values(subject: Subject, base: dict[str, Any]) -> Iterator[Question]:
    """Yield values of all tokens of a short text: the residual stream, and the figures of heads and products."""
    given = _as_input(base["input"])
    for kind in kinds_of(subject):
        length, keys = subject.lengths(given, kind)
        if max(length, keys) > TOKENS:
            continue
        stack, sublayer = stack_name(kind), name_of(kind, 0)
        if kind != "cross":
            for layer in range(layers_of(subject, kind)):
                yield "values", {**base, "name": f"{stack}.blocks.{layer}.output", "tokens": None}
            for name in ("blocks.0.input", "output"):
                yield "values", {**base, "name": f"{stack}.{name}", "tokens": None}
        for name in ("input", "q", "weights", "heads", "output"):
            yield "values", {**base, "name": f"{sublayer}.{name}", "tokens": list(range(min(FIGURE, length)))}
        for name in ("k", "v"):
            yield "values", {**base, "name": f"{sublayer}.{name}", "tokens": list(range(min(FIGURE, keys)))}
        yield "product", {**base, "kind": kind, "layer": 0, "head": 0, "name": "q"}


def _generated(subject: Subject, head: int) -> dict[str, Any]:
    """Return the parameters of the text that the page generates at first, with the attention of a head."""
    settings = queries.QUERIES["generate"].defaults["settings"]
    return {"settings": settings, "kind": kinds_of(subject)[-1], "layer": 0, "head": head}


def _single_tokens(subject: Subject, base: dict[str, Any], state: Mapping[str, Any]) -> Iterator[Question]:
    """Yield questions about one token, layer or head: the page asks them as its reader looks around."""
    given = _as_input(base["input"])
    kinds = kinds_of(subject)
    lengths = {kind: subject.lengths(given, kind)[0] for kind in kinds}
    tokens = {kind: range(n - 1, n - 1 - LAST if n > TOKENS else -1, -1) for kind, n in lengths.items()}
    last = state.get("kind", kinds[-1])
    # Predictions at each position, and generation with the attention of each head.
    predicted = tokens["decoder" if "decoder" in lengths else "encoder"]
    first = first_position(subject, subject.sequences(given))
    for position in dict.fromkeys((first, *(predicted[:LAST] if subject.facts.vocab > LARGE else predicted))):
        yield "predict", {**base, "position": position}
    if "generate" in subject.loaded.abilities and lengths[kinds[-1]] <= TOKENS:
        for head in range(1, stack_of(subject, kinds[-1]).attention.heads):
            yield "generate", {**base, **_generated(subject, head)}
    # Masks and embeddings.
    for kind in kinds:
        for layer in range(layers_of(subject, kind)):
            for head in range(stack_of(subject, kind).attention.heads if lengths[kind] <= WHOLE else 1):
                yield "mask", {**base, "kind": kind, "layer": layer, "head": head, "padding": 0}
    for stack in kinds:
        for token in tokens[stack] if stack != "cross" else ():
            yield "embedding", {**base, "stack": stack, "token": token}
    # The arithmetic of each token: first of the layer and the heads that the page shows.
    first = int(state.get("layer", 0))
    chosen = [int(head) for head in state.get("heads", ())]
    for kind in [last, *(kind for kind in kinds if kind != last)]:
        count, heads = layers_of(subject, kind), stack_of(subject, kind).attention.heads
        for layer in sorted(range(count), key=lambda number: number != first):
            for head in sorted(range(heads), key=lambda number: number not in chosen):
                for row in tokens[kind]:
                    yield "neuron", {**base, "kind": kind, "layer": layer, "head": head, "row": row}
            for token in tokens[kind]:
                place = {**base, "kind": kind, "layer": layer, "token": token}
                yield "sublayer", {**place, "part": "attention", "head": chosen[0] if chosen else 0}
                if kind != "cross":
                    yield "sublayer", {**place, "part": "ffn", "head": 0}
