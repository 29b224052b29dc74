"""Known silent bugs of other implementations that concern whole lineages, each as a test named after its row."""

from pathlib import Path
from re import findall

import pytest
import torch

from glassformer.config import BlockSparse, change
from glassformer.families import preset
from glassformer.models.transformer import Transformer
from tests.helpers import largest_difference, randomise, types_unchecked
from tests.parity.cases import CASES
from tests.promises.test_five_promises import built, facts_of


def sparse_model(semantics: str) -> Transformer:
    facts = facts_of(next(case for case in CASES if case.architecture == "BigBirdForMaskedLM"))
    facts = change(facts, "embed.position.length", 80)
    windows = (BlockSparse(block=2, random=1, semantics=semantics, seed=3),)
    model = randomise(Transformer(change(facts, "encoder.attention.windows", windows)))
    assert isinstance(model, Transformer)
    return model.double().eval()


@pytest.mark.parametrize("semantics", ["reference", "set"])
def test_row_13_a_short_text_changes_nothing_for_a_long_one(semantics: str) -> None:
    model = sparse_model(semantics)
    long, short = torch.randint(5, 61, (1, 40)), torch.randint(5, 61, (1, 4))
    with torch.no_grad():
        first = model(long)
        model(short)
        assert torch.equal(model(long), first)
        assert torch.equal(model(long.repeat(3, 1))[:1], model(long.repeat(3, 1))[:1])
    full = Transformer(change(model.config, "encoder.attention.windows", (None,))).double().eval()
    full.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert largest_difference(full(long), first) > 1e-3  # it was sparse
        assert largest_difference(full(short), model(short)) < 1e-12  # a short text is attended in full


def test_row_17_only_the_tied_head_is_scaled_and_scores_are_not() -> None:
    tied, untied = preset("t5-small"), preset("t5-v1_1-small")
    assert (tied.head.tied, tied.head.scale) == (True, 512**-0.5)
    assert (untied.head.tied, untied.head.scale) == (False, 1.0)
    for facts in (tied, untied):
        assert facts.encoder.attention.scale == facts.decoder.attention.scale == 1.0


def test_row_25_ids_outside_the_vocabulary_raise() -> None:
    model = built(next(case for case in CASES if case.architecture == "GPT2LMHeadModel"))
    for wrong in (61, 65_536 + 7, -1):
        with pytest.raises(IndexError, match=rf"token {wrong} is outside the table: it has rows 0 to 60"):
            model(torch.tensor([[5, wrong]]))
    with types_unchecked(), pytest.raises(TypeError, match="integer"):
        model(torch.tensor([[5.0, 6.0]]))


def test_every_row_about_models_loading_tokens_and_decoding_has_a_test() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    named = {int(number) for number in findall(r"def test_row_(\d+)_", text)}
    assert {*range(1, 29), *range(39, 46)} - named == set()
