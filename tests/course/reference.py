"""The blocks once more, in NumPy and float64: slow, plain, and independent of torch."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(x: Array, axis: int = -1) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rms_norm(x: Array, gain: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def swiglu(x: Array, w1: Array, w2: Array, w3: Array) -> Array:
    return (silu(x @ w1.T) * (x @ w3.T)) @ w2.T


def attention(q: Array, k: Array, v: Array, mask: NDArray[np.bool_]) -> Array:
    """One query at a time: average the values of the keys it may see."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for index in np.ndindex(*q.shape[:-1]):
        lead, row = index[:-1], index[-1]
        seen = mask[(*lead, row)] if mask.ndim > 2 else mask[row]
        scores = k[lead][seen] @ q[index] / np.sqrt(q.shape[-1])
        out[index] = softmax(scores) @ v[lead][seen]
    return out


def rotate(x: Array, positions: NDArray[np.int64], theta: float) -> Array:
    """Multiply every vector by its block-diagonal rotation matrix, written out in full."""
    width = x.shape[-1]
    out = np.empty_like(x)
    for row, position in enumerate(positions):
        matrix = np.zeros((width, width))
        for pair in range(width // 2):
            angle = position / theta ** (2 * pair / width)
            block = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
        out[..., row, :] = x[..., row, :] @ matrix.T
    return out


def causal_self_attention(
    x: Array, weights: dict[str, Array], heads: int, theta: float | None, positions: NDArray[np.int64] | None = None
) -> Array:
    """Head by head, each with its own slice of the projection matrices."""
    length, width = x.shape[-2:]
    size = width // heads
    positions = np.arange(length) if positions is None else positions
    mask = np.tril(np.ones((length, length), dtype=bool))
    parts = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, k, v = (x @ weights[f"{name}_proj.weight"][rows].T for name in "qkv")
        if theta is not None:
            q, k = rotate(q, positions, theta), rotate(k, positions, theta)
        parts.append(attention(q, k, v, mask))
    return np.concatenate(parts, axis=-1) @ weights["output_proj.weight"].T


def block(x: Array, weights: dict[str, Array], heads: int, theta: float) -> Array:
    attn = {name.removeprefix("attn."): value for name, value in weights.items() if name.startswith("attn.")}
    x = x + causal_self_attention(rms_norm(x, weights["ln1.weight"]), attn, heads, theta)
    return x + swiglu(rms_norm(x, weights["ln2.weight"]), *(weights[f"ffn.w{i}.weight"] for i in (1, 2, 3)))


def language_model(ids: NDArray[np.int64], weights: dict[str, Array], layers: int, heads: int, theta: float) -> Array:
    x = weights["token_embeddings.weight"][ids]
    for layer in range(layers):
        prefix = f"layers.{layer}."
        x = block(x, {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}, heads, theta)
    return rms_norm(x, weights["ln_final.weight"]) @ weights["lm_head.weight"].T
