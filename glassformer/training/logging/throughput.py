"""Throughput of a run: model FLOPs utilisation, and peak memory.

Model FLOPs utilisation (Chowdhery et al., 2022, appendix B)::

    MFU = FLOPs of the model per token × tokens per second / (devices × peak of one)

Counted are the matrix products of ``inspect.account`` in one training step, forward once and backward twice: for a row
without padding; for every query with every key of its row, though a causal kernel computes half of them and packed
documents see only themselves. Not counted are element-wise operations, the optimizer, and recomputation. Tokens are
those of ``Report.tokens``: without padding, of source and target together.

The peak is the dense one that the manufacturer publishes, or a measured one. For unknown hardware there is no MFU.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.config import ModelConfig
from glassformer.config.checks import check_choice, check_positive_integer, check_positive_number
from glassformer.inspect.account.account import account
from glassformer.inspect.account.hardware import HARDWARE, Hardware
from glassformer.inspect.account.measure import main_memory
from glassformer.objectives.base import Batch
from glassformer.training.loop import DTYPES, Precision

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
    """Return the row whose FLOPs per token are those of all rows together.

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
    """Return the number of tokens in each row; a mask may hold the numbers of packed documents, 0 for padding."""
    token_mask = batch.inputs.get(mask, torch.ones_like(batch.inputs[ids])) > 0
    return token_mask.sum(-1).double()


def _typical(lengths: list[Tensor]) -> int:
    t = torch.cat(lengths)  # (rows,)
    return max(1, round(float((t**2).sum() / t.sum().clamp(min=1))))


def flops_per_token(facts: ModelConfig, row: RowLength, *, head_share: float = 1.0, trained: bool = True) -> float:
    """Return the FLOPs of a model per token that it is fed in training.

    For two models in one run (a generator and a discriminator, a student and a teacher) add up both.

    Args:
        facts: of the model.
        row: the length of a typical row.
        head_share: the share of positions to which the head is applied; below 1 for an objective that drops the others
            before the head, as ``MaskedLM`` does with ``chunk``.
        trained: False for a teacher, which has no backward pass.
    """
    if not 0 < head_share <= 1:
        raise ValueError(f"head_share is a fraction of the positions, above 0 and at most 1; got {head_share}.")
    if row.source is not None and facts.family != "encoder-decoder":
        raise ValueError(f"only an encoder-decoder has source tokens ({row.source}); this model is a {facts.family}.")
    result = account(facts, context=row.context, source=row.source)
    head = sum(part.flops for part in result.root.parts if part.path == "head")
    passes = 3 if trained else 1  # the backward pass has one product for the gradient of each factor
    return passes * (result.flops - (1 - head_share) * head) / (row.context + (row.source or 0))


def known_peak(device: torch.device | str, precision: Precision, hardware: Hardware | None = None) -> float | None:
    """Return the peak FLOP/s of a device in a precision; None if it is not known.

    Args:
        device: where the model is.
        precision: of its products. float32 counts as tf32 if torch is set to use that.
        hardware: your own numbers (``hardware.own``) or measured ones (``measure.measure_machine``), instead of the
            published ones. A precision that they lack is an error.
    """
    check_choice("precision", precision, DTYPES)
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
        check_positive_number(flops_per_token=self.flops_per_token, peak=self.peak)
        check_positive_integer(devices=self.devices)

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
        """Return MFU at a throughput of all devices together."""
        return self.flops_per_token * tokens_per_second / (self.devices * self.peak)


def peak_memory(device: torch.device | str) -> int | None:
    """Return the peak memory so far in bytes: on CUDA of torch's tensors, on a CPU of the whole process; else None."""
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


def current_memory(device: torch.device | str) -> int | None:
    """Return what ``peak_memory`` would be now: bytes of torch's tensors on CUDA, of the process on a CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    file = Path("/proc/self/statm")  # pages: of the address space, resident, …
    if device.type != "cpu" or not file.is_file():
        return peak_memory(device)
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_limit(device: torch.device | str, processes: int = 1) -> int | None:
    """Return how many bytes this process can have on a device: its own and the free ones; None if not known.

    On a CPU, the limits of the process's control group (containers) count as well, and ``processes`` of this machine
    share the memory equally; a GPU has one process.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type != "cpu":
        return None
    own, limits = current_memory(device) or 0, []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        limits.append(own + 1024 * int(lines["MemAvailable"].split()[0]) // processes)
    elif (total := main_memory()) is not None:
        limits.append(total // processes)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup") / name
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            limits.append(int(text) // processes)
    return min(limits, default=None)


def utilisation_of(
    facts: Sequence[ModelConfig], batch: Batch, device: torch.device, precision: Precision, devices: int
) -> Utilisation | None:
    """Return what MFU is computed from, for rows like those of a batch.

    ``facts`` of all models that are trained on it.
    """
    if known_peak(device, precision) is None:  # counting FLOPs takes a while
        return None
    row = typical_row([batch])
    flops = sum(flops_per_token(model, row) for model in facts)
    return Utilisation.known(flops, device, precision, devices=devices)
