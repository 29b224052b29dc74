"""What decoders say in config.json that a tiny model of today's reference does not: published sizes, older keys."""

import pytest
import transformers

from glassformer.config import ModelConfig, Norm, Rotary, RotaryScaling, change, count, get_fact, shapes
from glassformer.families import lineages, preset, presets
from glassformer.weights.convert import expand, plan
from glassformer.weights.lineage import Lineage, shortest_cycle
from glassformer.weights.reader import ConfigError
from glassformer.weights.single_file import LlamaConfig

COUNTS = {
    "openai-gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "distilgpt2": 81_912_576,
    "gpt-neo-125m": 125_198_592,
    "gpt-neo-1.3b": 1_315_575_808,
    "gpt-neo-2.7b": 2_651_307_520,
    "gpt-j-6b": 6_050_882_784,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "bloom-560m": 559_214_592,
    "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-7b1": 7_069_016_064,
    "bloom": 176_247_271_424,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.2": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
}  # as the published weights count


@pytest.mark.parametrize("name", COUNTS)
def test_published_sizes_count_right(name: str) -> None:
    assert count(preset(name)) == COUNTS[name]


def read(lineage: str = "llama", **keys: object) -> ModelConfig:
    return lineages()[lineage].facts(keys, "lm")


def scaling(**keys: object) -> RotaryScaling | None:
    facts: RotaryScaling | None = get_fact(read(**keys), "decoder.attention.rotary.scaling")
    return facts


STRETCHES = {
    "linear": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kind", STRETCHES)
def test_older_files_stretch_rotary_positions_the_same(kind: str) -> None:
    newer = read(rope_parameters={"rope_type": kind, "rope_theta": 5e5, **STRETCHES[kind]})
    assert get_fact(newer, "decoder.attention.rotary.scaling.factor") == STRETCHES[kind]["factor"]
    assert get_fact(newer, "decoder.attention.rotary.theta") == 5e5
    for word in ("type", "rope_type"):
        assert read(rope_theta=5e5, rope_scaling={word: kind, **STRETCHES[kind]}) == newer


def test_rotary_positions_that_are_not_stretched() -> None:
    assert read() == read(rope_scaling=None) == read(rope_theta=10_000.0) == read(rope_parameters=None)
    assert read() == read(rope_parameters={"rope_type": "default", "rope_theta": 10_000})
    assert scaling(rope_scaling={"type": "default"}) is None


def test_what_a_stretch_leaves_out() -> None:
    """The original length is then the model's own, and the temperature of YaRN follows from the factor."""
    yarn = scaling(rope_scaling={"type": "yarn", "factor": 4.0}, max_position_embeddings=77)
    assert yarn is not None
    assert (yarn.original_length, yarn.low, yarn.high) == (77, 1.0, 32.0)
    assert yarn.attention == pytest.approx(1.1386294361)
    top = scaling(rope_scaling={"type": "yarn", "factor": 4.0}, original_max_position_embeddings=55)
    assert top is not None
    assert top.original_length == 55


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamically"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "longrope.*default, linear, llama3, yarn"),
        ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "lacks low_freq_factor, high_freq_factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"rope_parameters": 5}, "says 5 of its rotary positions; it must be an object"),
    ],
)
def test_rotary_positions_that_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**keys)


def test_a_base_of_zero_is_not_the_default() -> None:
    with pytest.raises(ValueError, match="theta must be a finite number above 0, got 0"):
        read(rope_parameters={"rope_theta": 0})


def test_heads_that_an_older_file_does_not_say() -> None:
    config = read(hidden_size=96, num_attention_heads=6)
    assert get_fact(config, "decoder.attention.head_dim") == 16
    assert get_fact(config, "decoder.attention.kv_heads") is None
    assert get_fact(read("mistral"), "decoder.attention.kv_heads") == 8
    assert (
        get_fact(read("mistral", num_attention_heads=16, num_key_value_heads=None), "decoder.attention.kv_heads")
        is None
    )


