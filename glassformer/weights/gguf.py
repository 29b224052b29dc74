"""Reads GGUF, the single-file format of llama.cpp, for models of the Llama type; quantised numbers become float32.

A key or a tensor that is not known here may change the mathematics, so it is refused by name instead of ignored.

Shapes: GGUF writes them fastest axis first, here they are the other way round, as in PyTorch.
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
from glassformer.weights.foreign import ForeignModel, LlamaFacts

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
_LONGEST_LIST = 2**22  # values; the longest are vocabularies and their merges
_FREQUENCIES = "rope_freqs.weight"
_ROWS_AT_ONCE = 256  # what is dequantised in one go: the working memory, where all rows would double the tensor
_SAFETENSORS = "Use the same model in Hugging Face's form (config.json and safetensors)."


@dataclass(frozen=True)
class _Stored:
    """One tensor as it lies in the file: ``rows`` of ``row`` items each, from byte ``start`` on."""

    shape: tuple[int, ...]
    kind: Any  # gguf.GGMLQuantizationType
    items: np.dtype[Any]  # numbers, or bytes where several numbers are packed together
    start: int
    rows: int
    row: int


def read_gguf(path: Path) -> ForeignModel:
    """The model in a GGUF file with ``general.architecture`` llama or qwen2; tensors stay on disk until read."""
    metadata, stored = _open(path)
    said = _Said(path, metadata)
    _check_frequencies(path, stored.pop(_FREQUENCIES, None))
    tensors = {_translate(name): tensor for name, tensor in stored.items()}
    facts = said.facts(tensors)
    shapes = facts.shapes()
    _check_tensors(path, shapes, tensors)
    return ForeignModel(facts.config(), shapes, partial(_read, path, facts, tensors), metadata, path)


def _open(path: Path) -> tuple[dict[str, object], dict[str, _Stored]]:
    """The key/values of the file as plain Python, and its tensors under their own names."""
    try:
        reader = _reader()(path)
        # GGUF.version and the like are the package's own: they are not keys of the file.
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        metadata: dict[str, object] = {key: field.contents() for key, field in fields.items()}
        # Places instead of the reader's own arrays: pages that it mapped would stay beside what is made of them.
        tensors = {tensor.name: _stored(tensor) for tensor in reader.tensors}
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise WeightsError(
            f"{path}: expected a whole GGUF file of version 2 or 3; the gguf package found: {error}. "
            f"Download it again, or convert the model anew."
        ) from error
    if reader.byte_order != "I":
        raise WeightsError(f"{path}: the file is written for machines of the other byte order. {_SAFETENSORS}")
    return metadata, tensors


def _reader() -> Any:
    """The gguf package's reader, which by itself takes what lies behind the end of a file for empty, and goes on."""
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError as error:
        raise ImportError("reading GGUF needs one more package: pip install 'glassformer[gguf]'.") from error

    class Reader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **more: Any) -> Any:
            found = super()._get(offset, dtype, count, *rest, **more)
            if len(found) < count:
                raise ValueError(f"the file ends at byte {len(self.data)}, before {count} items at byte {offset}")
            return found

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:
                length = int(self._get(orig_offs + 4, np.uint64)[0])  # after the type of its items
                if length > _LONGEST_LIST:
                    raise ValueError(f"a list of {length} values, where {_LONGEST_LIST} is the most that is read")
            return super()._get_field_parts(orig_offs, raw_type)

    return Reader


