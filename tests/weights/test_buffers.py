"""A stored tensor that is no parameter: loaded, saved and in the logits, but never trained."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from glassformer import hub
from glassformer.config import LMHead
from tests.helpers import randomise

SIZES = {
    "vocab_size": 31, "d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 16,
}  # fmt: skip
IDS = torch.arange(3, 11).reshape(1, 8)


@pytest.fixture
def reference() -> transformers.BartForConditionalGeneration:
    model = randomise(transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES)).eval())
    assert isinstance(model, transformers.BartForConditionalGeneration)
    torch.nn.init.normal_(model.final_logits_bias)
    return model


@pytest.mark.parametrize("to", ["hf", "glassformer"])
def test_a_frozen_bias_travels_bit_for_bit_and_is_in_the_logits(
    tmp_path: Path, reference: transformers.BartForConditionalGeneration, to: str
) -> None:
    reference.save_pretrained(tmp_path / "theirs")
    hub.save(hub.load(tmp_path / "theirs"), tmp_path / "ours", to=to)
    model = hub.load(tmp_path / "ours").model
    assert torch.equal(model.head.bias, reference.final_logits_bias[0])
    with torch.no_grad():
        theirs = reference(IDS, decoder_input_ids=IDS).logits
        assert torch.allclose(model(IDS, target=IDS), theirs, atol=1e-5)
    if to == "hf":
        stored = load_file(tmp_path / "ours" / "model.safetensors")["final_logits_bias"]
        assert torch.equal(stored, reference.final_logits_bias)


def test_a_frozen_bias_is_not_trained(tmp_path: Path, reference: transformers.BartForConditionalGeneration) -> None:
    reference.save_pretrained(tmp_path)
    model = hub.load(tmp_path).model
    assert "head.bias" not in dict(model.named_parameters())
    assert sum(p.numel() for p in model.parameters()) == reference.num_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(IDS, target=IDS).logsumexp(-1).sum().backward()
    optimizer.step()
    assert torch.equal(model.head.bias, reference.final_logits_bias[0])


def test_a_folder_without_the_bias_gets_zeros(
    tmp_path: Path, reference: transformers.BartForConditionalGeneration
) -> None:
    reference.model.save_pretrained(tmp_path)
    model = hub.load(tmp_path, head="lm").model
    assert not model.head.bias.any()
    assert not model.head.bias.is_meta


def test_a_frozen_bias_needs_a_bias() -> None:
    with pytest.raises(ValueError, match="bias_trained=False"):
        LMHead(bias_trained=False)
