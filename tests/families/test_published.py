"""Files that were published: what their config.json says reads as the preset's facts, and no key of it is foreign."""

from typing import Any

import pytest

from glassformer.config import ModelConfig, change, count, shapes
from glassformer.families import lineage_by_model_type, lineages, preset
from glassformer.hub import unknown_keys
from glassformer.weights.convert import expand, plan
from glassformer.weights.lineage import Lineage, choose_kind
from glassformer.weights.reader import ConfigError

BERT = {"architectures": ["BertForMaskedLM"], "gradient_checkpointing": False, "layer_norm_eps": 1e-12}
FILES: dict[str, dict[str, Any]] = {
    "bert-base-chinese": {
        **BERT,
        "model_type": "bert",
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
        "vocab_size": 21128,
    },
    "bert-base-cased": {**BERT, "xla_device": None, "vocab_size": 28996},  # as of 2019, without a model_type
    "roberta-large": {
        "architectures": ["RobertaForMaskedLM"],
        "finetuning_task": None,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "num_labels": 2,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    },
    "albert-base-v2": {
        "architectures": ["AlbertForMaskedLM"],
        "model_type": "albert",
        "attention_probs_dropout_prob": 0,
        "hidden_dropout_prob": 0,
        "hidden_size": 768,
        "inner_group_num": 1,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
    },
    "deberta-v3-base": {
        "model_type": "deberta-v2",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "position_buckets": 256,
        "relative_attention": True,
        "share_att_key": True,
        "vocab_size": 128100,
    },
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_ctx": 1024, "n_positions": 1024, "vocab_size": 50257},
    "gpt-j-6b": {
        "architectures": ["GPTJForCausalLM"],
        "model_type": "gptj",
        "n_inner": None,
        "rotary": True,
        "rotary_dim": 64,
        "scale_attn_weights": True,
        "summary_type": "cls_index",
        "tokenizer_class": "GPT2Tokenizer",
    },
    "bloom-560m": {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "apply_residual_connection_post_layernorm": False,
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "masked_softmax_fusion": True,
        "n_embed": 1024,
        "n_inner": None,
        "n_layer": 24,
        "num_attention_heads": 16,
        "offset_alibi": 100,
        "pad_token_id": 3,
        "pretraining_tp": 1,
        "seq_length": 2048,
        "skip_bias_add": True,
        "skip_bias_add_qkv": False,
        "unk_token_id": 0,
        "vocab_size": 250880,
    },
    "pythia-70m": {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "gelu",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "vocab_size": 50304,
    },
    "opt-125m": {
        "_remove_final_layer_norm": False,
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "architectures": ["OPTForCausalLM"],
        "do_layer_norm_before": True,
        "ffn_dim": 3072,
        "init_std": 0.02,
        "layerdrop": 0.0,
        "model_type": "opt",
        "prefix": "</s>",
        "word_embed_proj_dim": 768,
    },
    "all-mpnet-base-v2": {
        "architectures": ["MPNetForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514,
        "model_type": "mpnet",
        "relative_attention_num_buckets": 32,
        "vocab_size": 30527,
    },
    "gpt-neo-125m": {
        "architectures": ["GPTNeoForCausalLM"],
        "model_type": "gpt_neo",
        "attention_layers": ["global", "local"] * 6,
        "attention_types": [[["global", "local"], 6]],
        "hidden_size": 768,
        "intermediate_size": None,
        "num_heads": 12,
        "num_layers": 12,
        "window_size": 256,
    },
    "flan-t5-base": {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_ff": 2048,
        "d_kv": 64,
        "d_model": 768,
        "decoder_start_token_id": 0,
        "dense_act_fn": "gelu_new",
        "feed_forward_proj": "gated-gelu",
        "is_gated_act": True,
        "n_positions": 512,
        "num_decoder_layers": 12,
        "num_heads": 12,
        "num_layers": 12,
        "output_past": True,
        "tie_word_embeddings": False,
    },
    "bart-large-cnn": {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        "_num_labels": 3,
        "add_bias_logits": False,
        "classif_dropout": 0.0,
        "do_blenderbot_90_layernorm": False,
        "extra_pos_embeddings": 2,
        "force_bos_token_to_be_generated": True,
        "num_hidden_layers": 12,
        "vocab_size": 50264,
    },
    "nllb-200-distilled-600M": {
        "architectures": ["M2M100ForConditionalGeneration"],
        "model_type": "m2m_100",
        "encoder_layerdrop": 0,
        "max_length": 200,
        "scale_embedding": True,
        "tokenizer_class": "NllbTokenizer",
        "vocab_size": 256206,
    },
    "llama-3.2-3b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "max_sequence_length": 2048,
        "num_attention_heads": 24,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "transformers.js_config": {},
        "vocab_size": 128256,
    },
    "mistral-7b-v0.3": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "add_cross_attention": False,
        "decoder_start_token_id": None,
        "is_decoder": False,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "typical_p": 1.0,
        "vocab_size": 32768,
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_window_layers": 24,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_mrope": False,
        "use_sliding_window": False,
    },
    "qwen3-4b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "initializer_range": 0.02,
        "intermediate_size": 9728,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}  # the keys that say something, out of the files as they were uploaded


