"""GPT-NeoX and Pythia: attention and feed-forward network in parallel, each with its own norm; rotary positions.

Only part of each head is rotated (``rotary_pct``). ``use_parallel_residual=false`` is a plain pre-norm decoder.
"""

from typing import Any

from glassformer.config import Attention, Embed, FeedForward, Init, LMHead, ModelConfig, Norm, Stack, TaskHead, get_fact
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, classify_head, span_head
from glassformer.weights.reader import ConfigReader, read_rotary, write_rotary
from glassformer.weights.rules import ConcatenatedByHead, Ignored, concatenated, modules, same


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json; older files have other keys for the rotary positions."""
    head_dim = c.per_head("hidden_size", "num_attention_heads")
    rotary = read_rotary(c, head_dim, partial=c.get("rotary_pct", 0.25), theta=c.get("rotary_emb_base", 10_000.0))
    return ModelConfig(
        vocab=c.vocab_size,
        width=c.hidden_size,
        norm=Norm(eps=c.layer_norm_eps),
        embed=Embed(dropout=c.hidden_dropout),
        decoder=Stack(
            layers=c.num_hidden_layers,
            causal=True,
            attention=Attention(
                heads=c.num_attention_heads,
                head_dim=head_dim,
                biases=c.attention_biases,
                rotary=rotary,
                dropout=c.attention_dropout,
            ),
            ffn=FeedForward(hidden=c.intermediate_size, activation=c.activation("hidden_act")),
            placement="parallel_norms" if c.use_parallel_residual else "pre",
            dropout=c.hidden_dropout,
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of placement, biases, and rotary positions, under their newer and older names."""
    assert facts.decoder is not None
    assert facts.decoder.attention.rotary is not None
    attention, rotary = facts.decoder.attention, facts.decoder.attention.rotary
    share, written = rotary.dim / attention.head_dim, write_rotary(rotary)
    head = facts.head
    return {
        "use_parallel_residual": facts.decoder.placement == "parallel_norms",
        "attention_bias": bool(attention.biases),
        "rope_parameters": {**written["rope_parameters"], "partial_rotary_factor": share},
        "rotary_pct": share,
        "rotary_emb_base": rotary.theta,
        **({} if rotary.scaling is None else {"rope_scaling": written["rope_scaling"]}),
        **({"classifier_dropout": head.dropout} if isinstance(head, TaskHead) and head.task == "tag" else {}),
    }


def size(layers: int, width: int, heads: int, vocab: int = 50304) -> dict[str, int]:
    """Return the config of a size of Pythia."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocab_size": vocab,
        "eos_token_id": 0,
    }


GPT_NEOX = Lineage(
    name="gpt-neox",
    paper=Paper(
        "GPT-NeoX-20B: An Open-Source Autoregressive Language Model",
        "Black et al.",
        2022,
        "arxiv.org/abs/2204.06745",
    ),
    model_type="gpt_neox",
    prefix="gpt_neox.",
    read=read,
    write=write,
    weight_rules=(
        *modules(
            {
                "embed.token": "embed_in",
                "decoder.norm": "final_layer_norm",
                "decoder.blocks.{i}.attention.o": "layers.{i}.attention.dense",
                "decoder.blocks.{i}.attention_norm": "layers.{i}.input_layernorm",
                "decoder.blocks.{i}.ffn.up": "layers.{i}.mlp.dense_h_to_4h",
                "decoder.blocks.{i}.ffn.down": "layers.{i}.mlp.dense_4h_to_h",
                "decoder.blocks.{i}.ffn_norm": "layers.{i}.post_attention_layernorm",
            }
        ),
        *concatenated(
            [f"decoder.blocks.{{i}}.attention.{part}" for part in "qkv"],
            "layers.{i}.attention.query_key_value",
            ConcatenatedByHead(lambda facts: get_fact(facts, "decoder.attention.heads")),
        ),
    ),
    ignored_weights=(
        Ignored("layers.{i}.attention.bias", "the causal mask, stored as a buffer"),
        Ignored("layers.{i}.attention.masked_bias", "the constant used as the score of masked keys instead of −inf"),
        Ignored("*rotary_emb.inv_freq", "the rotary frequencies, stored as a buffer"),
    ),
    heads={
        "lm": HeadFormat(
            "GPTNeoXForCausalLM",
            lambda c: LMHead(tied=c.tie_word_embeddings),
            (same("head.out.weight", "embed_out.weight", "lm_head.weight"),),
            tied=("embed_out.weight", "lm_head.weight"),
        ),
        "none": HeadFormat("GPTNeoXModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "GPTNeoXForSequenceClassification",
            classify_head,
            modules({"head.out": "score"}),
        ),
        "tag": HeadFormat(
            "GPTNeoXForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=c.classifier_dropout),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat("GPTNeoXForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 50432),
        "hidden_size": Key("width", 6144),
        "num_hidden_layers": Key("decoder.layers", 44),
        "num_attention_heads": Key("decoder.attention.heads", 64),
        "intermediate_size": Key("decoder.ffn.hidden", 24576),
        "hidden_act": Key("decoder.ffn.activation", "gelu"),
        "attention_dropout": Key("decoder.attention.dropout", 0.0),
        "hidden_dropout": Key("decoder.dropout", 0.0),
        "classifier_dropout": Key(None, 0.1),
        "max_position_embeddings": Key("decoder.attention.rotary.length", 2048),
        "initializer_range": Key("init.std", 0.02),
        "layer_norm_eps": Key("norm.eps", 1e-5),
        "use_parallel_residual": Key(None, True),
        "attention_bias": Key(None, True),
        "bos_token_id": Key("tokens.bos", 0),
        "eos_token_id": Key("tokens.eos", 2),
        "pad_token_id": Key("tokens.pad", None),
        "tie_word_embeddings": Key("head.tied", False),
    },
    sizes={
        "gpt-neox-20b": {"hidden_act": "gelu_fast", "eos_token_id": 0},
        "pythia-70m": size(6, 512, 8),
        "pythia-160m": size(12, 768, 12),
        "pythia-410m": size(24, 1024, 16),
        "pythia-1b": size(16, 2048, 8),
        "pythia-1.4b": size(24, 2048, 16),
        "pythia-2.8b": size(32, 2560, 32),
        "pythia-6.9b": size(32, 4096, 32, 50432),
        "pythia-12b": size(36, 5120, 40, 50688),
    },
)
