"""Labels of whole texts and of words (Devlin et al., 2018, section 4).

Padding never takes part: a text has the same scores and the same loss with padding on either side or none.

Shapes: ``B`` rows, ``T`` tokens, ``C`` labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from glassformer.config import TaskHead
from glassformer.config.checks import check_choice, check_probability
from glassformer.data.objectives.base import IGNORE, Batch, Loss, Term
from glassformer.data.objectives.cross_entropy import token_cross_entropy
from glassformer.data.objectives.model_io import ModelRequirement
from glassformer.data.objectives.rows import Ids, Padding, Text, as_ids, as_text
from glassformer.models.transformer import unwrapped
from glassformer.nn.norm import upcast

CLASSIFIES = ModelRequirement("Classify", TaskHead, ("classify", "pair"))
TAGS = ModelRequirement("Tag", TaskHead, ("tag",))


def ask_head(model: nn.Module, inputs: dict[str, Tensor]) -> Any:
    """What the head says of texts; an encoder-decoder's decoder reads the same text, behind its start token."""
    facts = unwrapped(model).config
    if facts.family != "encoder-decoder":
        return model(**inputs)
    if facts.tokens.start is None:
        raise ValueError("the facts of this model do not say its decoder's start token; set tokens.start.")
    ids = inputs["ids"]
    mask = inputs.get("mask", torch.ones_like(ids, dtype=torch.bool))
    return model(**inputs, target=_behind(ids, mask, facts.tokens.start), target_mask=mask)


def _behind(ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], start: int) -> Int[Tensor, "B T"]:
    """The real tokens of each row moved right by one, a start token before them, whatever the side of the padding."""
    before = mask.roll(1, -1)
    before[:, 0] = False
    return ids.roll(1, -1).where(before, start)


@dataclass(frozen=True, eq=False)
class Labelled:
    """A framed text and its label: the number of a class, a yes (1) or no (0) for each of several, or a number."""

    text: Ids | Text
    label: int | float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Classify:
    """The label of a text.

    ``kind`` says what labels are: ``one`` of several classes (cross-entropy over the rows), ``several`` of them or none
    (binary cross-entropy over rows · classes), or a ``number`` (squared error over the rows, from a head of one label).
    """

    kind: Literal["one", "several", "number"] = "one"
    smoothing: float = 0.0  # of ``one``
    padding: Padding = field(default_factory=Padding)

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("one", "several", "number"))
        check_probability(smoothing=self.smoothing)

    def prepare(self, examples: Sequence[Labelled], generator: torch.Generator) -> Batch:
        """Framed texts with labels; nothing is drawn."""
        del generator
        texts = [as_text(example.text) for example in examples]
        inputs = self.padding.inputs(texts)
        labels = torch.tensor([example.label for example in examples])
        if labels.ndim != (2 if self.kind == "several" else 1) or (self.kind == "one" and labels.is_floating_point()):
            wanted = {"one": "whole numbers", "several": "lists of 0 and 1", "number": "numbers"}[self.kind]
            raise ValueError(f"labels of kind {self.kind!r} are {wanted}; got {[e.label for e in examples[:3]]} …")
        return Batch(
            inputs=inputs,
            labels={"label": labels},
            counts={"label": labels.numel()},
            tokens=sum(len(text.ids) for text in texts),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``label``."""
        CLASSIFIES.check(model)
        scores, labels, count = ask_head(model, batch.inputs), batch.labels["label"], batch.counts["label"]
        if self.kind == "one":
            judged = token_cross_entropy(scores, labels, self.smoothing)
            return Loss({"label": Term(judged.total, count)}, {"accuracy": (judged.right, count)})
        scores = upcast(scores if self.kind == "several" else scores.squeeze(-1))
        if scores.shape != labels.shape:
            raise ValueError(
                f"the head gives scores of shape {tuple(scores.shape)} for labels of shape {tuple(labels.shape)}; a "
                f"head needs as many labels as a text has numbers."
            )
        wanted = labels.to(scores.dtype)
        if self.kind == "number":
            return Loss({"label": Term(F.mse_loss(scores, wanted, reduction="sum"), count)})
        total = F.binary_cross_entropy_with_logits(scores, wanted, reduction="sum")
        return Loss({"label": Term(total, count)}, {"accuracy": (((scores > 0) == (wanted > 0.5)).sum(), count)})


@dataclass(frozen=True, eq=False)
class TaggedWords:
    """A framed text with ``words`` (the number of each token's word, −1 in the frame), and a label for each word."""

    text: Text
    tags: Sequence[int]


def first_token_labels(words: Int[Tensor, "T"], tags: Int[Tensor, "_"]) -> Int[Tensor, "T"]:
    """The label of a word at its first token; its other tokens and those of the frame are not judged."""
    if len(words) and int(words.max()) >= len(tags):
        raise ValueError(f"there is a word {int(words.max())} (counted from 0), and labels for {len(tags)} words.")
    before = torch.cat((torch.tensor([-1]), words[:-1]))
    speaks = (words >= 0) & (words != before)
    return tags[words.clamp(min=0)].where(speaks, IGNORE) if len(tags) else torch.full_like(words, IGNORE)


@dataclass(frozen=True, kw_only=True)
class Tag:
    """The label of each word, said by its first token."""

    padding: Padding = field(default_factory=Padding)

    def prepare(self, examples: Sequence[TaggedWords], generator: torch.Generator) -> Batch:
        """Framed texts with a label per word; nothing is drawn."""
        del generator
        rows = []
        for number, example in enumerate(examples):
            if example.text.words is None:
                raise ValueError(f"example {number} does not say which tokens make a word: text.words is None.")
            rows.append(first_token_labels(as_ids(example.text.words), as_ids(example.tags)))
        labels = self.padding.labels(rows)
        count = int((labels != IGNORE).sum())
        tokens = sum(len(example.text.ids) for example in examples)
        inputs = self.padding.inputs([example.text for example in examples])
        return Batch(inputs=inputs, labels={"tag": labels}, counts={"tag": count}, tokens=tokens)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``tag``, over the words."""
        TAGS.check(model)
        judged = token_cross_entropy(ask_head(model, batch.inputs), batch.labels["tag"])
        count = batch.counts["tag"]
        return Loss({"tag": Term(judged.total, count)}, {"accuracy": (judged.right, count)})
