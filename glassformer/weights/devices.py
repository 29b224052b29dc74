"""Whether weights can lie on a device, asked before anything is put there."""

import torch

KINDS = ("cpu", "cuda", "mps", "xpu")


def check_device(name: str, *, said: str = "device") -> None:
    """Raise unless tensors can be made on the device of this name; ``said`` is what the user knows the choice by."""
    if name.partition(":")[0] not in KINDS:
        raise ValueError(f"{said} {name} cannot be used here: say cpu, cuda, cuda:1 or mps.")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{said} {name} cannot be used here: {reason}. The CPU always can: {said} cpu.") from error
