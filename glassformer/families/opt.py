"""OPT: a decoder with learned positions and a ReLU network; pre-norm, as all published sizes but one.

``opt-350m`` is refused: its embeddings are narrower than the model, positions are added after the projection that
widens them, and a second projection narrows the output again; there are no facts for the last two.
"""

from typing import Any

from glassformer.config import Attention, Embed, FeedForward, Init, InputPosition, LMHead, ModelConfig, Norm, Stack
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, classify_head, span_head
from glassformer.weights.reader import ConfigError, ConfigReader
from glassformer.weights.rules import modules, same

FIRST_ROW = 2  # row of the table of positions at which a text begins, whatever the pad token


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("layer_norm_elementwise_affine", True, "no published model has norms without weights")
    if (narrow := c.get("word_embed_proj_dim", c.hidden_size)) != c.hidden_size:
        raise ConfigError(
            f"config.json says word_embed_proj_dim={narrow} and hidden_size={c.hidden_size}: embeddings of another "
            f"width than the model's, as in opt-350m, are not supported in OPT. The other published sizes are."
        )
    before, removed = c.do_layer_norm_before, c.get("_remove_final_layer_norm", False)
    return ModelConfig(
        vocab=c.vocab_size,
        width=c.hidden_size,
        norm=Norm(eps=1e-5),
        embed=Embed(position=InputPosition(kind="learned", length=c.max_position_embeddings, offset=FIRST_ROW)),
        decoder=Stack(
            layers=c.num_hidden_layers,
            causal=True,
            attention=Attention(
                heads=c.num_attention_heads,
                head_dim=c.per_head("hidden_size", "num_attention_heads"),
                biases="qkvo" if c.enable_bias else "",
                dropout=c.attention_dropout,
            ),
            ffn=FeedForward(hidden=c.ffn_dim, activation=c.activation("activation_function"), bias=c.enable_bias),
            placement="pre" if before else "post",
            final_norm=before and not removed,
            dropout=c.dropout,
        ),
        tokens=c.tokens,
        init=Init(std=c.init_std),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of norm placement and biases."""
    assert facts.decoder is not None
    before = facts.decoder.placement == "pre"
    return {
        "word_embed_proj_dim": facts.width,
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": before and not facts.decoder.final_norm,
        "enable_bias": facts.decoder.ffn.bias,
    }


def size(layers: int, width: int, heads: int) -> dict[str, int]:
    """Return the config of a published size."""
    shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {**shape, "ffn_dim": 4 * width, "word_embed_proj_dim": width}


OPT = Lineage(
    name="opt",
    paper=Paper("OPT: Open Pre-trained Transformer Language Models", "Zhang et al.", 2022, "arxiv.org/abs/2205.01068"),
    model_type="opt",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=modules(
        {
            "embed.token": "decoder.embed_tokens",
            "embed.position": "decoder.embed_positions",
            "decoder.norm": "decoder.final_layer_norm",
            "decoder.blocks.{i}.attention.q": "decoder.layers.{i}.self_attn.q_proj",
            "decoder.blocks.{i}.attention.k": "decoder.layers.{i}.self_attn.k_proj",
            "decoder.blocks.{i}.attention.v": "decoder.layers.{i}.self_attn.v_proj",
            "decoder.blocks.{i}.attention.o": "decoder.layers.{i}.self_attn.out_proj",
            "decoder.blocks.{i}.attention_norm": "decoder.layers.{i}.self_attn_layer_norm",
            "decoder.blocks.{i}.ffn.up": "decoder.layers.{i}.fc1",
            "decoder.blocks.{i}.ffn.down": "decoder.layers.{i}.fc2",
            "decoder.blocks.{i}.ffn_norm": "decoder.layers.{i}.final_layer_norm",
        }
    ),
    heads={
        "lm": HeadFormat(
            "OPTForCausalLM",
            lambda c: LMHead(tied=c.tie_word_embeddings),
            (same("head.out.weight", "lm_head.weight"),),
            tied=("lm_head.weight",),
        ),
        "none": HeadFormat("OPTModel", lambda _: None, prefix=""),
        "classify": HeadFormat("OPTForSequenceClassification", classify_head, modules({"head.out": "score"})),
        "span": HeadFormat("OPTForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 50272),
        "hidden_size": Key("width", 768),
        "num_hidden_layers": Key("decoder.layers", 12),
        "num_attention_heads": Key("decoder.attention.heads", 12),
        "ffn_dim": Key("decoder.ffn.hidden", 3072),
        "activation_function": Key("decoder.ffn.activation", "relu"),
        "max_position_embeddings": Key("embed.position.length", 2048),
        "do_layer_norm_before": Key(None, True),
        "enable_bias": Key(None, True),
        "dropout": Key("decoder.dropout", 0.1),
        "attention_dropout": Key("decoder.attention.dropout", 0.0),
        "init_std": Key("init.std", 0.02),
        "bos_token_id": Key("tokens.bos", 2),
        "eos_token_id": Key("tokens.eos", 2),
        "pad_token_id": Key("tokens.pad", 1),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys={"activation_dropout": "nothing reads it; no published model was trained with any"},
    sizes={
        "opt-125m": size(12, 768, 12),
        "opt-1.3b": size(24, 2048, 32),
        "opt-2.7b": size(32, 2560, 32),
        "opt-6.7b": size(32, 4096, 32),
        "opt-13b": size(40, 5120, 40),
        "opt-30b": size(48, 7168, 56),
        "opt-66b": size(64, 9216, 72),
    },
)
