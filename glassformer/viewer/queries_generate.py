"""Queries that generate text: token by token with the attention of each step, and beam search as a tree."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.generation.beam import penalised
from glassformer.generation.filters import Filters
from glassformer.generation.search import GenerationOutput, probs
from glassformer.generation.settings import SAMPLING_ONLY, GenerationSettings
from glassformer.viewer.encode import array
from glassformer.viewer.inputs import Input, Sequences
from glassformer.viewer.kinds import AttentionKind, check_head, name_of
from glassformer.viewer.subject import QueryError, Subject

NEW_TOKENS, BEAMS, TOP = 64, 8, 10


@dataclass(frozen=True)
class ChoiceSettings:
    """How to choose tokens; ``greedy`` always takes the most probable one."""

    max_new_tokens: int = 16
    greedy: bool = True
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def options(self) -> dict[str, Any]:
        """Return the same as options of generation."""
        check_length(self.max_new_tokens)
        if self.greedy:
            return {"max_new_tokens": self.max_new_tokens, "temperature": 0.0, "beam_size": 1}
        if not 0 < self.temperature <= 100:
            raise QueryError(f"temperature must be above 0 and at most 100, got {self.temperature}.")
        if not 0 <= self.seed < 2**63:
            raise QueryError(f"seed must be an integer from 0 on, got {self.seed}.")
        chosen = {name: value for name, value in asdict(self).items() if name != "greedy"}
        others = dict.fromkeys(set(SAMPLING_ONLY) - set(chosen))  # what the model's folder recommends does not count
        return {**others, **chosen, "beam_size": 1}


def check_length(max_new_tokens: int) -> None:
    """Raise unless this many new tokens are allowed."""
    if not 1 <= max_new_tokens <= NEW_TOKENS:
        raise QueryError(f"max_new_tokens must be from 1 to {NEW_TOKENS}, got {max_new_tokens}.")


@dataclass(frozen=True)
class Generate:
    """Settings, and the head whose attention is returned at each step; kind null: none."""

    input: Input = field(default_factory=Input)
    settings: ChoiceSettings = field(default_factory=ChoiceSettings)
    kind: AttentionKind | None = None
    layer: int = 0
    head: int = 0


def generate(subject: Subject, params: Generate) -> dict[str, Any]:
    """Continue the text token by token; an encoder-decoder begins its target, or continues the given one.

    Result: ``{"prompt": n, tokens that the decoder reads before the first step, "given": [{"id", "text"}], those
    tokens, "steps": [{"id", "text", "special", "prob": under the model, "chosen_prob": after temperature and filters,
    "entropy": in nats, "top": [{"id", "text", "prob"}], ten, "ended": bool, "attention": f4 (S) | null, "keys":
    "encoder" | "decoder" | null}], "text": the new text, "ended": "eos" | "length" | "context", "seconds"}``.
    ``attention`` is the row of the chosen head that the prediction of the step comes from, over the keys up to then.
    """
    begin = time.perf_counter()
    if params.kind is not None:
        check_head(subject, params.kind, params.layer, params.head)
        if params.kind == "encoder":
            raise QueryError("the encoder reads its text at once, not step by step; choose another kind.")
    ((found,), settings) = subject.search(params.input, **params.settings.options(), top_alternatives=TOP)
    given = subject.prefix(params.input)
    rows, logits = _second_look(subject, params, given, found.ids)
    steps = _steps(subject, found, logits, settings, given)
    for step, row in zip(steps, rows, strict=True):
        step["attention"] = row
        step["keys"] = None if row is None else "encoder" if params.kind == "cross" else "decoder"
    return {
        "prompt": len(given),
        "given": _named(subject, given),
        "steps": steps,
        "text": subject.tokenizer.decode(found.ids, skip_special=True),
        "ended": found.ended,
        "seconds": time.perf_counter() - begin,
    }


def _second_look(
    subject: Subject, params: Generate, given: tuple[int, ...], ids: Sequence[int]
) -> tuple[list[dict[str, Any] | None], Tensor]:
    """Return the attention and the logits of every step from one pass over the whole text: each row sees earlier tokens
    only."""
    source = subject.source(params.input.text).ids if subject.facts.encoder is not None else None
    sequences = Sequences(encoder=source, decoder=(*given, *ids[:-1]))
    names = ["decoder.output"]
    if params.kind is not None:
        names.append(f"{name_of(params.kind, params.layer)}.weights")
    values = subject.pass_over(sequences, params.input, names)
    first = len(given) - 1
    logits = subject.logits(values["decoder.output"][first:])
    if params.kind is None:
        return [None] * len(ids), logits
    weights = values[names[1]][params.head, first:]  # steps S
    seen = [len(given) + step if params.kind == "decoder" else weights.shape[-1] for step in range(len(ids))]
    return [array(row[:count]) for row, count in zip(weights, seen, strict=True)], logits


def _steps(
    subject: Subject, found: GenerationOutput, logits: Tensor, settings: GenerationSettings, given: Sequence[int]
) -> list[dict[str, Any]]:
    filters = Filters(settings, logits.shape[-1], logits.device)
    texts, steps = subject.token_texts(found.ids), []
    for number, token in enumerate(found.ids):
        scores = logits[number : number + 1]
        distribution = scores[0].double().softmax(-1)
        # The share of the token after all filters, from which it was sampled.
        if filters.has_processors:
            scores = filters.process(scores, [[*given, *found.ids[:number]]], number)
        share = float(probs(filters.warp(scores))[0, token]) if settings.temperature else 1.0
        others = found.alternatives[number]
        names = subject.token_texts(other.token for other in others)
        steps.append(
            {
                "id": token,
                "text": texts[number],
                "special": token in subject.special,
                "prob": math.exp(found.log_probs[number]),
                "chosen_prob": share,
                "entropy": float(-torch.special.xlogy(distribution, distribution).sum()),
                "top": [
                    {"id": other.token, "text": name, "prob": math.exp(other.log_prob)}
                    for other, name in zip(others, names, strict=True)
                ],
                "ended": number == len(found.ids) - 1 and found.ended == "eos",
            }
        )
    return steps


def _named(subject: Subject, ids: Sequence[int]) -> list[dict[str, Any]]:
    return [{"id": token, "text": text} for token, text in zip(ids, subject.token_texts(ids), strict=True)]


# --- beams ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beams:
    """The sizes of a beam search."""

    input: Input = field(default_factory=Input)
    beam_size: int = 4
    max_new_tokens: int = 16
    length_penalty: float = 1.0


def beams(subject: Subject, params: Beams) -> dict[str, Any]:
    """Return a beam search as a tree of all continuations that were considered.

    Result: ``{"nodes": [{"id", "parent": id | null, "token", "text", "special", "logprob": under the model, "forced":
    whether it was no choice, "score": the sum that the search ranks by, of log-probabilities, in which forced tokens do
    not count, "step", "status": "kept" | "ended" | "dropped", "final": score / length^penalty | null, of ended texts,
    "rank": 1 for the last node of the best text, 2 …, | null, "winner": on the way of the best text}], "texts":
    [{"node", "text", "score": sum / length^penalty, "sum", "length": with forced tokens, "ended"}], the best first,
    "prompt": [{"id", "text"}], what was read before, "greedy": {"text", "sum", "final"}, the same of greedy search,
    "ended_early": before max_new_tokens}``.
    """
    if not 2 <= params.beam_size <= BEAMS:
        raise QueryError(f"beam_size must be from 2 to {BEAMS}, got {params.beam_size}.")
    check_length(params.max_new_tokens)
    if not abs(params.length_penalty) <= 10:
        raise QueryError(f"length_penalty must be from -10 to 10, got {params.length_penalty}.")
    # Beam search, and greedy search to compare with.
    plain = {"max_new_tokens": params.max_new_tokens, "temperature": 0.0}
    size = {"beam_size": params.beam_size, "top_beams": params.beam_size, "length_penalty": params.length_penalty}
    found, settings = subject.search(params.input, **plain, **size, record=True)
    ((greedy,), _) = subject.search(params.input, **plain, beam_size=1)
    record = found[0].record
    assert record is not None
    # The tree: every continuation, with the rank of the text that it ends.
    paths = [_path(output) for output in found]
    ranks = {path[-1]: rank for rank, path in enumerate(paths, start=1)}
    names = subject.token_texts(node.token for node in record.nodes)
    nodes = [
        {
            "id": number,
            "parent": node.parent,
            "token": node.token,
            "text": name,
            "special": node.token in subject.special,
            "logprob": node.log_prob,
            "forced": _is_forced(node.step, settings),
            "score": node.score,
            "step": node.step,
            "status": node.status,
            "final": penalised(node.score, node.step + 1, settings) if node.status == "ended" else None,
            "rank": ranks.get(number),
            "winner": number in paths[0],
        }
        for number, (node, name) in enumerate(zip(record.nodes, names, strict=True))
    ]
    total = sum(log for step, log in enumerate(greedy.log_probs) if not _is_forced(step, settings))
    return {
        "nodes": nodes,
        "texts": [_beam_text(subject, output, path[-1]) for output, path in zip(found, paths, strict=True)],
        "prompt": _named(subject, subject.prefix(params.input)),
        "greedy": {
            "text": subject.tokenizer.decode(greedy.ids, skip_special=True),
            "sum": total,
            "final": penalised(total, len(greedy.ids), settings),
        },
        "ended_early": max(node.step for node in record.nodes) + 1 < params.max_new_tokens,
    }


def _is_forced(step: int, settings: GenerationSettings) -> bool:
    """Whether the token of a step is no choice: the search then adds nothing to its sum."""
    if step == 0 and settings.forced_first is not None:
        return True
    return step == settings.max_new_tokens - 1 and settings.forced_last is not None


def _path(output: GenerationOutput) -> list[int]:
    """Return the nodes of a text, from its first token on."""
    assert output.record is not None
    by_place = {(node.parent, node.token): number for number, node in enumerate(output.record.nodes)}
    path: list[int] = []
    for token in output.ids:
        path.append(by_place[path[-1] if path else None, token])
    return path


def _beam_text(subject: Subject, output: GenerationOutput, node: int) -> dict[str, Any]:
    assert output.record is not None
    return {
        "node": node,
        "text": subject.tokenizer.decode(output.ids, skip_special=True),
        "score": output.score,
        "sum": output.record.nodes[node].score,
        "length": len(output.ids),
        "ended": output.ended,
    }


QUERIES = {"generate": (generate, Generate), "beams": (beams, Beams)}
