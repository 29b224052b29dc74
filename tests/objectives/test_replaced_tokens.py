"""A generator and a discriminator: draws, labels, losses like the reference's, what is shared and what is not."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.models.transformer import Transformer
from glassformer.objectives.base import IGNORE, Batch
from glassformer.objectives.masking import Masking
from glassformer.objectives.replaced_tokens import GeneratorAndDiscriminator, ReplacedTokens, draw_tokens
from tests.helpers import largest_difference, normal, types_unchecked
from tests.objectives.models import (
    WORDS,
    chi_square,
    framed,
    fresh,
    gradients,
    mean_of,
    pair_of,
    seeded,
    their_mask,
)

OBJECTIVE = ReplacedTokens(masking=Masking(vocabulary=WORDS, share=0.4, split=(0.85, 0.0, 0.15)))


def two(share: Any = "none", **facts: Any) -> GeneratorAndDiscriminator:
    generator = fresh("ElectraForMaskedLM", "electra", seed=1, **facts)
    return GeneratorAndDiscriminator(generator, fresh("ElectraForPreTraining", "electra", seed=2), share)


def seen_ids(model: GeneratorAndDiscriminator, batch: Batch) -> Tensor:
    """What the discriminator is given to read."""
    seen: list[Tensor] = []
    hook = model.discriminator.register_forward_pre_hook(lambda *args: seen.append(args[-1]["ids"]), with_kwargs=True)
    OBJECTIVE.loss(model, batch)
    hook.remove()
    return seen[0]


def test_draws_follow_the_softmax() -> None:
    scores = torch.tensor([1.0, 0.0, -1.0, 2.0, -50.0], dtype=torch.float64)
    draws = draw_tokens(scores.expand(20_000, 5), seed=3)
    probs = scores.softmax(-1)
    assert chi_square(torch.bincount(draws, minlength=5)[:4].tolist(), (probs[:4] / probs[:4].sum()).tolist()) < 4.5
    assert int(draws.max()) < 4
    assert torch.equal(draws, draw_tokens(scores.expand(20_000, 5), seed=3))
    assert not torch.equal(draws, draw_tokens(scores.expand(20_000, 5), seed=4))


def test_the_discriminator_reads_draws_in_hidden_places_and_the_original_elsewhere() -> None:
    model, rows = two(), framed(20, 12)
    batch = OBJECTIVE.prepare(rows, seeded())
    ids, hidden = seen_ids(model, batch), batch.labels["generator"] != IGNORE
    original = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        original[number, : len(row)] = torch.tensor(row)
    mask = batch.inputs["mask"]
    assert batch.counts == {"generator": int(hidden.sum()), "discriminator": 32}
    assert torch.equal(ids[~hidden & mask], original[~hidden & mask])
    assert torch.equal(ids, seen_ids(model, batch))  # the batch decides the draws
    with torch.no_grad():
        model.generator.head.bias[33] = 100.0
    assert set(seen_ids(model, batch)[hidden].tolist()) == {33}


def test_the_losses_are_the_references() -> None:
    pairs = [pair_of("ElectraForMaskedLM", "electra"), pair_of("ElectraForPreTraining", "electra")]
    model = GeneratorAndDiscriminator(pairs[0].ours, pairs[1].ours, "none")
    batch = OBJECTIVE.prepare(framed(20, 12), seeded())
    loss = OBJECTIVE.loss(model, batch)
    ids, mask, labels = seen_ids(model, batch), their_mask(batch), batch.labels["generator"]
    reference = pairs[0].theirs(input_ids=batch.inputs["ids"], attention_mask=mask, labels=labels).loss
    assert abs(mean_of(loss, "generator") - reference.item()) < 1e-9
    is_replaced = (ids != labels.where(labels != IGNORE, batch.inputs["ids"])) & mask.bool()
    assert 0 < int(is_replaced.sum()) == int(loss.metrics["replaced"][0])
    output = pairs[1].theirs(input_ids=ids, attention_mask=mask, labels=is_replaced.double())
    assert abs(mean_of(loss, "discriminator") - output.loss.item()) < 1e-7  # they take this one in float32
    assert abs(loss.mean().item() - (reference + 50 * output.loss).item()) < 1e-5
    right = ((output.logits > 0) == is_replaced) & mask.bool()
    assert int(loss.metrics["discriminator accuracy"][0]) == int(right.sum())


def test_a_draw_that_happens_to_be_right_is_not_replaced() -> None:
    model, row = two(), [2, *[33] * 10, 3]
    with torch.no_grad():
        model.generator.head.bias[33] = 100.0
    loss = OBJECTIVE.loss(model, OBJECTIVE.prepare([row], seeded()))
    assert int(loss.metrics["replaced"][0]) == 0
    assert int(loss.metrics["generator accuracy"][0]) == loss.metrics["generator accuracy"][1] == 5


def test_no_gradient_goes_through_the_draw() -> None:
    model = two()
    loss = OBJECTIVE.loss(model, OBJECTIVE.prepare(framed(20), seeded()))
    loss.terms["discriminator"].total.backward()
    assert not gradients(model.generator)
    assert gradients(model.discriminator)


def test_tied_tables_are_one_and_learn_from_both() -> None:
    model = two("tied")
    for name in ("token", "position", "segment"):
        assert getattr(model.generator.embed, name).weight is getattr(model.discriminator.embed, name).weight
    batch = OBJECTIVE.prepare(framed(20), seeded())
    apart = []
    for term in ("generator", "discriminator"):
        model.zero_grad()
        OBJECTIVE.loss(model, batch).terms[term].total.backward()
        apart.append(gradients(model)["generator.embed.token.weight"])
    model.zero_grad()
    loss = OBJECTIVE.loss(model, batch)
    (loss.terms["generator"].total + loss.terms["discriminator"].total).backward()
    assert min(float(gradient.abs().max()) for gradient in apart) > 1e-4
    assert largest_difference(gradients(model)["generator.embed.token.weight"], apart[0] + apart[1]) < 1e-12
    ours = [parameter for name, parameter in model.named_parameters() if name.endswith("embed.token.weight")]
    assert len(ours) == 1  # an optimiser sees it once


def test_disentangled_tables_are_read_by_both_and_trained_apart() -> None:
    model = two("disentangled")
    table, difference = model.generator.embed.token.weight, model.discriminator.embed.token.weight
    assert difference.abs().max().item() == 0.0
    batch = OBJECTIVE.prepare(framed(20), seeded())
    loss = OBJECTIVE.loss(model, batch)
    loss.terms["discriminator"].total.backward()
    assert table.grad is None
    assert difference.grad is not None
    assert float(difference.grad.abs().max()) > 1e-4
    with torch.no_grad():
        difference.add_(normal(*difference.shape, seed=3))
    alone = model.finished()
    assert isinstance(alone, Transformer)
    assert largest_difference(alone.embed.token.weight, table + difference) == 0.0
    assert largest_difference(alone(**batch.inputs), model.discriminate(batch.inputs)) < 1e-12
    assert largest_difference(alone(**batch.inputs), model.discriminator(**batch.inputs)) > 1e-3


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tables of one size; those of the tokens are \(61, 12\) .* \(61, 10\)"):
        two("tied", embed__width=12)
    with types_unchecked(), pytest.raises(ValueError, match="share must be"):
        two("both")
    with pytest.raises(ValueError, match="its discriminator"):
        GeneratorAndDiscriminator(fresh("ElectraForMaskedLM"), fresh("ElectraForMaskedLM"))
    with pytest.raises(TypeError, match="a GeneratorAndDiscriminator, and this is a Transformer"):
        OBJECTIVE.loss(fresh("ElectraForMaskedLM"), OBJECTIVE.prepare(framed(9), seeded()))


def test_how_often_the_mask_token_stands_in_a_hidden_place() -> None:
    batch = OBJECTIVE.prepare(framed(*[30] * 50), seeded(8))
    hidden = batch.labels["generator"] != IGNORE
    seen = Counter((batch.inputs["ids"][hidden] == WORDS.mask).tolist())
    same = batch.inputs["ids"][hidden] == batch.labels["generator"][hidden]
    assert seen[True] + int(same.sum()) == 600
    assert abs(seen[True] / 600 - 0.85) < 0.06
