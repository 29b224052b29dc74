"""Labels for whole texts or pairs of texts, with probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glassformer.config import TaskHead
from glassformer.generation.prompts import Side, check_texts
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.nn.norm import upcast
from glassformer.tasks.batches import Batch, Progress, ask_in_batches, vectors
from glassformer.tasks.texts import Framed, Pair, check_head, check_text_or_pair, fit, frame
from glassformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Label:
    """One label of a text."""

    name: str
    score: float  # as the head gives it, before any softmax
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
        several: several labels, or none, may be right: each has a probability of its own (sigmoid). Otherwise exactly
            one is right, and the probabilities add up to 1 (softmax).
        truncate: the side on which to cut texts that are too long, of a pair the longer first; unless given, an error.
        batch_size: texts at a time.
        progress: called with how many are done, and of how many.
    """
    check_texts(loaded, texts, check_text_or_pair)
    model = loaded.model
    check_head(model.config, ("classify", "pair"), "classify")
    head = model.config.head
    assert isinstance(head, TaskHead)
    if len(head.labels) == 1 and not several:
        raise ValueError(
            f"the only label, {head.labels[0]!r}, would always have probability 1. Say several=True for yes or no; "
            f"a head that predicts a number gives it as the label's score."
        )
    framed = [_frame(loaded.tokenizer, given, number, head.task) for number, given in enumerate(texts)]
    rows = [fit(one, model.config.longest, truncate).row for one in framed]

    def ask(model: Transformer, batch: Batch) -> list[tuple[Label, ...]]:
        hidden, mask = vectors(model, batch)
        scores = upcast(model.apply_head(hidden, mask))
        probs = scores.sigmoid() if several else scores.softmax(-1)
        return [_labels(head.labels, *row) for row in torch.stack((scores, probs), 1).tolist()]

    found = ask_in_batches(model, rows, ask, batch_size, progress)
    both = [(given, None) if isinstance(given, str) else given for given in texts]
    return [Classified(text, pair, labels) for (text, pair), labels in zip(both, found, strict=True)]


def _frame(tokenizer: Tokenizer, given: str | Pair, number: int, task: str) -> Framed:
    name = f"text {number}"
    if not isinstance(given, str):
        first, second = given
        return frame(tokenizer, first, second, name=name)
    if task == "pair":
        raise ValueError(f"this model judges pairs of texts, and {name} is a single one: give (text, text).")
    return frame(tokenizer, given, name=name)


def _labels(names: Sequence[str], scores: Sequence[float], probs: Sequence[float]) -> tuple[Label, ...]:
    labels = [Label(*one) for one in zip(names, scores, probs, strict=True)]
    return tuple(sorted(labels, key=lambda label: -label.score))
