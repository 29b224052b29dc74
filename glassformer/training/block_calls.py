"""How the blocks of a model are called while it trains: their activations made twice, through a compiler, or both.

``nn.Module.__call__`` hands over to whatever ``nn.Module.compile`` has put into ``_compiled_call_impl``, if anything. A
``Call`` stands in that place. So no class, method or name in the state dict changes, a deep copy is a plain model, and
the two can be combined in one order alone, the one that is right: what is made twice is the compiled block. (The other
way round a compiler has to keep random numbers the same by itself, and not every backend of PyTorch does.)
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
