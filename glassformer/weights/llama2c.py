"""Read the model files of llama2.c: seven integers, then every tensor in float32.

The format has no magic number, so a file is recognised by its length, which must follow from the seven integers.

Layout: the tensors of one kind follow each other, layer by layer, each row by row.
"""

import struct
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glassformer.weights.files import WeightsError
from glassformer.weights.single_file import LlamaConfig, SingleFileModel

_HEADER = struct.Struct("<7i")
_FLOAT = np.dtype("<f4")
_LATER_MAGIC = 0x616B3432  # "ak42": versions 1 and 2 of the format begin with it
_MAX_SIZE = 2**24  # a larger size is noise, not a model
_PICKLES = (b"PK\x03\x04", b"\x80\x02\x8a")  # the first bytes of torch files, new and old
# In the order of the file; {} is the number of the layer.
_ORDER = [
    "model.embed_tokens.weight",
    "model.layers.{}.input_layernorm.weight",
    "model.layers.{}.self_attn.q_proj.weight",
    "model.layers.{}.self_attn.k_proj.weight",
    "model.layers.{}.self_attn.v_proj.weight",
    "model.layers.{}.self_attn.o_proj.weight",
    "model.layers.{}.post_attention_layernorm.weight",
    "model.layers.{}.mlp.gate_proj.weight",
    "model.layers.{}.mlp.down_proj.weight",
    "model.layers.{}.mlp.up_proj.weight",
    "model.norm.weight",
    "rotary.cosines",
    "rotary.sines",
    "lm_head.weight",
]


def read_llama2c(path: Path) -> SingleFileModel:
    """Return the model in a llama2.c file; its tensors stay on disk until they are read."""
    config, offsets = _read_header(path)
    shapes = config.shapes()
    return SingleFileModel(
        config.config(), shapes, partial(_read, path, config, shapes, offsets), metadata={}, file=path
    )


def looks_like_llama2c(path: Path) -> bool:
    """Whether the file begins with seven plausible sizes and has the length that follows from them."""
    try:
        _read_header(path)
    except (OSError, WeightsError):
        return False
    return True


def begins_like_llama2c(path: Path) -> bool:
    """Whether the file begins with the seven sizes of a model, whatever its length; pickles do not."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header.startswith(_PICKLES):
        return False
    numbers = _HEADER.unpack(header)
    if not all(1 <= abs(number) <= _MAX_SIZE for number in numbers):
        return False
    try:
        _config(path, numbers)
    except WeightsError:
        return False
    return True


def _read_header(path: Path) -> tuple[LlamaConfig, dict[str, int]]:
    """Return the config in the header, and the offset of each tensor, counted in float32 values after the header."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise WeightsError(
            f"{path}: a llama2.c file begins with {_HEADER.size} bytes of sizes; this file has {len(header)} bytes. "
            f"Download it again."
        )
    # Seven positive sizes of version 0; a negative vocabulary size is an untied head.
    numbers = _HEADER.unpack(header)
    if numbers[0] == _LATER_MAGIC:
        raise WeightsError(
            f"{path}: this is version {numbers[1]} of llama2.c's format; only version 0 is supported. "
            f"Write it with llama2.c's own export.py --version 0."
        )
    if min(*numbers[:5], abs(numbers[5]), numbers[6]) < 1:
        raise WeightsError(
            f"{path}: a llama2.c file begins with seven sizes (dim, hidden_dim, n_layers, n_heads, n_kv_heads, "
            f"vocab_size, seq_len), of which only vocab_size may be negative; found {', '.join(map(str, numbers))}. "
            f"It is of another kind, or damaged."
        )
    _check_length(path, numbers)  # before anything is built from random sizes
    config = _config(path, numbers)
    return config, _offsets(config)


def _check_length(path: Path, header: tuple[int, ...]) -> None:
    # The size in bytes that follows from the header.
    width, inner, layers, heads, key_heads, vocabulary, length = header
    keys = width // heads * key_heads
    # norms, queries and output, keys and values, feed-forward network
    layer = 2 * width + 2 * width * width + 2 * width * keys + 3 * width * inner
    tables = 2 * length * (width // heads // 2)  # cosines and sines of the rotary positions
    embeddings = abs(vocabulary) * width * (1 if vocabulary > 0 else 2)
    expected = _HEADER.size + _FLOAT.itemsize * (embeddings + layers * layer + width + tables)
    # The size of the file.
    actual = path.stat().st_size
    if actual != expected:
        state = "incomplete: download it again" if actual < expected else "of another kind, or damaged"
        raise WeightsError(
            f"{path}: a llama2.c file with the sizes {', '.join(map(str, header))} has {expected:,} bytes, "
            f"and this one has {actual:,}. It is {state}."
        )


def _config(path: Path, header: tuple[int, ...]) -> LlamaConfig:
    width, inner, layers, heads, key_heads, vocabulary, length = header
    try:
        return LlamaConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            vocab_size=abs(vocabulary),
            max_position_embeddings=length,
            rms_norm_eps=1e-5,  # constants of llama2.c, not in the file
            rope_theta=10000.0,
            tie_word_embeddings=vocabulary > 0,
            bos_token_id=1,
            eos_token_id=[1, 2],  # BOS of the next story ends a story; 2 ends a reply of a chat model
        )
    except ValueError as error:
        raise WeightsError(f"{path}: the sizes at its beginning, {header}, do not fit together: {error}") from error


def _offsets(config: LlamaConfig) -> dict[str, int]:
    table = config.max_position_embeddings * (config.head_width // 2)
    sizes = {name: prod(shape) for name, shape in config.shapes().items()}
    sizes |= {"rotary.cosines": table, "rotary.sines": table}  # skipped: they are computed from the config
    offsets, end = {}, 0
    for pattern in _ORDER:
        for layer in range(config.num_hidden_layers if "{}" in pattern else 1):
            name = pattern.format(layer)
            offsets[name] = end
            end += sizes.get(name, 0)  # a tied lm_head is not in the file
    return offsets


def _read(
    path: Path, config: LlamaConfig, shapes: dict[str, tuple[int, ...]], offsets: dict[str, int], name: str
) -> Tensor:
    shape, start = shapes[name], _HEADER.size + _FLOAT.itemsize * offsets[name]
    stored = np.fromfile(path, _FLOAT, count=prod(shape), offset=start)
    native = stored.astype(np.float32, copy=False)  # converts on machines of the other byte order
    return config.half_split(name, torch.from_numpy(native).view(shape))
