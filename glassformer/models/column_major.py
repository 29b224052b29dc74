"""Weights column by column in memory, for decoding in float32 on a CPU; names, shapes and values stay the same.

A decoding step reads every matrix W ``(out, in)`` once, for one vector or a few, and is limited by memory. The library
that multiplies (MKL) reads a column-major W faster: 1.25 times for one vector, the same from 16 on; see
``benchmarks/LOG.md``.
"""

import torch
from torch import nn

from glassformer.models.output_heads import LMHead
from glassformer.models.quantize import is_quantized
from glassformer.models.transformer import Transformer
from glassformer.nn.linear import Linear


def to_column_major(model: Transformer) -> None:
    """Reorder, in place, the matrices that a decoding step multiplies: those of the decoder and of the head.

    A table that the head is tied to is one of them. Call it before other threads use the model. Results change by
    rounding, so a training run that must go on to the bit keeps its weights row by row, as ``load`` does by default;
    saved files are the same. A later ``model.half()`` would keep the order, which is slow in half precision.
    """
    if is_quantized(model):
        raise ValueError("int8 weights have an order of their own; leave out quantize or column_major.")
    matrices = _decoding_matrices(model)
    for matrix in matrices:
        if matrix.dtype != torch.float32 or not matrix.is_cpu:
            raise ValueError(
                f"column-major weights are faster only for float32 weights on a CPU; these are {matrix.dtype} on "
                f"{matrix.device}: load the model with dtype=float32, or without column_major."
            )
    for matrix in matrices:
        matrix.data = matrix.data.t().contiguous().t()


def decodes_faster_column_major(model: Transformer) -> bool:
    """Whether ``to_column_major`` makes the model decode faster: float32 weights on a CPU, and a decoder."""
    matrices = _decoding_matrices(model)
    return bool(matrices) and all(matrix.dtype == torch.float32 and matrix.is_cpu for matrix in matrices)


def _decoding_matrices(model: Transformer) -> list[nn.Parameter]:
    """Return the matrices of the decoder and of the head; none for int8 weights, or without a decoder."""
    if model.decoder is None or is_quantized(model):
        return []
    parts = [*model.decoder.modules(), *([] if model.head is None else model.head.modules())]
    matrices = [part.weight for part in parts if isinstance(part, Linear)]
    if isinstance(model.head, LMHead) and model.head.out is None:
        assert model.embed.token is not None
        matrices.append(model.embed.token.weight)
    return matrices
