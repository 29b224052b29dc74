"""The tokenizer and training functions of the first assignment of Stanford's CS336, with its names and signatures.

Each calls code of this package or of PyTorch. The model's modules (``Linear``, ``RMSNorm``, ``TransformerLM`` …) are
imported from ``glassformer`` itself; ``docs/course.md`` shows the adapters of the course's public tests.

Shapes: ``...`` batch axes, ``V`` vocabulary, ``B`` rows, ``T`` tokens of a row, ``N`` tokens of a dataset.
"""

from collections.abc import Iterable
from io import BytesIO
from math import inf
from os import PathLike
from typing import IO

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.optim import AdamW as AdamW
from torch.optim import Optimizer

from glassformer.config.checks import check_positive_integer, check_positive_number
from glassformer.objectives.base import token_losses
from glassformer.objectives.causal_lm import Windows
from glassformer.text.bpe import BPETokenizer as BPETokenizer
from glassformer.text.bpe import train_bpe as train_bpe
from glassformer.training.schedules import warmup_cosine

__all__ = [
    "AdamW",
    "BPETokenizer",
    "cross_entropy",
    "get_batch",
    "get_lr_cosine_schedule",
    "gradient_clipping",
    "load_checkpoint",
    "save_checkpoint",
    "train_bpe",
]

File = str | PathLike[str] | IO[bytes] | BytesIO


def cross_entropy(inputs: Float[Tensor, "... V"], targets: Int[Tensor, "..."]) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of logits in nats; finite for logits of any finite size.

    Positions with the target −100 are not counted, as in PyTorch; if all are, the mean is NaN.
    """
    total, count = token_losses(inputs, targets)
    return total / count


def gradient_clipping(parameters: Iterable[nn.Parameter], max_l2_norm: float) -> None:
    """Scale all gradients down together, in place, if their common L2 norm exceeds ``max_l2_norm``.

    Parameters without a gradient are left out.
    """
    check_positive_number(max_l2_norm=max_l2_norm)
    nn.utils.clip_grad_norm_(parameters, max_l2_norm)


def get_lr_cosine_schedule(
    it: int, max_learning_rate: float, min_learning_rate: float, warmup_iters: int, cosine_cycle_iters: int
) -> float:
    """Return the learning rate of iteration ``it``: linear from 0 to the maximum, half a cosine wave to the minimum.

    The warm-up ends at iteration ``warmup_iters``, the cosine at ``cosine_cycle_iters``; then the minimum stays.
    """
    if not 0 <= max_learning_rate < inf:
        raise ValueError(f"max_learning_rate must be a finite number of at least 0, got {max_learning_rate!r}.")
    if not 0 <= warmup_iters <= cosine_cycle_iters:
        raise ValueError(
            f"warmup_iters must be at least 0 and at most cosine_cycle_iters={cosine_cycle_iters}; got {warmup_iters}."
        )
    if it >= cosine_cycle_iters:
        return min_learning_rate
    progress, warmup = it / cosine_cycle_iters, warmup_iters / cosine_cycle_iters
    share = warmup_cosine(progress, warmup=warmup, start=0.0, floor=0.0)
    lowest = 0.0 if it < warmup_iters else min_learning_rate
    return lowest + (max_learning_rate - lowest) * share


def get_batch(
    dataset: Integer[np.ndarray, "N"], batch_size: int, context_length: int, device: torch.device | str
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Return random windows of a long text, each with the same probability: inputs, and targets one token later.

    ``dataset`` may be memory-mapped (``np.memmap``): only the windows are read. ``torch.manual_seed`` reproduces them.
    """
    check_positive_integer(batch_size=batch_size, context_length=context_length)
    if len(dataset) <= context_length:
        raise ValueError(
            f"a dataset of {len(dataset)} tokens has no window of context_length={context_length} tokens and a next "
            "one; take a longer text or a shorter context."
        )
    windows = Windows(dataset, context_length, source="any")  # without it the whole dataset would be read for a hash
    starts = torch.randint(len(windows), (batch_size,)).tolist()
    rows = torch.stack([windows[start] for start in starts]).to(device)  # (B, T + 1)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def save_checkpoint(model: nn.Module, optimizer: Optimizer, iteration: int, out: File) -> None:
    """Write the state of a model and its optimizer, and the number of iterations done, to a path or a binary file.

    The weights of a compiled model have the names of the plain one, so that either can load them.
    """
    state = {"model": _plain(model).state_dict(), "optimizer": optimizer.state_dict(), "iteration": int(iteration)}
    torch.save(state, out)


def load_checkpoint(src: File, model: nn.Module, optimizer: Optimizer) -> int:
    """Restore the state that ``save_checkpoint`` wrote and return the number of iterations; runs no code of the file.

    Tensors move to the device of the parameters.
    """
    state = torch.load(src, map_location="cpu", weights_only=True)
    _plain(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["iteration"])


def _plain(model: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wraps, or the model itself."""
    inner = getattr(model, "_orig_mod", model)
    assert isinstance(inner, nn.Module)
    return inner
