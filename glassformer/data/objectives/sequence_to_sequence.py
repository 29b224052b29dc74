"""From one text to another (Sutskever et al., 2014), for an encoder-decoder whose decoder sees the right text so far.

Its input is the target shifted right by one, behind a start token; its labels are the target itself. That is the one
place where they are shifted.

Languages (Fan et al., 2020): ``with_languages`` puts the token of the source's language before it, and that of the
target's language where the decoder writes it first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from glassformer.config import LMHead
from glassformer.config.checks import check_probability
from glassformer.data.objectives.base import Batch, Loss, Term
from glassformer.data.objectives.model_io import ModelRequirement, ask_tokens
from glassformer.data.objectives.rows import Ids, Padding, Text, as_ids

NEEDS = ModelRequirement("SequenceToSequence", LMHead, families=("encoder-decoder",))


@dataclass(frozen=True, eq=False)
class SourceTarget:
    """What the encoder reads and what the decoder is to write, both framed, the target up to and with its EOS."""

    source: Ids
    target: Ids
    start: int | None = None  # the decoder's first input, where it is not that of the objective: a language, say


def with_languages(
    source: Ids, target: Ids, *, source_language: int, target_language: int, eos: int, start: int | None = None
) -> SourceTarget:
    """Both texts between the token of their language and EOS: ``Languages.resolve`` has the tokens."""
    end = torch.tensor([eos])
    read = torch.cat((torch.tensor([source_language]), as_ids(source), end))
    return SourceTarget(read, torch.cat((torch.tensor([target_language]), as_ids(target), end)), start)


def shift_right(targets: Int[Tensor, "B U"], real: Bool[Tensor, "B U"], starts: Int[Tensor, "B"]) -> Int[Tensor, "B U"]:
    """What the decoder reads while it writes ``targets``: its start token and all but the last real one of each row."""
    first = real & (real.cumsum(-1) == 1)
    return starts[:, None].where(first, targets.roll(1, -1))


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence:
    """Cross-entropy of every token of the target, with label smoothing (0.1 in Vaswani et al., 2017, section 5.4)."""

    start: int  # the decoder's first input; config.tokens.start of the model
    smoothing: float = 0.0
    padding: Padding = field(default_factory=Padding)
    chunk: int | None = None  # judge so many places at a time, for a large vocabulary; None: all at once

    def __post_init__(self) -> None:
        check_probability(smoothing=self.smoothing)

    def prepare(self, examples: Sequence[SourceTarget], generator: torch.Generator) -> Batch:
        """Pairs of texts; nothing is drawn."""
        del generator
        targets = [as_ids(example.target) for example in examples]
        if not all(map(len, targets)):
            raise ValueError(
                "a target has no tokens, not even EOS, so there is nothing to learn from it; leave it out."
            )
        starts = [self.start if example.start is None else example.start for example in examples]
        inputs = self.padding.inputs([Text(example.source) for example in examples])
        labels, real = self.padding.labels(targets), self.padding.mask(targets)
        inputs["target"] = shift_right(labels, real, torch.tensor(starts)).where(real, self.padding.fill)
        if not bool(real.all()):
            inputs["target_mask"] = real
        count = int(real.sum())
        return Batch(
            inputs=inputs,
            labels={"target": labels},
            counts={"target": count},
            tokens=sum(len(example.source) for example in examples) + count,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """One term, ``target``."""
        NEEDS.check(model)
        judged = ask_tokens(model, batch.inputs, batch.labels["target"], smoothing=self.smoothing, chunk=self.chunk)
        count = batch.counts["target"]
        return Loss({"target": Term(judged.total, count)}, {"accuracy": (judged.right, count)})
