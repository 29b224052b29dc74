"""GPT-2: a pre-norm decoder with learned positions and a head tied to the embedding table."""

from glassformer.config import Attention, Embed, FeedForward, Init, InputPosition, LMHead, ModelConfig, Norm, Stack
from glassformer.families.gpt import IGNORED_KEYS, LAYER_RULES, LM_RULES, LM_TIED, MASK_BUFFERS
from glassformer.weights.lineage import (
    HeadFormat,
    Key,
    Lineage,
    Paper,
    classify_head,
    span_head,
    tag_head,
    write_tag_dropout,
)
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    return read_body(c, c.per_head("n_embd", "n_head"))


def read_body(c: ConfigReader, head_dim: int) -> ModelConfig:
    """Return the facts of a config.json; GPT-3, which is read with the same keys, has its own width of a head."""
    c.require("scale_attn_weights", True, "no published model has unscaled attention")
    c.require("scale_attn_by_inverse_layer_idx", False, "a scale per layer belongs to another training code")
    c.require("add_cross_attention", False, "a language model has no encoder to attend to")
    width = c.n_embd
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_epsilon),
        embed=Embed(position=InputPosition(kind="learned", length=c.n_positions), dropout=c.embd_pdrop),
        decoder=Stack(
            layers=c.n_layer,
            causal=True,
            attention=Attention(heads=c.n_head, head_dim=head_dim, dropout=c.attn_pdrop),
            ffn=FeedForward(hidden=c.n_inner or 4 * width, activation=c.activation("activation_function")),
            dropout=c.resid_pdrop,
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range, residual_scaling=True),
    )


GPT2 = Lineage(
    name="gpt2",
    paper=Paper(
        "Language Models are Unsupervised Multitask Learners",
        "Radford et al.",
        2019,
        "openai.com/index/better-language-models",
    ),
    model_type="gpt2",
    prefix="transformer.",
    read=read,
    write=write_tag_dropout,
    weight_rules=(*modules({"embed.token": "wte", "embed.position": "wpe", "decoder.norm": "ln_f"}), *LAYER_RULES),
    ignored_weights=MASK_BUFFERS,
    heads={
        "lm": HeadFormat("GPT2LMHeadModel", lambda c: LMHead(tied=c.tie_word_embeddings), LM_RULES, tied=LM_TIED),
        "none": HeadFormat("GPT2Model", lambda _: None, prefix=""),
        "classify": HeadFormat("GPT2ForSequenceClassification", classify_head, modules({"head.out": "score"})),
        "tag": HeadFormat("GPT2ForTokenClassification", tag_head, modules({"head.out": "classifier"})),
        "span": HeadFormat("GPT2ForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 50257),
        "n_positions": Key("embed.position.length", 1024),
        "n_embd": Key("width", 768),
        "n_layer": Key("decoder.layers", 12),
        "n_head": Key("decoder.attention.heads", 12),
        "n_inner": Key("decoder.ffn.hidden", None),
        "activation_function": Key("decoder.ffn.activation", "gelu_new"),
        "resid_pdrop": Key("decoder.dropout", 0.1),
        "embd_pdrop": Key("embed.dropout", 0.1),
        "attn_pdrop": Key("decoder.attention.dropout", 0.1),
        "layer_norm_epsilon": Key("norm.eps", 1e-5),
        "initializer_range": Key("init.std", 0.02),
        "bos_token_id": Key("tokens.bos", 50256),
        "eos_token_id": Key("tokens.eos", 50256),
        "pad_token_id": Key("tokens.pad", None),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys={
        **IGNORED_KEYS,
        "reorder_and_upcast_attn": "how the other library keeps half precision exact; ours always does",
    },
    sizes={
        "gpt2": {},
        "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
        "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
        "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
        "distilgpt2": {"n_layer": 6},
    },
)
