"""The head is applied only to the positions that are counted in the loss, which changes no number and no gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.config import MaskDecoder
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import IGNORE, Batch, Loss, Padding, model_token_loss
from glassformer.objectives.causal_lm import Document, NextToken, PackedDocuments
from glassformer.objectives.masked_lm import MaskedLM, Translation, TranslationMaskedLM
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget
from glassformer.training.block_calls import call_of
from tests.helpers import largest_difference
from tests.objectives.models import MASKING, framed, fresh, gradients, seeded, words

DOCUMENTS = [Document(words(7)[0], prompt_tokens=3), words(9)[0], PackedDocuments(words(4, 3))]
MASKED, TRANSLATIONS = MaskedLM(masking=MASKING), [Translation(*words(9, 8), (0, 2))]
SEQUENCES = [SourceTarget(*words(5, 7)), SourceTarget([6, 7], [8], start=9)]
# name -> objective, examples, model
ASKED: dict[str, tuple[Any, list[Any], Callable[[], Transformer]]] = {
    "given prefixes, padding, packed": (NextToken(smoothing=0.1), DOCUMENTS, lambda: fresh("GPT2LMHeadModel")),
    "untied": (NextToken(), DOCUMENTS, lambda: fresh("LlamaForCausalLM")),
    "padding on the left": (
        NextToken(padding=Padding(side="left")),
        [words(9)[0], words(4)[0]],
        lambda: fresh("GPT2LMHeadModel"),
    ),
    "masked, transform": (MASKED, framed(20, 9), lambda: fresh("BertForMaskedLM")),
    "masked, narrow": (MASKED, framed(20, 9), lambda: fresh("ElectraForMaskedLM")),
    "masked, mask decoder": (
        MASKED,
        framed(20, 9),
        lambda: fresh("DebertaV2ForMaskedLM", head__mask_decoder=MaskDecoder(length=20)),
    ),
    "masked, translation": (
        TranslationMaskedLM(masked=MASKED, separator=3),
        TRANSLATIONS,
        lambda: fresh("XLMWithLMHeadModel"),
    ),
    "sequences, bias": (
        SequenceToSequence(start=0, smoothing=0.1),
        SEQUENCES,
        lambda: fresh("BartForConditionalGeneration"),
    ),
    "sequences, scale": (SequenceToSequence(start=0), SEQUENCES, lambda: fresh("T5ForConditionalGeneration", "t5")),
}


def note_places(model: Transformer) -> list[int]:
    """A list that grows by the number of places at every call of the head."""
    positions: list[int] = []
    assert isinstance(model.head, nn.Module)
    model.head.register_forward_pre_hook(lambda _, inputs: positions.append(inputs[0].shape[:-1].numel()))
    return positions


def learn(objective: Any, model: Transformer, batch: Batch) -> tuple[Loss, dict[str, Tensor]]:
    model.zero_grad()
    loss = objective.loss(model, batch)
    loss.mean().backward()
    return loss, gradients(model)


@pytest.mark.parametrize("name", ASKED)
def test_leaving_places_out_changes_no_number(name: str) -> None:
    objective, examples, make = ASKED[name]
    model = make()
    asked = note_places(model)
    batch = objective.prepare(examples, seeded())
    (labels,) = batch.labels.values()
    ours, our_gradients = learn(objective, model, batch)
    model.register_forward_hook(lambda *_: None)  # a hook must see the call, so that the head is asked about all
    plain, plain_gradients = learn(objective, model, batch)
    (count,) = batch.counts.values()
    assert asked == [count, labels.numel()]
    assert 0 < count < labels.numel()
    assert abs(ours.mean().item() - plain.mean().item()) < 1e-12
    assert [int(right) for right, _ in ours.metrics.values()] == [int(right) for right, _ in plain.metrics.values()]
    assert our_gradients.keys() == plain_gradients.keys()
    for key, gradient in plain_gradients.items():
        assert largest_difference(gradient, our_gradients[key]) < 1e-12 * max(1.0, float(gradient.abs().max())), key


@pytest.mark.parametrize("counted", ["nothing", "everything"])
def test_nothing_or_everything_judged_is_asked_as_a_whole(counted: str) -> None:
    model, ids = fresh("BertForMaskedLM"), torch.tensor(words(6, 6))
    asked = note_places(model)
    labels = torch.full_like(ids, IGNORE) if counted == "nothing" else ids
    total, _ = model_token_loss(model, {"ids": ids}, labels)
    total.backward()
    assert asked == [12]
    assert (total.item() == 0.0) == (counted == "nothing")
    assert isinstance(model.head, nn.Module)
    assert all(parameter.grad is not None for parameter in model.head.parameters())  # processes would wait for them


def test_a_model_compiled_as_a_whole_is_called_as_a_whole() -> None:
    model, batch = fresh("BertForMaskedLM"), MASKED.prepare(framed(20, 9), seeded())
    bare, asked, call = MASKED.loss(model, batch).mean().item(), note_places(model), call_of(model)
    call.compiled = call.plain
    assert abs(MASKED.loss(model, batch).mean().item() - bare) < 1e-12
    assert asked == [40]
