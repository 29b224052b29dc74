"""The front door: folders good and bad. A bad one gets one paragraph with file, fault and remedy, and nothing loads."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import glassformer
from glassformer import hub
from glassformer.config import EmbeddingHead, Init, LMHead, TaskHead, change
from glassformer.models.transformer import Transformer
from glassformer.weights.files import WeightsError
from glassformer.weights.reader import ConfigError
from tests.configs import CONFIGS
from tests.helpers import randomise, types_unchecked

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
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


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
    with pytest.raises(WeightsError, match="no config beside these weights"):
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
    assert "cls.seq_relationship.weight" in loaded.report.unused
    assert "pooler" in " ".join(loaded.report.unused)
    assert all("head" in reason for reason in loaded.report.unused.values())


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
    assert hub.load(folder, ignore_keys=["*.extra.weight"]).report.unused == {
        "transformer.h.0.extra.weight": "in ignore_keys"
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
    assert hub.load(folder).report.unknown_keys == {"gap_size": 3}
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
    with pytest.raises(ConfigError, match=r"GPT2DoubleHeadsModel.*with head: lm"):
        hub.load(folder)
    config.write_text(good)
    reconfigure(folder, activation_function="gleu")
    with pytest.raises(ConfigError, match="activation_function='gleu'"):
        hub.load(folder)
    config.write_text(good)
    reconfigure(folder, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ConfigError, match=r"only False is supported"):
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
    with pytest.raises(WeightsError, match="set allow_pickle=True"):
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
    config = json.loads((tmp_path / "ours" / "glassformer.json").read_text())
    assert config["lineage"] == "gpt2"
    assert config["model"]["decoder"]["layers"] == 2
    assert "decoder.blocks.0.attention.q.weight" in load_file(tmp_path / "ours" / "model.safetensors")
    again = hub.load(tmp_path / "ours")
    assert (again.config, again.lineage) == (loaded.config, "gpt2")
    assert torch.equal(again.model(IDS), loaded.model(IDS))
    config["model"]["decoder"]["layres"] = 3
    (tmp_path / "ours" / "glassformer.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="Did you mean 'layers'"):
        hub.load(tmp_path / "ours")
    del config["model"]["decoder"]["layres"]
    config["model"]["decoder"]["layers"] = 3
    (tmp_path / "ours" / "glassformer.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"decoder\.blocks\.2"):
        hub.load(tmp_path / "ours")


def test_saving_for_hugging_face_needs_a_lineage_that_can_say_it(folder: Path, tmp_path: Path) -> None:
    facts = hub.load(folder).config
    model = Transformer(facts)
    with pytest.raises(ConfigError, match="set lineage to one of"):
        hub.save(model, tmp_path / "x", to="hf")
    with pytest.raises(ValueError, match="Did you mean 'gpt2'"):
        hub.save(model, tmp_path / "x", to="hf", lineage="gtp2")
    odd = Transformer(change(facts, "decoder.attention.windows", (None, 3)))
    with pytest.raises(
        ConfigError, match=r"config values: decoder\.attention\.windows\. Our own format can: to='glassformer'\."
    ):
        hub.save(odd, tmp_path / "x", to="hf", lineage="gpt2")
    tagger = Transformer(change(facts, "head", TaskHead(task="pair", labels=("a", "b"), pool="first")))
    with pytest.raises(ConfigError, match="no head of the kind 'pair'"):
        hub.save(tagger, tmp_path / "x", to="hf", lineage="gpt2")
    assert not (tmp_path / "x").exists()


def test_names_are_looked_up_in_the_local_cache_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(WeightsError, match=r"someone/model is neither.*download=True"):
        hub.load("someone/model")
    snapshot = tmp_path / "cache" / "models--someone--model" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    refs = tmp_path / "cache" / "models--someone--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    assert hub.load("someone/model").lineage == "gpt2"


def test_misspelt_options_are_refused(folder: Path) -> None:
    with types_unchecked():
        with pytest.raises(ValueError, match="Did you mean 'check_finite'"):
            hub.load(folder, check_finit=True)
        with pytest.raises(ValueError, match="an option of load must be one of"):
            hub.load(folder, trust_remote_code=True)
        for wrong in (16, torch.int8):
            with pytest.raises(TypeError, match=r"floating type such as torch\.bfloat16"):
                hub.load(folder, dtype=wrong)


def test_our_format_takes_heads_and_ignored_keys_too(folder: Path, tmp_path: Path) -> None:
    reconfigure(folder, tie_word_embeddings=False)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"] + 1}))
    hub.save(hub.load(folder), tmp_path / "ours")
    bare = hub.load(tmp_path / "ours", head="none")
    assert bare.config.head is None
    assert list(bare.report.unused) == ["head.out.weight"]
    with pytest.raises(ValueError, match="head must be one of lm, none"):
        hub.load(tmp_path / "ours", head="classify")
    rewrite(tmp_path / "ours", lambda tensors: tensors.update({"junk.weight": torch.zeros(2)}))
    with pytest.raises(WeightsError, match=r"ours: .*Unknown \(1\): junk\.weight"):
        hub.load(tmp_path / "ours")
    assert "junk.weight" in hub.load(tmp_path / "ours", ignore_keys="junk*").report.unused
    path = tmp_path / "ours" / "glassformer.json"
    for wrong in ('"format": 2', '"format": 1, "model_": 3, "x"'):
        path.write_text(path.read_text().replace('"format": 1', wrong, 1) if "2" in wrong else '{"glassformer": "0"}')
        with pytest.raises(ConfigError, match=r"glassformer\.json"):
            hub.load(tmp_path / "ours")


def test_a_fresh_head_on_a_loaded_body(folder: Path) -> None:
    head = TaskHead(task="classify", labels=("no", "yes"), pool="last", bias=False)
    with pytest.raises(WeightsError, match=r"Missing \(1\): score\.weight.*fresh=\['head\.\*'\]"):
        hub.load(folder, head=head)
    loaded = hub.load(folder, head=head, fresh=["head.*"])
    assert loaded.report.fresh == ["head.out.weight"]
    weight = loaded.model.get_parameter("head.out.weight")
    assert 0.001 < float(weight.detach().std()) < 0.1  # as the facts say: 0.02
    assert loaded.model(IDS).shape == (1, 2)
    assert torch.equal(
        loaded.model.get_parameter("embed.token.weight"), hub.load(folder).model.get_parameter("embed.token.weight")
    )


@pytest.mark.parametrize("to", ["glassformer", "hf"])
def test_a_head_for_other_labels_starts_anew(tmp_path: Path, to: str) -> None:
    """And what fits of the old head, the map before its scores, stays."""
    head = TaskHead(task="classify", labels=("a", "b", "c"), pool="first", hidden="tanh")
    model = Transformer(replace(CONFIGS["bert"], head=head))
    hub.save(model, tmp_path, to=to, lineage="bert")
    other = replace(head, labels=("x", "y"))
    loaded = hub.load(tmp_path, head=other, fresh=["head.*"])
    assert loaded.model(IDS).shape == (1, 2)
    kept = "head.hidden.weight"
    assert torch.equal(loaded.model.get_parameter(kept), model.get_parameter(kept))
    assert sorted(loaded.report.fresh) == ["head.out.bias", "head.out.weight"]
    assert all("another size" in why for why in loaded.report.unused.values())
    with pytest.raises(WeightsError, match="shape"):
        hub.load(tmp_path, head=other)


def test_mixed_types_become_the_one_that_prevails(folder: Path) -> None:
    def half(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name] = tensors[name].float() if "ln_" in name else tensors[name].half()

    rewrite(folder, half)
    loaded = hub.load(folder)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float16}
    assert set(loaded.report.cast.values()) == {"torch.float32"}
    loaded.model(IDS)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float8_e4m3fn])
def test_weights_that_are_no_floats_are_refused(folder: Path, dtype: torch.dtype) -> None:
    rewrite(folder, lambda tensors: tensors.update({"transformer.ln_f.weight": torch.ones(12).to(dtype)}))
    with pytest.raises(WeightsError, match=rf"ln_f\.weight is stored as {dtype}"):
        hub.load(folder)


def test_two_names_of_one_weight_are_refused(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"module.transformer.wpe.weight": t["transformer.wpe.weight"] + 1}))
    with pytest.raises(WeightsError, match="name the same weight"):
        hub.load(folder)


def test_row_22_marks_of_wrappers_anywhere_in_a_name(folder: Path, tmp_path: Path) -> None:
    expected = hub.load(folder).model

    def wrap(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            marked = name.replace(".h.0.", ".h.0._orig_mod.")
            tensors[f"module._orig_mod.module.{marked}"] = tensors.pop(name)

    rewrite(folder, wrap)
    assert torch.equal(hub.load(folder).model(IDS), expected(IDS))
    before = set(expected.state_dict())
    expected.decoder.blocks[0] = torch.compile(expected.decoder.blocks[0], backend="eager")
    hub.save(expected, tmp_path / "ours")
    assert set(load_file(tmp_path / "ours" / "model.safetensors")) == before


def test_a_model_that_is_not_what_its_facts_say_is_not_saved(folder: Path, tmp_path: Path) -> None:
    model = hub.load(folder).model
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(WeightsError, match=r"'extra\.bias', 'extra\.weight'"):
        hub.save(model, tmp_path / "x")
    del model.extra
    with pytest.raises(WeightsError, match="meta"):
        hub.save(model.to("meta"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_hand_made_facts_are_accepted_by_the_reference(tmp_path: Path, folder: Path) -> None:
    facts = change(hub.load(folder).config, "init", Init())
    hub.save(Transformer(facts), tmp_path / "made", to="hf", lineage="gpt2")
    assert transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "made").config.initializer_range == 0.02


def test_saving_under_another_family_is_refused(folder: Path, tmp_path: Path) -> None:
    model = hub.load(folder).model
    for lineage in ("t5", "bart", "bert", "llama", "bigbird-pegasus", "xlm"):
        with pytest.raises(ConfigError):
            hub.save(model, tmp_path / "x", to="hf", lineage=lineage)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"n_head": "3"}, {"n_head": 0}, {"n_head": None}, {"n_embd": None}, {"resid_pdrop": None}, {"n_layer": True},
     {"activation_function": ["gelu"]}, {"model_type": ["gpt2"]}, {"eos_token_id": "x"}, {"n_layer": 2.5}],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_one_paragraph(folder: Path, wrong: dict[str, object]) -> None:
    reconfigure(folder, **wrong)
    with pytest.raises(ValueError, match=str(folder)):
        hub.load(folder)


def test_the_tokenizer_travels_with_a_loaded_model(folder: Path, tmp_path: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    hub.save(hub.load(folder), tmp_path / "copy")
    assert hub.load(tmp_path / "copy").tokenizer.encode("hello", special=False) == [5]


@pytest.mark.parametrize("name", ["TFGPT2LMHeadModel", "GPT2ForCausalLM", "GPT2WithLMHeadModel", "FlaxGPT2LMHeadModel"])
def test_classes_of_other_libraries_and_of_years_ago(folder: Path, name: str) -> None:
    reconfigure(folder, architectures=[name])
    assert hub.load(folder).config.head == LMHead()


def test_quantised_folders_say_so(folder: Path) -> None:
    reconfigure(folder, quantization_config={"quant_method": "bitsandbytes"})
    with pytest.raises(ConfigError, match="quantised"):
        hub.load(folder)


@pytest.mark.parametrize("name", ["generation_config.json", "glassformer_job.json"])
def test_what_a_folder_says_of_its_use_goes_along(name, tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    facts = change(change(glassformer.preset("gpt2"), "decoder.layers", 1), "vocab", 11)
    hub.save(Transformer(facts), first, to="hf", lineage="gpt2")
    hub.save(hub.load(first), third)
    (first / name).write_text('{"num_beams": 3}')
    hub.save(hub.load(first), second)
    assert (second / name).read_text() == '{"num_beams": 3}'
    hub.save(hub.load(second / "model.safetensors"), second)  # its file alone
    assert (second / name).exists()
    hub.save(hub.load(third), second)
    assert not (second / name).exists()
