"""Mistral: a Llama whose layers may look back over a window only."""

from typing import Any

from glassformer.config import Model, look
from glassformer.families.llama import BODY, IGNORED_WEIGHTS, KEYS, body, heads, write_body
from glassformer.weights.lineage import Key, Lineage, Paper
from glassformer.weights.reader import Reader


def read(c: Reader) -> Model:
    """The facts that config.json states; sliding_window=null is full attention."""
    return body(c, biases="", kv_heads=8, windows=(c.sliding_window,))


def write(model: Model) -> dict[str, Any]:
    """The one window of all layers, and what a Llama's config.json says."""
    return {**write_body(model), "sliding_window": look(model, "decoder.attention.windows", (None,))[0]}


SEVEN: dict[str, Any] = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
LATER: dict[str, Any] = {**SEVEN, "sliding_window": None, "rope_theta": 1000000.0}

MISTRAL = Lineage(
    name="mistral",
    paper=Paper("Mistral 7B", "Jiang et al.", 2023, "arxiv.org/abs/2310.06825"),
    model_type="mistral",
    prefix="model.",
    read=read,
    write=write,
    weights=BODY,
    ignored_weights=IGNORED_WEIGHTS,
    heads=heads("Mistral"),
    keys={
        **KEYS,
        "intermediate_size": Key("decoder.ffn.hidden", 14336),
        "max_position_embeddings": Key("decoder.attention.rotary.length", 131072),
        "sliding_window": Key(None, 4096),
    },
    sizes={
        "mistral-7b-v0.1": SEVEN,
        "mistral-7b-v0.2": LATER,
        "mistral-7b-v0.3": {**LATER, "vocab_size": 32768},
    },
)
