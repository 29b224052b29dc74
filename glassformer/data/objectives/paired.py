"""Masked words and a question about two sentences, from one pass (Devlin et al., 2018; Lan et al., 2019).

The pairs are made by ``sentences``, once per pass over a corpus; words are hidden anew for every batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from glassformer.config import PretrainingHead
from glassformer.data.objectives.base import Batch, Loss, Term
from glassformer.data.objectives.cross_entropy import token_cross_entropy
from glassformer.data.objectives.masked import hide_words
from glassformer.data.objectives.masking import Masking
from glassformer.data.objectives.model_io import ModelRequirement
from glassformer.data.objectives.rows import Padding, Text
from glassformer.data.objectives.sentences import SentencePair

NEEDS = ModelRequirement("MaskedPairs", PretrainingHead, families=("encoder",))


def frame_pair(pair: SentencePair, cls: int, sep: int) -> Text:
    """``[CLS] first [SEP] second [SEP]``; the second part and the token after it are of segment 1."""
    first, second = [cls, *pair.first, sep], [*pair.second, sep]
    return Text(first + second, segments=[0] * len(first) + [1] * len(second))


@dataclass(frozen=True, kw_only=True)
class MaskedPairs:
    """Mean cross-entropy of hidden words plus mean cross-entropy of the pairs' labels."""

    masking: Masking
    cls: int
    sep: int
    padding: Padding = field(default_factory=Padding)

    def prepare(self, examples: Sequence[SentencePair], generator: torch.Generator) -> Batch:
        """Pairs of text, framed, in which words are hidden anew at every call."""
        texts = [frame_pair(pair, self.cls, self.sep) for pair in examples]
        batch = hide_words(texts, self.masking, generator, self.padding)
        labels = torch.tensor([pair.label for pair in examples])
        return replace(batch, labels=batch.labels | {"pair": labels}, counts=batch.counts | {"pair": len(labels)})

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Two terms, ``masked`` over the hidden words and ``pair`` over the rows."""
        NEEDS.check(model)
        answers = dict(zip(("masked", "pair"), model(**batch.inputs), strict=True))
        judged = {name: token_cross_entropy(scores, batch.labels[name]) for name, scores in answers.items()}
        terms = {name: Term(one.total, batch.counts[name]) for name, one in judged.items()}
        return Loss(terms, {f"{name} accuracy": (one.right, batch.counts[name]) for name, one in judged.items()})
