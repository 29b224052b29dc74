"""Folders of encoder-decoders as published: copies of one table, heads that their config cannot describe."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import glassformer.hub as hub
from glassformer.config import LMHead
from glassformer.weights.files import WeightsError
from tests.parity.cases_bart import SMALL as BART
from tests.parity.cases_t5 import LATER, SMALL
from tests.parity.harness import EXACT, FLOAT32_INSIDE, Case, Pair, reference

T5_10 = Case("t5", "T5ForConditionalGeneration", SMALL, left="as is", bound=FLOAT32_INSIDE)
T5_11 = Case("t5-1.1", "T5ForConditionalGeneration", LATER, left="as is", bound=FLOAT32_INSIDE)


def edit_config(folder: Path, **keys: Any) -> None:
    """Write keys into config.json; those that are None are taken out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_weights(folder: Path, **more: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **more}, path, metadata={"format": "pt"})


def untied(case: Case, folder: Path) -> Any:
    """A reference whose head has a matrix of its own, saved."""
    model = reference(case)
    model.lm_head.weight = nn.Parameter(torch.randn(61, 24, dtype=torch.float64) / 5)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("config", ["as published", "as written today"])
def test_a_head_of_its_own(config: str, tmp_path: Path) -> None:
    """The config of version 1.1 says that the head is not tied; newer writers say that it is, whatever the weights."""
    theirs = untied(T5_11, tmp_path)
    if config == "as published":
        edit_config(tmp_path, tie_word_embeddings=False, scale_decoder_outputs=None)
    loaded = hub.load(tmp_path)
    assert loaded.config.head == LMHead(tied=False, scale=1.0)
    pair = Pair(T5_11, theirs, loaded.model, tmp_path)
    for side in ("none", "right", "left"):
        assert pair.compare(*pair.inputs(), side) <= FLOAT32_INSIDE
    hub.save(loaded, tmp_path / "back", to="hf")
    back = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "back", dtype=torch.float64)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    assert back.config.scale_decoder_outputs is False


def test_old_files_with_copies_of_the_table(tmp_path: Path) -> None:
    theirs = reference(T5_10)
    theirs.save_pretrained(tmp_path)
    table = theirs.shared.weight.detach()
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    edit_weights(
        tmp_path,
        **{name: table.clone() for name in copies},
        **{"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(8, 3)},
    )  # fmt: skip
    edit_config(
        tmp_path, scale_decoder_outputs=None, dense_act_fn=None, is_gated_act=None, num_decoder_layers=None,
        tie_word_embeddings=None, n_positions=512, output_past=True, decoder_start_token_id=0,
    )  # fmt: skip
    loaded = hub.load(tmp_path, strict=True)
    assert loaded.config.head == LMHead(scale=24**-0.5)
    pair = Pair(T5_10, theirs, loaded.model, tmp_path)
    assert pair.compare(*pair.inputs(), "right") <= FLOAT32_INSIDE
    edit_weights(tmp_path, **{"decoder.embed_tokens.weight": table + 1})
    with pytest.raises(WeightsError, match="differ"):
        hub.load(tmp_path)


def test_a_plain_model_gets_a_head_without_bias(tmp_path: Path) -> None:
    """The published base and large models have no language-model head; it needs nothing but their table."""
    plain = reference(Case("bart", "BartModel", BART))
    plain.save_pretrained(tmp_path)
    edit_weights(tmp_path, **{"encoder.version": torch.tensor([2.0]), "decoder.version": torch.tensor([2.0])})
    loaded = hub.load(tmp_path, head="lm")
    theirs = transformers.BartForConditionalGeneration.from_pretrained(
        tmp_path, dtype=torch.float64, attn_implementation="eager"
    )
    pair = Pair(Case("bart", "BartForConditionalGeneration", BART), theirs, loaded.model, tmp_path)
    assert pair.compare(*pair.inputs(), "right") <= EXACT


def test_the_encoder_alone(tmp_path: Path) -> None:
    theirs = reference(T5_10)
    theirs.save_pretrained(tmp_path)
    loaded = hub.load(tmp_path, head="encoder")
    assert loaded.config.family == "encoder"
    assert set(loaded.report.unused) == {
        name for name in load_file(tmp_path / "model.safetensors") if "decoder" in name
    }
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert (loaded.model(ids) - theirs.encoder(ids).last_hidden_state).abs().max() <= FLOAT32_INSIDE


def test_float32_in_the_positions_of_the_reference_is_all_that_differs(tmp_path: Path) -> None:
    """Its table of sinusoids comes from float32 numbers; with an exact one in its place the rest agrees exactly."""
    case = Case("m2m100", "M2M100ForConditionalGeneration", BART, left="as is")
    pair = Pair.make(case, tmp_path)
    angles = torch.arange(42.0, dtype=torch.float64)[:, None] / 10_000 ** (torch.arange(12.0, dtype=torch.float64) / 11)
    table = torch.cat((angles.sin(), angles.cos()), -1)
    for stack in (pair.theirs.model.encoder, pair.theirs.model.decoder):
        assert (stack.embed_positions.weights[2:] - table[2:]).abs().max() < 1e-5
        stack.embed_positions.weights = table
    for side in ("none", "right", "left"):
        assert pair.compare(*pair.inputs(), side) <= EXACT
