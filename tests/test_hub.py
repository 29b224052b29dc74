"""The front door: folders good and bad. A bad one gets one paragraph with file, fault and remedy, and nothing loads."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import glassformer
from glassformer import hub
from glassformer.config import EmbeddingHead, LMHead, TaskHead, change
from glassformer.models.transformer import Transformer
from glassformer.weights.files import WeightsError
from glassformer.weights.lineage import ConfigError
from tests.helpers import randomise

SIZES = {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}
IDS = torch.arange(8).reshape(1, 8)


@pytest.fixture(scope="module")
def reference() -> transformers.GPT2LMHeadModel:
    torch.manual_seed(1)
    return randomise(transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).eval())


@pytest.fixture
def folder(tmp_path: Path, reference: transformers.GPT2LMHeadModel) -> Path:
    reference.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change_them: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change_them(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def reconfigure(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    said = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not ...}))


def test_load_gives_model_facts_and_report(folder: Path, reference: transformers.GPT2LMHeadModel) -> None:
    loaded = glassformer.load(folder)
    assert isinstance(loaded.model, Transformer)
    assert not loaded.model.training
    assert loaded.config == loaded.model.config
    assert (loaded.lineage, loaded.config.family) == ("gpt2", "decoder")
    with torch.no_grad():
        assert torch.allclose(loaded.model(IDS), reference(IDS).logits, atol=1e-5)


def test_dtype_and_device(folder: Path) -> None:
    model = hub.load(folder, dtype=torch.bfloat16, device="cpu").model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert all(p.requires_grad for p in model.parameters())


def test_weights_live_in_memory_of_their_own(folder: Path) -> None:
    """Overwriting the file afterwards, as a save to the same folder does, must not reach into the model."""
    model = hub.load(folder).model
    before = model(IDS)
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(model(IDS), before)


def test_parts_that_lie_apart(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    weights = (folder / "model.safetensors").rename(tmp_path / "elsewhere" / "w.safetensors")
    from_file = hub.load(config=folder / "config.json", weights=weights)
    from_dict = hub.load(config=json.loads((folder / "config.json").read_text()), weights=weights)
    assert torch.equal(from_file.model(IDS), from_dict.model(IDS))
    for wrong in ({"config": folder / "config.json"}, {"weights": weights}, {}):
        with pytest.raises(ValueError, match="config and weights"):
            hub.load(**wrong)
    with pytest.raises(ValueError, match="not both"):
        hub.load(folder, config=folder / "config.json", weights=weights)
    with pytest.raises(WeightsError, match="do not say what model"):
        hub.load(weights)


def test_another_head(folder: Path) -> None:
    bare = hub.load(folder, head="none")
    assert bare.config.head is None
    assert bare.model(IDS).shape == (1, 8, 12)
    vectors = hub.load(folder, head=EmbeddingHead()).model(IDS)
    assert vectors.shape == (1, 12)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(1))
    with pytest.raises(ValueError, match=r"head must be one of .*lm.*Did you mean 'classify'"):
        hub.load(folder, head="clasify")
    with pytest.raises(WeightsError, match=r"Missing \(1\): score\.weight"):
        hub.load(folder, head="classify")


def test_spare_weights_of_other_heads_are_reported_not_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8
    )
    transformers.BertForPreTraining(config).save_pretrained(tmp_path)
    reconfigure(tmp_path, architectures=["BertForMaskedLM"])
    loaded = hub.load(tmp_path)
    assert isinstance(loaded.config.head, LMHead)
    assert "cls.seq_relationship.weight" in loaded.report.spare
    assert "pooler" in " ".join(loaded.report.spare)
    assert all("head" in reason for reason in loaded.report.spare.values())


def test_old_names_and_wrappers_are_understood(folder: Path) -> None:
    """Row 22: names from compiled and distributed models, and norms from years ago."""
    expected = hub.load(folder).model(IDS)

    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"_orig_mod.module.{name}"] = tensors.pop(name)

    rewrite(folder, wrap)
    assert torch.equal(hub.load(folder).model(IDS), expected)


def test_row_22_compiled_and_wrapped_models_save_plain_names(folder: Path, tmp_path: Path) -> None:
    model = hub.load(folder).model

    class Wrapper(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

    for wrapped in (torch.compile(model, backend="eager"), Wrapper(model), Wrapper(torch.compile(model))):
        hub.save(wrapped, tmp_path / "ours")
        assert set(load_file(tmp_path / "ours" / "model.safetensors")) == set(model.state_dict())
    with pytest.raises(TypeError, match="Linear"):
        hub.save(torch.nn.Linear(2, 2), tmp_path / "no")


def test_row_20_ties_survive_saving_loading_and_a_training_step(folder: Path, tmp_path: Path) -> None:
    model = hub.load(folder).model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(IDS).square().mean().backward()
    optimiser.step()
    hub.save(model, tmp_path / "hf", to="hf", lineage="gpt2")
    theirs, notes = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not notes["missing_keys"]
    assert theirs.lm_head.weight.data_ptr() == theirs.transformer.wte.weight.data_ptr()
    assert torch.allclose(theirs(IDS).logits, model(IDS), atol=1e-5)


def test_row_20_untied_weights_under_a_tied_config_are_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"] + 1}))
    with pytest.raises(WeightsError, match=r"tied tensor, but they differ.*tie_word_embeddings=false"):
        hub.load(folder)
    reconfigure(folder, tie_word_embeddings=False)
    assert "head.out.weight" in hub.load(folder).model.state_dict()


def test_row_20_a_copy_of_a_tied_tensor_is_accepted(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"].clone()}))
    assert "head.out.weight" not in hub.load(folder).model.state_dict()
    rewrite(folder, lambda tensors: tensors.pop("transformer.wte.weight"))
    assert hub.load(folder).config.head == LMHead()


def test_row_21_every_key_is_accounted_for(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"transformer.h.0.extra.weight": torch.zeros(3)}))
    with pytest.raises(WeightsError, match=r"Unknown \(1\): transformer\.h\.0\.extra\.weight \(3,\).*ignore_keys"):
        hub.load(folder)
    assert hub.load(folder, ignore_keys=["*.extra.weight"]).report.spare == {
        "transformer.h.0.extra.weight": "asked to be ignored"
    }
    rewrite(folder, lambda tensors: tensors.pop("transformer.h.1.ln_2.bias"))
    with pytest.raises(WeightsError, match=r"Missing \(1\): transformer\.h\.1\.ln_2\.bias \(for decoder\.blocks\.1"):
        hub.load(folder, ignore_keys=["*.extra.weight"])


def test_row_21_a_misshapen_weight_is_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"transformer.wpe.weight": torch.zeros(15, 12)}))
    with pytest.raises(WeightsError, match=r"wpe\.weight has the wrong shape.*\(16, 12\).*\(15, 12\)"):
        hub.load(folder)
    rewrite(folder, lambda t: t.update({"transformer.h.0.attn.c_attn.weight": torch.zeros(12, 35)}))
    with pytest.raises(WeightsError, match=r"c_attn\.weight"):
        hub.load(folder)


def test_foreign_config_keys_are_listed_once_and_refused_when_strict(folder: Path) -> None:
    reconfigure(folder, gap_size=3, task_specific_params={})
    assert hub.load(folder).report.foreign == {"gap_size": 3}
    with pytest.raises(ConfigError, match=r"strict=True.*gap_size"):
        hub.load(folder, strict=True)


def test_bad_configs(folder: Path) -> None:
    config = folder / "config.json"
    good = config.read_text()
    reconfigure(folder, model_type="gtp2")
    with pytest.raises(ConfigError, match=r"model_type='gtp2'.*Did you mean 'gpt2'"):
        hub.load(folder)
    config.write_text(good)
    reconfigure(folder, auto_map={"AutoModel": "evil.Model"})
    with pytest.raises(ConfigError, match=r"run Python code.*never.*remove the key"):
        hub.load(folder)
    config.write_text(good)
    reconfigure(folder, architectures=["GPT2DoubleHeadsModel"])
    with pytest.raises(ConfigError, match=r"GPT2DoubleHeadsModel.*head="):
        hub.load(folder)
    config.write_text(good)
    reconfigure(folder, activation_function="gleu")
    with pytest.raises(ConfigError, match="activation_function='gleu'"):
        hub.load(folder)
    config.write_text(good)
    reconfigure(folder, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ConfigError, match=r"only False can be used here"):
        hub.load(folder)
    config.write_text(good)
    reconfigure(folder, n_head=5)
    with pytest.raises(ValueError, match="5"):
        hub.load(folder)
    config.write_text(good[:-20])
    with pytest.raises(ConfigError, match=r"config\.json: this is not JSON"):
        hub.load(folder)
    config.write_text("[1]")
    with pytest.raises(ConfigError, match="list"):
        hub.load(folder)
    config.unlink()
    with pytest.raises(ConfigError, match=r"config\.json: there is no such file"):
        hub.load(folder)
    with pytest.raises(WeightsError, match="no such folder or file"):
        hub.load(folder / "nothing" / "here")


def test_bad_weights(folder: Path, reference: transformers.GPT2LMHeadModel) -> None:
    path = folder / "model.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        hub.load(folder)
    length = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8 : 8 + length])
    name = next(name for name in header if name != "__metadata__")
    header[name]["shape"] = [7, *header[name]["shape"]]
    lie = json.dumps(header).encode().ljust(length)[: max(length, len(json.dumps(header)))]
    path.write_bytes(struct.pack("<Q", len(lie)) + lie + good[8 + length :])
    with pytest.raises(WeightsError, match="bytes"):
        hub.load(folder)
    path.write_bytes(good)
    rewrite(folder, lambda tensors: tensors["transformer.wte.weight"].__setitem__((3, 4), float("nan")))
    hub.load(folder)
    with pytest.raises(WeightsError, match=r"wte\.weight.*1 NaN"):
        hub.load(folder, check_finite=True)
    path.unlink()
    torch.save(reference.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="--allow-pickle"):
        hub.load(folder)
    assert torch.allclose(hub.load(folder, allow_pickle=True).model(IDS), reference(IDS).logits, atol=1e-5)


def test_shards(folder: Path, reference: transformers.GPT2LMHeadModel) -> None:
    (folder / "model.safetensors").unlink()
    reference.save_pretrained(folder, max_shard_size="5KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert torch.allclose(hub.load(folder).model(IDS), reference(IDS).logits, atol=1e-5)
    shards[1].unlink()
    with pytest.raises(WeightsError, match=shards[1].name):
        hub.load(folder)


def test_our_own_format(folder: Path, tmp_path: Path) -> None:
    loaded = hub.load(folder)
    hub.save(loaded, tmp_path / "ours")
    said = json.loads((tmp_path / "ours" / "glassformer.json").read_text())
    assert said["lineage"] == "gpt2"
    assert said["model"]["decoder"]["layers"] == 2
    assert "decoder.blocks.0.attention.q.weight" in load_file(tmp_path / "ours" / "model.safetensors")
    again = hub.load(tmp_path / "ours")
    assert (again.config, again.lineage) == (loaded.config, "gpt2")
    assert torch.equal(again.model(IDS), loaded.model(IDS))
    said["model"]["decoder"]["layres"] = 3
    (tmp_path / "ours" / "glassformer.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match="Did you mean 'layers'"):
        hub.load(tmp_path / "ours")
    del said["model"]["decoder"]["layres"]
    said["model"]["decoder"]["layers"] = 3
    (tmp_path / "ours" / "glassformer.json").write_text(json.dumps(said))
    with pytest.raises(WeightsError, match=r"decoder\.blocks\.2"):
        hub.load(tmp_path / "ours")


def test_saving_for_hugging_face_needs_a_lineage_that_can_say_it(folder: Path, tmp_path: Path) -> None:
    facts = hub.load(folder).config
    model = Transformer(facts)
    with pytest.raises(ConfigError, match="lineage="):
        hub.save(model, tmp_path / "x", to="hf")
    with pytest.raises(ValueError, match="Did you mean 'gpt2'"):
        hub.save(model, tmp_path / "x", to="hf", lineage="gtp2")
    odd = Transformer(change(facts, "decoder.attention.windows", (None, 3)))
    with pytest.raises(ConfigError, match=r"cannot state these facts: decoder\.attention\.windows"):
        hub.save(odd, tmp_path / "x", to="hf", lineage="gpt2")
    tagger = Transformer(change(facts, "head", TaskHead(task="pair", labels=("a", "b"))))
    with pytest.raises(ConfigError, match="no head of the kind 'pair'"):
        hub.save(tagger, tmp_path / "x", to="hf", lineage="gpt2")
    assert not (tmp_path / "x").exists()


def test_names_are_looked_up_in_the_local_cache_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(WeightsError, match=r"someone/model: neither.*download=True"):
        hub.load("someone/model")
    snapshot = tmp_path / "cache" / "models--someone--model" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    refs = tmp_path / "cache" / "models--someone--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    assert hub.load("someone/model").lineage == "gpt2"
