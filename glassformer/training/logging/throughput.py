"""How near a run is to the peak of its hardware, and how much memory it took.

Model FLOPs utilisation (Chowdhery et al., 2022, appendix B)::

    MFU = FLOPs of the model per token × tokens per second / (devices × peak of one)

Counted are the matrix products of ``inspect.account`` in one training step, forward once and backward twice: of a row
without padding, since padding is read by nobody; of every query with every key of its row, though a causal kernel does
half of them and packed documents see only themselves. Not counted are element-wise work, the optimizer, and what is
computed again to save memory. Tokens are those of ``Report.tokens``: real ones, of source and target together.

The peak is the dense one that the maker publishes, or a measured one. Of hardware that is not known there is no MFU.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.config import Model
from glassformer.config.checks import check_choice, check_number, check_positive
from glassformer.data.objectives.base import Batch
from glassformer.inspect.account.account import account
from glassformer.inspect.account.hardware import HARDWARE, Hardware
from glassformer.training.loop import WIDTHS, Precision

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


class Row(NamedTuple):
    """How long a row of a batch is, without padding."""

    context: int  # tokens that the model answers: an encoder-decoder's target
    source: int | None = None  # tokens of an encoder-decoder's source; None: its decoder reads the same text again


def typical_row(batches: Iterable[Batch]) -> Row:
    """The row whose FLOPs per token are those of all rows together.

    A row of t tokens takes a·t + b·t² FLOPs, so per token the lengths count by their tokens: Σt² / Σt, and not Σt / n.
    """
    found = list(batches)
    if not found:
        raise ValueError("there is no batch to tell the length of a typical row from.")
    source = _typical([_lengths(batch, "ids", "mask") for batch in found])
    if "target" not in found[0].inputs:
        return Row(source)
    return Row(_typical([_lengths(batch, "target", "target_mask") for batch in found]), source)


def _lengths(batch: Batch, ids: str, mask: str) -> Tensor:
    """Real tokens of each row; a mask may hold the numbers of packed documents, 0 for padding."""
    real = batch.inputs.get(mask, torch.ones_like(batch.inputs[ids])) > 0
    return real.sum(-1).double()


def _typical(lengths: list[Tensor]) -> int:
    every = torch.cat(lengths)
    return max(1, round(float((every**2).sum() / every.sum().clamp(min=1))))


def flops_per_token(facts: Model, row: Row, *, answered: float = 1.0, trained: bool = True) -> float:
    """FLOPs of a model for each token that it reads in training.

    For two models in one run (a generator and a discriminator, a student and a teacher) add up those of both.

    Args:
        facts: of the model.
        row: the length of a typical row.
        answered: the share of the places that the head is asked about; below 1 for an objective that leaves the others
            out before the head, as ``Masked`` does with ``chunk``.
        trained: False for a teacher, which has no backward pass.
    """
    if not 0 < answered <= 1:
        raise ValueError(f"answered is a share of the places, above 0 and at most 1; got {answered}.")
    if row.source is not None and facts.family != "encoder-decoder":
        raise ValueError(f"a row of {row.source} source tokens is an encoder-decoder's; this is of {facts.family}s.")
    one = account(facts, context=row.context, source=row.source)
    head = sum(part.flops for part in one.root.parts if part.path == "head")
    passes = 3 if trained else 1  # backward, each product has one for the gradient of either side
    return passes * (one.flops - (1 - answered) * head) / (row.context + (row.source or 0))


def known_peak(device: torch.device | str, precision: Precision, hardware: Hardware | None = None) -> float | None:
    """FLOP/s that a device reaches at best in a precision; None where nobody has said.

    Args:
        device: where the model is.
        precision: of its products. float32 is taken for tf32 where torch has been told to use that.
        hardware: figures of your own (``hardware.own``) or measured ones (``measure.measure_machine``), in place of the
            published ones. What they do not have is an error.
    """
    check_choice("precision", precision, WIDTHS)
    device = torch.device(device)
    if device.type != "cuda":
        return None if hardware is None else hardware.peak(precision)
    rounds = precision == "float32" and torch.get_float32_matmul_precision() != "highest"
    if hardware is not None:
        return hardware.peak("tf32" if rounds and "tf32" in hardware.flops else precision)
    known = DEVICES.get(torch.cuda.get_device_name(device))
    if known is None:
        return None
    flops = HARDWARE[known].flops
    return flops.get("tf32" if rounds and "tf32" in flops else precision)


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """What MFU is reckoned from."""

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
        """With the peak of ``known_peak``; None where that is not known."""
        peak = known_peak(device, precision, hardware)
        return None if peak is None else cls(flops_per_token=flops_per_token, peak=peak, devices=devices)

    def at(self, tokens_per_second: float) -> float:
        """MFU at a speed of all devices together."""
        return self.flops_per_token * tokens_per_second / (self.devices * self.peak)


def peak_memory(device: torch.device | str) -> int | None:
    """The most bytes that were held so far: on CUDA by torch's tensors, on a CPU by the whole process; else None."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu":
        return None
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # in bytes there, in KiB elsewhere


def utilisation_of(
    facts: Sequence[Model], batch: Batch, device: torch.device, precision: Precision, devices: int
) -> Utilisation | None:
    """What MFU is reckoned from, for rows like those of a batch; ``facts`` of all models that learn from it."""
    row = typical_row([batch])
    flops = sum(flops_per_token(one, row) for one in facts)
    return Utilisation.known(flops, device, precision, devices=devices)
