"""Memory against time: blocks hold their inputs alone and run again in the backward pass (Chen et al., 2016).

A training step then holds about one vector per token and block in place of some twenty, and costs a forward pass more;
``inspect.account`` counts both. Gradients are the same to the bit: random numbers are drawn again as they were, so
dropout falls on the same values. What is not differentiated (evaluation, writing with a cache) goes on as ever.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from glassformer.nn.block import Block
from glassformer.nn.layers import TransformerBlock


class Call:
    """Stands in for the call of a module. With a cache, which grows at every call, the module is called as ever."""

    def __init__(self, module: nn.Module) -> None:
        self.plain: Callable[..., Any] = module._call_impl
        self.compiled: Callable[..., Any] | None = None
        self.recomputes = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module answers."""
        if kwargs.get("cache") is not None:
            return self.plain(*args, **kwargs)
        call = self.plain if self.compiled is None else self.compiled
        if self.recomputes and torch.is_grad_enabled():
            return checkpoint(call, *args, use_reentrant=False, **kwargs)
        return call(*args, **kwargs)


def stand_in(module: nn.Module) -> Call:
    """The stand-in of a module, which gets one if it has none."""
    call = module._compiled_call_impl
    if call is None:
        call = module._compiled_call_impl = Call(module)
    if not isinstance(call, Call):
        raise ValueError(f"this {type(module).__name__} is compiled already; compile_model does it so that all fits.")
    return call


def block_calls(model: nn.Module) -> list[Call]:
    """The stand-ins of all blocks of a model."""
    blocks = [part for part in model.modules() if isinstance(part, Block | TransformerBlock)]
    if not blocks:
        raise ValueError(f"this {type(model).__name__} has no blocks.")
    return [stand_in(block) for block in blocks]


def calls_in(model: nn.Module) -> dict[nn.Module, Call]:
    """The stand-ins that there are, of the model and all of its parts."""
    every = {part: part._compiled_call_impl for part in model.modules()}
    return {part: call for part, call in every.items() if isinstance(call, Call)}


def take_away_idle(model: nn.Module) -> None:
    """Take away the stand-ins that change nothing."""
    for part, call in calls_in(model).items():
        if call.compiled is None and not call.recomputes:
            part._compiled_call_impl = None


def checkpoint_blocks(model: nn.Module) -> None:
    """Let every block of a model hold its input alone. Names, facts and saved files stay as they are."""
    if model._compiled_call_impl is not None:
        raise ValueError("the whole model is compiled as one, past its blocks; compile the blocks to recompute them.")
    for call in block_calls(model):
        call.recomputes = True


def hold_activations(model: nn.Module) -> None:
    """Undo ``checkpoint_blocks``."""
    for call in calls_in(model).values():
        call.recomputes = False
    take_away_idle(model)
