"""Tensors and strings in the form in which they reach the page: JSON that every browser can read.

A tensor is ``{"shape": [...], "type": "f4", "data": base64}``, little-endian, row by row; types are ``f4``, ``f2``,
``u1``, ``u2`` and ``i4``. Exported files have two further forms. A sparse tensor has ``index`` and ``value`` instead of
``data``: two tensors with K entries for each row, every other entry of which is 0. A stacked tensor has ``parts``,
tensors to be concatenated along the first axis.
"""

import base64
import json
import math
import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TYPES = {"f4": "<f4", "f2": "<f2", "u1": "u1", "u2": "<u2", "i4": "<i4"}
LONE = re.compile("[\ud800-\udfff]")
# Characters that may end a script element, or that older browsers take for the end of a line.
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def array(values: Any, kind: str = "f4") -> dict[str, Any]:
    """Return a tensor, or anything that numpy reads, as the page takes it."""
    if isinstance(values, Tensor):
        values = values.detach().to("cpu", torch.float32 if values.is_floating_point() else torch.int64).numpy()
    numbers = np.ascontiguousarray(np.asarray(values).astype(TYPES[kind]))
    return {"shape": list(numbers.shape), "type": kind, "data": base64.b64encode(numbers.tobytes()).decode("ascii")}


def in_8_bits(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (H, T, S) as u1 (H, T, S), 255 being the largest of a row, and these largest ones (H, T)."""
    with torch.inference_mode(False), torch.no_grad():  # so that they can be kept
        numbers, scale = torch.empty(weights.shape, dtype=torch.uint8), torch.empty(weights.shape[:-1])
        for head, found, largest in zip(weights, numbers, scale, strict=True):  # large temporaries are slow
            largest.copy_(head.amax(-1))
            found.copy_((head * (255 / largest.clamp(min=1e-30))[..., None]).round_())
    return numbers, scale


def decode(encoded: dict[str, Any]) -> NDArray[Any]:
    """Return the reverse: a dense array from any of these forms."""
    if "parts" in encoded:
        return np.concatenate([decode(part) for part in encoded["parts"]])
    if "index" in encoded:
        index, value = decode(encoded["index"]), decode(encoded["value"])
        dense = np.zeros(encoded["shape"], value.dtype)
        np.put_along_axis(dense, index.astype(np.int64), value, axis=-1)
        return dense
    data = np.frombuffer(base64.b64decode(encoded["data"]), TYPES[encoded["type"]])
    return data.reshape(encoded["shape"])


def visible(text: str) -> str:
    """Return a text that UTF-8 and every browser can hold: NUL and lone surrogates become symbols for them."""
    return LONE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", text.replace("\0", "\u2400"))


def plain(value: Any) -> Any:
    """Return data that JSON can write: strings made visible, and null for NaN and infinities."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any) -> str:
    """Return compact JSON of any result of a query."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def script_json(value: Any) -> str:
    """Return JSON that may stand inside a ``<script>`` element."""
    return "".join(_ESCAPED.get(character, character) for character in to_json(value))
