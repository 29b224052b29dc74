"""BART: an encoder-decoder, post-norm with normalised embeddings, trained to restore damaged text."""

from collections.abc import Mapping
from typing import Any, Literal

from glassformer.config import (
    Attention,
    Embed,
    FeedForward,
    Init,
    InputPosition,
    LMHead,
    ModelConfig,
    Stack,
    TaskHead,
    Tokens,
)
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Ignored, RowMatrix, Rule, modules, same


def stack(c: ConfigReader, side: Literal["encoder", "decoder"], placement: Literal["pre", "post"]) -> Stack:
    """Return the encoder or the decoder; pre-norm stacks end with a norm."""
    heads, dim = getattr(c, f"{side}_attention_heads"), c.per_head("d_model", f"{side}_attention_heads")
    return Stack(
        layers=getattr(c, f"{side}_layers"),
        attention=Attention(heads=heads, head_dim=dim, dropout=c.attention_dropout),
        ffn=FeedForward(
            hidden=getattr(c, f"{side}_ffn_dim"),
            activation=c.activation("activation_function"),
            dropout=c.activation_dropout,
        ),
        causal=side == "decoder",
        cross=side == "decoder",
        placement=placement,
        final_norm=placement == "pre",
        dropout=c.dropout,
    )


def read_body(
    c: ConfigReader, position: InputPosition, placement: Literal["pre", "post"], *, norm: bool
) -> ModelConfig:
    """Return an encoder-decoder of this lineage or a descendant, with these positions and norms."""
    c.require("tie_word_embeddings", True, "one table serves encoder, decoder and head in every published model")
    return ModelConfig(
        vocab=c.vocab_size,
        width=c.d_model,
        embed=Embed(
            scale=c.d_model**0.5 if c.scale_embedding else 1.0, position=position, norm=norm, dropout=c.dropout
        ),
        encoder=stack(c, "encoder", placement),
        decoder=stack(c, "decoder", placement),
        tokens=Tokens(bos=c.bos_token_id, eos=c.eos_token_id, pad=c.pad_token_id, start=c.decoder_start_token_id),
        init=Init(std=c.init_std),
    )


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("normalize_before", False, "norms before the sublayers belong to a relative with another model_type")
    c.require("normalize_embedding", True, "embeddings are normalised in every published model")
    c.require(
        "add_final_layer_norm", False, "a norm after the last layer belongs to a relative with another model_type"
    )
    c.require("static_position_embeddings", False, "positions are learned in every published model")
    c.require(
        "do_blenderbot_90_layernorm", False, "another order of norms belongs to a relative with another model_type"
    )
    position = InputPosition(kind="learned", length=c.max_position_embeddings, offset=2)
    return read_body(c, position, "post", norm=True)


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the key that takes more than a copy of one fact."""
    return {"scale_embedding": facts.embed.scale != 1.0}


PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
TABLE = same("embed.token.weight", "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
POSITIONS = modules({"embed.position": "encoder.embed_positions", "target_embed.position": "decoder.embed_positions"})


def layer_rules(side: str, attention: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return the weight names of one stack, whose projections have these names."""
    ours, theirs = f"{side}.blocks.{{i}}", f"{side}.layers.{{i}}"
    return modules(
        {
            **{f"{ours}.attention.{part}": f"{theirs}.self_attn.{name}" for part, name in attention.items()},
            **{f"{ours}.cross.{part}": f"{theirs}.encoder_attn.{name}" for part, name in PROJECTIONS.items()},
            f"{ours}.attention_norm": f"{theirs}.self_attn_layer_norm",
            f"{ours}.cross_norm": f"{theirs}.encoder_attn_layer_norm",
            f"{ours}.ffn.up": f"{theirs}.fc1",
            f"{ours}.ffn.down": f"{theirs}.fc2",
            f"{ours}.ffn_norm": f"{theirs}.final_layer_norm",
        }
    )


def classify(c: ConfigReader) -> TaskHead:
    """Build a head on the decoder's last hidden state; the decoder's input is the text shifted by its start token."""
    rate = c.classifier_dropout
    return TaskHead(task="classify", labels=c.labels, pool="last", hidden="tanh", dropout=rate, input_dropout=rate)


