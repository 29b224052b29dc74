"""Masked words, beside translations and in pairs of sentences: batches, and losses like the reference's."""

from collections import Counter

import pytest
import torch

from glassformer.objectives.base import IGNORE, TokenRow
from glassformer.objectives.masked_lm import MaskedLM, Translation, TranslationMaskedLM, join_translation
from glassformer.objectives.masking import Masking
from glassformer.objectives.sentence_pairs import MaskedPairs, SentencePair, frame_pair
from tests.helpers import largest_difference
from tests.objectives.models import (
    MASKING,
    WORDS,
    framed,
    fresh,
    gradients,
    mean_of,
    pair_of,
    seeded,
    their_mask,
    words,
)

PAIRS = [SentencePair(*words(4, 7), 0), SentencePair(*words(3, 3, seed=2), 1), SentencePair(*words(9, 2, seed=3), 1)]
PAIRED = MaskedPairs(masking=MASKING, cls=2, sep=3)


def test_a_batch_of_masked_words() -> None:
    rows = framed(20, 9)
    batch = MaskedLM(masking=MASKING).prepare(rows, seeded())
    labels, ids = batch.labels["masked"], batch.inputs["ids"]
    assert (labels != IGNORE).sum(-1).tolist() == [3, 1]
    assert (batch.counts, batch.tokens) == ({"masked": 4}, 29)
    assert batch.inputs["mask"].sum(-1).tolist() == [20, 9]
    original = labels.where(labels != IGNORE, ids)
    assert [original[0].tolist(), original[1, :9].tolist()] == rows


def test_the_loss_is_the_references_and_chunks_change_nothing() -> None:
    pair = pair_of("BertForMaskedLM")
    batch = MaskedLM(masking=MASKING).prepare(framed(20, 9, 14), seeded())
    ids, labels, mask = batch.inputs["ids"], batch.labels["masked"], their_mask(batch)
    reference = pair.theirs(input_ids=ids, attention_mask=mask, labels=labels)
    for chunk in (None, 3):
        loss = MaskedLM(masking=MASKING, chunk=chunk).loss(pair.ours, batch)
        assert abs(mean_of(loss, "masked") - reference.loss.item()) < 1e-9
        right, of = loss.metrics["accuracy"]
        assert (int(right), of) == (int((reference.logits.argmax(-1) == labels).sum()), 6)