def test_heads_of_qwen3_have_a_width_of_their_own() -> None:
    """128 in a file that does not say it, and always written, since width / heads is not what its absence means."""
    config = read("qwen3", hidden_size=96, num_attention_heads=6, num_key_value_heads=3)
    assert get_fact(config, "decoder.attention.head_dim") == transformers.Qwen3Config().head_dim == 128
    narrow = read("qwen3", hidden_size=96, num_attention_heads=6, num_key_value_heads=3, head_dim=16)
    for facts in (config, narrow):
        assert lineages()["qwen3"].config(facts)["head_dim"] == get_fact(facts, "decoder.attention.head_dim")


def test_norms_of_queries_and_keys_have_the_epsilon_of_the_others() -> None:
    config = read("qwen3", rms_norm_eps=1e-3)
    assert get_fact(config, "decoder.attention.qk_norm") == config.norm == Norm(kind="rms", eps=1e-3)
    other = change(config, "decoder.attention.qk_norm.eps", 1e-4)
    with pytest.raises(ConfigError, match=r"cannot express these config values: decoder\.attention\.qk_norm\.eps"):
        lineages()["qwen3"].config(other)
    for name, wrong in (("qwen3", None), ("qwen2", config.norm), ("llama", config.norm)):
        with pytest.raises(ConfigError, match=r"qk_norm|cannot express"):
            lineages()[name].config(change(read(name), "decoder.attention.qk_norm", wrong))


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_windows_of_qwen(name: str) -> None:
    def windows(**keys: object) -> object:
        return get_fact(read(name, num_hidden_layers=4, **keys), "decoder.attention.windows")

    assert windows() == windows(sliding_window=5, max_window_layers=0) == (None,)
    assert windows(use_sliding_window=True, sliding_window=5, max_window_layers=0) == (5,)
    assert windows(use_sliding_window=True, max_window_layers=2) == (None, None, 4096, 4096)
    types = ["full_attention", "sliding_attention"] * 2
    assert windows(use_sliding_window=True, sliding_window=5, layer_types=types) == (None, 5)
    for wrong in ({"layer_types": types}, {"layer_types": types[:3]}, {"layer_types": ["chunked_attention"] * 4}):
        with pytest.raises(ConfigError, match="layer_types"):
            windows(**wrong)


def test_gelu_in_early_files_of_gemma_is_the_approximation() -> None:
    config = read("gemma", hidden_act="gelu")
    assert config == read("gemma") == read("gemma", hidden_activation="gelu")
    assert get_fact(config, "decoder.ffn.activation") == "gelu_tanh"
    with pytest.raises(ConfigError, match=r"cannot express these config values: decoder\.ffn\.activation"):
        lineages()["gemma"].config(change(config, "decoder.ffn.activation", "gelu"))
    with pytest.raises(ConfigError, match="use_bidirectional_attention"):
        read("gemma", use_bidirectional_attention=True)


def test_windows_of_gpt_neo() -> None:
    assert get_fact(preset("gpt-neo-2.7b"), "decoder.attention.windows") == (None, 256)
    for wrong in ({"num_layers": 12}, {"num_layers": 1, "attention_types": [[["sparse"], 1]]}):
        with pytest.raises(ConfigError, match="attention_types"):
            read("gpt-neo", **wrong)


def test_several_tokens_may_end_a_text() -> None:
    assert read(eos_token_id=[2, 3]).tokens.eos == (2, 3)


@pytest.mark.parametrize(
    ("items", "cycle"), [("ababa", "ab"), ("aaaa", "a"), ("aab", "aab"), ("abcabca", "abc"), ("a", "a")]
)
def test_the_shortest_cycle(items: str, cycle: str) -> None:
    assert "".join(shortest_cycle(items)) == cycle


