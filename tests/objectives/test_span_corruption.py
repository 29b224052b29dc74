"""Span corruption: the paper's example, its lengths, and all ways to cut equally likely."""

from collections import Counter

import pytest
import torch

from glassformer.objectives.seq2seq import SequenceToSequence
from glassformer.objectives.span_corruption import (
    SpanCorruption,
    SpanSizes,
    choose_spans,
    corrupt,
    random_segments,
)
from tests.helpers import types_unchecked
from tests.objectives.models import chi_square, fresh, mean_of, pair_of, seeded, words

EOS, FIRST = 1, 99


def objective(**more: object) -> SpanCorruption:
    return SpanCorruption(decoder=SequenceToSequence(start=0), first_sentinel=60, eos=EOS, **more)  # type: ignore[arg-type]


def test_the_example_of_the_paper() -> None:
    # Thank you <for inviting> me to your party <last> week: ids 10 …
    gone = torch.tensor([0, 0, 1, 1, 0, 0, 0, 0, 1, 0]).bool()
    inputs, targets = corrupt(torch.arange(10, 20), gone, FIRST, EOS)
    assert inputs.tolist() == [10, 11, 99, 14, 15, 16, 17, 98, 19, EOS]
    assert targets.tolist() == [99, 12, 13, 98, 18, 97, EOS]  # a text that ends in a kept span has a last sentinel


def test_the_lengths_of_the_papers_program() -> None:
    spans = SpanSizes()
    assert spans.longest_text(512) == 568
    assert spans.lengths(568) == (512, 114)
    assert spans.counts(568) == (85, 28)
    assert spans.counts(2) == (1, 1)
    assert SpanSizes(density=0.5, mean=1.0).counts(7) == (4, 3)  # no more spans than tokens on either side


@pytest.mark.parametrize("length", [2, 3, 7, 20, 100, 568])
def test_a_text_starts_with_what_stays_and_ends_with_what_goes(length: int) -> None:
    spans = SpanSizes()
    for seed in range(5):
        gone = choose_spans(length, spans, seeded(seed))
        noise, number = spans.counts(length)
        assert len(gone) == length
        assert int(gone.sum()) == noise
        assert not bool(gone[0])
        assert bool(gone[-1])
        assert int((gone[1:] & ~gone[:-1]).sum()) == number
        ids = torch.arange(1000, 1000 + length)
        inputs, targets = corrupt(ids, gone, FIRST, EOS)
        assert (len(inputs), len(targets)) == spans.lengths(length)
        assert targets[-1] == inputs[-1] == EOS
        sentinels = [n for n in inputs.tolist()[:-1] if n <= FIRST]
        assert sentinels == [n for n in targets.tolist()[:-1] if n <= FIRST] == list(range(FIRST, FIRST - number, -1))
        assert put_back(inputs.tolist()[:-1], targets.tolist()[:-1]) == ids.tolist()


def put_back(inputs: list[int], targets: list[int]) -> list[int]:
    """The original, from both."""
    spans: dict[int, list[int]] = {}
    for token in targets:
        if token <= FIRST:
            spans[token] = []
        else:
            spans[max(spans) if len(spans) == 1 else min(spans)].append(token)
    return [part for token in inputs for part in (spans[token] if token <= FIRST else [token])]


def test_every_way_to_cut_is_as_likely() -> None:
    generator = seeded(1)
    seen = Counter(tuple(random_segments(6, 3, generator).tolist()) for _ in range(2000))
    assert len(seen) == 10  # 5 places between items, 2 cuts
    assert all(sum(sizes) == 6 and min(sizes) >= 1 for sizes in seen)
    assert chi_square(list(seen.values()), [1 / 10] * 10) < 4.5
    masks = Counter(tuple(choose_spans(9, SpanSizes(density=0.45, mean=2.0), generator).tolist()) for _ in range(2000))
    assert len(masks) == 4 * 3  # 5 that stay in 2 parts, 4 that go in 2 parts
    assert chi_square(list(masks.values()), [1 / 12] * 12) < 4.5


def test_a_batch_and_its_loss() -> None:
    rows = words(20, 33)
    batch = objective().prepare(rows, seeded())
    assert batch.inputs["ids"].shape == (2, SpanSizes().lengths(33)[0])
    assert batch.counts["target"] == SpanSizes().lengths(20)[1] + SpanSizes().lengths(33)[1]
    assert batch.inputs["target"][:, 0].tolist() == [0, 0]
    assert batch.labels["target"][:, 0].tolist() == [60, 60]
    assert int((batch.labels["target"] == EOS).sum()) == 2
    pair = pair_of("T5ForConditionalGeneration", "t5")
    pair.theirs.config.decoder_start_token_id = 0
    reference = pair.theirs(
        input_ids=batch.inputs["ids"], attention_mask=batch.inputs["mask"].long(), labels=batch.labels["target"]
    )
    assert abs(mean_of(objective().loss(pair.ours, batch), "target") - reference.loss.item()) < 1e-5


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="a text of 1 tokens"):
        objective().prepare([[7]], seeded())
    with pytest.raises(ValueError, match="5 spans, and there are 4 sentinels"):
        objective(sentinels=4).prepare([list(range(5, 105))], seeded())
    with pytest.raises(ValueError, match="2 tokens are too few"):
        SpanSizes().longest_text(2)
    with types_unchecked(), pytest.raises(ValueError, match="density"):
        SpanSizes(density=1.5)
    with pytest.raises(ValueError, match="SequenceToSequence"):
        objective().loss(fresh("GPT2LMHeadModel"), objective().prepare(words(9), seeded()))
