"""Glassformer: the Transformer you can see through.

Names are loaded when first used (PEP 562), so that ``import glassformer`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from glassformer.config.course import EncoderConfig as EncoderConfig
    from glassformer.families import preset as preset
    from glassformer.families import presets as presets
    from glassformer.generation import text as _text
    from glassformer.hub import load as load
    from glassformer.hub import save as save
    from glassformer.inspect.account.account import account as account
    from glassformer.inspect.parameters import num_parameters as num_parameters
    from glassformer.inspect.record import record as record
    from glassformer.loaded import Loaded as Loaded
    from glassformer.models.course import Embeddings as Embeddings
    from glassformer.models.course import TransformerEncoder as TransformerEncoder
    from glassformer.models.course import TransformerForSequenceClassification as TransformerForSequenceClassification
    from glassformer.models.course import TransformerLM as TransformerLM
    from glassformer.models.transformer import Transformer as Transformer
    from glassformer.nn.attention import scaled_dot_product_attention as scaled_dot_product_attention
    from glassformer.nn.attention import softmax as softmax
    from glassformer.nn.block import Block as Block
    from glassformer.nn.cache import KVCache as KVCache
    from glassformer.nn.feedforward import FeedForward as FeedForward
    from glassformer.nn.feedforward import SwiGLU as SwiGLU
    from glassformer.nn.feedforward import gelu as gelu
    from glassformer.nn.feedforward import silu as silu
    from glassformer.nn.input_positions import LearnedPositionalEmbedding as LearnedPositionalEmbedding
    from glassformer.nn.input_positions import SinusoidalPositionalEncoding as SinusoidalPositionalEncoding
    from glassformer.nn.layers import AttentionHead as AttentionHead
    from glassformer.nn.layers import CausalMultiHeadSelfAttention as CausalMultiHeadSelfAttention
    from glassformer.nn.layers import DecoderLayer as DecoderLayer
    from glassformer.nn.layers import EncoderLayer as EncoderLayer
    from glassformer.nn.layers import MultiHeadAttention as MultiHeadAttention
    from glassformer.nn.layers import TransformerBlock as TransformerBlock
    from glassformer.nn.linear import Embedding as Embedding
    from glassformer.nn.linear import Linear as Linear
    from glassformer.nn.masks import Mask as Mask
    from glassformer.nn.norm import LayerNorm as LayerNorm
    from glassformer.nn.norm import RMSNorm as RMSNorm
    from glassformer.nn.rotary import RotaryPositionalEmbedding as RotaryPositionalEmbedding
    from glassformer.tasks.answer import answer as answer
    from glassformer.tasks.classify import classify as classify
    from glassformer.tasks.embed import embed as embed
    from glassformer.tasks.fill import fill as fill
    from glassformer.tasks.score import score as score
    from glassformer.tasks.tag import tag as tag
    from glassformer.text.tokenizer import Tokenizer as Tokenizer
    from glassformer.training.api import train as train
    from glassformer.viewer.notebook import head_view as head_view
    from glassformer.viewer.notebook import model_view as model_view
    from glassformer.viewer.notebook import neuron_view as neuron_view
    from glassformer.viewer.notebook import view as view

    generate = _text.generate_text
    stream = _text.stream_text
    chat = _text.reply
    translate = _text.translate_text

# Each name at the root, by its module; "a as b": the function a of that module is b here. On token ids instead of text,
# ``generate`` is ``glassformer.generation.generate``.
_HOME = {
    "config.course": ("EncoderConfig",),
    "families": ("preset", "presets"),
    "generation.text": (
        "generate_text as generate",
        "stream_text as stream",
        "reply as chat",
        "translate_text as translate",
    ),
    "hub": ("load", "save"),
    "inspect.account.account": ("account",),
    "inspect.parameters": ("num_parameters",),
    "inspect.record": ("record",),
    "loaded": ("Loaded",),
    "models.course": ("Embeddings", "TransformerEncoder", "TransformerForSequenceClassification", "TransformerLM"),
    "models.transformer": ("Transformer",),
    "nn.attention": ("scaled_dot_product_attention", "softmax"),
    "nn.block": ("Block",),
    "nn.cache": ("KVCache",),
    "nn.feedforward": ("FeedForward", "SwiGLU", "gelu", "silu"),
    "nn.input_positions": ("LearnedPositionalEmbedding", "SinusoidalPositionalEncoding"),
    "nn.layers": (
        "AttentionHead",
        "CausalMultiHeadSelfAttention",
        "DecoderLayer",
        "EncoderLayer",
        "MultiHeadAttention",
        "TransformerBlock",
    ),
    "nn.linear": ("Embedding", "Linear"),
    "nn.masks": ("Mask",),
    "nn.norm": ("LayerNorm", "RMSNorm"),
    "nn.rotary": ("RotaryPositionalEmbedding",),
    "tasks.answer": ("answer",),
    "tasks.classify": ("classify",),
    "tasks.embed": ("embed",),
    "tasks.fill": ("fill",),
    "tasks.score": ("score",),
    "tasks.tag": ("tag",),
    "text.tokenizer": ("Tokenizer",),
    "training.api": ("train",),
    "viewer.notebook": ("head_view", "model_view", "neuron_view", "view"),
}
_ORIGIN = {
    entry.split(" as ")[-1]: (f"glassformer.{module}", entry.split(" as ")[0])
    for module, entries in _HOME.items()
    for entry in entries
}

__all__ = ["__version__", *_ORIGIN]  # noqa: PLE0604  # strings all of them


def __getattr__(name: str) -> object:
    if name not in _ORIGIN:
        raise AttributeError(f"module 'glassformer' has no attribute {name!r}")
    module, own_name = _ORIGIN[name]
    value = getattr(import_module(module), own_name)
    globals()[name] = value  # cached: not called again for this name
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
