"""Reads the model files of llama2.c: seven whole numbers, then every tensor in float32, nothing else.

The file does not say what it is, so its length is the only proof: it must be exactly what the seven numbers promise.

Shapes: tensors of one kind lie together, one after the other for all layers, each row by row.
"""

import struct
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glassformer.weights.files import WeightsError
from glassformer.weights.foreign import ForeignModel, LlamaFacts

_HEADER = struct.Struct("<7i")
_FLOAT = np.dtype("<f4")
_LATER_MAGIC = 0x616B3432  # "ak42": versions 1 and 2 of the format begin with it
_LARGEST = 2**24  # a larger size is noise, not a model
_PICKLES = (b"PK\x03\x04", b"\x80\x02\x8a")  # how files of torch begin, of today and of years ago
# In the order of the file; {} stands for every layer in turn.
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


def read_llama2c(path: Path) -> ForeignModel:
    """The model in a file of llama2.c; its tensors stay on disk until they are read."""
    facts, places = _survey(path)
    shapes = facts.shapes()
    return ForeignModel(facts.config(), shapes, partial(_read, path, facts, shapes, places), metadata={}, file=path)


def looks_like_llama2c(path: Path) -> bool:
    """Whether the file begins with seven plausible sizes and is exactly as long as they promise."""
    try:
        _survey(path)
    except (OSError, WeightsError):
        return False
    return True


def begins_like_llama2c(path: Path) -> bool:
    """Whether the file begins with seven sizes of a model, however long it is; a pickle does not."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header.startswith(_PICKLES):
        return False
    numbers = _HEADER.unpack(header)
    if not all(1 <= abs(number) <= _LARGEST for number in numbers):
        return False
    try:
        _facts(path, numbers)
    except WeightsError:
        return False
    return True


def _survey(path: Path) -> tuple[LlamaFacts, dict[str, int]]:
    """The facts in the header, and where each tensor begins, counted in float32 numbers after the header."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise WeightsError(
            f"{path}: a file of llama2.c begins with {_HEADER.size} bytes of sizes; this file has {len(header)} bytes. "
            f"Download it again."
        )
    numbers = _HEADER.unpack(header)
    if numbers[0] == _LATER_MAGIC:
        raise WeightsError(
            f"{path}: this is version {numbers[1]} of llama2.c's format; version 0 can be read here. "
            f"Write it with llama2.c's own export.py --version 0."
        )
    if min(*numbers[:5], abs(numbers[5]), numbers[6]) < 1:
        raise WeightsError(
            f"{path}: a file of llama2.c begins with seven sizes (dim, hidden_dim, n_layers, n_heads, n_kv_heads, "
            f"vocab_size, seq_len), of which vocab_size alone may be negative; found {', '.join(map(str, numbers))}. "
            f"It is of another kind, or damaged."
        )
    _check_length(path, numbers)  # before anything is built from sizes that may be noise
    facts = _facts(path, numbers)
    return facts, _places(facts)


def _check_length(path: Path, header: tuple[int, ...]) -> None:
    width, inner, layers, heads, key_heads, vocabulary, length = header
    keys = width // heads * key_heads
    # norms, queries and output, keys and values, feed-forward network
    layer = 2 * width + 2 * width * width + 2 * width * keys + 3 * width * inner
    tables = 2 * length * (width // heads // 2)  # cosines and sines of the rotary positions
    embeddings = abs(vocabulary) * width * (1 if vocabulary > 0 else 2)
    promised = _HEADER.size + _FLOAT.itemsize * (embeddings + layers * layer + width + tables)
    found = path.stat().st_size
    if found != promised:
        state = "cut short: download it again" if found < promised else "of another kind, or damaged"
        raise WeightsError(
            f"{path}: as a file of llama2.c its sizes {', '.join(map(str, header))} promise {promised:,} bytes, "
            f"and it has {found:,}. It is {state}."
        )


def _facts(path: Path, header: tuple[int, ...]) -> LlamaFacts:
    width, inner, layers, heads, key_heads, vocabulary, length = header
    try:
        return LlamaFacts(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            vocab_size=abs(vocabulary),
            max_position_embeddings=length,
            rms_norm_eps=1e-5,  # this and the next are constants of llama2.c, not in the file
            rope_theta=10000.0,
            tie_word_embeddings=vocabulary > 0,
            bos_token_id=1,
            eos_token_id=[1, 2],  # its stories end where the next would begin, with 1; its chats end with 2
        )
    except ValueError as error:
        raise WeightsError(f"{path}: the sizes at its beginning, {header}, do not fit together: {error}") from error


def _places(facts: LlamaFacts) -> dict[str, int]:
    table = facts.max_position_embeddings * (facts.head_width // 2)
    sizes = {name: prod(shape) for name, shape in facts.shapes().items()}
    sizes |= {"rotary.cosines": table, "rotary.sines": table}  # counted, never read: they follow from the facts
    places, count = {}, 0
    for pattern in _ORDER:
        for layer in range(facts.num_hidden_layers if "{}" in pattern else 1):
            name = pattern.format(layer)
            places[name] = count
            count += sizes.get(name, 0)  # a tied lm_head is not in the file
    return places


def _read(
    path: Path, facts: LlamaFacts, shapes: dict[str, tuple[int, ...]], places: dict[str, int], name: str
) -> Tensor:
    shape, start = shapes[name], _HEADER.size + _FLOAT.itemsize * places[name]
    stored = np.fromfile(path, _FLOAT, count=prod(shape), offset=start)
    native = stored.astype(np.float32, copy=False)  # where the machine has the other byte order, it is turned
    return facts.half_split(name, torch.from_numpy(native).view(shape))