def heads(name: str, *, bias: bool = True) -> dict[str, HeadFormat]:
    """Return the heads of this lineage, for classes whose names begin with ``name``."""
    return {
        "lm": HeadFormat(
            f"{name}ForConditionalGeneration",
            lambda _: LMHead(bias=bias, bias_trained=not bias),  # a buffer in the reference
            # A folder of the model without a head lacks the bias, which then starts at zero.
            (Rule(("head.bias",), ("final_logits_bias",), RowMatrix(), zeros=True),),
            tied=("lm_head.weight",),
        ),
        "none": HeadFormat(f"{name}Model", lambda _: None, prefix=""),
        "classify": HeadFormat(
            f"{name}ForSequenceClassification",
            classify,
            modules({"head.hidden": "classification_head.dense", "head.out": "classification_head.out_proj"}),
        ),
        "span": HeadFormat(f"{name}ForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    }


KEYS = {
    "vocab_size": Key("vocab", 50265),
    "max_position_embeddings": Key("embed.position.length", 1024),
    "d_model": Key("width", 1024),
    "encoder_layers": Key("encoder.layers", 12),
    "encoder_ffn_dim": Key("encoder.ffn.hidden", 4096),
    "encoder_attention_heads": Key("encoder.attention.heads", 16),
    "decoder_layers": Key("decoder.layers", 12),
    "decoder_ffn_dim": Key("decoder.ffn.hidden", 4096),
    "decoder_attention_heads": Key("decoder.attention.heads", 16),
    "activation_function": Key("decoder.ffn.activation", "gelu"),
    "dropout": Key("decoder.dropout", 0.1),
    "attention_dropout": Key("decoder.attention.dropout", 0.0),
    "activation_dropout": Key("decoder.ffn.dropout", 0.0),
    "classifier_dropout": Key("head.dropout", 0.0),
    "scale_embedding": Key(None, False),
    "bos_token_id": Key("tokens.bos", 0),
    "eos_token_id": Key("tokens.eos", 2),
    "pad_token_id": Key("tokens.pad", 1),
    "decoder_start_token_id": Key("tokens.start", 2),
    "init_std": Key("init.std", 0.02),
    "num_labels": Key(None, 3),
}
IGNORED_KEYS = {
    "encoder_layerdrop": "skipping of layers while training, which is not done here",
    "decoder_layerdrop": "skipping of layers while training, which is not done here",
    "num_hidden_layers": "another name of encoder_layers",
    "is_decoder": "set by the other library on a decoder that it cuts out",
}
DROPOUTS = {"attention_dropout": 0.1, "activation_dropout": 0.1}

BART = Lineage(
    name="bart",
    paper=Paper(
        "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation, Translation, and "
        "Comprehension",
        "Lewis et al.",
        2019,
        "arxiv.org/abs/1910.13461",
    ),
    model_type="bart",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=(
        TABLE,
        *POSITIONS,
        *modules({"embed.norm": "encoder.layernorm_embedding", "target_embed.norm": "decoder.layernorm_embedding"}),
        *layer_rules("encoder", PROJECTIONS),
        *layer_rules("decoder", PROJECTIONS),
    ),
    ignored_weights=(
        Ignored("encoder.version", "the number of a file format"),
        Ignored("decoder.version", "the number of a file format"),
    ),
    heads=heads("Bart"),
    keys=KEYS,
    ignored_keys={
        **IGNORED_KEYS,
        "classif_dropout": "an old name that nothing reads",
        "extra_pos_embeddings": "an old name that nothing reads; the offset of the positions is always 2",
        "add_bias_logits": "whether the bias of the head was trained; it is stored in any case",
        "force_bos_token_to_be_generated": "settings for generating text, not part of the model",
        "output_past": "shape of the other library's answers",
        "prefix": "text that the user puts before each input",
    },
    sizes={
        "bart-base": {
            **DROPOUTS,
            "d_model": 768,
            **{f"{side}_layers": 6 for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": 12 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": 3072 for side in ("encoder", "decoder")},
        },
        "bart-large": DROPOUTS,
        "bart-large-cnn": {"vocab_size": 50264},
        "bart-large-xsum": {"vocab_size": 50264},
        "bart-large-mnli": {
            "architectures": ["BartForSequenceClassification"],
            "id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"},
        },
    },
)
