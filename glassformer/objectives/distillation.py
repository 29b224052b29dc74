"""Distillation: a student learns from a teacher (Hinton et al., 2015; three losses: Sanh et al., 2019, section 3).

* ``soft``: τ² · KL(teacher ‖ student) of the distributions at temperature τ, over all real tokens. The factor τ²
  cancels the factor 1 / τ² that the temperature puts on the gradients.
* the loss of the objective itself, under its own name.
* ``cosine``: 1 − cosine of the final hidden states of both, over all real tokens.

Shapes: ``B`` rows, ``T`` tokens, ``D`` model width, ``V`` vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer import hub
from glassformer.config import PretrainingHead
from glassformer.config.checks import check_positive_number
from glassformer.data.token_files import tokenizer_fingerprint
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer, unwrapped
from glassformer.nn.modes import Evaluating
from glassformer.nn.norm import upcast
from glassformer.objectives.base import Batch, Loss, LossTerm, final_hidden, token_cross_entropy
from glassformer.objectives.causal_lm import NEEDS as NEXT
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.job import RunContext
from glassformer.objectives.masked_lm import NEEDS as MASKED
from glassformer.objectives.masked_lm import MaskedLM
from glassformer.objectives.masking import MaskingJob, MaskingOptions, RowFill
from glassformer.weights.fingerprint import fingerprint


def soft_targets(
    student: Float[Tensor, "B T V"],
    teacher: Float[Tensor, "B T V"],
    token_mask: Bool[Tensor, "B T"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Σ τ² · KL(teacher ‖ student) at temperature τ, over real tokens."""
    log_probs, teacher_log_probs = ((upcast(logits) / temperature).log_softmax(-1) for logits in (student, teacher))
    each = F.kl_div(log_probs, teacher_log_probs, reduction="none", log_target=True).sum(-1)  # B T
    return each.where(token_mask, 0.0).sum() * temperature**2