def test_the_share_of_a_head_that_gpt_neox_rotates() -> None:
    def rotary(**keys: object) -> object:
        return get_fact(read("gpt-neox", hidden_size=96, num_attention_heads=3, **keys), "decoder.attention.rotary")

    assert rotary() == Rotary(dim=8, length=2048)
    newer = rotary(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 77.0})
    assert newer == rotary(rotary_pct=0.5, rotary_emb_base=77) == Rotary(dim=16, length=2048, theta=77.0)
    stretched = rotary(rotary_pct=0.5, rope_scaling={"type": "linear", "factor": 2.0})
    assert stretched == Rotary(dim=16, length=2048, scaling=RotaryScaling(kind="linear", factor=2.0))


def test_gpt_neox_adds_its_sublayers_in_parallel_or_one_after_the_other() -> None:
    assert get_fact(read("gpt-neox"), "decoder.placement") == "parallel_norms"
    assert get_fact(read("gpt-neox", use_parallel_residual=False), "decoder.placement") == "pre"
    config = change(read("gpt-neox"), "decoder.placement", "parallel")
    with pytest.raises(ConfigError, match=r"cannot express these config values: decoder\.placement"):
        lineages()["gpt-neox"].config(config)


def test_facts_that_a_config_cannot_hold_are_named_and_no_others() -> None:
    config = change(preset("gpt2"), "decoder.attention.rotary", Rotary(dim=64, length=1024))
    with pytest.raises(ConfigError) as error:
        lineages()["gpt2"].config(config)
    names = str(error.value).rpartition(": ")[2].rstrip(".").split(", ")
    assert {name.rpartition(".")[0] for name in names} == {"decoder.attention.rotary"}


def test_bloom_whose_residual_is_the_normalised_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="apply_residual_connection_post_layernorm=True"):
        read("bloom", apply_residual_connection_post_layernorm=True)
    assert read("bloom", apply_residual_connection_post_layernorm=False) == read("bloom")


def test_opt_with_embeddings_of_another_width_is_refused() -> None:
    small = {"hidden_size": 1024, "num_attention_heads": 16, "do_layer_norm_before": False}  # opt-350m
    with pytest.raises(ConfigError, match=r"word_embed_proj_dim=512 and hidden_size=1024: .*opt-350m"):
        read("opt", **small, word_embed_proj_dim=512)
    config = read("opt", **small)
    assert config == read("opt", **small, word_embed_proj_dim=1024)
    assert (get_fact(config, "decoder.placement"), get_fact(config, "decoder.final_norm")) == ("post", False)


def test_a_split_that_leaves_a_bias_out_is_refused() -> None:
    assert read("bloom", pretraining_tp=2) == read("bloom", slow_but_exact=True) == read("bloom")
    with pytest.raises(ConfigError, match="slow_but_exact=True"):
        read("bloom", pretraining_tp=2, slow_but_exact=True)


def test_names_of_sizes_in_older_files_of_bloom() -> None:
    older = read("bloom", n_embed=96, num_attention_heads=6, num_hidden_layers=5)
    assert older == read("bloom", hidden_size=96, n_head=6, n_layer=5)
    with pytest.raises(ConfigError, match=r"n_head=7 does not divide hidden_size=96"):
        read("bloom", n_embed=96, num_attention_heads=7)


