"""Labels of texts and words, and places of answers: losses like the reference's, whatever the padding."""

import math
from typing import Any

import pytest
import torch

from glassformer.objectives.base import IGNORE, Padding, TokenRow, head_output
from glassformer.objectives.classification import Classification, ClassificationExample
from glassformer.objectives.question_answering import AnswerExample, QuestionAnswering
from glassformer.objectives.tagging import Tagging, TaggingExample, first_token_labels
from tests.helpers import largest_difference
from tests.objectives.models import framed, fresh, gradients, mean_of, pair_of, seeded, their_mask, words

LENGTHS = (9, 13, 5)
LABELLED = [ClassificationExample(row, label) for row, label in zip(framed(*LENGTHS), (2, 0, 1), strict=True)]


def test_the_loss_of_one_class_is_the_references() -> None:
    pair = pair_of("BertForSequenceClassification", "bert")
    batch = Classification().prepare(LABELLED, seeded())
    assert (batch.counts, batch.tokens) == ({"label": 3}, sum(LENGTHS))
    labels = batch.labels["label"]
    reference = pair.theirs(input_ids=batch.inputs["ids"], attention_mask=their_mask(batch), labels=labels)
    loss = Classification().loss(pair.ours, batch)
    assert abs(mean_of(loss, "label") - reference.loss.item()) < 1e-9
    assert int(loss.metrics["accuracy"][0]) == int((reference.logits.argmax(-1) == labels).sum())


def test_the_loss_of_several_classes_is_the_references() -> None:
    pair = pair_of("BertForSequenceClassification", "bert", problem_type="multi_label_classification")
    rows = [[1, 0, 1], [0, 0, 0], [1, 1, 1]]
    objective = Classification(kind="several")
    batch = objective.prepare(
        [ClassificationExample(r, label) for r, label in zip(framed(*LENGTHS), rows, strict=True)], seeded()
    )
    labels = batch.labels["label"].double()
    reference = pair.theirs(input_ids=batch.inputs["ids"], attention_mask=their_mask(batch), labels=labels)
    loss = objective.loss(pair.ours, batch)
    assert loss.terms["label"].count == 9
    assert abs(mean_of(loss, "label") - reference.loss.item()) < 1e-9
    assert int(loss.metrics["accuracy"][0]) == int(((reference.logits > 0) == labels.bool()).sum())


def test_the_loss_of_a_number_is_the_references() -> None:
    pair = pair_of("BertForSequenceClassification", "bert", num_labels=1)
    objective = Classification(kind="number")
    numbers = (0.5, -2.0, 1.25)
    batch = objective.prepare(
        [ClassificationExample(r, n) for r, n in zip(framed(*LENGTHS), numbers, strict=True)], seeded()
    )
    labels = batch.labels["label"].double()
    reference = pair.theirs(input_ids=batch.inputs["ids"], attention_mask=their_mask(batch), labels=labels)
    loss = objective.loss(pair.ours, batch)
    assert loss.terms["label"].count == 3
    assert abs(mean_of(loss, "label") - reference.loss.item()) < 1e-9


def test_smoothed_classes_by_hand() -> None:
    model = fresh("BertForSequenceClassification", "bert")
    batch = Classification(smoothing=0.3).prepare(LABELLED[:1], seeded())
    probs = model(**batch.inputs)[0].log_softmax(-1)
    expected = -(0.7 * probs[2] + 0.1 * probs.sum())
    assert abs((Classification(smoothing=0.3).loss(model, batch).terms["label"].total - expected).item()) < 1e-12


HEADS = {  # how each finds the vector of a text
    "BertForSequenceClassification": "first",
    "GPT2ForSequenceClassification": "last",
    "DistilBertForSequenceClassification": "first",
    "XLMForSequenceClassification": "first",
    "BartForSequenceClassification": "last",
    "T5ForSequenceClassification": "last",
}


@pytest.mark.parametrize("architecture", HEADS)
def test_row_38_classes_do_not_depend_on_padding(architecture: str) -> None:
    model = fresh(architecture, **({"tokens__start": 2} if architecture.startswith(("Bart", "T5")) else {}))
    eos = 1
    rows = [[*row, eos] for row in words(8, 12, 4)]
    examples = [ClassificationExample(row, number % 2) for number, row in enumerate(rows)]
    alone = torch.cat([head_output(model, Classification().prepare([e], seeded()).inputs) for e in examples])
    result = []
    for side, fill in (("right", 0), ("left", 0), ("right", eos), ("left", eos)):  # padding like a real end too
        objective = Classification(padding=Padding(side=side, fill=fill))  # type: ignore[arg-type]
        batch = objective.prepare(examples, seeded())
        assert not bool(batch.inputs["mask"].all())
        assert largest_difference(head_output(model, batch.inputs), alone) < 1e-10
        model.zero_grad()
        loss = objective.loss(model, batch)
        loss.mean().backward()
        result.append((mean_of(loss, "label"), gradients(model)))
    for mean, some in result[1:]:
        assert abs(mean - result[0][0]) < 1e-12
        assert all(largest_difference(some[name], result[0][1][name]) < 1e-10 for name in some)


def test_a_decoder_beside_an_encoder_reads_the_same_text_behind_its_start_as_in_the_reference() -> None:
    pair = pair_of("BartForSequenceClassification", "bart")
    rows = [[*row, 2] for row in words(8, 8)]
    batch = Classification().prepare([ClassificationExample(rows[0], 0), ClassificationExample(rows[1], 1)], seeded())
    reference = pair.theirs(input_ids=batch.inputs["ids"], labels=batch.labels["label"])
    assert abs(mean_of(Classification().loss(pair.ours, batch), "label") - reference.loss.item()) < 1e-9


