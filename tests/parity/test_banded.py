"""GPT-3's alternating dense and banded layers against the formulas, with every mask written out as a matrix.

No published code computes this, so the reference is a few lines of PyTorch that share nothing with the package. Its
weights carry GPT-2's names; with a band as wide as the text it must be Hugging Face's GPT-2.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from glassformer.config import ModelConfig, count
from glassformer.families import lineages, preset
from glassformer.families.gpt3 import GPT3
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.weights.convert import to_theirs
from tests.helpers import PATHS, largest_difference, randomise
from tests.parity.harness import from_weights, pad_rows, rows

BAND, LAYERS, HEADS, LENGTHS = 4, 4, 3, (9, 13, 5)
SIZES = {"vocab_size": 61, "n_embd": 24, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 40}
KEYS = {**SIZES, "d_head": 10, "band": BAND}
BOUND = 1e-12
each_path = pytest.mark.parametrize("path", PATHS)


def facts(**keys: int) -> ModelConfig:
    return GPT3.facts({**KEYS, **keys}, "lm")


def loaded(config: ModelConfig, weights: dict[str, Tensor]) -> Transformer:
    """Our model from weights under GPT-2's names."""
    return from_weights(GPT3, config, "lm", weights)


def some_weights(config: ModelConfig) -> dict[str, Tensor]:
    model = randomise(Transformer(config).double())
    return {name: tensor.detach() for name, tensor in to_theirs(GPT3, config, "lm", model.state_dict()).items()}


def formula(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Logits of one text: x + W₂ gelu(W₁ norm(x)) after x + W_o softmax(q kᵀ / √d + mask) v, layer by layer."""
    w = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    length, width = len(ids), w["wte.weight"].shape[1]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (width,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][:length]
    for layer in range(LAYERS):
        hidden = torch.full((length, length), -torch.inf, dtype=torch.float64)
        for query in range(length):
            for key in range(query + 1):
                if layer % 2 == 0 or query - key < BAND:
                    hidden[query, key] = 0.0
        q, k, v = linear(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").chunk(3, -1)
        heads = []
        for number in range(HEADS):
            mine = slice(number * 10, number * 10 + 10)
            heads.append((q[:, mine] @ k[:, mine].T / 10**0.5 + hidden).softmax(-1) @ v[:, mine])
        x = x + linear(torch.cat(heads, -1), f"h.{layer}.attn.c_proj")
        inner = F.gelu(linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc"), approximate="tanh")
        x = x + linear(inner, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


@each_path
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_the_formula_whatever_the_padding(path: str, side: str) -> None:
    weights = some_weights(facts())
    model = loaded(facts(), weights)
    texts = rows(LENGTHS, 1)
    ids, mask = pad_rows(texts, side)
    answers = model(ids, mask, path=path)
    for text, answer, real in zip(texts, answers, mask, strict=True):
        expected = formula(weights, text)
        assert largest_difference(model(text[None], path=path)[0], expected) < BOUND
        assert largest_difference(answer[real], expected) < BOUND


@torch.no_grad()
def test_reading_piece_by_piece() -> None:
    weights = some_weights(facts())
    model, text = loaded(facts(), weights), rows((13,), 1)[0]
    cache = KVCache()
    answers = [model(piece[None], cache=cache)[0] for piece in text.split([6, 1, 1, 3, 2])]
    assert largest_difference(torch.cat(answers), formula(weights, text)) < BOUND


@torch.no_grad()
def test_a_band_as_wide_as_the_text_is_gpt2() -> None:
    reference = randomise(GPT2LMHeadModel(GPT2Config(**SIZES)).double()).eval()
    weights = {name: tensor for name, tensor in reference.state_dict().items() if name != "lm_head.weight"}
    ids = rows((13,), 1)[0][None]
    expected = reference(ids).logits
    assert largest_difference(loaded(facts(d_head=8, band=13), weights)(ids), expected) < BOUND
    assert largest_difference(loaded(facts(d_head=8, band=12), weights)(ids), expected) > 1e-3


def test_published_sizes() -> None:
    """Table 2.1's parameters, to the digits it gives; see the lineage file for the size whose heads do not fit them."""
    billions = {"small": 0.125, "medium": 0.356, "large": 0.760, "2.7b": 2.65, "6.7b": 6.66, "13b": 12.9, "175b": 175}
    for name, expected in billions.items():
        config = preset(f"gpt3-{name}")
        assert count(config) / 1e9 == pytest.approx(expected, rel=0.01)
        assert config.max_length == 2048
        assert config.decoder is not None
        assert config.decoder.attention.windows == (None, 256)
    assert lineages()["gpt3"].model_type is None
    assert len(GPT3.sizes) == 8
