"""Queries about what the model predicts: distributions of tokens, layer by layer, and the tasks of its head.

Shapes: ``L`` layers, ``T`` tokens, ``V`` vocabulary.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.config.parts import TaskHead
from glassformer.viewer import work
from glassformer.viewer.encode import array
from glassformer.viewer.inputs import Input, Sequences
from glassformer.viewer.kinds import check_rows
from glassformer.viewer.queries_model import OfInput
from glassformer.viewer.subject import QueryError, Subject

TEXTS = 200  # tokens that come with their texts
PIECE = 2**22  # logits that are computed at a time


# --- one position -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predict:
    """The position to predict at; null or −1: the last one, or the first blank of a text with blanks."""

    input: Input = field(default_factory=Input)
    position: int | None = None


def predict(subject: Subject, params: Predict) -> dict[str, Any]:
    """Return the distribution of tokens at a position: of the next token, or for an encoder of the token there.

    Result: ``{"position", "stack", "family": "next" | "mask" | "token" (an encoder at a token that is no blank),
    "logits": f4 (V), "logsumexp": of these, "top": [{"id", "text", "logit", "prob", "special", "fragment": whether it
    is part of a character}], the 200 largest, "token": {"id", "text"} at the position, "next": {"id", "text"} | null,
    what follows in the text}``.
    """
    sequences = subject.sequences(params.input)
    ids = sequences.last
    position = _position(subject, sequences, params.position)
    logits = subject.logits(subject.hidden(params.input)[position : position + 1])[0]
    best = logits.topk(min(TEXTS, len(logits)))
    probabilities = (best.values - logits.logsumexp(-1)).exp()
    texts = subject.token_texts(best.indices.tolist())
    top = zip(best.indices.tolist(), texts, best.values.tolist(), probabilities.tolist(), strict=True)
    following = _following(sequences)[position]
    is_blank = ids[position] == subject.tokenizer.mask
    return {
        "position": position,
        "stack": "encoder" if sequences.decoder is None else "decoder",
        "family": "next" if sequences.decoder is not None else "mask" if is_blank else "token",
        "logits": array(logits),
        "logsumexp": float(logits.logsumexp(-1)),
        "top": [
            {
                "id": number,
                "text": text,
                "logit": logit,
                "prob": prob,
                "special": number in subject.special,
                "fragment": subject.is_fragment(number),
            }
            for number, text, logit, prob in top
        ],
        "token": _token(subject, ids[position]),
        "next": None if following is None else _token(subject, following),
    }


def _following(sequences: Sequences) -> list[int | None]:
    """Return the token that follows each position of the last stack in the text; None where there is none."""
    if sequences.expected is not None:
        return [*sequences.expected, *[None] * (len(sequences.last) - len(sequences.expected))]
    return [None] * len(sequences.last) if sequences.decoder is None else [*sequences.decoder[1:], None]


def _position(subject: Subject, sequences: Sequences, wanted: int | None) -> int:
    if wanted is None or wanted == -1:
        return first_position(subject, sequences)
    last = len(sequences.last) - 1
    if not 0 <= wanted <= last:
        raise QueryError(f"position must be from 0 to {last}, or -1 or null; got {wanted}.")
    return wanted


def first_position(subject: Subject, sequences: Sequences) -> int:
    """Return the position to predict at unless another is chosen (``defaultToken`` in tokens.js).

    That before the last word of a translation, the last token of a text that goes on, or the first blank of an encoder.
    """
    if sequences.expected is not None:
        texts = zip(sequences.expected, subject.token_texts(sequences.expected), strict=True)
        words = [place for place, (token, text) in enumerate(texts) if token not in subject.special and _is_word(text)]
        if words and words[-1] < len(sequences.last):
            return words[-1]
    blanks = [index for index, token in enumerate(sequences.last) if token == subject.tokenizer.mask]
    return blanks[0] if sequences.decoder is None and blanks else len(sequences.last) - 1


def _is_word(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _token(subject: Subject, number: int) -> dict[str, Any]:
    (text,) = subject.token_texts([number])
    return {"id": number, "text": text, "special": number in subject.special}


# --- every position ---------------------------------------------------------------------------------------------------


def steps(subject: Subject, params: OfInput) -> dict[str, Any]:
    """Return what a decoder predicts at every position of its text, from a single pass.

    Result: ``{"tokens": [{"id", "text", "special"}], "next": [{"id", "text", "special"} | null], what follows in the
    text (for an encoder-decoder EOS at the end), "predicted": [{"id", "text", "prob"}], "prob_next": [float | null],
    "rank_next": [int | null], 1 for the most probable, "given": n, tokens of an encoder-decoder's start}``.
    """
    if subject.facts.decoder is None:
        raise QueryError("an encoder predicts no next tokens.", "ability")
    sequences = subject.sequences(params.input)
    following = _following(sequences)
    # The most probable token of each position, and probability and rank of the one that follows.
    best, best_probs, probs, ranks = [], [], [], []
    position = 0
    for logits in _pieces(subject, subject.hidden(params.input)):
        log_probs = logits.log_softmax(-1)
        values, tokens = log_probs.max(-1)
        best += tokens.tolist()
        best_probs += values.exp().tolist()
        wanted = following[position : position + len(logits)]
        own = log_probs.gather(-1, torch.tensor([token or 0 for token in wanted])[:, None])  # T 1
        higher = (log_probs > own).sum(-1).tolist()
        probs += [None if token is None else prob for token, prob in zip(wanted, own[:, 0].exp().tolist(), strict=True)]
        ranks += [None if token is None else rank + 1 for token, rank in zip(wanted, higher, strict=True)]
        position += len(logits)
    texts = subject.token_texts(best)
    return {
        "tokens": [_token(subject, number) for number in sequences.last],
        "next": [None if number is None else _token(subject, number) for number in following],
        "predicted": [
            {"id": number, "text": text, "prob": prob}
            for number, text, prob in zip(best, texts, best_probs, strict=True)
        ],
        "prob_next": probs,
        "rank_next": ranks,
        "given": sequences.given if sequences.expected is not None else 0,
    }


def _pieces(subject: Subject, hidden: Tensor) -> Iterator[Tensor]:
    """Yield logits of hidden states (T, D), a few rows at a time."""
    rows = max(1, PIECE // subject.facts.vocab)
    for start in range(0, len(hidden), rows):
        work.check()
        yield subject.logits(hidden[start : start + rows])


@dataclass(frozen=True)
class Lens:
    """How many tokens to show for each layer and position; one position or some (start, stop), or null: all."""

    input: Input = field(default_factory=Input)
    stack: Literal["encoder", "decoder"] | None = None
    top: int = 5
    position: int | None = None
    rows: tuple[int, ...] | None = None


def lens(subject: Subject, params: Lens) -> dict[str, Any]:
    """Return what the head would predict from the residual stream after each layer (nostalgebraist, 2020).

    Result: ``{"stack", "layers": ["embed", "0", "1", …], "tokens": T, "position": int | null, "ids": i4 (L + 1, T,
    top), "probs": f4 (L + 1, T, top), "texts": {id: text}, "actual": f4 (L + 1, T), the probability of what the last
    layer finds most probable}``; T counts the positions that were asked for. The last layer is the model's own
    prediction.
    """
    stack = "encoder" if subject.facts.decoder is None else "decoder"
    if params.stack not in (None, stack):
        raise QueryError(f"the head of this model reads its {stack}, so the lens does, too.")
    if not 1 <= params.top <= 20:
        raise QueryError(f"top must be from 1 to 20, got {params.top}.")
    sequences = subject.sequences(params.input)
    position = None if params.position is None else _position(subject, sequences, params.position)
    start, stop = 0, len(sequences.last)
    if position is not None:
        start, stop = position, position + 1
    elif params.rows is not None:
        start, stop = check_rows(params.rows, stop)
    streams = [stream[start:stop] for stream in _normed(subject, params.input, stack)]
    ids, probs, actual = _lens(subject, streams, params.top)
    shown = sorted(set(ids.flatten().tolist()))
    return {
        "stack": stack,
        "layers": ["embed", *map(str, range(len(streams) - 1))],
        "tokens": stop - start,
        "position": position,
        "ids": array(ids, "i4"),
        "probs": array(probs),
        "texts": dict(zip(map(str, shown), subject.token_texts(shown), strict=True)),
        "actual": array(actual),
    }


def _lens(subject: Subject, streams: list[Tensor], top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and probabilities (L, T, top) of the most probable tokens of each stream (T, D), and of the last one's best.

    The head is by far the most work, so it reads every stream once, the last one first.
    """
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    final: Tensor | None = None  # T
    for stream in reversed(streams):
        tops, shares, done = [], [], 0
        for logits in _pieces(subject, stream):
            best, total = logits.topk(min(top, logits.shape[-1]), dim=-1), logits.logsumexp(-1, keepdim=True)
            asked = best.indices[:, :1] if final is None else final[done : done + len(logits), None]
            tops.append((best.indices, (best.values - total).exp()))
            shares.append((logits.gather(-1, asked) - total).exp()[:, 0])
            done += len(logits)
        ids, probs = (torch.cat(column) for column in zip(*tops, strict=True))
        final = ids[:, 0] if final is None else final
        found.append((ids, probs, torch.cat(shares)))
    ids, probs, actual = (torch.stack(column) for column in zip(*reversed(found), strict=True))
    return ids, probs, actual


def _normed(subject: Subject, model_input: Input, stack: str) -> list[Tensor]:
    """Return the residual stream after each layer as the head reads it: after the final norm, if there is one."""
    streams, last = subject.streams(model_input, stack), subject.hidden(model_input)
    module = subject.model.encoder if stack == "encoder" else subject.model.decoder
    assert module is not None
    if module.norm is not None:
        weight = next(subject.model.parameters())
        with subject.alone():
            streams = [module.norm(stream.to(weight)).float().cpu() for stream in streams]
    return [*streams[:-1], last]


# --- the tasks of a head ----------------------------------------------------------------------------------------------


def fill(subject: Subject, params: OfInput) -> dict[str, Any]:
    """Return the best tokens for the blanks of the text.

    Result: ``{"text", "mask": the mask token, "blanks": [{"position": index of its token, "start", "end", "guesses":
    [{"token", "id", "probability", "text"}]}], "fillings": [{"tokens", "ids", "probability", "text"}]}``, ten of each.
    """
    if params.input.text_b is not None:
        raise QueryError("blanks are filled in a single text; leave out the second one.", "single")
    with subject.alone(), subject.ablated(params.input):
        (filled,) = subject.loaded.fill([params.input.text], top=10)
    ids = subject.sequences(params.input).encoder or ()
    positions = [index for index, token in enumerate(ids) if token == subject.tokenizer.mask]
    result = asdict(filled)
    blanks = [{"position": position, **blank} for position, blank in zip(positions, result["blanks"], strict=True)]
    return {**result, "blanks": blanks, "mask": subject.tokenizer.special.get("mask")}


def classify(subject: Subject, params: OfInput) -> dict[str, Any]:
    """Return the labels of the text, or of the pair of texts.

    Result: ``{"text", "pair", "labels": [{"name", "score", "probability"}]}``, the most probable first; no labels for a
    single text if the model labels pairs only.
    """
    model_input = params.input
    head = subject.facts.head
    if model_input.text_b is None and isinstance(head, TaskHead) and head.task == "pair":
        return {"text": model_input.text, "pair": None, "labels": []}
    text = model_input.text if model_input.text_b is None else (model_input.text, model_input.text_b)
    with subject.alone(), subject.ablated(model_input):
        (found,) = subject.loaded.classify([text])
    return asdict(found)


def tag(subject: Subject, params: OfInput) -> dict[str, Any]:
    """Return the label of each word, and the entities that the labels mark.

    Result: ``{"text", "words": [{"text", "start", "end", "label", "probability"}], "entities": [{"kind", "text",
    "start", "end", "probability"}]}``.
    """
    with subject.alone(), subject.ablated(params.input):
        (found,) = subject.loaded.tag([params.input.text])
    return asdict(found)


def answer(subject: Subject, params: OfInput) -> dict[str, Any]:
    """Return the answer to a question (text) in a context (text_b).

    Result: ``{"question", "context", "answers": [{"text", "start", "end", "score", "probability"}], "no_answer"}``.
    """
    if params.input.text_b is None:
        raise QueryError("a question needs a context, the second text.", "context")
    with subject.alone(), subject.ablated(params.input):
        (found,) = subject.loaded.answer([(params.input.text, params.input.text_b)], top=5)
    return asdict(found)


QUERIES = {
    "predict": (predict, Predict),
    "steps": (steps, OfInput),
    "lens": (lens, Lens),
    "fill": (fill, OfInput),
    "classify": (classify, OfInput),
    "tag": (tag, OfInput),
    "answer": (answer, OfInput),
}
