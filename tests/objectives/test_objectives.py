"""What holds for every objective: its seed decides its batches, examples are left alone, counts are those of labels,
and a model learns by it."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.objectives.base import IGNORE, Batch, Padding, TokenRow
from glassformer.objectives.causal_lm import Document, NextToken, PackedDocuments
from glassformer.objectives.classification import Classification, ClassificationExample
from glassformer.objectives.denoising import Denoising, Noise
from glassformer.objectives.distillation import Distillation
from glassformer.objectives.masked_lm import MaskedLM, Translation, TranslationMaskedLM
from glassformer.objectives.question_answering import AnswerExample, QuestionAnswering
from glassformer.objectives.replaced_tokens import GeneratorAndDiscriminator, ReplacedTokens
from glassformer.objectives.sentence_pairs import MaskedPairs, SentencePair
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget
from glassformer.objectives.span_corruption import SpanCorruption
from glassformer.objectives.tagging import Tagging, TaggingExample
from tests.helpers import types_unchecked
from tests.objectives.models import MASK, MASKING, framed, fresh, seeded, words

SEQUENCES = SequenceToSequence(start=0)
TEXTS = [TokenRow(row, words=list(range(len(row)))) for row in framed(12, 20)]


def two() -> GeneratorAndDiscriminator:
    return GeneratorAndDiscriminator(fresh("ElectraForMaskedLM", "electra"), fresh("ElectraForPreTraining", "electra"))


# name -> objective, examples, the model it trains, whether it draws anything
OBJECTIVES: dict[str, tuple[Any, list[Any], Any, bool]] = {
    "next token": (
        NextToken(),
        [PackedDocuments([torch.tensor(words(5)[0]), Document(words(7)[0], prompt_tokens=2)]), words(9)[0]],
        lambda: fresh("GPT2LMHeadModel"),
        False,
    ),
    "masked": (MaskedLM(masking=MASKING), [*TEXTS, framed(9)[0]], lambda: fresh("BertForMaskedLM"), True),
    "translation": (
        TranslationMaskedLM(masked=MaskedLM(masking=MASKING), separator=3),
        [Translation(torch.tensor(words(9)[0]), words(8)[0], (0, 2))],
        lambda: fresh("XLMWithLMHeadModel"),
        True,
    ),
    "pairs": (
        MaskedPairs(masking=MASKING, cls=2, sep=3),
        [SentencePair(*words(4, 7), 0), SentencePair(*words(3, 3), 1)],
        lambda: fresh("BertForPreTraining"),
        True,
    ),
    "replaced": (ReplacedTokens(masking=MASKING), framed(12, 20), two, True),
    "sequences": (
        SEQUENCES,
        [SourceTarget(torch.tensor(words(5)[0]), words(7)[0]), SourceTarget([6, 7], [8], start=9)],
        lambda: fresh("BartForConditionalGeneration"),
        False,
    ),
    "spans": (
        SpanCorruption(decoder=SEQUENCES, first_sentinel=60, eos=1),
        [torch.tensor(words(50)[0]), words(11)[0]],
        lambda: fresh("T5ForConditionalGeneration", "t5"),
        True,
    ),
    "denoising": (
        Denoising(
            decoder=SEQUENCES,
            noise=Noise(mask_token=MASK, mask=0.1, delete=0.1, rotate=True),
            bos=0,
            eos=2,
        ),
        [[torch.tensor(words(9)[0]), words(8)[0]], [words(11)[0]]],
        lambda: fresh("BartForConditionalGeneration"),
        True,
    ),
    "distillation": (
        Distillation(objective=MaskedLM(masking=MASKING), teacher=fresh("BertForMaskedLM", seed=5)),
        TEXTS,
        lambda: fresh("BertForMaskedLM"),
        True,
    ),
    "classify": (
        Classification(),
        [ClassificationExample(torch.tensor(framed(6)[0]), 1), ClassificationExample(framed(8)[0], 0)],
        lambda: fresh("BertForSequenceClassification"),
        False,
    ),
    "tag": (
        Tagging(),
        [TaggingExample(TokenRow(framed(6)[0], words=torch.tensor([-1, 0, 0, 1, 1, -1])), [3, 4])],
        lambda: fresh("BertForTokenClassification"),
        False,
    ),
    "answer": (
        QuestionAnswering(),
        [AnswerExample(torch.tensor(framed(8)[0]), (2, 3)), AnswerExample(framed(6)[0], None)],
        lambda: fresh("BertForQuestionAnswering"),
        False,
    ),
}
names = pytest.mark.parametrize("name", OBJECTIVES)


def same(a: Batch, b: Batch) -> bool:
    tensors = [(a.inputs, b.inputs), (a.labels, b.labels)]
    if any(x.keys() != y.keys() for x, y in tensors) or (a.counts, a.tokens, a.seed) != (b.counts, b.tokens, b.seed):
        return False
    return all(x[key].shape == y[key].shape and torch.equal(x[key], y[key]) for x, y in tensors for key in x)


def plain(value: Any) -> Any:
    """A value without tensors, to compare."""
    if isinstance(value, Tensor):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


@names
def test_the_seed_decides_and_examples_are_left_alone(name: str) -> None:
    objective, examples, _, draws = OBJECTIVES[name]
    before = copy.deepcopy(plain(examples))
    batches = [objective.prepare(examples, seeded(seed)) for seed in (1, 1, 2, 3)]
    assert plain(examples) == before
    assert same(batches[0], batches[1])
    assert any(not same(batches[0], other) for other in batches[2:]) == draws
    torch.manual_seed(99)  # nothing is drawn from the generator that all share
    assert same(objective.prepare(examples, seeded(1)), batches[0])


@names
def test_counts_are_those_of_the_labels_and_tokens_those_of_the_masks(name: str) -> None:
    objective, examples, _, _ = OBJECTIVES[name]
    batch = objective.prepare(examples, seeded())
    for key, labels in batch.labels.items():
        assert batch.counts[key] == int((labels != IGNORE).sum())
        assert labels.dtype == torch.long
    real = 0
    for ids, mask in (("ids", "mask"), ("target", "target_mask")):
        if ids in batch.inputs:
            real += int((batch.inputs[mask] > 0).sum()) if mask in batch.inputs else batch.inputs[ids].numel()
    assert batch.tokens == real


@names
def test_the_loss_is_a_sum_for_each_count_of_the_batch(name: str) -> None:
    objective, examples, make, _ = OBJECTIVES[name]
    batch = objective.prepare(examples, seeded())
    loss = objective.loss(make(), batch)
    assert {key: term.count for key, term in loss.terms.items()} == batch.counts
    weighted = sum(term.weight * term.total.item() / term.count for term in loss.terms.values())
    assert abs(loss.mean().item() - weighted) < 1e-9
    whole = {key: 2 * count for key, count in batch.counts.items()}
    assert abs(loss.mean(whole).item() - weighted / 2) < 1e-9
    for total, count in loss.metrics.values():
        assert not total.requires_grad
        assert 0 <= int(total) <= count


@names
def test_a_model_learns_by_it(name: str) -> None:
    objective, examples, make, _ = OBJECTIVES[name]
    model, batch = make(), objective.prepare(examples, seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    means = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = objective.loss(model, batch).mean()
        means.append(loss.item())
        loss.backward()
        optimizer.step()
    assert means[-1] < 0.95 * means[0], means


@names
def test_an_empty_batch_is_refused(name: str) -> None:
    with types_unchecked(), pytest.raises(ValueError, match="at least one example"):
        OBJECTIVES[name][0].prepare([], seeded())


def test_a_batch_moves_and_keeps_its_numbers() -> None:
    objective, examples, _, _ = OBJECTIVES["replaced"]
    batch = objective.prepare(examples, seeded())
    moved = batch.to("meta")
    assert moved.inputs["ids"].device.type == moved.labels["generator"].device.type == "meta"
    assert (moved.counts, moved.tokens, moved.seed) == (batch.counts, batch.tokens, batch.seed)
    assert same(batch.to("cpu", non_blocking=True), batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory is pinned for a GPU")
def test_a_batch_can_be_pinned() -> None:
    objective, examples, _, _ = OBJECTIVES["masked"]
    batch = objective.prepare(examples, seeded())
    assert same(batch.pin_memory(), batch)
    assert batch.pin_memory().inputs["ids"].is_pinned()


def test_rows_are_padded_to_a_multiple_on_either_side() -> None:
    rows = [torch.tensor([5, 6, 7]), torch.tensor([8])]
    right, left = Padding(multiple=4, fill=9), Padding(side="left", multiple=4, fill=9)
    assert right.inputs([TokenRow(row) for row in rows])["ids"].tolist() == [[5, 6, 7, 9], [8, 9, 9, 9]]
    assert left.inputs([TokenRow(row) for row in rows])["ids"].tolist() == [[9, 5, 6, 7], [9, 9, 9, 8]]
    assert left.mask(rows).tolist() == [[False, True, True, True], [False, False, False, True]]
    assert right.labels(rows).tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert "mask" not in Padding().inputs([TokenRow(rows[0]), TokenRow(rows[0])])
    with types_unchecked():
        with pytest.raises(ValueError, match="side must be"):
            Padding(side="middle")  # type: ignore[arg-type]
        for wrong in ([1.5, 2.0], [[1, 2]]):
            with pytest.raises(TypeError, match="integers in one axis"):
                NextToken().prepare([wrong], seeded())  # type: ignore[list-item]