@pytest.mark.parametrize("name", FILES)
def test_the_file_says_what_the_preset_says(name: str) -> None:
    config = FILES[name]
    lineage = lineage_by_model_type(config)
    kind = choose_kind(lineage, config)
    assert lineage.facts(config, kind) == preset(name)
    assert unknown_keys(lineage, config, kind) == {}


def test_scores_of_pairs_carry_the_key_of_a_library_that_builds_on_the_other() -> None:
    config = {"model_type": "bert", "id2label": {"0": "LABEL_0"}, "sentence_transformers": {"version": "4.1.0"}}
    lineage = lineage_by_model_type(config)
    assert lineage.facts(config, "classify").head is not None
    assert unknown_keys(lineage, config, "classify") == {}


def test_without_a_model_type_the_class_tells_the_lineage_or_nothing_does() -> None:
    for lineage in lineages().values():
        for form in lineage.heads.values():
            if lineage.model_type is not None:
                assert lineage_by_model_type({"architectures": [form.architecture]}) is lineage
    with pytest.raises(
        ConfigError, match=r"no model_type, and architectures=\['Odd'\] .*set lineage to one of: .*bert"
    ):
        lineage_by_model_type({"architectures": ["Odd"]})
    with pytest.raises(ConfigError, match=r"neither model_type nor architectures.*set lineage to one of: .*bert"):
        lineage_by_model_type({"vocab_size": 21128, "hidden_size": 768})


def test_norms_of_blenderbot_are_refused_in_a_bart() -> None:
    config = {"model_type": "bart", "do_blenderbot_90_layernorm": True}
    with pytest.raises(ConfigError, match="do_blenderbot_90_layernorm"):
        lineage_by_model_type(config).facts(config, "lm")


def test_mpnet_has_as_many_numbers_as_published_and_as_many_buckets_as_the_reference_uses() -> None:
    lineage = lineages()["mpnet"]
    assert count(lineage.facts(FILES["all-mpnet-base-v2"], "pool")) == 109_486_464
    with pytest.raises(ConfigError, match="relative_attention_num_buckets=16"):
        lineage.facts({"relative_attention_num_buckets": 16}, "lm")


def test_a_discriminator_may_hold_a_projection_that_it_does_not_need() -> None:
    """The files of the base and large sizes do; where the widths differ, it is needed and no longer spare."""
    lineage, small = lineages()["electra"], preset("electra-small-discriminator")
    small = change(small, "encoder.layers", 1)
    wide = change(small, "embed.width", None)
    spare = {f"electra.embeddings_project.{x}" for x in ("weight", "bias")}
    for facts, needed in ((small, True), (wide, False)):
        kind = lineage.kind_of(facts)
        names = _their_names(lineage, facts, kind) | dict.fromkeys(spare, (256, 256))
        assert spare.isdisjoint(plan(lineage, facts, kind, names).unused) is needed


def _their_names(lineage: Lineage, facts: ModelConfig, kind: str) -> dict[str, tuple[int, ...]]:
    rules = expand(lineage, kind, lineage.prefix, shapes(facts))
    return {name: (1,) for rule in rules for name in rule.theirs}
