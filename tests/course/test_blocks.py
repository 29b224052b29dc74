"""The blocks by the adapters of docs/course.md, against NumPy references in float64 below 1e-10."""

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer import TransformerLM, scaled_dot_product_attention
from tests.course import reference
from tests.course.adapters import adapters
from tests.helpers import largest_difference, randomise

BATCH, LENGTH, CONTEXT, VOCAB, WIDTH, HEADS, HIDDEN, LAYERS, THETA = 4, 12, 16, 100, 64, 4, 128, 3, 10_000.0
BOUND = 1e-10


@pytest.fixture
def weights() -> dict[str, Tensor]:
    model = TransformerLM(VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA, dtype=torch.float64)
    return dict(randomise(model).state_dict())


@pytest.fixture
def x() -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)


def part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def projections(attn: dict[str, Tensor]) -> list[Tensor]:
    return [attn[f"{name}_proj.weight"] for name in ("q", "k", "v", "output")]


def arrays(weights: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: w.numpy() for name, w in weights.items()}


def same(ours: Tensor, expected: np.ndarray) -> bool:
    assert tuple(ours.shape) == expected.shape
    return largest_difference(ours.detach(), torch.from_numpy(expected)) < BOUND


def test_linear(weights: dict[str, Tensor], x: Tensor) -> None:
    w1 = weights["layers.0.ffn.w1.weight"]
    assert same(adapters.run_linear(WIDTH, HIDDEN, w1, x), x.numpy() @ w1.numpy().T)


def test_embedding(weights: dict[str, Tensor]) -> None:
    table, ids = weights["token_embeddings.weight"], torch.randint(VOCAB, (BATCH, LENGTH))
    assert same(adapters.run_embedding(VOCAB, WIDTH, table, ids), table.numpy()[ids.numpy()])


@pytest.mark.parametrize("shift", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(x: Tensor, shift: float, dim: int) -> None:
    assert same(adapters.run_softmax(x + shift, dim), reference.softmax(x.numpy() + shift, dim))


def test_silu(x: Tensor) -> None:
    assert same(adapters.run_silu(x), reference.silu(x.numpy()))


def test_rmsnorm(weights: dict[str, Tensor], x: Tensor) -> None:
    gain = weights["layers.1.ln1.weight"]
    assert same(adapters.run_rmsnorm(WIDTH, 1e-5, gain, x), reference.rms_norm(x.numpy(), gain.numpy()))


def test_swiglu(weights: dict[str, Tensor], x: Tensor) -> None:
    w = [weights[f"layers.0.ffn.w{i}.weight"] for i in (1, 2, 3)]
    assert same(adapters.run_swiglu(WIDTH, HIDDEN, *w, x), reference.swiglu(x.numpy(), *(m.numpy() for m in w)))


@pytest.mark.parametrize("positions", [np.arange(LENGTH), np.array([3, 1, 15, 0, 7, 7, 2, 9, 11, 4, 5, 14])])
def test_rope(x: Tensor, positions: np.ndarray) -> None:
    ours = adapters.run_rope(WIDTH, THETA, CONTEXT, x, torch.from_numpy(positions))
    assert same(ours, reference.rotate(x.numpy(), positions, THETA))


@pytest.mark.parametrize("lead", [(BATCH,), (BATCH, 2)], ids=["3-axes", "4-axes"])
@pytest.mark.parametrize("path", ["sdpa", "eager"])
def test_attention_with_random_masks(lead: tuple[int, ...], path: str) -> None:
    q, k, v = (torch.randn(*lead, length, 16, dtype=torch.float64) for length in (LENGTH, CONTEXT, CONTEXT))
    mask = torch.rand(*lead, LENGTH, CONTEXT) > 0.5
    mask[..., 0] = True
    expected = reference.attention(q.numpy(), k.numpy(), v.numpy(), mask.numpy())
    assert same(scaled_dot_product_attention(q, k, v, mask, path=path), expected)
    assert same(adapters.run_scaled_dot_product_attention(Q=q, K=k, V=v, mask=mask), expected)


def test_multihead_self_attention(weights: dict[str, Tensor], x: Tensor) -> None:
    attn = part(weights, "layers.0.attn.")
    expected = reference.causal_self_attention(x.numpy(), arrays(attn), HEADS, theta=None)
    assert same(adapters.run_multihead_self_attention(WIDTH, HEADS, *projections(attn), x), expected)


@pytest.mark.parametrize("lead", [None, (), (1,), (BATCH,)], ids=["default", "T", "1xT", "BxT"])
def test_multihead_self_attention_with_rope(
    weights: dict[str, Tensor], x: Tensor, lead: tuple[int, ...] | None
) -> None:
    attn = part(weights, "layers.0.attn.")
    positions = None if lead is None else torch.arange(LENGTH).expand(*lead, LENGTH)
    more = (CONTEXT, THETA, *projections(attn), x, positions)
    ours = adapters.run_multihead_self_attention_with_rope(WIDTH, HEADS, *more)
    assert same(ours, reference.causal_self_attention(x.numpy(), arrays(attn), HEADS, THETA))


def test_transformer_block(weights: dict[str, Tensor], x: Tensor) -> None:
    block = part(weights, "layers.0.")
    ours = adapters.run_transformer_block(WIDTH, HEADS, HIDDEN, CONTEXT, THETA, block, x)
    assert same(ours, reference.block(x.numpy(), arrays(block), HEADS, THETA))


@pytest.mark.parametrize("length", [CONTEXT, LENGTH // 2, 1], ids=["full", "truncated", "one-token"])
def test_transformer_lm(weights: dict[str, Tensor], length: int) -> None:
    ids = torch.randint(VOCAB, (BATCH, length))
    ours = adapters.run_transformer_lm(VOCAB, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA, weights, ids)
    assert same(ours, reference.language_model(ids.numpy(), arrays(weights), LAYERS, HEADS, THETA))
