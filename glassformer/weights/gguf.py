"""Read GGUF, the single-file format of llama.cpp, for Llama models; quantised weights are dequantised to float32.

An unknown key or tensor may change the mathematics, so it is an error instead of being ignored.

Shapes: GGUF stores them fastest axis first; here they are reversed, as in PyTorch.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.weights.files import WeightsError, some
from glassformer.weights.single_file import LlamaConfig, SingleFileModel

_ARCHITECTURES = ("llama", "qwen2")
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_KEYS = {
    "embedding_length", "block_count", "feed_forward_length", "context_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout",
}  # fmt: skip
_LONGEST_LIST = 2**22  # items; the longest are vocabularies and their merges
_FREQUENCIES = "rope_freqs.weight"
_ROWS_AT_ONCE = 256  # dequantised together; all rows at once would double the memory of the tensor
_SAFETENSORS = "Use the same model in Hugging Face's format (config.json and safetensors)."


@dataclass(frozen=True)
class _Stored:
    """One tensor in the file: ``rows`` of ``row`` items each, from byte ``start`` on."""

    shape: tuple[int, ...]
    kind: Any  # gguf.GGMLQuantizationType
    items: np.dtype[Any]  # floats, or bytes of packed quantised blocks
    start: int
    rows: int
    row: int


def read_gguf(path: Path) -> SingleFileModel:
    """Return the model in a GGUF file with ``general.architecture`` llama or qwen2; tensors stay on disk until read."""
    # The config from the metadata, and the tensors under Hugging Face's names.
    metadata, stored = _open(path)
    reader = _MetadataReader(path, metadata)
    _check_frequencies(path, stored.pop(_FREQUENCIES, None))
    tensors = {_translate(name): tensor for name, tensor in stored.items()}
    config = reader.config(tensors)
    shapes = config.shapes()
    _check_tensors(path, shapes, tensors)
    return SingleFileModel(config.config(), shapes, partial(_read, path, config, tensors), metadata, path)


def _open(path: Path) -> tuple[dict[str, object], dict[str, _Stored]]:
    """Return the key/values of the file as Python objects, and its tensors under GGUF names."""
    try:
        reader = _reader()(path)
        # GGUF.version and the like are added by the package: they are not keys of the file.
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        metadata: dict[str, object] = {key: field.contents() for key, field in fields.items()}
        # Offsets instead of the reader's arrays, whose mapped pages would stay in memory beside the copies.
        tensors = {tensor.name: _stored(tensor) for tensor in reader.tensors}
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise WeightsError(
            f"{path}: expected a complete GGUF file of version 2 or 3; the gguf package found: {error}. "
            f"Download it again, or convert the model again."
        ) from error
    if reader.byte_order != "I":
        raise WeightsError(f"{path}: the file has the other byte order. {_SAFETENSORS}")
    return metadata, tensors


def _reader() -> Any:
    """Return the gguf package's reader, with checks: by itself it reads empty arrays beyond the end of a file."""
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError as error:
        raise ImportError("reading GGUF needs one more package: pip install 'glassformer[gguf]'.") from error

    class CheckedReader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **more: Any) -> Any:
            items = super()._get(offset, dtype, count, *rest, **more)
            if len(items) < count:
                raise ValueError(f"the file ends at byte {len(self.data)}, before {count} items at byte {offset}")
            return items

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:
                length = int(self._get(orig_offs + 4, np.uint64)[0])  # after the type of its items
                if length > _LONGEST_LIST:
                    raise ValueError(f"a list of {length} values; the limit is {_LONGEST_LIST}")
            return super()._get_field_parts(orig_offs, raw_type)

    return CheckedReader


