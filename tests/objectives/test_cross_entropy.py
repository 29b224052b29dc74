"""Sums of cross-entropy, smoothed or not, whole or in chunks."""

import math

import pytest
import torch
from torch import Tensor
from transformers.trainer_pt_utils import LabelSmoother

from glassformer.config import LMHead
from glassformer.objectives.base import (
    IGNORE,
    ModelRequirement,
    chunked_cross_entropy,
    model_token_loss,
    token_cross_entropy,
    token_losses,
)
from tests.helpers import largest_difference, normal
from tests.objectives.models import fresh, gradients
from tests.parity.harness import VOCAB

CHANCES = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], dtype=torch.float64)
LABELS = torch.tensor([1, 3, IGNORE])


def test_the_sum_over_judged_places_by_hand() -> None:
    total, count = token_losses(CHANCES.log() + 3.0, LABELS)
    assert count == 2
    assert abs(float(total) - (math.log(4) - math.log(0.4))) < 1e-12
    assert int(token_cross_entropy(CHANCES, LABELS).correct) == 1  # the second row's highest is its label


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_label_that_no_other_token_beats_is_right(dtype: torch.dtype) -> None:
    rows = [[2, 1, 0], [2, 3, 3], [1, 0, 2], [5, 1, 1], [1, 1, 1]]
    logits = torch.tensor([rows, [[-4, -1, -2]] * 5], dtype=dtype, requires_grad=True)  # 2 5 3
    labels = torch.tensor([[0, 2, 1, IGNORE, 1], [1, 0, IGNORE, IGNORE, 1]])  # rows 2 and 5 are ties
    correct = token_cross_entropy(logits, labels).correct
    assert (int(correct), correct.requires_grad) == (5, False)
    with torch.no_grad():  # in evaluation, equal scores do not count as correct
        assert int(token_cross_entropy(logits, labels).correct) == 3


def test_smoothing_by_hand() -> None:
    total, _ = token_losses(CHANCES.log(), LABELS, smoothing=0.2)
    expected = 0.0
    for probs, label in zip(CHANCES[:2].tolist(), LABELS[:2].tolist(), strict=True):
        expected -= 0.8 * math.log(probs[label]) + sum(0.05 * math.log(p) for p in probs)
    assert abs(float(total) - expected) < 1e-12


