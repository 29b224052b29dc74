"""From text to text: shifted once, with start tokens and languages, and losses like the reference's."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from glassformer.models.transformer import Transformer
from glassformer.objectives.base import IGNORE, Padding
from glassformer.objectives.seq2seq import SequenceToSequence, SourceTarget, shift_right, with_languages
from tests.helpers import largest_difference
from tests.objectives.models import fresh, gradients, mean_of, pair_of, seeded, words

EOS = 2  # not the padding of the references, some of which take positions from it
EXAMPLES = [
    SourceTarget([*source, EOS], [*target, EOS])
    for source, target in zip(words(8, 3, 5), words(4, 7, 1, seed=2), strict=True)
]


def test_a_batch_is_shifted_once() -> None:
    batch = SequenceToSequence(start=0).prepare(
        [SourceTarget([8, 9, 1], [21, 22, 23, 1]), SourceTarget([7], [1])], seeded()
    )
    assert batch.inputs["ids"].tolist() == [[8, 9, 1], [7, 0, 0]]
    assert batch.inputs["mask"].tolist() == [[True] * 3, [True, False, False]]
    assert batch.inputs["target"].tolist() == [[0, 21, 22, 23], [0, 0, 0, 0]]
    assert batch.inputs["target_mask"].tolist() == [[True] * 4, [True, False, False, False]]
    assert batch.labels["target"].tolist() == [[21, 22, 23, 1], [1, IGNORE, IGNORE, IGNORE]]
    assert (batch.counts, batch.tokens) == ({"target": 5}, 9)
    rows, real = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    assert shift_right(rows, real, torch.tensor([2, 3])).where(real, 0).tolist() == [[2, 5, 6], [3, 8, 0]]
    left = real.flip(-1)
    assert shift_right(rows.flip(-1), left, torch.tensor([2, 3])).where(left, 0).tolist() == [[2, 7, 6], [0, 3, 9]]


class Repeats(Transformer):
    """A model that says of every token of its decoder the token itself, or the next whole number."""

    ahead = 0

    def forward(self, *_: Any, target: torch.Tensor, **__: Any) -> torch.Tensor:  # type: ignore[override]
        return 50.0 * F.one_hot((target + self.ahead) % self.config.vocab, self.config.vocab).double()


def test_row_30_identity_does_not_solve_it_and_knowing_the_next_token_does() -> None:
    objective = SequenceToSequence(start=9)
    batch = objective.prepare([SourceTarget([8, 9, 1], [10, 11, 12, 13])], seeded())
    model = Repeats(fresh("BartForConditionalGeneration").config)
    assert mean_of(objective.loss(model, batch), "target") > 49
    model.ahead = 1
    assert mean_of(objective.loss(model, batch), "target") < 1e-9


@pytest.mark.parametrize(
    ("architecture", "name", "bound"),
    [
        ("BartForConditionalGeneration", "bart", 1e-9),
        ("T5ForConditionalGeneration", "t5", 1e-5),
        ("T5ForConditionalGeneration", "t5-1.1", 1e-5),
        ("M2M100ForConditionalGeneration", "m2m100", 1e-5),
    ],
)
def test_the_loss_is_the_references(architecture: str, name: str, bound: float) -> None:
    pair = pair_of(architecture, name)
    pair.theirs.config.decoder_start_token_id = 3
    objective = SequenceToSequence(start=3, padding=Padding(fill=pair.theirs.config.pad_token_id))
    batch = objective.prepare(EXAMPLES, seeded())
    loss = objective.loss(pair.ours, batch)
    reference = pair.theirs(
        input_ids=batch.inputs["ids"], attention_mask=batch.inputs["mask"].long(), labels=batch.labels["target"]
    )
    # They show their decoder the padding, which follows what counts in the loss, and so does not matter.
    assert abs(mean_of(loss, "target") - reference.loss.item()) < bound
    assert int(loss.metrics["accuracy"][0]) == int((reference.logits.argmax(-1) == batch.labels["target"]).sum())


@pytest.mark.parametrize("side", ["right", "left"])
def test_row_31_the_loss_per_token_is_that_of_any_batch_size(side: Any) -> None:
    model, objective = fresh("M2M100ForConditionalGeneration"), SequenceToSequence(start=0, smoothing=0.1)
    examples = [
        SourceTarget(source, target)
        for source, target in zip(words(*range(1, 17)), words(*range(16, 0, -1), seed=2), strict=True)
    ]
    objective = SequenceToSequence(start=0, smoothing=0.1, padding=Padding(side=side, multiple=3))
    means = []
    for size in (1, 8, 16):
        losses = [
            objective.loss(model, objective.prepare(examples[i : i + size], seeded())) for i in range(0, 16, size)
        ]
        terms = [loss.terms["target"] for loss in losses]
        means.append(sum(term.total.item() for term in terms) / sum(term.count for term in terms))
    assert max(means) - min(means) < 1e-12


def test_row_29_an_end_of_text_is_learned_though_padding_has_the_same_id() -> None:
    model = fresh("BartForConditionalGeneration", head__bias_trained=True)
    result = []
    for fill in (EOS, 17):
        objective = SequenceToSequence(start=0, padding=Padding(fill=fill))
        batch = objective.prepare(EXAMPLES, seeded())
        assert int((batch.labels["target"] == EOS).sum()) == 3
        model.zero_grad()
        objective.loss(model, batch).mean().backward()
        result.append(gradients(model))
    assert float(result[0]["head.bias"][EOS].abs()) > 1e-3
    assert all(torch.equal(gradient, result[1][name]) for name, gradient in result[0].items())


def test_languages_come_first_in_both_texts() -> None:
    example = with_languages([10, 11], [20], source_language=50, target_language=51, eos=EOS)
    batch = SequenceToSequence(start=2).prepare([example], seeded())
    assert batch.inputs["ids"].tolist() == [[50, 10, 11, EOS]]
    assert batch.inputs["target"].tolist() == [[2, 51, 20]]
    assert batch.labels["target"].tolist() == [[51, 20, EOS]]


def test_an_example_may_have_a_start_of_its_own() -> None:
    batch = SequenceToSequence(start=2).prepare(
        [SourceTarget([10], [20, EOS], start=51), SourceTarget([10], [20, EOS])], seeded()
    )
    assert batch.inputs["target"].tolist() == [[51, 20], [2, 20]]


def test_smoothing_is_used_and_chunks_change_nothing() -> None:
    model = fresh("T5ForConditionalGeneration", "t5")
    batch = SequenceToSequence(start=0).prepare(EXAMPLES, seeded())
    totals = [
        SequenceToSequence(start=0, smoothing=smoothing, chunk=chunk).loss(model, batch).terms["target"].total.detach()
        for smoothing, chunk in ((0.0, None), (0.1, None), (0.1, 4))
    ]
    assert abs(float(totals[0] - totals[1])) > 1e-3
    assert largest_difference(totals[1], totals[2]) < 1e-10


def test_what_cannot_be_learned_is_refused() -> None:
    with pytest.raises(ValueError, match="a target has no tokens"):
        SequenceToSequence(start=0).prepare([SourceTarget([5], [])], seeded())
    with pytest.raises(ValueError, match="encoder-decoder"):
        SequenceToSequence(start=0).loss(
            fresh("GPT2LMHeadModel"), SequenceToSequence(start=0).prepare(EXAMPLES, seeded())
        )
