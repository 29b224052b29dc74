"""Five ways to spoil a text: what each keeps, what it loses, and how often."""

import math
from collections import Counter

import pytest
import torch

from glassformer.objectives.denoising import (
    Denoising,
    Noise,
    delete_tokens,
    infill_text,
    mask_tokens,
    permute_sentences,
    rotate_document,
)
from glassformer.objectives.seq2seq import SequenceToSequence
from tests.objectives.models import chi_square, is_fair, mean_of, pair_of, seeded, words

MASK = 4
IDS = torch.arange(100, 140)
BOS, EOS = 0, 2


def test_masked_and_deleted_tokens_are_an_exact_share_from_anywhere() -> None:
    generator, masked, deleted = seeded(), Counter[int](), Counter[int]()
    for _ in range(1000):
        noisy = mask_tokens(IDS, 0.15, MASK, generator)
        assert int((noisy == MASK).sum()) == 6
        assert torch.equal(noisy[noisy != MASK], IDS[noisy != MASK])
        masked.update((noisy == MASK).nonzero().squeeze(-1).tolist())
        left = delete_tokens(IDS, 0.15, generator).tolist()
        assert len(left) == 34
        assert left == sorted(left)
        deleted.update({*IDS.tolist()} - {*left})
    for seen in (masked, deleted):
        assert all(is_fair(n, 1000, 0.15) for n in seen.values())
        assert len(seen) == 40
    assert int((mask_tokens(IDS, 0.01, MASK, generator) == MASK).sum()) == 1  # rounded up


def pieces(noisy: list[int]) -> tuple[list[int], list[int]]:
    """The tokens that stayed, and how many tokens each single mask between two of them stands for."""
    kept = [token for token in noisy if token != MASK]
    spans = [
        noisy[position + 1] - noisy[position - 1] - 1
        for position in range(1, len(noisy) - 1)
        if noisy[position] == MASK and MASK not in (noisy[position - 1], noisy[position + 1])
    ]
    return kept, spans


def test_infilled_spans_cover_an_exact_share_and_each_is_one_mask() -> None:
    for seed in range(20):
        noisy = infill_text(IDS, 0.3, MASK, seeded(seed)).tolist()
        kept, spans = pieces(noisy)
        assert len(kept) == 28
        assert kept == sorted(kept)
        assert all(length >= 0 for length in spans)
        assert noisy.count(MASK) >= 1


def test_lengths_of_spans_are_poisson_and_zero_inserts_a_mask() -> None:
    generator, seen = seeded(1), Counter[int]()
    for _ in range(6):
        seen.update(pieces(infill_text(torch.arange(5, 4005), 0.3, MASK, generator).tolist())[1])
    counts = [seen[length] for length in range(8)]
    counts.append(sum(n for length, n in seen.items() if length >= 8))
    probs = [math.exp(-3) * 3**length / math.factorial(length) for length in range(8)]
    assert seen[0] > 50
    assert chi_square(counts, [*probs, 1 - sum(probs)]) < 4.5


def test_all_orders_of_spans_and_tokens_are_as_likely() -> None:
    generator, seen = seeded(2), Counter[tuple[int, ...]]()
    for _ in range(3000):
        noisy = infill_text(torch.arange(10, 15), 0.2, MASK, generator)
        seen[tuple((noisy == MASK).nonzero().squeeze(-1).tolist())] += 1
    entry = [n for positions, n in seen.items() if len(positions) == 1]  # a span of one token, in any of five places
    two = [n for positions, n in seen.items() if len(positions) == 2]  # and a mask put in between
    assert (len(entry), len(two)) == (5, 15)
    assert is_fair(sum(entry), 3000, 1 - math.exp(-3))
    assert chi_square(entry, [1 / 5] * 5) < 4.5
    assert chi_square(two, [1 / 15] * 15) < 4.5


def test_sentences_are_put_in_any_order() -> None:
    sentences = [torch.tensor([10, 11]), torch.tensor([20]), torch.tensor([30, 31, 32])]
    generator = seeded(3)
    seen = Counter(tuple(torch.cat(permute_sentences(sentences, generator)).tolist()) for _ in range(3000))
    assert len(seen) == 6
    assert (30, 31, 32, 20, 10, 11) in seen
    assert chi_square(list(seen.values()), [1 / 6] * 6) < 4.5


def test_a_document_is_rotated_to_any_token() -> None:
    generator = seeded(4)
    seen = Counter(tuple(rotate_document(torch.arange(7), generator).tolist()) for _ in range(3500))
    assert set(seen) == {tuple((start + position) % 7 for position in range(7)) for start in range(7)}
    assert chi_square(list(seen.values()), [1 / 7] * 7) < 4.5


def test_noises_are_applied_together_and_each_alone() -> None:
    sentences = [torch.arange(100, 110), torch.arange(110, 130), torch.arange(130, 140)]
    nothing = Noise(mask_token=MASK, permute=False, infill=0.0)
    assert torch.equal(nothing.apply(sentences, seeded()), IDS)
    every = Noise(mask_token=MASK, infill=0.2, mask=0.1, delete=0.1, rotate=True)
    spoiled = every.apply(sentences, seeded())
    assert MASK in spoiled.tolist()
    assert {*spoiled.tolist()} < {MASK, *IDS.tolist()}
    for entry in (
        Noise(mask_token=MASK, infill=0.0),
        Noise(mask_token=MASK, permute=False),
        Noise(mask_token=MASK, permute=False, infill=0.0, mask=0.1),
        Noise(mask_token=MASK, permute=False, infill=0.0, delete=0.1),
        Noise(mask_token=MASK, permute=False, infill=0.0, rotate=True),
    ):
        assert not torch.equal(entry.apply(sentences, seeded(1)), IDS)


def test_the_target_is_the_original_and_the_loss_the_references() -> None:
    objective = Denoising(decoder=SequenceToSequence(start=EOS), noise=Noise(mask_token=MASK), bos=BOS, eos=EOS)
    texts = [words(5, 7, 4), words(3, 9, seed=2)]
    batch = objective.prepare(texts, seeded())
    whole = [[BOS, *(token for sentence in text for token in sentence), EOS] for text in texts]
    assert [row[row >= 0].tolist() for row in batch.labels["target"]] == whole
    assert batch.inputs["target"][0].tolist() == [EOS, *whole[0][:-1]]
    assert batch.inputs["ids"][:, 0].tolist() == [BOS, BOS]
    last = batch.inputs["mask"].sum(-1) - 1
    assert batch.inputs["ids"][torch.arange(2), last].tolist() == [EOS, EOS]
    assert MASK in batch.inputs["ids"][0].tolist()
    pair = pair_of("BartForConditionalGeneration", "bart")
    reference = pair.theirs(
        input_ids=batch.inputs["ids"], attention_mask=batch.inputs["mask"].long(), labels=batch.labels["target"]
    )
    assert abs(mean_of(objective.loss(pair.ours, batch), "target") - reference.loss.item()) < 1e-9
    with pytest.raises(ValueError, match="without sentences"):
        objective.prepare([[]], seeded())
    assert objective.prepare([[[]]], seeded()).labels["target"].tolist() == [[BOS, EOS]]
