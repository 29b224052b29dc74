"""Causal attention, the language model's block and the whole model against the same made of ``torch.nn`` parts.

The reference shares nothing with the package: its projections, norms, table, activation and attention are PyTorch's,
and the rotation is written out here.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import glassformer as gf
from tests.helpers import normal
from tests.parity.test_against_torch import BOUNDS, check_modules, each_dtype, each_path

WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY, CONTEXT, THETA = 16, 2, 24, 3, 13, 12, 100.0
# bfloat16 has eight bits: every layer rounds a residual stream that the layers before have rounded already.
DEEP_BOUNDS = BOUNDS | {torch.bfloat16: (6e-2, 2e-1)}

with_and_without_positions = pytest.mark.parametrize("rotary", [True, False], ids=["rotary", "no positions"])
each_position = pytest.mark.parametrize(
    "positions",
    [None, torch.tensor([3, 4, 7, 8, 11]), torch.tensor([[0, 1, 2, 3, 4], [2, 2, 5, 9, 10]])],
    ids=["counted", "shared", "per row"],
)


def turn_neighbours(x: Tensor, positions: Tensor) -> Tensor:
    """Coordinates 2i and 2i + 1 of ``x`` (batch, heads, T, d) turned by position · theta^(−2i / d)."""
    width = x.shape[-1]
    angle = positions.double()[..., None] / THETA ** (torch.arange(width // 2).double() * 2 / width)
    if angle.ndim == 3:  # a row of positions for each sequence, the same for its heads
        angle = angle[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.empty_like(x)
    turned[..., 0::2] = even * angle.cos() - odd * angle.sin()
    turned[..., 1::2] = odd * angle.cos() + even * angle.sin()
    return turned


class AttentionReference(nn.Module):
    def __init__(self, rotary: bool):
        super().__init__()
        self.rotary = rotary
        self.q_proj, self.k_proj, self.v_proj, self.output_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "qkvo")

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotary:
            positions = torch.arange(x.shape[1]) if positions is None else positions
            q, k = turn_neighbours(q, positions), turn_neighbours(k, positions)
        return self.output_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


class FeedForwardReference(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class BlockReference(nn.Module):
    def __init__(self, rotary: bool):
        super().__init__()
        self.ln1, self.ln2 = (nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.attn, self.ffn = AttentionReference(rotary), FeedForwardReference()

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.ln1(x), positions)
        return x + self.ffn(self.ln2(x))


class ModelReference(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(BlockReference(rotary=True) for _ in range(LAYERS))
        self.ln_final = nn.RMSNorm(WIDTH, eps=1e-5)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.token_embeddings(ids)
        for layer in self.layers:
            x = layer(x, positions)
        return self.lm_head(self.ln_final(x))


def run_with(positions: Tensor | None, path: str) -> dict[str, object]:
    return {
        "run": lambda module, x: module(x, positions, path=path),
        "run_reference": lambda module, x: module(x, positions),
    }


@each_dtype
@each_path
def test_causal_attention(dtype, path):
    ours = gf.CausalMultiHeadSelfAttention(WIDTH, HEADS)
    check_modules(ours, AttentionReference(rotary=False), [normal(2, 5, WIDTH)], dtype, **run_with(None, path))


@each_dtype
@each_path
@each_position
def test_causal_attention_with_rotary_positions(dtype, path, positions):
    ours = gf.CausalMultiHeadSelfAttention(WIDTH, HEADS, CONTEXT, THETA)
    check_modules(ours, AttentionReference(rotary=True), [normal(2, 5, WIDTH)], dtype, **run_with(positions, path))


@each_dtype
@each_path
@with_and_without_positions
def test_block(dtype, path, rotary):
    options = (CONTEXT, THETA) if rotary else ()
    ours = gf.TransformerBlock(WIDTH, HEADS, HIDDEN, *options)
    check_modules(ours, BlockReference(rotary), [normal(2, 5, WIDTH)], dtype, **run_with(None, path))


@each_dtype
@each_path
@each_position
def test_language_model(dtype, path, positions):
    ours = gf.TransformerLM(VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, HIDDEN, THETA)
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 12, 0]])
    check_modules(ours, ModelReference(), [ids], dtype, **run_with(positions, path), bounds=DEEP_BOUNDS)
