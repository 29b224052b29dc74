"""GPT-Neo: GPT-2 with unscaled scores and sliding-window (local) attention in every other layer, as in GPT-3."""

from typing import Any

from glassformer.config import Attention, Embed, FeedForward, Init, InputPosition, LMHead, ModelConfig, Norm, Stack
from glassformer.families.gpt import IGNORED_KEYS, LM_RULES, LM_TIED
from glassformer.weights.lineage import (
    HeadFormat,
    Key,
    Lineage,
    Paper,
    classify_head,
    shortest_cycle,
    span_head,
    tag_head,
    write_tag_dropout,
)
from glassformer.weights.reader import ConfigError, ConfigReader
from glassformer.weights.rules import Ignored, modules


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    width, heads = c.hidden_size, c.num_heads
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_epsilon),
        embed=Embed(position=InputPosition(kind="learned", length=c.max_position_embeddings), dropout=c.embed_dropout),
        decoder=Stack(
            layers=c.num_layers,
            causal=True,
            attention=Attention(
                heads=heads,
                head_dim=c.per_head("hidden_size", "num_heads"),
                biases="o",
                scale=1.0,
                windows=windows(c),
                dropout=c.attention_dropout,
            ),
            ffn=FeedForward(hidden=c.intermediate_size or 4 * width, activation=c.activation("activation_function")),
            dropout=c.resid_dropout,
        ),
        tokens=c.tokens,
        init=Init(std=c.initializer_range),
    )


def windows(c: ConfigReader) -> tuple[int | None, ...]:
    """Expand the pattern: ``[[["global", "local"], 12]]`` is the pair twelve times."""
    try:
        count = sum(len(names) * times for names, times in c.attention_types)
        names = [name for names, times in c.attention_types for name in names * times] if count == c.num_layers else []
    except (TypeError, ValueError):  # not pairs of a list and a number
        names = []
    if len(names) != c.num_layers or not {*names} <= {"global", "local"}:
        raise ConfigError(
            f"config.json says attention_types={c.attention_types!r}; it must be global or local for each of "
            f"{c.num_layers} layers."
        )
    return shortest_cycle([c.window_size if name == "local" else None for name in names])


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of the window pattern, as one list of layers."""
    if facts.decoder is None:
        return {}  # not a model of this lineage, as the caller will find
    config, pattern = write_tag_dropout(facts), facts.decoder.attention.windows
    sizes = [pattern[number % len(pattern)] for number in range(facts.decoder.layers)]
    config["attention_types"] = [[["global" if size is None else "local" for size in sizes], 1]]
    if local := [size for size in sizes if size is not None]:
        config["window_size"] = local[0]
    return config


GPT_NEO = Lineage(
    name="gpt-neo",
    paper=Paper(
        "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow",
        "Black et al.",
        2021,
        "doi.org/10.5281/zenodo.5297715",
    ),
    model_type="gpt_neo",
    prefix="transformer.",
    read=read,
    write=write,
    weight_rules=modules(
        {
            "embed.token": "wte",
            "embed.position": "wpe",
            "decoder.norm": "ln_f",
            "decoder.blocks.{i}.attention.q": "h.{i}.attn.attention.q_proj",
            "decoder.blocks.{i}.attention.k": "h.{i}.attn.attention.k_proj",
            "decoder.blocks.{i}.attention.v": "h.{i}.attn.attention.v_proj",
            "decoder.blocks.{i}.attention.o": "h.{i}.attn.attention.out_proj",
            "decoder.blocks.{i}.attention_norm": "h.{i}.ln_1",
            "decoder.blocks.{i}.ffn.up": "h.{i}.mlp.c_fc",
            "decoder.blocks.{i}.ffn.down": "h.{i}.mlp.c_proj",
            "decoder.blocks.{i}.ffn_norm": "h.{i}.ln_2",
        }
    ),
    ignored_weights=(
        Ignored("h.{i}.attn.attention.bias", "the causal band mask, stored as a buffer"),
        Ignored("h.{i}.attn.attention.masked_bias", "the constant used as the score of masked keys instead of −inf"),
    ),
    heads={
        "lm": HeadFormat("GPTNeoForCausalLM", lambda c: LMHead(tied=c.tie_word_embeddings), LM_RULES, tied=LM_TIED),
        "none": HeadFormat("GPTNeoModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "GPTNeoForSequenceClassification",
            classify_head,
            modules({"head.out": "score"}),
        ),
        "tag": HeadFormat("GPTNeoForTokenClassification", tag_head, modules({"head.out": "classifier"})),
        "span": HeadFormat("GPTNeoForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 50257),
        "max_position_embeddings": Key("embed.position.length", 2048),
        "hidden_size": Key("width", 2048),
        "num_layers": Key("decoder.layers", 24),
        "num_heads": Key("decoder.attention.heads", 16),
        "attention_types": Key(None, [[["global", "local"], 12]]),
        "window_size": Key(None, 256),
        "intermediate_size": Key("decoder.ffn.hidden", None),
        "activation_function": Key("decoder.ffn.activation", "gelu_new"),
        "resid_dropout": Key("decoder.dropout", 0.0),
        "embed_dropout": Key("embed.dropout", 0.0),
        "attention_dropout": Key("decoder.attention.dropout", 0.0),
        "classifier_dropout": Key(None, 0.1),
        "layer_norm_epsilon": Key("norm.eps", 1e-5),
        "initializer_range": Key("init.std", 0.02),
        "bos_token_id": Key("tokens.bos", 50256),
        "eos_token_id": Key("tokens.eos", 50256),
        "pad_token_id": Key("tokens.pad", None),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys={**IGNORED_KEYS, "attention_layers": "attention_types, written out"},
    sizes={
        "gpt-neo-125m": {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
        },
        "gpt-neo-1.3b": {},
        "gpt-neo-2.7b": {
            "hidden_size": 2560,
            "num_layers": 32,
            "num_heads": 20,
            "attention_types": [[["global", "local"], 16]],
        },
    },
)
