"""Every lineage against Hugging Face: the same numbers from the folder that Hugging Face wrote, and back."""

from pathlib import Path

import pytest
import torch
import transformers

import glassformer.hub as hub
from tests.parity.cases import CASES, FIRST, one_of_each
from tests.parity.harness import BOUNDS, Case, Pair, their_answer


@pytest.mark.parametrize("case", one_of_each(CASES))
def test_same_numbers_whatever_the_padding(case: Case, tmp_path: Path) -> None:
    pair = Pair.make(case, tmp_path)
    tokens, targets = pair.inputs()
    for side in ("none", "right", "left"):
        gap = pair.compare(tokens, targets, side)
        assert gap <= case.bound, f"{side} padding: {gap:.1e}"
    for dtype, bound in BOUNDS.items() if case.id in FIRST else ():
        gap = pair.cast(dtype).compare(tokens, targets, "right")
        assert gap <= bound, f"{dtype}: {gap:.1e}"


@pytest.mark.parametrize("case", one_of_each(CASES))
def test_round_trip_is_bitwise(case: Case, tmp_path: Path) -> None:
    """Their folder → ours → their folder: accepted without a missing or unexpected key, and bitwise the same."""
    pair = Pair.make(case, tmp_path / "theirs")
    loaded = hub.load(tmp_path / "theirs")
    hub.save(loaded, tmp_path / "ours")
    again = hub.load(tmp_path / "ours")
    hub.save(again, tmp_path / "back", to="hf")
    cls = getattr(transformers, case.architecture)
    how = {"output_loading_info": True, "dtype": torch.float64, "attn_implementation": case.attention}
    (theirs, _), (back, notes) = (cls.from_pretrained(tmp_path / name, **how) for name in ("theirs", "back"))
    assert set(notes["missing_keys"]) == set(case.unused), notes
    assert not any(notes[what] for what in ("unexpected_keys", "mismatched_keys")), notes
    before, after = theirs.state_dict(), back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before if name not in case.unused)
    tokens, targets = pair.inputs()
    inputs = {"input_ids": tokens[0][None], **({} if targets is None else {"decoder_input_ids": targets[0][None]})}
    with torch.no_grad():
        answers = [their_answer(case, model(**inputs)) for model in (theirs, back)]
    for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in answers), strict=True):
        assert torch.equal(one, other)
    assert again.config == loaded.config
    assert back.config.to_diff_dict().keys() - {"dtype", "_name_or_path"} <= {
        *pair.theirs.config.to_dict(), "architectures", "model_type"
    }  # fmt: skip