def test_the_first_token_of_a_word_has_its_label() -> None:
    labels = first_token_labels(torch.tensor([-1, 0, 0, 1, 2, 2, 2, -1]), torch.tensor([7, 8, 9]))
    assert labels.tolist() == [IGNORE, 7, IGNORE, 8, 9, IGNORE, IGNORE, IGNORE]
    assert first_token_labels(torch.tensor([-1, -1]), torch.tensor([], dtype=torch.long)).tolist() == [IGNORE] * 2
    with pytest.raises(ValueError, match=r"a word 2 \(counted from 0\), but labels for 2 words only"):
        first_token_labels(torch.tensor([0, 1, 2]), torch.tensor([7, 8]))


def test_the_loss_of_words_is_the_references() -> None:
    pair = pair_of("BertForTokenClassification")
    examples = []
    for row in framed(*LENGTHS):
        numbers = [-1, *(position // 2 for position in range(len(row) - 2)), -1]
        examples.append(TaggingExample(TokenRow(row, words=numbers), [n % 5 for n in range(len(row))]))
    for side in ("right", "left"):
        batch = Tagging(padding=Padding(side=side)).prepare(examples, seeded())  # type: ignore[arg-type]
        loss = Tagging().loss(pair.ours, batch)
        mask = their_mask(batch)
        reference = pair.theirs(
            input_ids=batch.inputs["ids"],
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            labels=batch.labels["tag"],
        )
        assert loss.terms["tag"].count == 4 + 6 + 2
        assert abs(mean_of(loss, "tag") - reference.loss.item()) < 1e-9
    with pytest.raises(ValueError, match="example 0 has no word numbers"):
        Tagging().prepare([TaggingExample(TokenRow([5, 6]), [0, 1])], seeded())


def test_the_loss_of_answers_is_the_references() -> None:
    pair = pair_of("BertForQuestionAnswering")
    rows, positions = framed(9, 9, 9), [(3, 5), (7, 7), None]
    batch = QuestionAnswering().prepare(
        [AnswerExample(row, span) for row, span in zip(rows, positions, strict=True)], seeded()
    )
    assert batch.labels["start"].tolist() == [3, 7, 0]  # no answer: the first token
    assert batch.labels["end"].tolist() == [5, 7, 0]
    reference = pair.theirs(
        input_ids=batch.inputs["ids"], start_positions=batch.labels["start"], end_positions=batch.labels["end"]
    )
    loss = QuestionAnswering().loss(pair.ours, batch)
    assert abs(loss.mean().item() - reference.loss.item()) < 1e-9
    result = (reference.start_logits.argmax(-1), reference.end_logits.argmax(-1))
    exact = (result[0] == batch.labels["start"]) & (result[1] == batch.labels["end"])
    assert int(loss.metrics["exact"][0]) == int(exact.sum())


def test_padding_cannot_be_an_answer() -> None:
    model = fresh("BertForQuestionAnswering")
    questions = [AnswerExample(row, span) for row, span in zip(framed(*LENGTHS), [(3, 5), None, (1, 4)], strict=True)]
    apart = [QuestionAnswering().loss(model, QuestionAnswering().prepare([entry], seeded())) for entry in questions]
    expected = sum(loss.mean().item() for loss in apart) / 3
    for side in ("right", "left"):
        objective = QuestionAnswering(padding=Padding(side=side, multiple=20))  # type: ignore[arg-type]
        batch = objective.prepare(questions, seeded())
        assert batch.inputs["ids"].shape == (3, 20)
        assert abs(objective.loss(model, batch).mean().item() - expected) < 1e-12


def test_answers_by_hand() -> None:
    model = fresh("BertForQuestionAnswering")
    batch = QuestionAnswering().prepare([AnswerExample(framed(6)[0], (2, 4))], seeded())
    start, end = model(**batch.inputs)[0].unbind(-1)
    expected = -0.5 * (start.log_softmax(-1)[2] + end.log_softmax(-1)[4])
    assert abs((QuestionAnswering().loss(model, batch).mean() - expected).item()) < 1e-12
    assert math.isfinite(expected.item())


@pytest.mark.parametrize(
    ("objective", "examples", "message"),
    [
        (Classification(), [ClassificationExample([5], 0.5)], "labels of kind 'one' are integers"),
        (Classification(kind="several"), [ClassificationExample([5], 1)], "lists of 0 and 1"),
        (Classification(kind="number"), [ClassificationExample([5], [1.0])], "are numbers"),
    ],
)
def test_labels_of_the_wrong_kind_are_refused(
    objective: Classification, examples: list[ClassificationExample], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        objective.prepare(examples, seeded())


def test_heads_and_places_that_do_not_fit_are_refused() -> None:
    several = Classification(kind="several")
    batch = several.prepare([ClassificationExample([5, 6], [1, 0])], seeded())
    with pytest.raises(ValueError, match=r"shape \(1, 3\) for labels of shape \(1, 2\)"):
        several.loss(fresh("BertForSequenceClassification", "bert"), batch)
    others: list[tuple[Any, str]] = [
        (Classification(), "classify or pair"),
        (Tagging(), "for tag"),
        (QuestionAnswering(), "for span"),
    ]
    for objective, message in others:
        with pytest.raises(ValueError, match=f"{type(objective).__name__} .*{message}"):
            objective.loss(fresh("BertForMaskedLM"), batch)
    with pytest.raises(ValueError, match="from token 1 to 2 does not lie in 2 tokens"):
        AnswerExample([5, 6], (1, 2))
    with pytest.raises(ValueError, match="start token"):
        Classification().loss(
            fresh("BartForSequenceClassification", tokens__start=None), Classification().prepare(LABELLED, seeded())
        )
