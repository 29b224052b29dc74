"""Set up ``torch.compile`` for parts of a model: more versions per function, and code that can be freed."""

from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import finalize

import torch
from einops import rearrange
from torch import nn

# All blocks of all models in a process count as one function, of which PyTorch compiles 8 versions and no more: too few
# for encoder and decoder, with and without gradients, of any size.
VERSIONS = 64


def prepare_compiler() -> None:
    """Raise PyTorch's limit of versions per function, for the whole process, and let einops register its types."""
    torch._dynamo.config.recompile_limit = max(VERSIONS, torch._dynamo.config.recompile_limit)
    for tensor in (torch.empty(1, 1), nn.Parameter(torch.empty(1, 1))):
        rearrange(tensor, "a b -> b a")  # einops registers each type at first use, which would invalidate a graph


def compile_alone(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function as one graph, with a limit of versions of its own, and free what was compiled with it.

    PyTorch keeps what it compiles, and counts its versions, by the code of a function: functions that one ``def`` makes
    would share both. ``function`` must be made for this call, because its code is replaced by a copy.
    """
    assert isinstance(function, FunctionType)
    prepare_compiler()
    function.__code__ = function.__code__.replace()
    finalize(function, torch._dynamo.reset_code, function.__code__).atexit = False  # type: ignore[attr-defined]
    return torch.compile(function, fullgraph=True, **options)
