"""The language model of Stanford's course CS336: a Llama-style model with interleaved rotary embeddings.

Students build it themselves, so there are no published checkpoints: the keys are the arguments of ``TransformerLM``,
the names of weights those of its state dict. With the same weights, ``Transformer`` and ``TransformerLM`` return the
same outputs.
"""

from dataclasses import replace

from glassformer.config import LMHead, ModelConfig
from glassformer.config.course import COURSE_HEAD, COURSE_NAMES, course_model
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts for the arguments of the course's model."""
    c.per_head("d_model", "num_heads")  # raises an error unless the width is divisible by the number of heads
    facts = course_model(
        vocab_size=c.vocab_size,
        context_length=c.context_length,
        d_model=c.d_model,
        num_layers=c.num_layers,
        num_heads=c.num_heads,
        d_ff=4 * c.d_model if c.d_ff is None else c.d_ff,
        rope_theta=c.rope_theta,
    )
    return replace(facts, head=None)


CS336 = Lineage(
    name="cs336",
    paper=Paper("Language Modeling from Scratch", "Hashimoto and Liang", 2025, "cs336.stanford.edu"),
    read=read,
    weight_rules=modules(COURSE_NAMES),
    heads={"lm": HeadFormat("TransformerLM", lambda _: LMHead(tied=False), modules(COURSE_HEAD))},
    keys={
        "vocab_size": Key("vocab", 50257),
        "context_length": Key("decoder.attention.rotary.length", 1024),
        "d_model": Key("width", 768),
        "num_layers": Key("decoder.layers", 12),
        "num_heads": Key("decoder.attention.heads", 12),
        "d_ff": Key("decoder.ffn.hidden", None),
        "rope_theta": Key("decoder.attention.rotary.theta", 10_000.0),
    },
    # GPT-2's widths and depths. A feed-forward network of three matrices, not two, makes these models larger.
    sizes={
        "cs336-small": {},
        "cs336-medium": {"d_model": 1024, "num_layers": 24, "num_heads": 16},
        "cs336-large": {"d_model": 1280, "num_layers": 36, "num_heads": 20},
        "cs336-xl": {"d_model": 1600, "num_layers": 48, "num_heads": 25},
    },
)
