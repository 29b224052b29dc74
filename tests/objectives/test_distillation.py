"""A student and its teacher: the three losses, by hand and by the formulas that the paper's program uses."""

import math

import pytest
import torch
import torch.nn.functional as F

from glassformer.objectives.base import TokenRow
from glassformer.objectives.causal_lm import NextToken
from glassformer.objectives.distillation import Distillation, cosine_distance, soft_targets
from glassformer.objectives.masked_lm import MaskedLM
from tests.helpers import largest_difference
from tests.objectives.models import (
    MASKING,
    framed,
    fresh,
    gradients,
    mean_of,
    pair_of,
    seeded,
    their_mask,
    words,
)

REAL = torch.tensor([[True, False]])


def test_soft_targets_and_cosines_by_hand() -> None:
    student = torch.zeros(1, 2, 2, dtype=torch.float64)
    teacher = torch.tensor([[[2 * math.log(3), 0.0], [9.0, 0.0]]], dtype=torch.float64)  # ¾ and ¼ at temperature 2
    expected = 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert abs(soft_targets(student, teacher, REAL, 2.0).item() - expected) < 1e-12
    assert abs(soft_targets(teacher, teacher, REAL, 2.0).item()) < 1e-12
    entry = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    other = torch.tensor([[[2.0, 2.0], [-1.0, 0.0]]], dtype=torch.float64)
    assert abs(cosine_distance(entry, other, REAL).item() - (1 - math.sqrt(0.5))) < 1e-12


def test_the_losses_are_those_of_the_papers_formulas_on_the_references_models() -> None:
    teacher, student = pair_of("BertForMaskedLM"), pair_of("DistilBertForMaskedLM")
    objective = Distillation(objective=MaskedLM(masking=MASKING), teacher=teacher.ours)
    texts = [TokenRow(row, segments=[n % 2 for n in range(len(row))]) for row in framed(20, 9, 14)]
    batch = objective.prepare(texts, seeded())
    loss = objective.loss(student.ours, batch)
    mask, labels = their_mask(batch), batch.labels["masked"]
    mine = student.theirs(input_ids=batch.inputs["ids"], attention_mask=mask, output_hidden_states=True, labels=labels)
    reference = teacher.theirs(
        input_ids=batch.inputs["ids"],
        attention_mask=mask,
        token_type_ids=batch.inputs["segments"],
        output_hidden_states=True,
    )
    real = mask.bool()
    soft = 4 * F.kl_div(
        (mine.logits[real] / 2).log_softmax(-1), (reference.logits[real] / 2).softmax(-1), reduction="batchmean"
    )
    vectors = [result.hidden_states[-1][real] for result in (mine, reference)]
    cosine = F.cosine_embedding_loss(*vectors, torch.ones(len(vectors[0])))
    assert batch.counts == {"masked": 6, "soft": 43, "cosine": 43}
    assert abs(mean_of(loss, "soft") - soft.item()) < 1e-9
    assert abs(mean_of(loss, "masked") - mine.loss.item()) < 1e-9
    assert abs(mean_of(loss, "cosine") - cosine.item()) < 1e-9
    assert abs(loss.mean().item() - (5 * soft + 2 * mine.loss + cosine).item()) < 1e-8


def test_the_teacher_is_left_as_it_was_and_speaks_without_dropout() -> None:
    teacher, student = fresh("GPT2LMHeadModel", seed=1).train(), fresh("GPT2LMHeadModel", seed=2)
    assert teacher.config.decoder.dropout > 0
    objective = Distillation(objective=NextToken(), teacher=teacher)
    batch = objective.prepare(words(9, 5), seeded())
    losses = [objective.loss(student, batch) for _ in range(2)]
    assert losses[0].terms["soft"].total.item() == losses[1].terms["soft"].total.item()
    assert teacher.training
    losses[0].mean().backward()
    assert not gradients(teacher)
    assert gradients(student).keys() == {name for name, _ in student.named_parameters()}
    assert losses[0].terms["next"].count == 12
    assert losses[0].terms["soft"].count == 12


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it() -> None:
    model = fresh("GPT2LMHeadModel")
    objective = Distillation(objective=NextToken(), teacher=fresh("GPT2LMHeadModel"))
    loss = objective.loss(model, objective.prepare(words(9, 5), seeded()))
    assert abs(mean_of(loss, "soft")) < 1e-12
    assert abs(mean_of(loss, "cosine")) < 1e-12
    assert mean_of(loss, "next") > 1


def test_without_cosines_widths_may_differ() -> None:
    teacher = fresh("BertForMaskedLM")
    student = fresh("BertForMaskedLM", width=12)
    with pytest.raises(ValueError, match="width 12 and 24 have no cosine"):
        Distillation(objective=MaskedLM(masking=MASKING), teacher=teacher).loss(
            student, MaskedLM(masking=MASKING).prepare(framed(9), seeded())
        )
    objective = Distillation(objective=MaskedLM(masking=MASKING), teacher=teacher, cosine=0.0, hard=1.0, soft=1.0)
    batch = objective.prepare(framed(9), seeded())
    loss = objective.loss(student, batch)
    assert loss.terms.keys() == batch.counts.keys() == {"soft", "masked"}
    assert largest_difference(loss.mean(), torch.tensor(mean_of(loss, "soft") + mean_of(loss, "masked"))) < 1e-6


def test_what_does_not_fit_is_refused() -> None:
    masked = MaskedLM(masking=MASKING)
    batch = masked.prepare(framed(9), seeded())
    with pytest.raises(ValueError, match="61 and 70 ids"):
        Distillation(objective=masked, teacher=fresh("BertForMaskedLM", vocab=70)).loss(fresh("BertForMaskedLM"), batch)
    with pytest.raises(ValueError, match="MaskedLM trains"):
        Distillation(objective=masked, teacher=fresh("GPT2LMHeadModel")).loss(fresh("BertForMaskedLM"), batch)
    with pytest.raises(ValueError, match="temperature"):
        Distillation(objective=masked, teacher=fresh("BertForMaskedLM"), temperature=0.0)
    with pytest.raises(ValueError, match="hard=-1"):
        Distillation(objective=masked, teacher=fresh("BertForMaskedLM"), hard=-1.0)
