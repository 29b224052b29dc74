"""Where training starts: the weights of a fresh model, as a page of facts says."""

import math
from collections.abc import Collection

from torch import nn

from glassformer import config
from glassformer.nn.convolution import Convolution
from glassformer.nn.linear import Embedding, Linear


def initialise(model: nn.Module, facts: config.Model, only: Collection[str] | None = None) -> None:
    """Give every weight its starting value: each is drawn once, whatever it held before, be it nothing.

    With ``only``, names of weights, just the modules all of whose weights are among them.

    Linear maps, convolutions and tables start from N(0, std²), cut at ±3σ; without a ``std`` by the rule of their own.
    Biases start at 0 and norms at 1. With ``residual_scaling`` the projections that write into the residual stream
    start smaller by √(number of such writes) (Radford et al., 2019).
    """
    std = facts.init.std
    table_std = std if facts.init.table_std is None else facts.init.table_std
    for name, module in model.named_modules():
        own = {f"{name}.{weight}" for weight, _ in module.named_parameters(recurse=False)}
        if only is not None and not own <= set(only):
            continue
        if isinstance(module, Embedding):
            module.reset_parameters(1.0 if table_std is None else table_std)
        elif isinstance(module, Linear | Convolution):
            module.reset_parameters(None if std is None else std / math.sqrt(_writes(name, facts)))
        elif own:
            module.reset_parameters()  # whoever owns parameters must say how they start


def _writes(name: str, facts: config.Model) -> int:
    """How many projections share the residual stream that this one writes into; 1 if it is to start like any other."""
    stack = {"encoder": facts.encoder, "decoder": facts.decoder}.get(name.split(".")[0])
    if stack is None or not facts.init.residual_scaling or name.rsplit(".", 1)[-1] not in ("o", "down"):
        return 1
    return stack.layers * (3 if stack.cross else 2)