def _stored(tensor: Any) -> _Stored:
    """Where a tensor lies, from the gguf package's description of it."""
    shape, items = tuple(reversed(tensor.shape.tolist())), tensor.data
    row = max(1, items.shape[-1])  # an empty tensor is refused later, for its shape
    return _Stored(shape, tensor.tensor_type, items.dtype, int(tensor.data_offset), items.size // row, row)


@dataclass(frozen=True)
class _Said:
    """The key/values of a file, asked for by the name that follows the architecture's."""

    file: Path
    metadata: dict[str, object]

    def __post_init__(self) -> None:
        architecture = self.metadata.get("general.architecture")
        if architecture not in _ARCHITECTURES:
            raise WeightsError(
                f"{self.file}: general.architecture is {architecture!r}; those that can be read are "
                f"{', '.join(_ARCHITECTURES)} (Mistral's models say llama). {_SAFETENSORS}"
            )
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise WeightsError(
                f"{self.file}: this is one of {self.metadata['split.count']} parts of a model. "
                f"Join them with llama.cpp's own tool: llama-gguf-split --merge FIRST_PART WHOLE."
            )
        own = {key.split(".", 1)[1]: v for key, v in self.metadata.items() if key.startswith(f"{architecture}.")}
        strange = [f"{architecture}.{key} = {value!r}" for key, value in own.items() if not _is_harmless(key, value)]
        if strange:
            raise WeightsError(
                f"{self.file}: it says {', '.join(strange)}, which is not known here and may change the mathematics. "
                f"{_SAFETENSORS}"
            )

    def facts(self, tensors: dict[str, _Stored]) -> LlamaFacts:
        """What ``config.json`` would say; two facts are left for the tensors to say."""
        embedding = tensors.get("model.embed_tokens.weight")
        heads = self.whole("attention.head_count")
        try:
            facts = LlamaFacts(
                model_type=str(self.metadata["general.architecture"]),
                hidden_size=self.whole("embedding_length"),
                num_hidden_layers=self.whole("block_count"),
                num_attention_heads=heads,
                num_key_value_heads=self.whole("attention.head_count_kv", heads),
                intermediate_size=self.whole("feed_forward_length"),
                vocab_size=self.whole("vocab_size", embedding.shape[0] if embedding else None),
                max_position_embeddings=self.whole("context_length"),
                rms_norm_eps=self.number("attention.layer_norm_rms_epsilon"),
                rope_theta=self.number("rope.freq_base", 10000.0),
                tie_word_embeddings="lm_head.weight" not in tensors,
                bos_token_id=self.token("bos"),
                eos_token_id=self.token("eos"),
                head_dim=self.whole("attention.key_length") if self.get("attention.key_length") else None,
                rope_scaling=self.scaling(),
            )
        except WeightsError:
            raise
        except ValueError as error:
            raise WeightsError(f"{self.file}: its sizes do not fit together: {error}") from error
        for key in ("attention.value_length", "rope.dimension_count"):
            if self.whole(key, facts.head_width) != facts.head_width:
                raise WeightsError(
                    f"{self.file}: {key} is {self.get(key)}, and heads are {facts.head_width} wide; a Llama's queries, "
                    f"keys and values are equally wide and turned as a whole. {_SAFETENSORS}"
                )
        return facts

    def get(self, key: str) -> object:
        """The value of ``{architecture}.{key}``, or None."""
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number; one per layer is the same if they agree."""
        value = self.get(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.unexpected(key, "one whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number, as short as float32 allows: the file has 9.999999747378752e-06 where 1e-5 was meant."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.unexpected(key, "a number")
        return float(str(np.float32(value)))

    def token(self, name: str) -> int | None:
        """The id of a special token, or None where the file names none."""
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None

    def scaling(self) -> dict[str, object] | None:
        """How positions are stretched beyond the length of the training, in the words of ``config.json``."""
        kind = self.get("rope.scaling.type")
        if kind in (None, "none"):
            return None
        if kind not in ("linear", "yarn"):
            raise self.unexpected("rope.scaling.type", "none, linear or yarn")
        scaling: dict[str, object] = {"rope_type": kind, "factor": self.number("rope.scaling.factor")}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = self.whole("rope.scaling.original_context_length")
        return scaling

    def unexpected(self, key: str, expected: str) -> WeightsError:
        """The error for a value that is missing or of another kind."""
        value = self.get(key)
        found = "it is missing" if value is None else f"it is {value!r}"
        return WeightsError(
            f"{self.file}: {self.metadata['general.architecture']}.{key} must be {expected}; {found}. {_SAFETENSORS}"
        )


def _is_harmless(key: str, value: object) -> bool:
    """Whether a key is understood, or switches off what it speaks of: expert_count = 0 is no mixture of experts."""
    return value is True if key == "attention.causal" else key in _KEYS or not value


def _translate(name: str) -> str:
    """Hugging Face's name of a tensor; a name without one stays as it is and is refused with the other strangers."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in _LAYER:
        return f"model.layers.{layer[1]}.{_LAYER[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}" if stem in _TOP else name


def _check_frequencies(path: Path, frequencies: _Stored | None) -> None:
    """Raise if the file bends the rotary frequencies one by one: config.json has no words for that."""
    if frequencies is None or bool((_float32(path, _FREQUENCIES, frequencies) == 1).all()):
        return
    raise WeightsError(
        f"{path}: {_FREQUENCIES} divides the rotary frequencies by {frequencies.shape[0]} factors of its own, as "
        f"Llama 3.1 and later do; expected none, or all 1. {_SAFETENSORS}"
    )


def _check_tensors(path: Path, shapes: dict[str, tuple[int, ...]], tensors: dict[str, _Stored]) -> None:
    """Raise unless the file has exactly the tensors of the model, in the right shapes and in a kind that is known."""
    unknown, missing = sorted(tensors.keys() - shapes.keys()), sorted(shapes.keys() - tensors.keys())
    if unknown or missing:
        found = f"Unknown: {some(unknown) or 'none'}. Missing: {some(missing) or 'none'}."
        raise WeightsError(f"{path}: its tensors are not those of its facts. {found} {_SAFETENSORS}")
    for name, expected in shapes.items():
        if tensors[name].shape != expected:
            raise WeightsError(
                f"{path}: {name} must have the shape {expected}, by the sizes that the file gives; found "
                f"{tensors[name].shape}. Convert the model anew."
            )
    for name, tensor in {tensor.kind: (name, tensor) for name, tensor in tensors.items()}.values():
        _dequantise(path, name, tensor, range(1))  # one row of each kind: better now than halfway through


def _read(path: Path, facts: LlamaFacts, tensors: dict[str, _Stored], name: str) -> Tensor:
    stored = _float32(path, name, tensors[name])
    return facts.half_split(name, stored) if facts.model_type == "llama" else stored  # qwen2 is not interleaved


def _float32(path: Path, name: str, tensor: _Stored) -> Tensor:
    """The tensor in memory of its own, filled a few rows at a time."""
    result = torch.empty(tensor.shape, dtype=torch.float32)
    rows = result.view(tensor.rows, -1)
    for start in range(0, tensor.rows, _ROWS_AT_ONCE):
        some = range(start, min(start + _ROWS_AT_ONCE, tensor.rows))
        rows[some.start : some.stop] = torch.from_numpy(_dequantise(path, name, tensor, some))
    return result


def _dequantise(path: Path, name: str, tensor: _Stored, rows: range) -> npt.NDArray[np.float32]:
    from gguf.quants import dequantize

    start = tensor.start + rows.start * tensor.row * tensor.items.itemsize
    stored = np.fromfile(path, tensor.items, count=len(rows) * tensor.row, offset=start)
    try:
        return dequantize(stored.reshape(len(rows), tensor.row), tensor.kind)
    except NotImplementedError as error:
        raise WeightsError(
            f"{path}: {name} is stored as {tensor.kind.name}, which the gguf package cannot turn into float32. "
            f"Take a file of another quantisation, such as Q8_0 or F16."
        ) from error
