"""Memory against time: blocks hold their inputs alone and run again in the backward pass (Chen et al., 2016).

A training step then holds about one vector per token and block in place of some twenty, and costs a forward pass more;
``inspect.account`` counts both. Gradients are the same to the bit: random numbers are drawn again as they were, so
dropout falls on the same values. What is not differentiated (evaluation, writing with a cache) goes on as ever.
"""

from torch import nn

from glassformer.training.block_calls import block_calls, calls_in, take_away_idle


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
