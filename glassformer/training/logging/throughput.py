"""Throughput of a run: model FLOPs utilisation, and peak memory.

Model FLOPs utilisation (Chowdhery et al., 2022, appendix B)::

    MFU = FLOPs of the model per token × tokens per second / (devices × peak of one)

Counted are the matrix products of ``inspect.account`` in one training step, forward once and backward twice: for a row
without padding; for every query with every key of its row, though a causal kernel computes half of them and packed
documents see only themselves. Not counted are element-wise operations, the optimizer, and recomputation. Tokens are
those of ``Report.tokens``: without padding, of source and target together.

The peak is the dense one that the manufacturer publishes, or a measured one. For unknown hardware there is no MFU.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.config import Model
from glassformer.config.checks import check_choice, check_number, check_positive
from glassformer.inspect.account.account import account
from glassformer.inspect.account.hardware import HARDWARE, Hardware
from glassformer.training.loop import WIDTHS, Precision
from glassformer.training.objectives.base import Batch

# What torch.cuda.get_device_name calls the devices of the table. Whole names: an H100 for PCIe is another device.
DEVICES = {
    "Tesla V100-SXM2-32GB": "V100 SXM2 32GB",
    "Tesla T4": "T4",
    "NVIDIA A100-SXM4-40GB": "A100 SXM 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA B200": "B200",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "AMD Instinct MI300X": "MI300X",
}


class RowLength(NamedTuple):
    """Length of a row of a batch, without padding."""

    context: int  # tokens with a target: those of an encoder-decoder's target side
    source: int | None = None  # tokens of an encoder-decoder's source; None: as many as the target


def typical_row(batches: Iterable[Batch]) -> RowLength:
    """The row whose FLOPs per token are those of all rows together.

    A row of t tokens takes a·t + b·t² FLOPs, so lengths are weighted by their tokens: Σt² / Σt, and not Σt / n.
    """
    batches = list(batches)
    if not batches:
        raise ValueError("there is no batch to compute a typical row length from.")
    source = _typical([_lengths(batch, "ids", "mask") for batch in batches])
    if "target" not in batches[0].inputs:
        return RowLength(source)
    return RowLength(_typical([_lengths(batch, "target", "target_mask") for batch in batches]), source)


def _lengths(batch: Batch, ids: str, mask: str) -> Tensor:
    """Tokens of each row without padding; a mask may hold the numbers of packed documents, 0 for padding."""
    token_mask = batch.inputs.get(mask, torch.ones_like(batch.inputs[ids])) > 0
    return token_mask.sum(-1).double()


def _typical(lengths: list[Tensor]) -> int:
    t = torch.cat(lengths)  # (rows,)
    return max(1, round(float((t**2).sum() / t.sum().clamp(min=1))))


def flops_per_token(facts: Model, row: RowLength, *, answered: float = 1.0, trained: bool = True) -> float:
    """FLOPs of a model per token that it reads in training.

    For two models in one run (a generator and a discriminator, a student and a teacher) add up both.

    Args:
        facts: of the model.
        row: the length of a typical row.
        answered: the fraction of positions to which the head is applied; below 1 for an objective that drops the others
            before the head, as ``Masked`` does with ``chunk``.
        trained: False for a teacher, which has no backward pass.
    """
    if not 0 < answered <= 1:
        raise ValueError(f"answered is a fraction of the positions, above 0 and at most 1; got {answered}.")
    if row.source is not None and facts.family != "encoder-decoder":
        raise ValueError(f"only an encoder-decoder has source tokens ({row.source}); this model is a {facts.family}.")
    result = account(facts, context=row.context, source=row.source)
    head = sum(part.flops for part in result.root.parts if part.path == "head")
    passes = 3 if trained else 1  # the backward pass has one product for the gradient of each factor
    return passes * (result.flops - (1 - answered) * head) / (row.context + (row.source or 0))


def known_peak(device: torch.device | str, precision: Precision, hardware: Hardware | None = None) -> float | None:
    """Peak FLOP/s of a device in a precision; None if it is not known.

    Args:
        device: where the model is.
        precision: of its products. float32 counts as tf32 if torch is set to use that.
        hardware: your own numbers (``hardware.own``) or measured ones (``measure.measure_machine``), instead of the
            published ones. A precision that they lack is an error.
    """
    check_choice("precision", precision, WIDTHS)
    device = torch.device(device)
    if device.type != "cuda":
        return None if hardware is None else hardware.peak(precision)
    is_tf32 = precision == "float32" and torch.get_float32_matmul_precision() != "highest"
    if hardware is not None:
        return hardware.peak("tf32" if is_tf32 and "tf32" in hardware.flops else precision)
    known = DEVICES.get(torch.cuda.get_device_name(device))
    if known is None:
        return None
    flops = HARDWARE[known].flops
    return flops.get("tf32" if is_tf32 and "tf32" in flops else precision)


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """What MFU is computed from."""

    flops_per_token: float
    peak: float  # FLOP/s of one device
    devices: int = 1

    def __post_init__(self) -> None:
        check_number(flops_per_token=self.flops_per_token, peak=self.peak)
        check_positive(devices=self.devices)

    @classmethod
    def known(
        cls,
        flops_per_token: float,
        device: torch.device | str,
        precision: Precision,
        *,
        devices: int = 1,
        hardware: Hardware | None = None,
    ) -> "Utilisation | None":
        """With the peak of ``known_peak``; None if that is not known."""
        peak = known_peak(device, precision, hardware)
        return None if peak is None else cls(flops_per_token=flops_per_token, peak=peak, devices=devices)

    def at(self, tokens_per_second: float) -> float:
        """MFU at a throughput of all devices together."""
        return self.flops_per_token * tokens_per_second / (self.devices * self.peak)


def peak_memory(device: torch.device | str) -> int | None:
    """Peak memory in bytes so far: on CUDA of torch's tensors, on a CPU of the whole process; else None."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu":
        return None
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # in bytes there, in KiB elsewhere


def utilisation_of(
    facts: Sequence[Model], batch: Batch, device: torch.device, precision: Precision, devices: int
) -> Utilisation | None:
    """What MFU is computed from, for rows like those of a batch; ``facts`` of all models that are trained on it."""
    row = typical_row([batch])
    flops = sum(flops_per_token(model, row) for model in facts)
    return Utilisation.known(flops, device, precision, devices=devices)
