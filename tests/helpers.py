"""What several test modules share."""

import os
import pty
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import jaxtyping
import pytest
import torch
from _pytest.mark import ParameterSet
from torch import nn

PATHS = ("eager", "sdpa")
Value = TypeVar("Value")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def some_at_once(values: Iterable[Value], at_once: Callable[[Value], bool]) -> list[ParameterSet]:
    """Parameters of a test: those that are wanted at once, the others with the long tests; a tuple is several."""
    found = []
    for value in values:
        several = value if isinstance(value, tuple) else (value,)
        name = "-".join(getattr(one, "id", str(one)) for one in several)
        found.append(pytest.param(*several, id=name, marks=() if at_once(value) else pytest.mark.slow))
    return found


@contextmanager
def file_size_limit(most: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: as on a full disk, writing more is an error of the system.

    Python does not check whether its bytecode was written as a whole, so it must not write any.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[0][1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        sys.dont_write_bytecode = before[1]


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter anew, norms included: with the usual starting values swapped norms would not show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.15
            is_gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(noise + 1 if is_gain else noise)
    return module


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max |a − b| in float64; NaN anywhere gives NaN, which no bound accepts."""
    return float((a.detach().double() - b.detach().double()).abs().max())


def relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max |a − b| in units of the largest |b|, or of 1 where all of b is smaller."""
    return largest_difference(a, b) / max(1.0, float(b.detach().abs().max()))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, device: object = "cpu") -> torch.Tensor:
    """Standard normal numbers that depend on the seed alone, not on the device or on earlier draws."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def right_padded(*lengths: int, width: int, device: object = "cpu") -> torch.Tensor:
    """True at the first ``lengths[b]`` of ``width`` slots in row b."""
    return torch.arange(width, device=device) < torch.tensor(lengths, device=device)[:, None]


def interleave_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a projection made for rotary pairs (i, i + d/2), reordered for pairs (2i, 2i + 1)."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)


@contextmanager
def types_unchecked() -> Iterator[None]:
    """Switch the run-time shape checks off, to meet the errors that users meet."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def on_screen(command: list[str], ctrl_c_at: bytes | None = None) -> tuple[int, str]:
    """What a terminal shows of a program, and how it ends; with Ctrl-C once a pattern is to be seen."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover  # the child becomes the program
        os.environ.update(COLUMNS="100", TERM="xterm")
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background inherit that it is ignored
        os.execv(command[0], command)
    output, deadline = b"", time.monotonic() + 300  # a machine busy with other tests is slow to start and to stop
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                output += os.read(terminal, 65536)
            except OSError:  # the other end was closed
                break
        if ctrl_c_at is not None and re.search(ctrl_c_at, output):
            os.write(terminal, b"\x03")
            ctrl_c_at = None
    else:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return status, output.decode()
