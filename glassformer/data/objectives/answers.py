"""Where in a text the answer to a question starts and ends (Devlin et al., 2018, sections 4.2 and 4.3).

A question without an answer has the first token of its row as both. Padding takes no part in the softmax over places.

Shapes: ``B`` rows, ``T`` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from glassformer.config import TaskHead
from glassformer.data.objectives.base import Batch, Loss, Term
from glassformer.data.objectives.cross_entropy import token_cross_entropy
from glassformer.data.objectives.labels import ask_head
from glassformer.data.objectives.model_io import ModelRequirement
from glassformer.data.objectives.rows import Ids, Padding, Text, as_text
from glassformer.nn.norm import upcast

NEEDS = ModelRequirement("Answer", TaskHead, ("span",))


@dataclass(frozen=True, eq=False)
class Question:
    """A framed question with its context; the answer is the tokens from the first to the last of these places."""

    text: Ids | Text
    answer: tuple[int, int] | None  # None: the context holds none

    def __post_init__(self) -> None:
        length = len(self.text.ids if isinstance(self.text, Text) else self.text)
        if self.answer is not None and not 0 <= self.answer[0] <= self.answer[1] < length:
            raise ValueError(
                f"an answer from token {self.answer[0]} to {self.answer[1]} does not lie in {length} tokens."
            )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Half the cross-entropy of the first token of the answer, and half that of its last."""

    padding: Padding = field(default_factory=Padding)

    def prepare(self, examples: Sequence[Question], generator: torch.Generator) -> Batch:
        """Framed questions with the places of their answers; nothing is drawn."""
        del generator
        texts = [as_text(example.text) for example in examples]
        inputs = self.padding.inputs(texts)
        width = inputs["ids"].shape[-1]
        skipped = torch.tensor([width - len(text.ids) if self.padding.side == "left" else 0 for text in texts])
        places = torch.tensor([example.answer or (0, 0) for example in examples]) + skipped[:, None]  # B 2
        return Batch(
            inputs=inputs,
            labels={"start": places[:, 0], "end": places[:, 1]},
            counts={"start": len(texts), "end": len(texts)},
            tokens=sum(len(text.ids) for text in texts),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Two terms, ``start`` and ``end``, over the rows."""
        NEEDS.check(model)
        scores = upcast(ask_head(model, batch.inputs))  # B T 2
        if (mask := batch.inputs.get("mask")) is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        count = batch.counts["start"]
        ends = dict(zip(("start", "end"), scores.unbind(-1), strict=True))
        terms = {
            name: Term(token_cross_entropy(some, batch.labels[name]).total, count, 0.5) for name, some in ends.items()
        }
        both = [some.argmax(-1) == batch.labels[name] for name, some in ends.items()]
        return Loss(terms, {"exact": ((both[0] & both[1]).sum(), count)})
