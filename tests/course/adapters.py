"""Adapters in the manner of courses that let students build a Transformer: raw weights in, one block's output out."""

import torch
from torch import Tensor

from glassformer import (
    CausalMultiHeadSelfAttention,
    Embedding,
    Linear,
    RMSNorm,
    RotaryPositionalEmbedding,
    SwiGLU,
    TransformerBlock,
    TransformerLM,
)

F64 = torch.float64
Weights = dict[str, Tensor]


def run_linear(d_in: int, d_out: int, weights: Tensor, x: Tensor) -> Tensor:
    module = Linear(d_in, d_out, dtype=F64)
    module.load_state_dict({"weight": weights})
    return module(x)


def run_embedding(vocab_size: int, d_model: int, weights: Tensor, ids: Tensor) -> Tensor:
    module = Embedding(vocab_size, d_model, dtype=F64)
    module.load_state_dict({"weight": weights})
    return module(ids)


def run_rmsnorm(d_model: int, eps: float, weights: Tensor, x: Tensor) -> Tensor:
    module = RMSNorm(d_model, eps, dtype=F64)
    module.load_state_dict({"weight": weights})
    return module(x)


def run_swiglu(d_model: int, d_ff: int, w1: Tensor, w2: Tensor, w3: Tensor, x: Tensor) -> Tensor:
    module = SwiGLU(d_model, d_ff, dtype=F64)
    module.load_state_dict({"w1.weight": w1, "w2.weight": w2, "w3.weight": w3})
    return module(x)


def run_rope(d_k: int, theta: float, max_seq_len: int, x: Tensor, positions: Tensor) -> Tensor:
    return RotaryPositionalEmbedding(theta, d_k, max_seq_len)(x, positions)


def run_multihead_self_attention(d_model: int, heads: int, weights: Weights, x: Tensor) -> Tensor:
    module = CausalMultiHeadSelfAttention(d_model, heads, dtype=F64)
    module.load_state_dict(weights)
    return module(x)


def run_multihead_self_attention_with_rope(
    d_model: int, heads: int, max_seq_len: int, theta: float, weights: Weights, x: Tensor, positions: Tensor | None
) -> Tensor:
    module = CausalMultiHeadSelfAttention(d_model, heads, max_seq_len, theta, dtype=F64)
    module.load_state_dict(weights)
    return module(x, positions)


def run_transformer_block(
    d_model: int, heads: int, d_ff: int, max_seq_len: int, theta: float, weights: Weights, x: Tensor
) -> Tensor:
    module = TransformerBlock(d_model, heads, d_ff, max_seq_len, theta, dtype=F64)
    module.load_state_dict(weights)
    return module(x)


def run_transformer_lm(
    vocab_size: int,
    context_length: int,
    d_model: int,
    layers: int,
    heads: int,
    d_ff: int,
    theta: float,
    weights: Weights,
    ids: Tensor,
) -> Tensor:
    module = TransformerLM(vocab_size, context_length, d_model, layers, heads, d_ff, theta, dtype=F64)
    module.load_state_dict(weights)
    return module(ids)
