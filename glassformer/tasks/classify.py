"""Labels for whole texts or pairs of texts, with probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch

from glassformer.config import TaskHead
from glassformer.config.checks import Item, Setting, SettingError
from glassformer.generation.prompts import check_can, check_texts
from glassformer.generation.settings import Side
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import (
    Pair,
    Progress,
    TaskBatch,
    all_text_tokens,
    batch_tokens,
    check_text_or_pair,
    fit,
    head_input,
    run_in_batches,
)


@dataclass(frozen=True)
class Label:
    """One label of a text."""

    name: str
    score: float  # the logit
    probability: float


@dataclass(frozen=True)
class Classified:
    """A text with all labels, the most probable first."""

    text: str
    pair: str | None
    labels: tuple[Label, ...]


@overload
def classify(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
    loaded: Loaded,
    texts: str,
    *,
    multi_label: bool = False,
    truncate: Side | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Classified: ...


@overload
def classify(
    loaded: Loaded,
    texts: Sequence[str | Pair],
    *,
    multi_label: bool = False,
    truncate: Side | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Classified]: ...


def classify(
    loaded: Loaded,
    texts: str | Sequence[str | Pair],
    *,
    multi_label: bool = False,
    truncate: Side | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Classified | list[Classified]:
    """Return the labels of a text, or of a list of texts or pairs of texts in their order.

    Args:
        loaded: a model with a head of the kind classify or pair, and its tokenizer.
        texts: one text, which gives one result, or a list of texts or pairs (text, text).
        multi_label: any number of labels may apply, each with a probability of its own (sigmoid). Otherwise exactly one
            applies, and the probabilities add up to 1 (softmax).
        truncate: the side on which to cut texts that are too long, of a pair the longer first; None: an error.
        batch_size: texts per batch; None: by their tokens, see ``tasks.batches``.
        progress: called with the number done and the total.
    """
    check_can(loaded, "classify")
    if isinstance(texts, str):
        return classify(
            loaded, [texts], multi_label=multi_label, truncate=truncate, batch_size=batch_size, progress=progress
        )[0]
    check_texts(loaded, texts, check_text_or_pair)
    model = loaded.model
    head = model.config.head
    assert isinstance(head, TaskHead)
    if len(head.labels) == 1 and not multi_label:
        raise SettingError(
            "the only label, {}, would always have probability 1. Set {} for yes or no; "
            "the output of a regression head is the label's score.",
            repr(head.labels[0]),
            Setting("multi_label", True),
        )
    # Tokens of the texts, truncated if allowed.
    for number, text in enumerate(texts):
        if head.task == "pair" and isinstance(text, str):
            template = "this model classifies pairs of texts, and {} is a single text: pass (text, text)."
            raise SettingError(template, Item("text", number))
    encoded = all_text_tokens(loaded.tokenizer, texts)
    rows = [fit(text, model.config.max_length, truncate).row for text in encoded]

    def run(model: Transformer, batch: TaskBatch) -> list[tuple[Label, ...]]:
        hidden, mask = head_input(model, batch)  # (B, T, D)
        scores = upcast(model.apply_head(hidden, mask))  # (B, labels)
        probs = scores.sigmoid() if multi_label else scores.softmax(-1)
        return [_labels(head.labels, *row) for row in torch.stack((scores, probs), 1).tolist()]

    labels_of_each = run_in_batches(model, rows, run, batch_size, progress, tokens=batch_tokens(model))
    pairs = [(text, None) if isinstance(text, str) else text for text in texts]
    return [Classified(text, pair, labels) for (text, pair), labels in zip(pairs, labels_of_each, strict=True)]


def _labels(names: Sequence[str], scores: Sequence[float], probs: Sequence[float]) -> tuple[Label, ...]:
    labels = [Label(*label) for label in zip(names, scores, probs, strict=True)]
    return tuple(sorted(labels, key=lambda label: -label.score))
