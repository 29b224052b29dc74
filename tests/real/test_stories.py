"""A real Llama-type model in llama2.c's format, beside llama2.c's own arithmetic written in NumPy."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer import load
from glassformer.text.tokenizer import Tokenizer
from tests.real.places import data

STEPS = 200


def test_the_story_goes_on_word_for_word() -> None:
    path = data("stories260K", "stories260K.bin")
    model = load(path).model
    ours, theirs = [1], Reference(path)
    expected = theirs.story(STEPS)
    with torch.no_grad():
        for _ in range(STEPS):
            ours.append(int(model(torch.tensor([ours]))[0, -1].argmax()))
    assert ours == expected
    text = Tokenizer.from_llama2c(data("stories260K", "tok512.bin")).decode(ours[1:])
    assert text.strip().startswith("Once upon a time, there was a little girl named Lily. She loved to play outside")


class Reference:
    """One token at a time, as run.c does it: interleaved rotary pairs, keys and values kept."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        self.dim, hidden, self.layers, self.heads, self.kv, vocab, _ = struct.unpack("<7i", raw[:28])
        numbers = np.frombuffer(raw, np.float32, offset=28)
        head, at = self.dim // self.heads, 0
        shapes: dict[str, tuple[int, ...]] = {
            "embed": (vocab, self.dim), "att_norm": (self.layers, self.dim), "q": (self.layers, self.dim, self.dim),
            "k": (self.layers, head * self.kv, self.dim), "v": (self.layers, head * self.kv, self.dim),
            "o": (self.layers, self.dim, self.dim), "ffn_norm": (self.layers, self.dim),
            "w1": (self.layers, hidden, self.dim), "w2": (self.layers, self.dim, hidden),
            "w3": (self.layers, hidden, self.dim), "norm": (self.dim,),
        }  # fmt: skip
        self.w: dict[str, Any] = {}
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            self.w[name] = numbers[at : at + size].reshape(shape)
            at += size
        self.head = head

    def story(self, steps: int) -> list[int]:
        past: list[list[Any]] = [[] for _ in range(self.layers)]
        tokens = [1]
        for place in range(steps):
            tokens.append(int(np.argmax(self.step(tokens[-1], place, past))))
        return tokens

    def step(self, token: int, place: int, past: list[list[Any]]) -> Any:
        w, x = self.w, self.w["embed"][token].copy()
        for layer in range(self.layers):
            y = norm(x, w["att_norm"][layer])
            q = self.turn(w["q"][layer] @ y, place)
            k, v = self.turn(w["k"][layer] @ y, place), (w["v"][layer] @ y).reshape(self.kv, self.head)
            past[layer].append((k, v))
            out = []
            for number in range(self.heads):
                group = number // (self.heads // self.kv)
                scores = np.array([q[number] @ k[group] for k, _ in past[layer]]) / np.sqrt(self.head)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out.append(sum(weight * v[group] for weight, (_, v) in zip(weights, past[layer], strict=True)))
            x = x + w["o"][layer] @ np.concatenate(out)
            y = norm(x, w["ffn_norm"][layer])
            gate = w["w1"][layer] @ y
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ y))
        return w["embed"] @ norm(x, w["norm"])

    def turn(self, flat: Any, place: int) -> Any:
        pairs = flat.reshape(-1, self.head // 2, 2)
        angle = place * 10000.0 ** (-np.arange(0, self.head, 2) / self.head)
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = pairs[..., 0], pairs[..., 1]
        return np.stack((a * cos - b * sin, a * sin + b * cos), -1).reshape(-1, self.head)


def norm(x: Any, gain: Any) -> Any:
    return gain * x / np.sqrt((x * x).mean() + 1e-5)
