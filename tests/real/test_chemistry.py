"""A real ALBERT-type model of chemical strings, stored as a pickle."""

import pytest
import torch
import transformers

from glassformer import load
from glassformer.weights.files import WeightsError
from tests.real.places import data

MASK = 14  # the id of [MASK] in its vocabulary


def test_masks_are_filled_as_the_reference_fills_them() -> None:
    folder = data("rxnmapper-albert")
    with pytest.raises(WeightsError, match="allow_pickle"):
        load(folder)
    loaded = load(folder, allow_pickle=True)
    assert "gap_size" in loaded.report.unknown_keys
    reference = transformers.AlbertForMaskedLM(transformers.AlbertConfig.from_pretrained(folder)).eval()
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    assert all("decoder" in name for name in missing), missing
    reference.tie_weights()
    del unexpected
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert vocabulary[MASK] == "[MASK]"
    smiles = ["C", "C", "(", "=", "O", ")", "O", ".", "C", "O", ">>", "C", "C", "(", "=", "O", ")", "O", "C"]
    ids = [vocabulary.index("[CLS]"), *map(vocabulary.index, smiles), vocabulary.index("[SEP]")]
    rows = torch.tensor(
        [[MASK if place == hidden else number for place, number in enumerate(ids)] for hidden in range(1, 20)]
    )
    with torch.no_grad():
        ours, theirs = loaded.model(rows), reference(rows).logits
    assert float((ours - theirs).abs().max()) < 1e-3 * float(theirs.abs().max())
    places = torch.arange(len(rows))
    assert torch.equal(ours[places, places + 1].argmax(-1), theirs[places, places + 1].argmax(-1))
    filled = ours[places, places + 1].argmax(-1)
    assert float((filled == torch.tensor(ids[1:20])).float().mean()) > 0.5  # it has learnt some chemistry
