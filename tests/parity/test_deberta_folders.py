"""Folders as the makers of DeBERTa published them: other names for a head, and positions that nothing else reads."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import glassformer.hub as hub
from glassformer.config import LMHead, MaskDecoder
from tests.parity.cases_deberta import SECOND, SMALL, case
from tests.parity.harness import LENGTHS, LONGEST, WIDTH, Pair, rows

CASES = [
    case("deberta", "DebertaForMaskedLM", {**SMALL, "legacy": False}),
    case("deberta_v2", "DebertaV2ForMaskedLM", {**SECOND, "legacy": False}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_makers_names_of_the_head_are_read_whatever_legacy_says(case, tmp_path: Path) -> None:
    pair = Pair.make(case, tmp_path / "theirs")
    assert not any(name.startswith("cls.") for name in load_file(tmp_path / "theirs" / "model.safetensors"))
    for side in ("none", "right", "left"):
        assert pair.compare(rows(LENGTHS, 1), None, side) <= case.bound
    hub.save(hub.load(tmp_path / "theirs"), tmp_path / "back", to="hf")
    cls = getattr(transformers, case.architecture)
    again, notes = cls.from_pretrained(tmp_path / "back", output_loading_info=True, dtype=torch.float64)
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    ids = rows(LENGTHS, 1)[0][None]
    with torch.no_grad():
        assert (again(ids).logits - pair.theirs(ids).logits).abs().max() < case.bound


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_absolute_positions_serve_a_mask_decoder_and_are_passed_over_without_one(case, tmp_path: Path) -> None:
    pair = Pair.make(case, tmp_path)
    file, name = tmp_path / "model.safetensors", "deberta.embeddings.position_embeddings.weight"
    table = torch.randn(LONGEST, WIDTH, dtype=torch.float64)
    spare = {"mask_predictions.dense.weight": torch.zeros(2, 2)} if "v2" in case.name else {}
    save_file({**load_file(file), name: table, **spare}, file, {"format": "pt"})
    plain = hub.load(tmp_path)
    assert set(plain.report.unused) == {name, *spare}
    ids = rows(LENGTHS, 1)[0][None]
    assert torch.equal(plain.model(ids), pair.ours(ids))
    head = LMHead(transform="gelu", bias=True, mask_decoder=MaskDecoder(length=LONGEST))
    decoder = hub.load(tmp_path, head=head)
    assert torch.equal(decoder.model.head.position.weight, table)
    assert (decoder.model(ids) - plain.model(ids)).abs().max() > 1e-2
    with pytest.raises(hub.ConfigError, match="mask_decoder"):  # the other library could not run it
        hub.save(decoder, tmp_path / "back", to="hf")
