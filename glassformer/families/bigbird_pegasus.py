"""BigBird-Pegasus: summaries of long texts; its encoder attends between blocks of tokens instead of all to all."""

from dataclasses import replace
from typing import Any

from glassformer.config import BlockSparse, InputPosition, ModelConfig
from glassformer.config.checks import check_choice
from glassformer.families import bart
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    check_choice("attention_type", c.attention_type, ("block_sparse", "original_full"))
    facts = bart.read_body(c, InputPosition(kind="learned", length=c.max_position_embeddings), "pre", norm=False)
    assert facts.encoder is not None
    assert facts.decoder is not None
    encoder, decoder = facts.encoder.attention, facts.decoder.attention
    if not c.use_bias:
        encoder, decoder = replace(encoder, biases=""), replace(decoder, biases="")
    if c.attention_type == "block_sparse":  # which has no dropout on its weights
        blocks = BlockSparse(block=c.block_size, random=c.num_random_blocks)
        encoder = replace(encoder, windows=(blocks,), dropout=0.0)
    return replace(
        facts,
        encoder=replace(facts.encoder, attention=encoder, ffn=replace(facts.encoder.ffn, dropout=0.0)),
        decoder=replace(facts.decoder, attention=decoder),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys that are not a copy of one fact."""
    assert facts.encoder is not None
    window = facts.encoder.attention.windows[0]
    config = {**bart.write(facts), "use_bias": bool(facts.encoder.attention.biases), "attention_type": "original_full"}
    if isinstance(window, BlockSparse):
        config |= {"attention_type": "block_sparse", "block_size": window.block, "num_random_blocks": window.random}
    return config


BIGBIRD_PEGASUS = Lineage(
    name="bigbird-pegasus",
    paper=Paper("Big Bird: Transformers for Longer Sequences", "Zaheer et al.", 2020, "arxiv.org/abs/2007.14062"),
    model_type="bigbird_pegasus",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=(
        bart.TABLE,
        *bart.POSITIONS,
        *bart.layer_rules("encoder", {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output"}),
        *bart.layer_rules("decoder", bart.PROJECTIONS),
        # The checkpoint calls it so, but the norm comes after the last layer.
        *modules({"encoder.norm": "encoder.layernorm_embedding", "decoder.norm": "decoder.layernorm_embedding"}),
    ),
    heads=bart.heads("BigBirdPegasus"),
    keys={
        **bart.KEYS,
        "vocab_size": Key("vocab", 96103),
        "max_position_embeddings": Key("embed.position.length", 4096),
        "encoder_layers": Key("encoder.layers", 16),
        "decoder_layers": Key("decoder.layers", 16),
        "activation_function": Key("decoder.ffn.activation", "gelu_new"),
        "scale_embedding": Key(None, True),
        "bos_token_id": Key("tokens.bos", 2),
        "eos_token_id": Key("tokens.eos", 1),
        "pad_token_id": Key("tokens.pad", 0),
        "attention_type": Key(None, "block_sparse"),
        "block_size": Key(None, 64),
        "num_random_blocks": Key(None, 3),
        "use_bias": Key(None, False),
        "num_labels": Key(None, 2),
    },
    ignored_keys=bart.IGNORED_KEYS,
    sizes={
        "bigbird-pegasus-large-arxiv": {},
        "bigbird-pegasus-large-pubmed": {},
        "bigbird-pegasus-large-bigpatent": {},
    },
)