def cosine_distance(
    student: Float[Tensor, "B T D"], teacher: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Σ 1 − cosine of the vectors of both, over real tokens."""
    each = 1 - F.cosine_similarity(upcast(student), upcast(teacher), dim=-1)
    return each.where(token_mask, 0.0).sum()


@dataclass(frozen=True, eq=False, kw_only=True)
class Distillation:
    """Train a student on the predictions of a teacher for the same batch.

    The teacher is in evaluation mode during the call, gets no gradients, and is moved to the student's device. Segments
    go to the teacher alone if the student has no segment embeddings.
    """

    objective: MaskedLM | NextToken
    teacher: Transformer
    temperature: float = 2.0
    soft: float = 5.0  # weights of the three losses, as in the authors' code
    hard: float = 2.0
    cosine: float = 1.0  # 0 if their widths differ

    def __post_init__(self) -> None:
        check_positive_number(temperature=self.temperature, soft=self.soft)
        if min(self.hard, self.cosine) < 0:
            raise ValueError(f"weights are at least 0; got hard={self.hard}, cosine={self.cosine}.")

    def prepare(self, examples: Sequence[Any], generator: torch.Generator) -> Batch:
        """Return the batch of the objective; ``soft`` and ``cosine`` count every real token."""
        batch = self.objective.prepare(examples, generator)
        more = ("soft", "cosine") if self.cosine else ("soft",)
        return replace(batch, counts={**batch.counts, **dict.fromkeys(more, batch.tokens)})

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return three terms: ``soft``, that of the objective, and ``cosine``."""
        student, requirement = unwrapped(model), MASKED if isinstance(self.objective, MaskedLM) else NEXT
        requirement.check(student)
        requirement.check(self.teacher)
        self._check_fit(student)
        device = next(student.parameters()).device
        if next(self.teacher.parameters()).device != device:
            self.teacher.to(device)
        # Hidden states and logits of both for the same batch.
        hidden, logits = _hidden_and_logits(student, batch.inputs)  # B T D, B T V
        with Evaluating(self.teacher), torch.no_grad():
            teacher_hidden, teacher_logits = _hidden_and_logits(self.teacher, batch.inputs)
        # The three terms, over labels or over all real tokens.
        ((name, labels),) = batch.labels.items()
        result = token_cross_entropy(logits, labels, getattr(self.objective, "smoothing", 0.0))
        ones = torch.ones_like(labels, dtype=torch.bool)
        token_mask = batch.inputs["mask"].bool() if "mask" in batch.inputs else ones
        terms = {
            "soft": LossTerm(
                soft_targets(logits, teacher_logits, token_mask, self.temperature), batch.tokens, self.soft
            ),
            name: LossTerm(result.total, batch.counts[name], self.hard),
        }
        if self.cosine:
            terms["cosine"] = LossTerm(cosine_distance(hidden, teacher_hidden, token_mask), batch.tokens, self.cosine)
        return Loss(terms, {"accuracy": (result.correct, batch.counts[name])})

    def _check_fit(self, student: Transformer) -> None:
        own, other = student.config, self.teacher.config
        if own.vocab != other.vocab:
            raise ValueError(
                f"student and teacher need the same vocabulary; they have {own.vocab} and {other.vocab} ids."
            )
        if self.cosine and own.width != other.width:
            raise ValueError(
                f"vectors of width {own.width} and {other.width} have no cosine; set cosine=0, or build the student "
                f"as wide as its teacher."
            )


def _hidden_and_logits(
    model: Transformer, inputs: Mapping[str, Tensor]
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T V"]]:
    """Return the final hidden states and the logits, from one pass."""
    known = {k: v for k, v in inputs.items() if k != "segments" or model.config.embed.segments}
    hidden = final_hidden(model, known)
    return hidden, model.apply_head(hidden)


@dataclass(frozen=True, kw_only=True)
class DistillationOptions:
    """The temperature and the weights of the three losses, and how tokens are masked."""

    temperature: float = 2.0
    soft: float = 5.0
    hard: float = 2.0
    cosine: float = 1.0
    start_from_teacher: bool = False  # copy its embeddings, its head and some of its layers
    masking: MaskingOptions = field(default_factory=MaskingOptions)
    rows: RowFill = "full"


class DistillationJob(MaskingJob):
    """Distil the masked language model ``model.teacher`` on plain text; there is no job for causal models."""

    head = "lm"
    options_type = DistillationOptions

    def check(self) -> None:
        """Raise unless there is a teacher, and at most one model to start from."""
        super().check()
        if self.recipe.model.start is not None and self.options.start_from_teacher:
            raise ValueError(
                "a student starts from model.start or (objective.start_from_teacher) from its teacher, not from both."
            )
        if self.recipe.model.teacher is None:
            raise ValueError(
                "the job distillation learns from a model: set model.teacher=FOLDER and tokenizer.load=FOLDER."
            )

    @cached_property
    def teacher(self) -> Loaded:
        """The teacher with its tokenizer; loaded once."""
        self.check()
        options = replace(self.recipe.model.load_options, fresh=())  # for students only: a teacher has all its weights
        teacher = hub.load(str(self.recipe.model.teacher), **options.options())
        teacher.model = without_pair_head(teacher.model).requires_grad_(False)
        return teacher

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of the teacher's weights."""
        return {"teacher": fingerprint(self.teacher.model)}

    def build(self, run: RunContext) -> nn.Module:
        """Return a new student, with weights of the teacher if the options say so."""
        student = Transformer(run.facts)
        if self.options.start_from_teacher:
            copy_teacher(student, self.teacher.model)
        return student

    def objective(self, run: RunContext) -> Distillation:
        """Return the objective: match the teacher's predictions and hidden states, and predict masked tokens."""
        self._check_tokenizer(run)
        options: DistillationOptions = self.options
        return Distillation(
            objective=MaskedLM(masking=options.masking.masking(run.tokenizer)),
            teacher=self.teacher.model,
            temperature=options.temperature,
            soft=options.soft,
            hard=options.hard,
            cosine=options.cosine,
        )

    def _check_tokenizer(self, run: RunContext) -> None:
        if tokenizer_fingerprint(self.teacher.tokenizer) != tokenizer_fingerprint(run.tokenizer):
            raise ValueError(
                f"student and teacher must read text by the same tokenizer; set "
                f"tokenizer.load={self.recipe.model.teacher} to take the teacher's."
            )


def without_pair_head(model: Transformer) -> Transformer:
    """Return the model itself, or, if it has a head for sentence pairs as well, the same without it."""
    head = model.config.head
    if not isinstance(head, PretrainingHead):
        return model
    plain = Transformer(replace(model.config, head=head.lm)).to(next(model.parameters()))
    weights = {name.replace("head.lm.", "head."): tensor for name, tensor in model.state_dict().items()}
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    return plain.eval()


def teacher_layers(student: int, teacher: int) -> list[int]:
    """Return the teacher's layer that each layer of the student is copied from: first, last, and evenly between.

    For 12 and 6 layers these are 0, 2, 4, 7, 9 and 11, as in the authors' code.
    """
    if student > teacher:
        raise ValueError(
            f"a student of {student} layers cannot start from a teacher of {teacher}; it has to be smaller."
        )
    return [0] if student == 1 else [round(n * (teacher - 1) / (student - 1)) for n in range(student)]


@torch.no_grad()
def copy_teacher(student: Transformer, teacher: Transformer) -> None:
    """Copy the teacher's embeddings, head and ``teacher_layers`` into the student.

    Every weight of the student must have a counterpart of the same shape; weights that only the teacher has, such as
    segment embeddings, are left out.
    """
    own, other = student.config.encoder, teacher.config.encoder
    if own is None or other is None:
        raise ValueError("a student starts from the layers of its teacher's encoder; one of the two has none.")
    layers = teacher_layers(own.layers, other.layers)
    teacher_weights = teacher.state_dict()
    for name, weight in student.state_dict().items():
        # The layer of the teacher that this layer of the student starts from.
        source = name
        if name.startswith("encoder.blocks."):
            first, second, number, rest = name.split(".", 3)
            source = f"{first}.{second}.{layers[int(number)]}.{rest}"
        if source not in teacher_weights or teacher_weights[source].shape != weight.shape:
            has = f"of shape {tuple(teacher_weights[source].shape)}" if source in teacher_weights else "missing"
            raise ValueError(
                f"the student's {name} is of shape {tuple(weight.shape)}, and the teacher's {source} is {has}; build "
                f"the student as wide as its teacher, with the same parts, or set objective.start_from_teacher=false."
            )
        weight.copy_(teacher_weights[source])
