"""CTRL: a pre-norm decoder with sinusoidal positions, steered by a control code as the first token."""

from math import sqrt

from glassformer.config import Attention, Embed, FeedForward, Init, InputPosition, LMHead, ModelConfig, Norm, Stack
from glassformer.families.gpt import IGNORED_KEYS, LM_RULES, LM_TIED
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, classify_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Ignored, modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("layer_norm_epsilon", 1e-6, "the layers have a fixed epsilon, whatever the final norm has")
    width = c.n_embd
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_epsilon),
        embed=Embed(
            scale=sqrt(width),
            position=InputPosition(kind="sinusoidal", length=c.n_positions, layout="halves"),
            dropout=c.embd_pdrop,
        ),
        decoder=Stack(
            layers=c.n_layer,
            causal=True,
            attention=Attention(heads=c.n_head, head_dim=c.per_head("n_embd", "n_head")),
            ffn=FeedForward(hidden=c.dff, activation="relu"),
            dropout=c.resid_pdrop,
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range),
    )


CTRL = Lineage(
    name="ctrl",
    paper=Paper(
        "CTRL: A Conditional Transformer Language Model for Controllable Generation",
        "Keskar et al.",
        2019,
        "arxiv.org/abs/1909.05858",
    ),
    model_type="ctrl",
    prefix="transformer.",
    read=read,
    weight_rules=modules(
        {
            "embed.token": "w",
            "decoder.norm": "layernorm",
            "decoder.blocks.{i}.attention.q": "h.{i}.multi_head_attention.Wq",
            "decoder.blocks.{i}.attention.k": "h.{i}.multi_head_attention.Wk",
            "decoder.blocks.{i}.attention.v": "h.{i}.multi_head_attention.Wv",
            "decoder.blocks.{i}.attention.o": "h.{i}.multi_head_attention.dense",
            "decoder.blocks.{i}.attention_norm": "h.{i}.layernorm1",
            "decoder.blocks.{i}.ffn.up": "h.{i}.ffn.0",
            "decoder.blocks.{i}.ffn.down": "h.{i}.ffn.2",
            "decoder.blocks.{i}.ffn_norm": "h.{i}.layernorm2",
        }
    ),
    ignored_weights=(Ignored("pos_encoding", "the sinusoids, written out"),),
    heads={
        "lm": HeadFormat(
            "CTRLLMHeadModel", lambda c: LMHead(bias=True, tied=c.tie_word_embeddings), LM_RULES, tied=LM_TIED
        ),
        "none": HeadFormat("CTRLModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "CTRLForSequenceClassification",
            classify_head,
            modules({"head.out": "classifier"}),
        ),
    },
    keys={
        "vocab_size": Key("vocab", 246534),
        "n_positions": Key("embed.position.length", 256),
        "n_embd": Key("width", 1280),
        "dff": Key("decoder.ffn.hidden", 8192),
        "n_layer": Key("decoder.layers", 48),
        "n_head": Key("decoder.attention.heads", 16),
        "resid_pdrop": Key("decoder.dropout", 0.1),
        "embd_pdrop": Key("embed.dropout", 0.1),
        "layer_norm_epsilon": Key("norm.eps", 1e-6),
        "initializer_range": Key("init.std", 0.02),
        "bos_token_id": Key("tokens.bos", None),
        "eos_token_id": Key("tokens.eos", None),
        "pad_token_id": Key("tokens.pad", None),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys={
        **IGNORED_KEYS,
        "attn_pdrop": "the other library applies no dropout to attention weights, whatever the value",
        "from_tf": "the origin of the weights",
    },
    sizes={"ctrl": {"n_positions": 50000}},
)