def _stored(tensor: Any) -> _Stored:
    """Shape, type and offset of a tensor, from the gguf package's description of it."""
    shape, items = tuple(reversed(tensor.shape.tolist())), tensor.data
    row = max(1, items.shape[-1])  # an empty tensor raises later, for its shape
    return _Stored(shape, tensor.tensor_type, items.dtype, int(tensor.data_offset), items.size // row, row)


@dataclass(frozen=True)
class _MetadataReader:
    """Reads the key/values of a file by the name after the architecture's: ``block_count`` of ``llama.block_count``."""

    file: Path
    metadata: dict[str, object]

    def __post_init__(self) -> None:
        architecture = self.metadata.get("general.architecture")
        if architecture not in _ARCHITECTURES:
            raise WeightsError(
                f"{self.file}: general.architecture is {architecture!r}; supported are "
                f"{', '.join(_ARCHITECTURES)} (which includes Mistral). {_SAFETENSORS}"
            )
        # One part of a split model is not enough.
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise WeightsError(
                f"{self.file}: this is one of {self.metadata['split.count']} parts of a model. "
                f"Join them with llama.cpp: llama-gguf-split --merge FIRST_PART WHOLE."
            )
        # Keys of the architecture that are not supported.
        own = {key.split(".", 1)[1]: v for key, v in self.metadata.items() if key.startswith(f"{architecture}.")}
        unknown = [f"{architecture}.{key} = {value!r}" for key, value in own.items() if not _is_known(key, value)]
        if unknown:
            raise WeightsError(
                f"{self.file}: unknown keys {', '.join(unknown)}, which may change the mathematics. {_SAFETENSORS}"
            )

    def config(self, tensors: dict[str, _Stored]) -> LlamaConfig:
        """Return the config; the vocabulary size and the tie of the head may follow from the tensors."""
        embedding = tensors.get("model.embed_tokens.weight")
        heads = self.integer("attention.head_count")
        try:
            config = LlamaConfig(
                model_type=str(self.metadata["general.architecture"]),
                hidden_size=self.integer("embedding_length"),
                num_hidden_layers=self.integer("block_count"),
                num_attention_heads=heads,
                num_key_value_heads=self.integer("attention.head_count_kv", heads),
                intermediate_size=self.integer("feed_forward_length"),
                vocab_size=self.integer("vocab_size", embedding.shape[0] if embedding else None),
                max_position_embeddings=self.integer("context_length"),
                rms_norm_eps=self.number("attention.layer_norm_rms_epsilon"),
                rope_theta=self.number("rope.freq_base", 10000.0),
                tie_word_embeddings="lm_head.weight" not in tensors,
                bos_token_id=self.token("bos"),
                eos_token_id=self.token("eos"),
                head_dim=self.integer("attention.key_length") if self.get("attention.key_length") else None,
                rope_scaling=self.scaling(),
            )
        except WeightsError:
            raise
        except ValueError as error:
            raise WeightsError(f"{self.file}: inconsistent sizes: {error}") from error
        # Values and rotated dimensions must be as wide as the keys.
        for key in ("attention.value_length", "rope.dimension_count"):
            if self.integer(key, config.head_width) != config.head_width:
                raise WeightsError(
                    f"{self.file}: {key} is {self.get(key)}, but heads are {config.head_width} wide; queries, keys and "
                    f"values of a Llama have one width, and all of it is rotated. {_SAFETENSORS}"
                )
        return config

    def get(self, key: str) -> object:
        """Return the value of ``{architecture}.{key}``, or None."""
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer, or a list of equal integers, one per layer."""
        value = self.get(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.unexpected(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number, rounded to the digits of float32: the file has 9.999999747378752e-06 for 1e-5."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.unexpected(key, "a number")
        return float(str(np.float32(value)))

    def token(self, name: str) -> int | None:
        """Return the id of a special token, or None."""
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None

    def scaling(self) -> dict[str, object] | None:
        """rope_scaling of ``config.json``; None if positions are not scaled."""
        kind = self.get("rope.scaling.type")
        if kind in (None, "none"):
            return None
        if kind not in ("linear", "yarn"):
            raise self.unexpected("rope.scaling.type", "none, linear or yarn")
        scaling: dict[str, object] = {"rope_type": kind, "factor": self.number("rope.scaling.factor")}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = self.integer("rope.scaling.original_context_length")
        return scaling

    def unexpected(self, key: str, expected: str) -> WeightsError:
        """Return the error for a value that is missing or has the wrong type."""
        value = self.get(key)
        actual = "it is missing" if value is None else f"it is {value!r}"
        return WeightsError(
            f"{self.file}: {self.metadata['general.architecture']}.{key} must be {expected}; {actual}. {_SAFETENSORS}"
        )


def _is_known(key: str, value: object) -> bool:
    """Whether a key is supported or switched off, such as expert_count = 0."""
    return value is True if key == "attention.causal" else key in _KEYS or not value


def _translate(name: str) -> str:
    """Hugging Face's name of a tensor; an unknown name is unchanged, and ``_check_tensors`` lists it."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in _LAYER:
        return f"model.layers.{layer[1]}.{_LAYER[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}" if stem in _TOP else name


def _check_frequencies(path: Path, frequencies: _Stored | None) -> None:
    """Raise if the file has a factor for each rotary frequency, which config.json cannot state."""
    if frequencies is None or bool((_float32(path, _FREQUENCIES, frequencies) == 1).all()):
        return
    raise WeightsError(
        f"{path}: {_FREQUENCIES} divides the rotary frequencies by {frequencies.shape[0]} factors, as in "
        f"Llama 3.1 and later; expected none, or all 1. {_SAFETENSORS}"
    )


def _check_tensors(path: Path, shapes: dict[str, tuple[int, ...]], tensors: dict[str, _Stored]) -> None:
    """Raise unless the file has exactly the tensors of the model, in the right shapes and in known quantisations."""
    unknown, missing = sorted(tensors.keys() - shapes.keys()), sorted(shapes.keys() - tensors.keys())
    if unknown or missing:
        names = f"Unknown: {some(unknown) or 'none'}. Missing: {some(missing) or 'none'}."
        raise WeightsError(f"{path}: its tensors do not match its metadata. {names} {_SAFETENSORS}")
    # Shapes.
    for name, expected in shapes.items():
        if tensors[name].shape != expected:
            raise WeightsError(
                f"{path}: {name} must have the shape {expected}, by the file's metadata; found "
                f"{tensors[name].shape}. Convert the model again."
            )
    # Quantisations.
    for name, tensor in {tensor.kind: (name, tensor) for name, tensor in tensors.items()}.values():
        _dequantise(path, name, tensor, range(1))  # one row of each quantisation: raise before the model is built


def _read(path: Path, config: LlamaConfig, tensors: dict[str, _Stored], name: str) -> Tensor:
    stored = _float32(path, name, tensors[name])
    return config.half_split(name, stored) if config.model_type == "llama" else stored  # qwen2 is not interleaved


def _float32(path: Path, name: str, tensor: _Stored) -> Tensor:
    """Return a new tensor, filled a few rows at a time."""
    result = torch.empty(tensor.shape, dtype=torch.float32)
    rows = result.view(tensor.rows, -1)
    for start in range(0, tensor.rows, _ROWS_AT_ONCE):
        chunk = range(start, min(start + _ROWS_AT_ONCE, tensor.rows))
        rows[chunk.start : chunk.stop] = torch.from_numpy(_dequantise(path, name, tensor, chunk))
    return result


def _dequantise(path: Path, name: str, tensor: _Stored, rows: range) -> npt.NDArray[np.float32]:
    from gguf.quants import dequantize

    start = tensor.start + rows.start * tensor.row * tensor.items.itemsize
    stored = np.fromfile(path, tensor.items, count=len(rows) * tensor.row, offset=start)
    try:
        return dequantize(stored.reshape(len(rows), tensor.row), tensor.kind)
    except NotImplementedError as error:
        raise WeightsError(
            f"{path}: {name} is stored as {tensor.kind.name}, which the gguf package cannot dequantise. "
            f"Use a file of another quantisation, such as Q8_0 or F16."
        ) from error
