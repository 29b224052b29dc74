"""``torch.compile``, applied to a model in place: no wrapper, so its names and methods stay.

By default each block is compiled. Equal blocks share one compiled graph, so a model of any depth starts quickly, and
every entry point runs compiled blocks: ``model(...)`` as well as ``encode``, ``decode`` and ``apply_head``, which
objectives call. Compiled as a whole, ``model(...)`` is one graph, slower to start; the other entry points are then
correct, but not compiled.

Sizes: the first batch is compiled for its own sizes. The first one of other sizes makes a graph for any (and sizes of
1, which PyTorch always specialises, some more); ragged batches need no new graph after a handful, and batches of one
size keep the faster graph. ``dynamic=True`` makes the general graph at once.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from einops import rearrange
from torch import nn

from glassformer.config.checks import check_choice
from glassformer.training.activation_checkpointing import block_calls, call_of, calls_in, remove_unused_calls

# All blocks of all models in a process count as one function, of which PyTorch compiles 8 versions and no more: too few
# for encoder and decoder, with and without gradients, of any size.
VERSIONS = 64


def compile_model(
    model: nn.Module,
    parts: Literal["blocks", "whole"] = "blocks",
    *,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
) -> None:
    """Compile a model in place; the compilation happens when the model is first called.

    Raises PyTorch's limit of versions per function, for the whole process. Calls with a cache are not compiled: each
    would have sizes of its own.
    """
    check_choice("parts", parts, ("blocks", "whole"))
    torch._dynamo.config.recompile_limit = max(VERSIONS, torch._dynamo.config.recompile_limit)
    if parts == "whole" and any(call.recomputes for call in calls_in(model).values()):
        raise ValueError('one graph replaces the calls of blocks, so they would not recompute; use parts="blocks".')
    for tensor in (torch.empty(1, 1), nn.Parameter(torch.empty(1, 1))):
        rearrange(tensor, "a b -> b a")  # einops registers each type at first use, which would invalidate a graph
    for call in block_calls(model) if parts == "blocks" else [call_of(model)]:
        call.compiled = torch.compile(call.plain, dynamic=dynamic, backend=backend)


def uncompile_model(model: nn.Module) -> None:
    """Undo ``compile_model``."""
    for call in calls_in(model).values():
        call.compiled = None
    remove_unused_calls(model)
