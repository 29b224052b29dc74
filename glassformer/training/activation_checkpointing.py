"""Activation checkpointing: blocks save only their inputs and run again in the backward pass (Chen et al., 2016).

A training step then saves about one vector per token and block instead of some twenty, and costs one more forward pass;
``inspect.account`` counts both. Gradients are the same bit for bit: random numbers are drawn again as they were, so
dropout falls on the same values. Calls without gradients (evaluation, generation with a cache) are unchanged.

``nn.Module.__call__`` calls whatever ``nn.Module.compile`` has stored in ``_compiled_call_impl``, if anything: here a
``Call``. So no class, method or name in the state dict changes, a deep copy is a plain model, and checkpointing
and ``compiling`` combine in the one order that is right: the compiled block runs twice. (The other way round the
compiler itself has to keep random numbers the same, and not every backend of PyTorch does.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from glassformer.nn.block import Block
from glassformer.nn.layers import TransformerBlock


class Call:
    """Replaces the call of a module. With a cache, which grows at every call, the module is called as usual."""

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
    """The ``Call`` of a module, which gets one if it has none."""
    call = module._compiled_call_impl
    if call is None:
        call = module._compiled_call_impl = Call(module)
    if not isinstance(call, Call):
        raise ValueError(f"this {type(module).__name__} is compiled already; use compile_model instead.")
    return call


def block_calls(model: nn.Module) -> list[Call]:
    """The ``Call`` of every block of a model."""
    blocks = [part for part in model.modules() if isinstance(part, Block | TransformerBlock)]
    if not blocks:
        raise ValueError(f"this {type(model).__name__} has no blocks.")
    return [call_of(block) for block in blocks]


def calls_in(model: nn.Module) -> dict[nn.Module, Call]:
    """Every ``Call`` there is, of the model and all of its modules."""
    calls = {part: part._compiled_call_impl for part in model.modules()}
    return {part: call for part, call in calls.items() if isinstance(call, Call)}


def remove_unused_calls(model: nn.Module) -> None:
    """Remove every ``Call`` that neither compiles nor recomputes."""
    for part, call in calls_in(model).items():
        if call.compiled is None and not call.recomputes:
            part._compiled_call_impl = None


def checkpoint_blocks(model: nn.Module) -> None:
    """Let every block of a model save only its input. Names, facts and saved files stay as they are."""
    if model._compiled_call_impl is not None:
        raise ValueError("the whole model is compiled as one graph; compile its blocks to recompute them.")
    for call in block_calls(model):
        call.recomputes = True


def hold_activations(model: nn.Module) -> None:
    """Undo ``checkpoint_blocks``."""
    for call in calls_in(model).values():
        call.recomputes = False
    remove_unused_calls(model)
