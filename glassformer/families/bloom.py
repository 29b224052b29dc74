"""BLOOM: a pre-norm decoder without position embeddings; ALiBi lowers the scores of distant tokens."""

from typing import Any

from glassformer.config import (
    Alibi,
    Attention,
    Embed,
    FeedForward,
    Init,
    LMHead,
    ModelConfig,
    Norm,
    Stack,
    TaskHead,
    get_fact,
)
from glassformer.config.checks import check_divides, check_positive_integer
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, classify_head, span_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import ConcatenatedByHead, concatenated, modules, same


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json; the published files use some names of sizes that the config class renames."""
    if c.get("pretraining_tp", 1) > 1:
        c.require("slow_but_exact", False, "split over machines, the reference leaves out a bias of the attention then")
    c.require("apply_residual_connection_post_layernorm", False, "no published model adds to the normalised stream")
    width, layers = c.get("n_embed", c.hidden_size), c.get("num_hidden_layers", c.n_layer)
    heads = c.get("num_attention_heads", c.n_head)
    check_positive_integer(hidden_size=width, n_head=heads)
    check_divides("n_head", heads, "hidden_size", width)
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_epsilon),
        embed=Embed(norm=True),
        decoder=Stack(
            layers=layers,
            causal=True,
            attention=Attention(heads=heads, head_dim=width // heads, score_bias=Alibi(), dropout=c.attention_dropout),
            ffn=FeedForward(hidden=4 * width, activation="gelu_tanh"),
            dropout=c.hidden_dropout,
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range),
    )


def tag_head(c: ConfigReader) -> TaskHead:
    """Build a head for token labels, with the dropout of the layers unless it has its own."""
    return TaskHead(task="tag", labels=c.labels, dropout=c.get("classifier_dropout", c.hidden_dropout))


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the dropout of a token-label head, if it has its own."""
    head = facts.head
    if not isinstance(head, TaskHead) or head.task != "tag" or head.dropout == get_fact(facts, "decoder.dropout"):
        return {}
    return {"classifier_dropout": head.dropout}


def size(layers: int, width: int, heads: int) -> dict[str, int]:
    """Return the config of a published size; all of them have a pad token."""
    return {"n_layer": layers, "hidden_size": width, "n_head": heads, "pad_token_id": 3}


TRAINING_CODE = dict.fromkeys(
    ("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv"),
    "how the training code computed; the result is the same but for rounding",
)
BLOOM = Lineage(
    name="bloom",
    paper=Paper(
        "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model",
        "BigScience Workshop",
        2022,
        "arxiv.org/abs/2211.05100",
    ),
    model_type="bloom",
    prefix="transformer.",
    read=read,
    write=write,
    weight_rules=(
        *modules(
            {
                "embed.token": "word_embeddings",
                "embed.norm": "word_embeddings_layernorm",
                "decoder.norm": "ln_f",
                "decoder.blocks.{i}.attention.o": "h.{i}.self_attention.dense",
                "decoder.blocks.{i}.attention_norm": "h.{i}.input_layernorm",
                "decoder.blocks.{i}.ffn.up": "h.{i}.mlp.dense_h_to_4h",
                "decoder.blocks.{i}.ffn.down": "h.{i}.mlp.dense_4h_to_h",
                "decoder.blocks.{i}.ffn_norm": "h.{i}.post_attention_layernorm",
            }
        ),
        *concatenated(
            [f"decoder.blocks.{{i}}.attention.{part}" for part in "qkv"],
            "h.{i}.self_attention.query_key_value",
            ConcatenatedByHead(lambda facts: get_fact(facts, "decoder.attention.heads")),
        ),
    ),
    heads={
        "lm": HeadFormat(
            "BloomForCausalLM",
            lambda c: LMHead(tied=c.tie_word_embeddings),
            (same("head.out.weight", "lm_head.weight"),),
            tied=("lm_head.weight",),
        ),
        "none": HeadFormat("BloomModel", lambda _: None, prefix=""),
        "classify": HeadFormat("BloomForSequenceClassification", classify_head, modules({"head.out": "score"})),
        "tag": HeadFormat("BloomForTokenClassification", tag_head, modules({"head.out": "classifier"})),
        "span": HeadFormat("BloomForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 250880),
        "hidden_size": Key("width", 64),
        "n_layer": Key("decoder.layers", 2),
        "n_head": Key("decoder.attention.heads", 8),
        "layer_norm_epsilon": Key("norm.eps", 1e-5),
        "initializer_range": Key("init.std", 0.02),
        "hidden_dropout": Key("decoder.dropout", 0.0),
        "attention_dropout": Key("decoder.attention.dropout", 0.0),
        "bos_token_id": Key("tokens.bos", 1),
        "eos_token_id": Key("tokens.eos", 2),
        "pad_token_id": Key("tokens.pad", None),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys={
        **TRAINING_CODE,
        "pretraining_tp": "how products were split over machines; the result is the same but for rounding",
        "slow_but_exact": "repeats the rounding of such a split; refused where it leaves out a bias",
        "n_inner": "nothing reads it; the feed-forward network is always four times as wide as the model",
        "offset_alibi": "nothing reads it",
        "seq_length": "the length in training; ALiBi sets no limit",
    },
    sizes={
        "bloom-560m": size(24, 1024, 16),
        "bloom-1b1": size(24, 1536, 16),
        "bloom-1b7": size(24, 2048, 16),
        "bloom-3b": size(30, 2560, 32),
        "bloom-7b1": size(30, 4096, 32),
        "bloom": size(70, 14336, 112),
    },
)
