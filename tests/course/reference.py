"""The parts of the course once more, in NumPy, float64 and plain Python: slow, and independent of torch."""

from collections import Counter
from itertools import pairwise

import numpy as np
import regex
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


def adamw(
    weights: Array, gradients: list[Array], lr: float, betas: tuple[float, float], eps: float, decay: float
) -> Array:
    """Algorithm 2 of Loshchilov and Hutter (2019), one gradient per step."""
    m, v = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate(gradients, start=1):
        weights = weights - lr * decay * weights
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        corrected = m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)
        weights = weights - lr * corrected[0] / (np.sqrt(corrected[1]) + eps)
    return weights


GPT2_WORDS = regex.compile(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def split_at(text: str, special: list[str]) -> list[str]:
    """The text around special tokens and, at odd indices, the special tokens; the longest where several match."""
    parts, start, at = [], 0, 0
    while at < len(text):
        here = max((token for token in special if text.startswith(token, at)), key=len, default="")
        if here:
            parts += [text[start:at], here]
            start = at = at + len(here)
        else:
            at += 1
    return [*parts, text[start:]]


def train_bpe(text: str, merges: int, special: list[str]) -> list[tuple[bytes, bytes]]:
    """Count every pair anew at each step; of the most frequent take the largest."""
    parts = split_at(text, special)[::2]
    words = Counter(tuple(bytes([byte]) for byte in w.encode()) for part in parts for w in GPT2_WORDS.findall(part))
    learnt: list[tuple[bytes, bytes]] = []
    while len({a + b for a, b in learnt}) < merges:
        counts = Counter[tuple[bytes, bytes]]()
        for word, times in words.items():
            for pair in pairwise(word):
                counts[pair] += times
        if not counts:
            break
        learnt.append(max(counts, key=lambda pair: (counts[pair], pair)))
        merged = Counter[tuple[bytes, ...]]()
        for word, times in words.items():
            merged[merge(word, learnt[-1])] += times
        words = merged
    return learnt


def merge(word: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    out: list[bytes] = []
    at = 0
    while at < len(word):
        together = word[at : at + 2] == pair
        out.append(pair[0] + pair[1] if together else word[at])
        at += 2 if together else 1
    return tuple(out)


def encode(text: str, vocab: dict[int, bytes], merges: list[tuple[bytes, bytes]], special: list[str]) -> list[int]:
    """Apply every merge, in order, to every word."""
    ids = {token: number for number, token in vocab.items()}
    out: list[int] = []
    for number, part in enumerate(split_at(text, special)):
        if number % 2:
            out.append(ids[part.encode()])
            continue
        for found in GPT2_WORDS.findall(part):
            word = tuple(bytes([byte]) for byte in found.encode())
            for pair in merges:
                word = merge(word, pair)
            out += [ids[token] for token in word]
    return out