def test_smoothing_is_the_references() -> None:
    logits, labels = normal(3, 7, 11), torch.randint(0, 11, (3, 7))
    labels[1, 3:] = IGNORE
    reference = LabelSmoother(epsilon=0.1)({"logits": logits}, labels)
    total, count = token_losses(logits, labels, smoothing=0.1)
    assert count == 17
    assert abs(float(total) / count - float(reference)) < 1e-7  # they sum in float32


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_row_37_ignored_places_add_nothing_and_smoothed_targets_sum_to_one(smoothing: float) -> None:
    logits, labels = normal(2, 5, 9), torch.randint(0, 9, (2, 5))
    logits[:, 3:], labels[:, 3:] = 1e6 * normal(2, 2, 9, seed=1), IGNORE
    logits.requires_grad_()
    total, count = token_losses(logits, labels, smoothing)
    alone, _ = token_losses(logits[:, :3].detach(), labels[:, :3], smoothing)
    total.backward()
    assert logits.grad is not None
    assert count == 6
    assert torch.isfinite(total)
    assert float(total.detach() - alone) == 0.0
    assert torch.equal(logits.grad[:, 3:], torch.zeros(2, 2, 9, dtype=torch.float64))
    # The gradient is softmax − target: it sums to 0 exactly if the smoothed target sums to 1.
    assert float(logits.grad.sum(-1).abs().max()) < 1e-12
    targets = logits.detach().softmax(-1) - logits.grad
    assert largest_difference(targets[0, 0].min(), torch.tensor(smoothing / 9, dtype=torch.float64)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    logits, labels = normal(64, 50, dtype=dtype), torch.randint(0, 50, (64,))
    total, _ = token_losses(logits, labels, 0.1)
    exact, _ = token_losses(logits.double(), labels, 0.1)
    assert total.dtype == torch.float32
    assert abs(float(total) - float(exact)) < 1e-3


def test_nothing_judged_is_zero_and_can_be_trained_on() -> None:
    hidden, table = normal(1, 4, 3).requires_grad_(), normal(3, 6).requires_grad_()
    labels = torch.full((1, 4), IGNORE)
    total, count = token_losses(hidden @ table, labels)
    assert count == 0
    for loss in (total, chunked_cross_entropy(hidden, lambda x: x @ table, labels, 2).total):
        loss.backward()
        assert loss.item() == 0.0
    assert hidden.grad is not None
    assert float(hidden.grad.abs().max()) == 0.0


def test_a_label_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        token_losses(CHANCES, torch.tensor([1, 4, 0]))
    with pytest.raises(ValueError, match="smoothing must be"):
        token_losses(CHANCES, LABELS, smoothing=1.0)


HEADS = {
    "tied": ("GPT2LMHeadModel", None),
    "transform, bias, tied": ("BertForMaskedLM", None),
    "transform, narrow": ("ElectraForMaskedLM", None),
    "untied": ("LlamaForCausalLM", None),
    "bias, tied": ("BartForConditionalGeneration", None),
    "scale": ("T5ForConditionalGeneration", "t5"),
    "untied, encoder-decoder": ("T5ForConditionalGeneration", "t5-1.1"),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("chunk", [4, 100])
def test_chunks_give_the_same_number_and_gradients(head: str, chunk: int) -> None:
    model = fresh(*HEADS[head])
    facts = model.config.head
    assert isinstance(facts, LMHead)
    assert ("untied" in head) == (not facts.tied)
    assert ("scale" in head) == (facts.scale != 1.0)
    ids = torch.randint(5, VOCAB, (2, 7))
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    inputs = {"ids": ids, "mask": mask}
    if model.config.family == "encoder-decoder":
        inputs |= {"target": ids.flip(-1), "target_mask": mask}
    labels = torch.randint(5, VOCAB, (2, 7)).where(mask, IGNORE)
    result = []
    for size in (None, chunk):
        model.zero_grad()
        evaluated = model_token_loss(model, inputs, labels, smoothing=0.1, chunk=size)
        evaluated.total.backward()
        result.append((evaluated, gradients(model)))
    (whole, whole_gradients), (parts, part_gradients) = result
    assert abs(whole.total.item() - parts.total.item()) < 1e-12 * whole.total.item()
    assert int(whole.correct) == int(parts.correct)
    assert whole_gradients.keys() == part_gradients.keys()
    for name, gradient in whole_gradients.items():
        assert largest_difference(gradient, part_gradients[name]) < 1e-12 * max(1.0, float(gradient.abs().max())), name


def test_no_more_than_a_chunk_of_judged_places_reaches_the_head() -> None:
    sizes: list[int] = []
    table = normal(3, 6).requires_grad_()

    def head(x: Tensor) -> Tensor:
        sizes.append(x.shape[1])
        return x @ table

    labels = torch.tensor([[0, IGNORE, 2, 3, IGNORE], [IGNORE, 1, 5, IGNORE, 4]])
    total = chunked_cross_entropy(normal(2, 5, 3), head, labels, 4).total
    assert sizes == [4, 2]
    total.backward()
    assert sorted(sizes) == [2, 2, 4, 4]  # made anew in the backward pass, not kept


def test_a_model_of_another_kind_is_refused() -> None:
    needs = ModelRequirement("Some", LMHead, families=("decoder",))
    assert needs.check(fresh("GPT2LMHeadModel")).family == "decoder"
    with pytest.raises(ValueError, match=r"Some .* decoder .* LMHead; .* encoder .* LMHead\. Set head"):
        needs.check(fresh("BertForMaskedLM"))
    with pytest.raises(ValueError, match="head is TaskHead for classify"):
        needs.check(fresh("GPT2ForSequenceClassification"))
