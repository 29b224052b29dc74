"""A small model learns from a large one that was trained before (Sanh et al., 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from glassformer import hub
from glassformer.config import PretrainingHead
from glassformer.data.objectives import Batch, Distillation, Loss, Masked
from glassformer.data.token_files import tokenizer_fingerprint
from glassformer.hub import Loaded
from glassformer.models.transformer import Transformer
from glassformer.training.adapters import fingerprint
from glassformer.training.jobs.base import RunContext
from glassformer.training.jobs.hiding import Filled, Hiding
from glassformer.training.jobs.masked import HiddenWords


@dataclass(frozen=True, kw_only=True)
class DistilledOptions:
    """What the three losses weigh (see ``data.objectives.distillation``), and how words are hidden."""

    temperature: float = 2.0
    soft: float = 5.0
    hard: float = 2.0
    cosine: float = 1.0
    start_from_teacher: bool = False  # with its embeddings, its head and some of its layers
    masking: Hiding = field(default_factory=Hiding)
    rows: Filled = "full"


@dataclass(frozen=True, eq=False)
class Taught:
    """Distillation whose teacher follows the student to its device."""

    inner: Distillation

    def prepare(self, examples: Sequence[Any], generator: torch.Generator) -> Batch:
        """The batch of the inner objective."""
        return self.inner.prepare(examples, generator)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The terms of the inner objective."""
        device = next(model.parameters()).device
        if next(self.inner.teacher.parameters()).device != device:
            self.inner.teacher.to(device)
        return self.inner.loss(model, batch)


class Distilled(HiddenWords):
    """Hidden words of plain text, learned from the text and from a teacher, which ``model.teacher`` names."""

    head = "lm"
    options_type = DistilledOptions

    def check(self) -> None:
        """Raise unless there is a teacher, and one model to start from at most."""
        super().check()
        if self.recipe.model.start is not None and self.options.start_from_teacher:
            raise ValueError(
                "a student starts from model.start or (objective.start_from_teacher) from its teacher, not from both."
            )
        if self.recipe.model.teacher is None:
            raise ValueError(
                "the job distillation learns from a model: say model.teacher=FOLDER and tokenizer.load=FOLDER."
            )

    @cached_property
    def teacher(self) -> Loaded:
        """The teacher with its tokenizer; read once."""
        self.check()
        options = replace(self.recipe.model.load_options, fresh=())  # of a student: a teacher has all its weights
        found = hub.load(str(self.recipe.model.teacher), **options.options())
        found.model = guessing(found.model).requires_grad_(False)
        return found

    def identity(self) -> dict[str, Any]:
        """The teacher's weights."""
        return {"teacher": fingerprint(self.teacher.model)}

    def build(self, kit: RunContext) -> nn.Module:
        """A new student, with weights of the teacher if it starts from them."""
        student = Transformer(kit.facts)
        if self.options.start_from_teacher:
            start_from(student, self.teacher.model)
        return student

    def objective(self, kit: RunContext) -> Taught:
        """What the teacher says, the hidden words, and the teacher's last vectors."""
        self._check_tokenizer(kit)
        options: DistilledOptions = self.options
        return Taught(
            Distillation(
                objective=Masked(masking=options.masking.masking(kit.tokenizer)),
                teacher=self.teacher.model,
                temperature=options.temperature,
                soft=options.soft,
                hard=options.hard,
                cosine=options.cosine,
            )
        )

    def _check_tokenizer(self, kit: RunContext) -> None:
        if tokenizer_fingerprint(self.teacher.tokenizer) != tokenizer_fingerprint(kit.tokenizer):
            raise ValueError(
                f"student and teacher must read text by the same tokenizer; say "
                f"tokenizer.load={self.recipe.model.teacher} to take the teacher's."
            )


def guessing(model: Transformer) -> Transformer:
    """The model itself, or, if it judges pairs of sentences besides, the same without that."""
    head = model.config.head
    if not isinstance(head, PretrainingHead):
        return model
    plain = Transformer(replace(model.config, head=head.lm)).to(next(model.parameters()))
    weights = {name.replace("head.lm.", "head."): tensor for name, tensor in model.state_dict().items()}
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    return plain.eval()


def chosen_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layer that each layer of the student starts as, from the first to the last at equal distances.

    Of 12 for 6 that is 0, 2, 4, 7, 9 and 11, as in the paper's program.
    """
    if student > teacher:
        raise ValueError(
            f"a student of {student} layers cannot start from a teacher of {teacher}; it has to be smaller."
        )
    return [0] if student == 1 else [round(n * (teacher - 1) / (student - 1)) for n in range(student)]


@torch.no_grad()
def start_from(student: Transformer, teacher: Transformer) -> None:
    """Copy the teacher's embeddings, head and chosen layers; what the student does not have, segments say, is left."""
    mine, theirs = student.config.encoder, teacher.config.encoder
    if mine is None or theirs is None:
        raise ValueError("a student starts from the layers of its teacher's encoder; one of the two has none.")
    layers = chosen_layers(mine.layers, theirs.layers)
    known = teacher.state_dict()
    for name, weight in student.state_dict().items():
        source = name
        if name.startswith("encoder.blocks."):
            first, second, number, rest = name.split(".", 3)
            source = f"{first}.{second}.{layers[int(number)]}.{rest}"
        if source not in known or known[source].shape != weight.shape:
            has = f"of shape {tuple(known[source].shape)}" if source in known else "missing"
            raise ValueError(
                f"the student's {name} is of shape {tuple(weight.shape)}, and the teacher's {source} is {has}; build "
                f"it as wide as its teacher and with the same parts, or set objective.start_from_teacher=false."
            )
        weight.copy_(known[source])
