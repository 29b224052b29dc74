"""GPT-J: a decoder whose attention and feed-forward network read the same norm in parallel, with rotary positions."""

from glassformer.config import Attention, Embed, FeedForward, Init, LMHead, ModelConfig, Norm, Rotary, Stack
from glassformer.families.gpt import IGNORED_KEYS, LM_RULES, LM_TIED, MASK_BUFFERS
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, classify_head, span_head
from glassformer.weights.reader import ConfigError, ConfigReader
from glassformer.weights.rules import Ignored, modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("rotary", True, "models of this type have no other positions")
    c.require("scale_attn_weights", True, "no published model has unscaled attention")
    if c.rotary_dim is None:
        raise ConfigError(
            "config.json says rotary_dim=null; it must be the number of dimensions of each head that are rotated."
        )
    width = c.n_embd
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_epsilon),
        embed=Embed(dropout=c.embd_pdrop),
        decoder=Stack(
            layers=c.n_layer,
            causal=True,
            attention=Attention(
                heads=c.n_head,
                head_dim=c.per_head("n_embd", "n_head"),
                biases="",
                rotary=Rotary(dim=c.rotary_dim, length=c.n_positions, pairing="interleaved"),
                dropout=c.attn_pdrop,
            ),
            ffn=FeedForward(hidden=c.n_inner or 4 * width, activation=c.activation("activation_function")),
            placement="parallel",
            dropout=c.resid_pdrop,
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range),
    )


GPTJ = Lineage(
    name="gpt-j",
    paper=Paper(
        "GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model",
        "Wang and Komatsuzaki",
        2021,
        "github.com/kingoflolz/mesh-transformer-jax",
    ),
    model_type="gptj",
    prefix="transformer.",
    read=read,
    weight_rules=modules(
        {
            "embed.token": "wte",
            "decoder.norm": "ln_f",
            "decoder.blocks.{i}.attention.q": "h.{i}.attn.q_proj",
            "decoder.blocks.{i}.attention.k": "h.{i}.attn.k_proj",
            "decoder.blocks.{i}.attention.v": "h.{i}.attn.v_proj",
            "decoder.blocks.{i}.attention.o": "h.{i}.attn.out_proj",
            "decoder.blocks.{i}.attention_norm": "h.{i}.ln_1",
            "decoder.blocks.{i}.ffn.up": "h.{i}.mlp.fc_in",
            "decoder.blocks.{i}.ffn.down": "h.{i}.mlp.fc_out",
        }
    ),
    ignored_weights=(*MASK_BUFFERS, Ignored("h.{i}.attn.embed_positions", "the rotary angles, stored as a buffer")),
    heads={
        "lm": HeadFormat(
            "GPTJForCausalLM", lambda c: LMHead(bias=True, tied=c.tie_word_embeddings), LM_RULES, tied=LM_TIED
        ),
        "none": HeadFormat("GPTJModel", lambda _: None, prefix=""),
        "classify": HeadFormat("GPTJForSequenceClassification", classify_head, modules({"head.out": "score"})),
        "span": HeadFormat("GPTJForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 50400),
        "n_positions": Key("decoder.attention.rotary.length", 2048),
        "n_embd": Key("width", 4096),
        "n_layer": Key("decoder.layers", 28),
        "n_head": Key("decoder.attention.heads", 16),
        "rotary_dim": Key("decoder.attention.rotary.dim", 64),
        "n_inner": Key("decoder.ffn.hidden", None),
        "activation_function": Key("decoder.ffn.activation", "gelu_new"),
        "resid_pdrop": Key("decoder.dropout", 0.0),
        "embd_pdrop": Key("embed.dropout", 0.0),
        "attn_pdrop": Key("decoder.attention.dropout", 0.0),
        "layer_norm_epsilon": Key("norm.eps", 1e-5),
        "initializer_range": Key("init.std", 0.02),
        "bos_token_id": Key("tokens.bos", 50256),
        "eos_token_id": Key("tokens.eos", 50256),
        "pad_token_id": Key("tokens.pad", None),
        "tie_word_embeddings": Key("head.tied", False),
    },
    ignored_keys=IGNORED_KEYS,
    sizes={"gpt-j-6b": {}},
)