def test_segments_and_word_numbers_come_along() -> None:
    row = framed(12)[0]
    text = TokenRow(row, segments=[0] * 6 + [1] * 6, words=[-1, *(n // 2 for n in range(10)), -1])
    objective = MaskedLM(masking=Masking(vocabulary=WORDS, whole_words=True, share=0.3))
    batch = objective.prepare([text], seeded())
    assert batch.inputs["segments"].tolist() == [text.segments]
    assert batch.counts["masked"] == 4
    assert int((batch.labels["masked"][0, 1:-1].view(5, 2) != IGNORE).sum(-1).min()) in (0, 2)
    with pytest.raises(ValueError, match="1 of the 2 texts of a batch have segments"):
        objective.prepare([text, TokenRow(row, words=text.words)], seeded())
    with pytest.raises(ValueError, match="12 ids, but 2 segments"):
        TokenRow(row, segments=[0, 1])


def test_a_text_and_its_translation_in_one_row() -> None:
    text = join_translation(Translation([10, 11, 12], [20, 21], (2, 1)), separator=3)
    assert torch.as_tensor(text.ids).tolist() == [3, 10, 11, 12, 3, 3, 20, 21, 3]
    assert torch.as_tensor(text.languages).tolist() == [2] * 5 + [1] * 4
    assert torch.as_tensor(text.positions).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_words_are_hidden_in_both_languages() -> None:
    objective = TranslationMaskedLM(masked=MaskedLM(masking=Masking(vocabulary=WORDS, share=0.5)), separator=3)
    batch = objective.prepare([Translation(*words(10, 10), (0, 2))], seeded())
    hidden = batch.labels["masked"][0] != IGNORE
    assert bool(hidden[:12].any())
    assert bool(hidden[12:].any())
    assert not bool(hidden[[0, 11, 12, 23]].any())


def test_the_loss_beside_a_translation_is_the_references() -> None:
    pair = pair_of("XLMWithLMHeadModel")
    objective = TranslationMaskedLM(masked=MaskedLM(masking=Masking(vocabulary=WORDS, share=0.3)), separator=3)
    examples = [Translation(*words(6, 8), (0, 2)), Translation(*words(3, 5, seed=4), (1, 0))]
    batch = objective.prepare(examples, seeded())
    loss = objective.loss(pair.ours, batch)
    reference = pair.theirs(
        input_ids=batch.inputs["ids"],
        attention_mask=their_mask(batch),
        langs=batch.inputs["languages"],
        position_ids=batch.inputs["positions"],
    )
    mean = torch.nn.functional.cross_entropy(reference.logits.flatten(0, 1), batch.labels["masked"].flatten())
    assert abs(mean_of(loss, "masked") - mean.item()) < 1e-5
    still = pair.theirs(
        input_ids=batch.inputs["ids"], attention_mask=their_mask(batch), langs=batch.inputs["languages"]
    )
    assert largest_difference(reference.logits, still.logits) > 1e-2  # positions and languages do matter


def test_a_framed_pair() -> None:
    text = frame_pair(SentencePair([10, 11], [20], 1), cls=2, sep=3)
    assert (text.ids, text.segments) == ([2, 10, 11, 3, 20, 3], [0, 0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("BertForPreTraining", "next_sentence_label"), ("AlbertForPreTraining", "sentence_order_label")],
)
def test_the_loss_of_pairs_is_the_references(architecture: str, name: str) -> None:
    pair = pair_of(architecture)
    batch = PAIRED.prepare(PAIRS, seeded())
    loss = PAIRED.loss(pair.ours, batch)
    reference = pair.theirs(
        input_ids=batch.inputs["ids"],
        attention_mask=their_mask(batch),
        token_type_ids=batch.inputs["segments"],
        labels=batch.labels["masked"],
        **{name: batch.labels["pair"]},
    )
    assert batch.labels["pair"].tolist() == [0, 1, 1]
    assert abs(loss.mean().item() - reference.loss.item()) < 1e-9
    assert abs(mean_of(loss, "pair") + mean_of(loss, "masked") - reference.loss.item()) < 1e-9


def test_row_32_each_term_of_unequal_micro_batches_has_its_own_count() -> None:
    model = fresh("BertForPreTraining")
    PAIRED.loss(model, PAIRED.prepare(PAIRS, seeded(5))).mean().backward()
    whole = gradients(model)
    model.zero_grad()
    generator = seeded(5)  # words are hidden row by row, so two batches draw what one would
    batches = [PAIRED.prepare(PAIRS[:1], generator), PAIRED.prepare(PAIRS[1:], generator)]
    counts = sum((Counter(batch.counts) for batch in batches), Counter())
    assert counts == {"masked": 5, "pair": 3}
    for batch in batches:
        PAIRED.loss(model, batch).mean(counts).backward()
    for name, gradient in gradients(model).items():
        assert largest_difference(gradient, whole[name]) < 1e-12, name


def test_a_model_without_the_head_is_refused() -> None:
    batch = PAIRED.prepare(PAIRS, seeded())
    with pytest.raises(ValueError, match=r"MaskedPairs .* PretrainingHead"):
        PAIRED.loss(fresh("BertForMaskedLM"), batch)
    with pytest.raises(ValueError, match=r"MaskedLM .* encoder .* decoder"):
        MaskedLM(masking=MASKING).loss(fresh("GPT2LMHeadModel"), batch)
