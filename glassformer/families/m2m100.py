"""M2M-100 and NLLB-200: translation between many languages, pre-norm, with sinusoidal positions that are not stored."""

from glassformer.config import InputPosition, ModelConfig
from glassformer.families.bart import IGNORED_KEYS, KEYS, PROJECTIONS, TABLE, heads, layer_rules, read_body, write
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Ignored, modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json. Position 0 is the row after that of padding."""
    position = InputPosition(
        kind="sinusoidal", length=c.max_position_embeddings, offset=c.pad_token_id + 1, layout="fairseq"
    )
    return read_body(c, position, "pre", norm=False)


DEEP = {"encoder_layers": 24, "decoder_layers": 24, "encoder_ffn_dim": 8192, "decoder_ffn_dim": 8192}

M2M100 = Lineage(
    name="m2m100",
    paper=Paper(
        "Beyond English-Centric Multilingual Machine Translation", "Fan et al.", 2020, "arxiv.org/abs/2010.11125"
    ),
    model_type="m2m_100",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=(
        TABLE,
        *layer_rules("encoder", PROJECTIONS),
        *layer_rules("decoder", PROJECTIONS),
        *modules({"encoder.norm": "encoder.layer_norm", "decoder.norm": "decoder.layer_norm"}),
    ),
    ignored_weights=(
        Ignored("encoder.embed_positions.weights", "the table of sinusoids, which is computed"),
        Ignored("decoder.embed_positions.weights", "the table of sinusoids, which is computed"),
        Ignored("encoder.version", "the number of a file format"),
        Ignored("decoder.version", "the number of a file format"),
    ),
    heads={kind: form for kind, form in heads("M2M100", bias=False).items() if kind in ("lm", "none")},
    keys={
        **KEYS,
        "vocab_size": Key("vocab", 128112),
        "activation_function": Key("decoder.ffn.activation", "relu"),
        "attention_dropout": Key("decoder.attention.dropout", 0.1),
        "scale_embedding": Key(None, True),
    },
    ignored_keys=IGNORED_KEYS,
    sizes={
        "m2m100_418M": {},
        "m2m100_1.2B": DEEP,
        "nllb-200-distilled-600M": {"vocab_size": 256206},
        "nllb-200-distilled-1.3B": {**DEEP, "vocab_size": 256206},
        "nllb-200-1.3B": {**DEEP, "vocab_size": 256206},
        "nllb-200-3.3B": {**DEEP, "vocab_size": 256206, "d_model": 2048},
    },
)
