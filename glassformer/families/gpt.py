"""GPT: a post-norm decoder with learned positions, pre-trained on unlabelled text, then fine-tuned."""

from typing import Any

from glassformer.config import (
    Attention,
    Embed,
    FeedForward,
    Init,
    InputPosition,
    LMHead,
    ModelConfig,
    Norm,
    Stack,
    get_fact,
)
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, classify_head
from glassformer.weights.reader import ConfigError, ConfigReader
from glassformer.weights.rules import Concatenated, Ignored, Transposed, concatenated, modules, same

# This lineage's names of activations: its gelu is what others call the tanh approximation.
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    if c.afn not in ACTIVATIONS:
        raise ConfigError(f"config.json says afn={c.afn!r}; models of this type have {', '.join(ACTIVATIONS)}.")
    width = c.n_embd
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_epsilon),
        embed=Embed(position=InputPosition(kind="learned", length=c.n_positions), dropout=c.embd_pdrop),
        decoder=Stack(
            layers=c.n_layer,
            causal=True,
            attention=Attention(heads=c.n_head, head_dim=c.per_head("n_embd", "n_head"), dropout=c.attn_pdrop),
            ffn=FeedForward(hidden=4 * width, activation=ACTIVATIONS[c.afn]),
            placement="post",
            final_norm=False,
            dropout=c.resid_pdrop,
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the activation under this lineage's name."""
    theirs = [name for name, ours in ACTIVATIONS.items() if ours == get_fact(facts, "decoder.ffn.activation")]
    return {"afn": theirs[0]} if theirs else {}


LAYER_RULES = (
    *modules({"decoder.blocks.{i}.attention_norm": "h.{i}.ln_1", "decoder.blocks.{i}.ffn_norm": "h.{i}.ln_2"}),
    *concatenated(
        [f"decoder.blocks.{{i}}.attention.{x}" for x in "qkv"], "h.{i}.attn.c_attn", Concatenated(transposed=True)
    ),
    *modules(
        {
            "decoder.blocks.{i}.attention.o": "h.{i}.attn.c_proj",
            "decoder.blocks.{i}.ffn.up": "h.{i}.mlp.c_fc",
            "decoder.blocks.{i}.ffn.down": "h.{i}.mlp.c_proj",
        },
        how=Transposed(),
    ),
)
LM_RULES = (same("head.out.weight", "lm_head.weight"), same("head.bias", "lm_head.bias"))
LM_TIED = ("lm_head.weight",)
MASK_BUFFERS = (
    Ignored("h.{i}.attn.bias", "the causal mask, stored as a buffer"),
    Ignored("h.{i}.attn.masked_bias", "the constant used as the score of masked keys instead of −inf"),
)
IGNORED_KEYS = {
    "n_ctx": "another name of n_positions",
    "n_special": "tokens added to the vocabulary for a task; vocab_size counts all",
    "predict_special_tokens": "whether the original training code also predicted these tokens",
    "output_past": "use the argument cache instead",
    "summary_type": "belongs to a head that is not part of the published models",
    "summary_use_proj": "belongs to a head that is not part of the published models",
    "summary_activation": "belongs to a head that is not part of the published models",
    "summary_proj_to_labels": "belongs to a head that is not part of the published models",
    "summary_first_dropout": "belongs to a head that is not part of the published models",
}

GPT = Lineage(
    name="gpt",
    paper=Paper(
        "Improving Language Understanding by Generative Pre-Training",
        "Radford et al.",
        2018,
        "openai.com/research/language-unsupervised",
    ),
    model_type="openai-gpt",
    prefix="transformer.",
    read=read,
    write=write,
    weight_rules=(*modules({"embed.token": "tokens_embed", "embed.position": "positions_embed"}), *LAYER_RULES),
    ignored_weights=(*MASK_BUFFERS, Ignored("position_ids", "a table of 0, 1, 2 …")),
    heads={
        "lm": HeadFormat("OpenAIGPTLMHeadModel", lambda c: LMHead(tied=c.tie_word_embeddings), LM_RULES, tied=LM_TIED),
        "none": HeadFormat("OpenAIGPTModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "OpenAIGPTForSequenceClassification",
            classify_head,
            modules({"head.out": "score"}),
        ),
    },
    keys={
        "vocab_size": Key("vocab", 40478),
        "n_positions": Key("embed.position.length", 512),
        "n_embd": Key("width", 768),
        "n_layer": Key("decoder.layers", 12),
        "n_head": Key("decoder.attention.heads", 12),
        "afn": Key(None, "gelu"),
        "resid_pdrop": Key("decoder.dropout", 0.1),
        "embd_pdrop": Key("embed.dropout", 0.1),
        "attn_pdrop": Key("decoder.attention.dropout", 0.1),
        "layer_norm_epsilon": Key("norm.eps", 1e-5),
        "initializer_range": Key("init.std", 0.02),
        "bos_token_id": Key("tokens.bos", None),
        "eos_token_id": Key("tokens.eos", None),
        "pad_token_id": Key("tokens.pad", None),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys=IGNORED_KEYS,
    sizes={"openai-gpt": {}},
)
