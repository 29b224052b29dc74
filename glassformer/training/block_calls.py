"""Activation checkpointing and ``torch.compile``, applied to the blocks of a model in place.

``nn.Module.__call__`` calls whatever ``nn.Module.compile`` has stored in ``_compiled_call_impl``, if anything: here a
``Call``. So no class, method or name in the state dict changes, and a deep copy is a plain model. With both, the
checkpoint is outermost and runs the compiled block twice. (Inside a compiled block, the compiler would have to restore
the random states, which not every backend of PyTorch does.)

Activation checkpointing: blocks save only their inputs and run again in the backward pass (Chen et al., 2016). A
training step then saves about one vector per token and block instead of some twenty, and costs one more forward pass;
``inspect.account`` counts both. Gradients are the same bit for bit: random numbers are drawn again as they were, so
dropout falls on the same values. Calls without gradients (evaluation, generation with a cache) are unchanged.

Compilation: by default each block is compiled. Equal blocks share one compiled graph, so a model of any depth starts
quickly, and every entry point runs compiled blocks: ``model(...)`` as well as ``encode``, ``decode`` and
``apply_head``, which objectives call. Compiled as a whole, ``model(...)`` is one graph, slower to start; the other
entry points are then correct, but not compiled. The first batch is compiled for its own sizes; the first one of other
sizes makes a second graph, for all sizes (PyTorch compiles sizes of 1 separately). So batches of one size keep the
faster graph, and batches of varying sizes need only a handful. ``dynamic=True`` makes the general graph at once.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from glassformer.config.checks import check_choice
from glassformer.nn.block import Block
from glassformer.nn.kernels.compiler import prepare_compiler
from glassformer.nn.kernels.step_kernels import HAS_COMPILER, HAS_TRITON
from glassformer.nn.layers import TransformerBlock


class Call:
    """What runs instead of a module's call: compiled, checkpointed, both or, with a growing cache, the plain call."""

    def __init__(self, module: nn.Module) -> None:
        self.plain: Callable[..., Any] = module._call_impl
        self.compiled: Callable[..., Any] | None = None
        self.recomputes = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if kwargs.get("cache") is not None:
            return self.plain(*args, **kwargs)
        call = self.plain if self.compiled is None else self.compiled
        if self.recomputes and torch.is_grad_enabled():
            return checkpoint(call, *args, use_reentrant=False, **kwargs)
        return call(*args, **kwargs)


def call_of(module: nn.Module) -> Call:
    """Return the ``Call`` of a module, created if needed."""
    call = module._compiled_call_impl
    if call is None:
        call = module._compiled_call_impl = Call(module)
    if not isinstance(call, Call):
        raise ValueError(f"this {type(module).__name__} is compiled already; use compile_model instead.")
    return call


def block_calls(model: nn.Module) -> list[Call]:
    """Return the ``Call`` of every block of a model."""
    blocks = [part for part in model.modules() if isinstance(part, Block | TransformerBlock)]
    if not blocks:
        raise ValueError(f"this {type(model).__name__} has no blocks.")
    return [call_of(block) for block in blocks]


def calls_in(model: nn.Module) -> list[Call]:
    """Return the ``Call`` of the model and of each of its modules that has one."""
    calls = (part._compiled_call_impl for part in model.modules())
    return [call for call in calls if isinstance(call, Call)]


def checkpoint_blocks(model: nn.Module) -> None:
    """Turn on activation checkpointing in every block of a model. Names, facts and saved files stay as they are."""
    if model._compiled_call_impl is not None:
        raise ValueError("the whole model is compiled as one graph; compile its blocks to recompute them.")
    for call in block_calls(model):
        call.recomputes = True


def missing_compiler(device: torch.device) -> str | None:
    """Return what ``torch.compile`` lacks to make code for a device, and the remedy; None: nothing that is known."""
    if device.type == "cuda" and not HAS_TRITON:
        return (
            f"torch.compile needs {'the package triton' if HAS_COMPILER else 'a C compiler, such as gcc'}: install it"
        )
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except RuntimeError:
            return "torch.compile needs a C++ compiler: install one, such as g++, or name one in the variable CXX"
    return None


def compile_model(
    model: nn.Module,
    parts: Literal["blocks", "whole"] = "blocks",
    *,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
) -> None:
    """Compile a model in place; the compilation happens when the model is first called.

    Also increases PyTorch's limit on recompilations, for the whole process. Calls with a cache are not compiled: each
    has other sizes.
    """
    check_choice("parts", parts, ("blocks", "whole"))
    if parts == "whole" and any(call.recomputes for call in calls_in(model)):
        raise ValueError('one graph replaces the calls of blocks, so they would not recompute; use parts="blocks".')
    prepare_compiler()
    for call in block_calls(model) if parts == "blocks" else [call_of(model)]:
        call.compiled = torch.compile(call.plain, dynamic=dynamic, backend=backend)
