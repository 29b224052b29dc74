"""A student learns from a teacher (Hinton et al., 2015; three losses: Sanh et al., 2019, section 3).

* ``soft``: T² · KL(teacher ‖ student) of the distributions at temperature T, over all real tokens. The factor T² keeps
  its gradients comparable to the others', which temperature makes smaller by as much.
* the loss of the objective itself, under its own name.
* ``cosine``: 1 − cosine of the last vectors of both, over all real tokens.

Shapes: ``B`` rows, ``T`` tokens, ``D`` model width, ``V`` vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.config.checks import check_number
from glassformer.data.objectives.base import Batch, Loss, Term
from glassformer.data.objectives.cross_entropy import token_cross_entropy
from glassformer.data.objectives.masked import NEEDS as MASKED
from glassformer.data.objectives.masked import Masked
from glassformer.data.objectives.model_io import vectors
from glassformer.data.objectives.next_token import NEEDS as NEXT
from glassformer.data.objectives.next_token import NextToken
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.nn.modes import Evaluating
from glassformer.nn.norm import upcast


def soft_targets(
    student: Float[Tensor, "B T V"], teacher: Float[Tensor, "B T V"], real: Bool[Tensor, "B T"], temperature: float
) -> Float[Tensor, ""]:
    """Σ T² · KL(teacher ‖ student) at temperature T, over real tokens."""
    mine, theirs = ((upcast(logits) / temperature).log_softmax(-1) for logits in (student, teacher))
    each = F.kl_div(mine, theirs, reduction="none", log_target=True).sum(-1)  # B T
    return each.where(real, 0.0).sum() * temperature**2


def cosine_distance(
    student: Float[Tensor, "B T D"], teacher: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Σ 1 − cosine of the vectors of both, over real tokens."""
    each = 1 - F.cosine_similarity(upcast(student), upcast(teacher), dim=-1)
    return each.where(real, 0.0).sum()


@dataclass(frozen=True, eq=False, kw_only=True)
class Distillation:
    """Train a student on what a teacher says of the same batch.

    The teacher is in evaluation mode during the call, gets no gradients, and has to be on the student's device.
    Segments that the student has no vectors for are shown to the teacher alone.
    """

    objective: Masked | NextToken
    teacher: Transformer
    temperature: float = 2.0
    soft: float = 5.0  # weights of the three, as in the paper's program
    hard: float = 2.0
    cosine: float = 1.0  # 0: vectors of another width cannot be compared

    def __post_init__(self) -> None:
        check_number(temperature=self.temperature, soft=self.soft)
        if min(self.hard, self.cosine) < 0:
            raise ValueError(f"weights are at least 0; got hard={self.hard}, cosine={self.cosine}.")

    def prepare(self, examples: Sequence[Any], generator: torch.Generator) -> Batch:
        """The batch of the objective; every real token counts for what is learned from the teacher."""
        batch = self.objective.prepare(examples, generator)
        more = ("soft", "cosine") if self.cosine else ("soft",)
        return replace(batch, counts=batch.counts | dict.fromkeys(more, batch.tokens))

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Three terms: ``soft``, that of the objective, and ``cosine``."""
        student, needs = unwrapped(model), MASKED if isinstance(self.objective, Masked) else NEXT
        needs.check(student)
        needs.check(self.teacher)
        self._check_fit(student)
        hidden, logits = _think(student, batch.inputs)
        with Evaluating(self.teacher), torch.no_grad():
            their_hidden, their_logits = _think(self.teacher, batch.inputs)
        ((name, labels),) = batch.labels.items()
        judged = token_cross_entropy(logits, labels, getattr(self.objective, "smoothing", 0.0))
        real = batch.inputs["mask"].bool() if "mask" in batch.inputs else torch.ones_like(labels, dtype=torch.bool)
        terms = {
            "soft": Term(soft_targets(logits, their_logits, real, self.temperature), batch.tokens, self.soft),
            name: Term(judged.total, batch.counts[name], self.hard),
        }
        if self.cosine:
            terms["cosine"] = Term(cosine_distance(hidden, their_hidden, real), batch.tokens, self.cosine)
        return Loss(terms, {"accuracy": (judged.right, batch.counts[name])})

    def _check_fit(self, student: Transformer) -> None:
        mine, theirs = student.config, self.teacher.config
        if mine.vocab != theirs.vocab:
            raise ValueError(
                f"student and teacher need one vocabulary; theirs have {mine.vocab} and {theirs.vocab} ids."
            )
        if self.cosine and mine.width != theirs.width:
            raise ValueError(
                f"vectors of width {mine.width} and {theirs.width} have no cosine; set cosine=0, or build the student "
                f"as wide as its teacher."
            )


def _think(model: Transformer, inputs: Mapping[str, Tensor]) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T V"]]:
    """The last vectors and the logits, from one pass."""
    known = {k: v for k, v in inputs.items() if k != "segments" or model.config.embed.segments}
    hidden = vectors(model, known)
    return hidden, model.apply_head(hidden)
