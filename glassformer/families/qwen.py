"""Qwen 2.5: a Llama with biases on queries, keys and values, whose later layers may have sliding-window attention."""

from typing import Any

from glassformer.config import ModelConfig, get_fact
from glassformer.families.llama import BODY_RULES, IGNORED_WEIGHTS, KEYS, heads, read_body, size, write_body
from glassformer.weights.lineage import Key, Lineage, Paper, shortest_cycle
from glassformer.weights.reader import ConfigError, ConfigReader
from glassformer.weights.rules import Ignored

FULL, SLIDING = "full_attention", "sliding_attention"


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("use_mrope", False, "positions in three dimensions are for images")
    return read_body(c, biases="qkv", kv_heads=32, windows=windows(c))


def windows(c: ConfigReader) -> tuple[int | None, ...]:
    """Return the windows of the layers: by layer_types, or in older files from max_window_layers on."""
    size = c.sliding_window if c.has("sliding_window") else 4096
    size = size if c.use_sliding_window else None
    first, layers = c.max_window_layers, c.num_hidden_layers
    usual = [SLIDING if size is not None and number >= first else FULL for number in range(layers)]
    types = c.get("layer_types", usual)
    if len(types) != layers or not {*types} <= {FULL, SLIDING} or (size is None and SLIDING in types):
        raise ConfigError(
            f"config.json says layer_types={types!r}; it must be {FULL} or {SLIDING} for each of {layers} layers, the "
            f"latter only with use_sliding_window and a sliding_window."
        )
    return shortest_cycle([size if kind == SLIDING else None for kind in types])


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of ``write_windows``, without head_dim where it is the default."""
    config = write_windows(facts)
    if config and get_fact(facts, "decoder.attention.head_dim") == facts.width // get_fact(
        facts, "decoder.attention.heads"
    ):
        del config["head_dim"]  # not a key of this lineage's class, though it is read where present
    return config


def write_windows(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of windows per layer, and a Llama's keys, for this lineage and its descendants."""
    if facts.decoder is None or not (config := write_body(facts)):
        return {}
    windows = facts.decoder.attention.windows
    sizes = [windows[number % len(windows)] for number in range(facts.decoder.layers)]
    sliding = [number for number, size in enumerate(sizes) if size is not None]
    return {
        **config,
        "use_sliding_window": bool(sliding),
        "sliding_window": sizes[sliding[0]] if sliding else None,
        "max_window_layers": sliding[0] if sliding else len(sizes),
        "layer_types": [FULL if size is None else SLIDING for size in sizes],
    }


COMMON: dict[str, Any] = {
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
}
SMALL: dict[str, Any] = {**COMMON, "tie_word_embeddings": True}
LARGE: dict[str, Any] = {**COMMON, "vocab_size": 152064, "max_position_embeddings": 131072}
LARGER: dict[str, Any] = {**LARGE, "rms_norm_eps": 1e-5}

QWEN2 = Lineage(
    name="qwen2",
    paper=Paper("Qwen2.5 Technical Report", "Yang et al.", 2024, "arxiv.org/abs/2412.15115"),
    model_type="qwen2",
    prefix="model.",
    read=read,
    write=write,
    weight_rules=BODY_RULES,
    ignored_weights=(*IGNORED_WEIGHTS, Ignored("*rotary_emb.*_cached", "the rotary angles, stored as a buffer")),
    heads=heads("Qwen2", span_prefix="transformer."),
    keys={
        **KEYS,
        "vocab_size": Key("vocab", 151936),
        "intermediate_size": Key("decoder.ffn.hidden", 22016),
        "max_position_embeddings": Key("decoder.attention.rotary.length", 32768),
        "use_sliding_window": Key(None, False),
        "max_window_layers": Key(None, 28),
        "bos_token_id": Key("tokens.bos", None),
        "eos_token_id": Key("tokens.eos", None),
    },
    # The base models; those tuned to follow instructions differ in eos_token_id, and some in length and eps.
    sizes={
        "qwen2.5-0.5b": size(896, 4864, 24, 14, 2, **SMALL),
        "qwen2.5-1.5b": size(1536, 8960, 28, 12, 2, **SMALL, max_position_embeddings=131072),
        "qwen2.5-3b": size(2048, 11008, 36, 16, 2, **SMALL),
        "qwen2.5-7b": size(3584, 18944, 28, 28, 4, **LARGE),
        "qwen2.5-14b": size(5120, 13824, 48, 40, 8, **LARGER),
        "qwen2.5-32b": size(5120, 27648, 64, 40, 8, **LARGER),
        "qwen2.5-72b": size(8192, 29568, 80, 64, 8, **LARGER),
    },
)