TINY = {
    "gpt": {"n_layer": 1},
    "gpt2": {"n_layer": 1},
    "ctrl": {"n_layer": 1},
    "gpt-neo": {"num_layers": 1, "attention_types": [[["global"], 1]]},
    "gpt-j": {"n_layer": 1},
    "gpt-neox": {"num_hidden_layers": 1},
    "bloom": {"n_layer": 1},
    "opt": {"num_hidden_layers": 1},
    "llama": {"num_hidden_layers": 1},
    "mistral": {"num_hidden_layers": 1},
    "qwen2": {"num_hidden_layers": 1},
    "qwen3": {"num_hidden_layers": 1},
    "gemma": {"num_hidden_layers": 1},
}
SPARE = {
    "gpt": ["h.0.attn.bias", "position_ids"],
    "gpt2": ["h.0.attn.bias", "h.0.attn.masked_bias"],
    "ctrl": ["pos_encoding"],
    "gpt-neo": ["h.0.attn.attention.bias", "h.0.attn.attention.masked_bias"],
    "gpt-j": ["h.0.attn.bias", "h.0.attn.masked_bias"],
    "gpt-neox": [
        "layers.0.attention.bias",
        "layers.0.attention.masked_bias",
        "layers.0.attention.rotary_emb.inv_freq",
    ],
    "bloom": [],
    "opt": [],
    "llama": ["layers.0.self_attn.rotary_emb.inv_freq"],
    "mistral": ["layers.0.self_attn.rotary_emb.inv_freq"],
    "qwen2": ["layers.0.self_attn.rotary_emb.inv_freq"],
    "qwen3": ["layers.0.self_attn.rotary_emb.inv_freq"],
    "gemma": ["layers.0.self_attn.rotary_emb.inv_freq"],
}


def test_every_decoder_is_in_these_tables() -> None:
    known = lineages()
    published = {name: lineage for name, lineage in known.items() if lineage.model_type is not None}
    decoders = {name for name, lineage in published.items() if lineage.facts({}, "lm").family == "decoder"}
    assert decoders == TINY.keys() == SPARE.keys()
    counted = {presets()[name].lineage.name for name in COUNTS}
    assert decoders - counted == {"ctrl"}  # whose published files hold a fixed table of positions as well


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("alone", [False, True], ids=["with prefix", "body alone"])
def test_names_that_published_folders_carry(name: str, tied: bool, alone: bool) -> None:
    """Buffers of old are passed over, a tied table may stand there twice, and the body may lack its prefix."""
    lineage = lineages()[name]
    config = lineage.facts({**TINY[name], "tie_word_embeddings": tied}, "lm")
    tensor_shapes = dict.fromkeys(theirs(lineage, config), (1,))
    spare = [lineage.prefix + name for name in SPARE[name]]
    tensor_shapes |= dict.fromkeys((*spare, "lm_head.weight"), (1,))
    if alone:
        tensor_shapes = {name.removeprefix(lineage.prefix): shape for name, shape in tensor_shapes.items()}
    planned = plan(lineage, config, "lm", tensor_shapes)
    assert set(planned.unused) == {name.removeprefix(lineage.prefix) if alone else name for name in spare}


def theirs(lineage: Lineage, config: ModelConfig) -> list[str]:
    rules = expand(lineage, "lm", lineage.prefix, shapes(config))
    return [name for rule in rules for name in rule.theirs]


@pytest.mark.parametrize("name", TINY)
def test_a_page_of_another_lineage_is_refused(name: str) -> None:
    other = "gpt2" if name != "gpt2" else "llama-2-7b"
    for config in (preset(other), preset("bert-base-uncased")):
        with pytest.raises(ConfigError, match="cannot express"):
            lineages()[name].config(config)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_single_files_of_other_programs(kind: str) -> None:
    """Their readers return Hugging Face's keys, and every one of their tensors has a part."""
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3}
    file = LlamaConfig(
        model_type=kind,
        **sizes,
        intermediate_size=40,
        vocab_size=61,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_theta=5e4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[1, 2],
        rope_scaling={"rope_type": "linear", "factor": 2.0},
    )
    lineage = lineages()[kind]
    config = lineage.facts(file.config(), "lm")
    planned = plan(lineage, config, "lm", file.shapes())
    assert planned.unused == {}
    assert config.tokens.bos is None
    assert get_fact(config, "decoder.attention.rotary.theta") == 5e4


def test_a_width_of_zero_is_no_default() -> None:
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        read("cs336", d_ff=0)
