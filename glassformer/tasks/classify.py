"""Labels for whole texts or pairs of texts, with probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glassformer.config import TaskHead
from glassformer.generation.prompts import check_texts
from glassformer.generation.settings import Side
from glassformer.hub import Loaded
from glassformer.loaded import check_ability
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, head_input, run_in_batches
from glassformer.tasks.texts import Framed, Pair, check_text_or_pair, fit, frame
from glassformer.text.tokenizer import Tokenizer


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


def classify(
    loaded: Loaded,
    texts: Sequence[str | Pair],
    *,
    several: bool = False,
    truncate: Side | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> list[Classified]:
    """The labels of texts, or of pairs of texts, in their order.

    Args:
        loaded: a model with a head of the kind classify or pair, and its tokenizer.
        texts: texts or pairs (text, text).
        several: any number of labels may be right: each has a probability of its own (sigmoid). Otherwise exactly one
            is right, and the probabilities add up to 1 (softmax).
        truncate: the side on which to cut texts that are too long, of a pair the longer first; None: an error.
        batch_size: texts per batch.
        progress: called with the number done and the total.
    """
    check_texts(loaded, texts, check_text_or_pair)
    model = loaded.model
    check_ability(model.config, "classify")
    head = model.config.head
    assert isinstance(head, TaskHead)
    if len(head.labels) == 1 and not several:
        raise ValueError(
            f"the only label, {head.labels[0]!r}, would always have probability 1. Set several=True for yes or no; "
            f"the output of a regression head is the label's score."
        )
    framed = [_frame(loaded.tokenizer, text, number, head.task) for number, text in enumerate(texts)]
    rows = [fit(text, model.config.longest, truncate).row for text in framed]

    def run(model: Transformer, batch: Batch) -> list[tuple[Label, ...]]:
        hidden, mask = head_input(model, batch)  # (B, T, D)
        scores = upcast(model.apply_head(hidden, mask))  # (B, labels)
        probs = scores.sigmoid() if several else scores.softmax(-1)
        return [_labels(head.labels, *row) for row in torch.stack((scores, probs), 1).tolist()]

    labels_of_each = run_in_batches(model, rows, run, batch_size, progress)
    pairs = [(text, None) if isinstance(text, str) else text for text in texts]
    return [Classified(text, pair, labels) for (text, pair), labels in zip(pairs, labels_of_each, strict=True)]


def _frame(tokenizer: Tokenizer, text: str | Pair, number: int, task: str) -> Framed:
    name = f"text {number}"
    if not isinstance(text, str):
        first, second = text
        return frame(tokenizer, first, second, name=name)
    if task == "pair":
        raise ValueError(f"this model classifies pairs of texts, and {name} is a single text: pass (text, text).")
    return frame(tokenizer, text, name=name)


def _labels(names: Sequence[str], scores: Sequence[float], probs: Sequence[float]) -> tuple[Label, ...]:
    labels = [Label(*label) for label in zip(names, scores, probs, strict=True)]
    return tuple(sorted(labels, key=lambda label: -label.score))
