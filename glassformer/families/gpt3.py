"""GPT-3: GPT-2 with alternating layers of full and of sliding-window (local) attention.

Its weights were never published, so there is no config.json: the keys are GPT-2's with two more, and weights have
GPT-2's names. The paper says "locally banded" (section 2.1) but not how wide the window is; 256 is that of GPT-Neo,
an open model after its design.
"""

from glassformer.config import ModelConfig, change
from glassformer.families import gpt2
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import ConfigReader


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a GPT-2, with another head width and a band in every other layer."""
    return change(gpt2.read_body(c, c.d_head), "decoder.attention.windows", (None, c.band))


GPT3 = Lineage(
    name="gpt3",
    paper=Paper("Language Models are Few-Shot Learners", "Brown et al.", 2020, "arxiv.org/abs/2005.14165"),
    prefix=gpt2.GPT2.prefix,
    read=read,
    weight_rules=gpt2.GPT2.weight_rules,
    ignored_weights=gpt2.GPT2.ignored_weights,
    heads={kind: gpt2.GPT2.heads[kind] for kind in ("lm", "none")},
    keys={
        **gpt2.GPT2.keys,
        "n_positions": Key("embed.position.length", 2048),
        "d_head": Key("decoder.attention.head_dim", 64),
        "band": Key(None, 256),
    },
    # Table 2.1 as published: the heads of gpt3-xl and gpt3-13b do not add up to the width. With 24 heads of 128 gpt3-xl
    # counts 1.5 billion parameters; 16 such heads would make the 1.3 billion that the table gives it.
    sizes={
        "gpt3-small": {},
        "gpt3-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
        "gpt3-large": {"n_layer": 24, "n_embd": 1536, "n_head": 16, "d_head": 96},
        "gpt3-xl": {"n_layer": 24, "n_embd": 2048, "n_head": 24, "d_head": 128},
        "gpt3-2.7b": {"n_layer": 32, "n_embd": 2560, "n_head": 32, "d_head": 80},
        "gpt3-6.7b": {"n_layer": 32, "n_embd": 4096, "n_head": 32, "d_head": 128},
        "gpt3-13b": {"n_layer": 40, "n_embd": 5140, "n_head": 40, "d_head": 128},
        "gpt3-175b": {"n_layer": 96, "n_embd": 12288, "n_head": 96, "d_head": 128},
    },
)
